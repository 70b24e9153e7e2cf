//! The node agent: runs the disruption probes of its node's pods, and writes the results as a pod condition.
//!
//! Data flows in one direction: a watch delivers a pod → `pod_view` reads the fields that matter → `manager`, which
//! does no I/O and owns all state, decides which probes are due → `prober` runs them → `manager` takes the results and
//! decides which conditions to write → `patch` writes them. `heartbeat` renews the Lease of the node, which shows that
//! an agent is alive; `manager` decides when it may be renewed.

mod clock;
mod container_probe;
mod disruptable;
mod heartbeat;
mod manager;
mod metrics;
mod patch;
mod pod_view;
mod prober;
mod run;
mod streak;
mod target;

pub use clock::WallClock;
pub use run::{Options, Running, start};
