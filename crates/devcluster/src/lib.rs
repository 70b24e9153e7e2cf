//! A simulated Kubernetes cluster in this process, for tests and experiments.
//!
//! - [`apiserver`]: an in-memory Kubernetes API server that serves plain HTTP.
//! - [`actors`]: a simulated scheduler, kubelets and controllers. They use an ordinary client, on this API server or
//!   any other.

pub mod actors;
pub mod apiserver;
