//! Conformance tests: the behaviour that stories depend on, tested on every backend of the stories.
//!
//! The same test runs on a real control plane and on the embedded cluster. The first run proves that the test describes
//! Kubernetes correctly, the second that the embedded cluster behaves in the same way. Deliberate differences are
//! listed in the documentation of `quorate-devcluster`, and have no test here.

#![allow(clippy::expect_used, clippy::panic, reason = "a test's helpers may fail the test")]
#![allow(clippy::needless_pass_by_value, reason = "the helpers are called with literals")]

mod budget_status;
mod controllers;
mod crd_schema;
mod crd_serving;
mod crds;
mod deletion;
mod discovery;
mod dry_run;
mod eviction;
mod eviction_budget;
mod eviction_options;
mod fixtures;
mod kubectl;
mod listing;
mod mutating_webhooks;
mod objects;
mod patches;
mod pod_deletion;
mod subresources;
mod tables;
mod template_owners;
mod updates;
mod validating_webhooks;
mod watching;
mod webhook_rules;
mod workload_api;

/// A file that is not declared as a module is not compiled, and its tests never run.
#[test]
fn every_file_here_is_a_module() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance");
    quorate_testbed::assert_every_file_is_a_module(folder.as_ref());
}
