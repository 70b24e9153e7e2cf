//! What stories may rest on, tried on every cluster they are told on.
//!
//! The same body runs against a real control plane and against the embedded one: the first proves that the test tells
//! the truth about Kubernetes, the second that the embedded cluster does too. Where the two differ on purpose, the
//! documentation of `quorate-devcluster` says so, and there is no test here.

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

/// A file that is no module is compiled by nobody, and its tests never run.
#[test]
fn every_file_here_is_a_module() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance");
    let main = include_str!("main.rs");
    for entry in std::fs::read_dir(folder).expect("the folder of the suite") {
        let name = entry.expect("a file").file_name().into_string().expect("a readable name");
        let module = name.trim_end_matches(".rs");
        assert!(
            module == "main" || main.contains(&format!("\nmod {module};\n")),
            "{name} is not a module of main.rs"
        );
    }
}
