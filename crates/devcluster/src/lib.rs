//! A Kubernetes cluster to play on, in this process.
//!
//! - [`apiserver`]: an in-memory Kubernetes API server with a plain HTTP face.
//! - [`actors`]: scheduler, kubelets and controllers that work through an ordinary client, on this API server or any other.

pub mod actors;
pub mod apiserver;
