//! One interface to the embedded and the real cluster, for tests.
//!
//! - [`stories!`] makes tests from stories: each story is written once and runs on each backend.
//! - [`Cluster`] is the cluster that a story uses: clients and kubectl for any [`User`], and new namespaces.
//! - [`ControlPlane`] is a real etcd, API server, controller manager and scheduler, as built by
//!   `cargo xtask control-plane`.
//! - [`Node`] is a real kubelet for it, with running containers.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "this crate is for tests: a failure must fail the test with a panic"
)]

mod cluster;
mod control_plane;
mod embedded;
mod eventually;
mod folder;
mod kubectl;
mod modules;
mod node;
mod process;
mod story;
mod user;
mod webhook;
mod wire;

pub use cluster::{Backup, Cluster};
pub use control_plane::{ControlPlane, Kubernetes, Options};
pub use eventually::eventually;
pub use kubectl::{Kubectl, Printed};
pub use modules::assert_every_file_is_a_module;
pub use node::{ALIAS, BUSYBOX, Node};
pub use process::Process;
pub use story::{Backend, Setup, run_story};
pub use user::User;
pub use webhook::{Reply, Webhook};
pub use wire::{Patch, Watch, Wire, WireResponse};
