//! The API server as its clients see it: through kube-rs, over TCP.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "what the tests share fails a test like the tests themselves, and takes JSON written in place"
)]

mod crds;
mod crud;
mod evictions;
mod faults;
mod served;
mod stage;
mod watches;
mod webhooks;

/// A test file that is not a module here would never run.
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
