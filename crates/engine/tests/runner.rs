//! All tests of the public API of the engine, in one binary.
//!
//! | module | what it shows |
//! |---|---|
//! | `scenario` | the rules, as described and executed in `scenarios/*.md` |
//! | `oracle` | a second implementation of the rules, computed from the raw facts each time |
//! | `plain` | the default pod that the other modules start from |
//! | `sentences` | the text of every denial |
//! | `ledger` | that no interleaving of the protocol breaks a budget, and that each of its rules is needed |
//! | `simulation` | that no budget is broken in long random simulations of whole clusters |
//! | `history` | that engine and oracle agree after every step of random histories |
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot continue must fail"
)]

mod history;
mod ledger;
mod oracle;
mod plain;
mod scenario;
mod sentences;
mod simulation;

use std::path::Path;

/// A file that is not declared as a module is a test that never runs.
#[test]
fn every_file_is_a_module() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    named_in(&tests, &tests.join("runner.rs"));
}

fn named_in(folder: &Path, root: &Path) {
    let names = std::fs::read_to_string(root).unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let own_root = path.join("mod.rs");
        let is_code = path.extension().is_some_and(|end| end == "rs");
        if path == root || !(is_code || own_root.exists()) {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(names.contains(&format!("mod {name};")), "{} does not name {name}", root.display());
        if own_root.exists() {
            named_in(&path, &own_root);
        }
    }
}
