//! Tests of the API server through its clients: kube-rs over TCP.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "the shared helpers may fail a test, as the tests do, and take inline JSON"
)]

mod crds;
mod crud;
mod evictions;
mod faults;
mod served;
mod stage;
mod watches;
mod webhooks;

/// A test file that is not declared as a module would never run.
#[test]
fn every_file_is_a_module() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apiserver");
    let main = std::fs::read_to_string(here.join("main.rs")).unwrap();
    for entry in std::fs::read_dir(&here).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        assert!(module == "main" || main.contains(&format!("mod {module};")), "{name} is not compiled in");
    }
}
