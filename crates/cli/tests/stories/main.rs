//! What people live through with Quorate, told on the real control plane and on the embedded cluster.

#![allow(clippy::expect_used, clippy::panic, reason = "a test's helpers may fail the test")]

mod adoption;
mod agents;
mod autoscaler;
mod certificates;
mod check;
mod delete;
mod drain;
mod endpoints;
mod errors;
mod everyday;
mod explain;
mod falls_whole;
mod floor_log;
mod forged;
mod gangs;
mod gates;
mod group_log;
mod installed;
mod lagging;
mod metrics;
mod must_pass;
mod newborn;
mod operations;
mod outdated;
mod owners;
mod policy;
mod probes;
mod pubs;
mod quorate;
mod registering;
mod replicas;
mod scales;
mod scene;
mod seeds;
mod server_nodes;
mod shutdown;
mod sources;
mod space;
mod storm;
mod successors;
mod town;
mod unreadable;
mod walkthroughs;

/// A file that is no module is compiled by nobody, and its tests never run.
#[test]
fn every_file_here_is_a_module() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stories");
    let main = include_str!("main.rs");
    for entry in std::fs::read_dir(folder).expect("the folder of the suite") {
        let name = entry.expect("a file").file_name().into_string().expect("a readable name");
        let module = name.trim_end_matches(".rs");
        let listed = main.contains(&format!("\nmod {module};\n"));
        assert!(module == "main" || listed, "{name} is not a module of main.rs");
    }
}
