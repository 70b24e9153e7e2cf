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
mod fixture;
mod served;
mod watches;
mod webhooks;

/// A test file that is not declared as a module would never run.
#[test]
fn every_file_is_a_module() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apiserver");
    assert_modules(&folder, &folder.join("main.rs"));
}

fn assert_modules(folder: &std::path::Path, root: &std::path::Path) {
    let source = std::fs::read_to_string(root).unwrap();
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        if path == root {
            continue;
        }
        assert!(source.contains(&format!("mod {name};\n")), "{} is not compiled in", path.display());
        if path.is_dir() {
            assert_modules(&path, &path.join("mod.rs"));
        }
    }
}
