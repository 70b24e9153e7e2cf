//! End-to-end tests ("stories"): each runs on a real control plane and on the embedded cluster.

#![allow(clippy::expect_used, clippy::panic, reason = "a test's helpers may fail the test")]

mod agents;
mod ages;
mod agreement;
mod autoscaler;
mod certificates;
mod check;
mod chronicle;
mod clocks;
mod deadlines;
mod decisions;
mod delete;
mod disruption_mode;
mod drain;
mod endpoints;
mod errors;
mod events;
mod exempt;
mod explain;
mod fixture;
mod forged;
mod gangs;
mod gates;
mod installed;
mod kruise;
mod lagging;
mod leases;
mod metrics;
mod new_budgets;
mod operations;
mod outdated;
mod owners;
mod policy;
mod probes;
mod proposals;
mod quorate;
mod registering;
mod relabel;
mod replicas;
mod restarts;
mod restore;
mod scales;
mod server_nodes;
mod shutdown;
mod sources;
mod storm;
mod successors;
mod twins;
mod unreadable;
mod walkthroughs;
mod witness;

/// A file that is not a module is not compiled, and its tests never run.
#[test]
fn every_file_here_is_a_module() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stories");
    quorate_testbed::assert_every_file_is_a_module(folder.as_ref());
}
