//! The demo runs without a cluster, a configuration or any file but this binary.

use std::process::Command;

#[test]
fn every_step_of_the_demo_has_the_expected_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let demo = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(["demo", "--once"])
        .env_clear()
        .env("TMPDIR", folder.path())
        .current_dir(folder.path())
        .output()
        .expect("the demo");
    let output = String::from_utf8(demo.stdout).expect("text");
    let errors = String::from_utf8(demo.stderr).expect("text");
    assert!(demo.status.success(), "{output}{errors}");
    assert_eq!(errors, "");
    // A pipe gets plain lines.
    assert!(!output.contains('\u{1b}'), "{output}");
    for line in [
        "── 1. A drain under a PodDisruptionBudget",
        "✗ Only ",
        "── 2. The same drain under a DisruptionBudget",
        "inference/llm keeps 3 of 4 groups: group ",
        "✓ Never fewer than 3 of 4 groups were whole",
        "pod db-0 must not be disrupted: its disruption probe says no",
        "✓ The pod was evicted only after its probe succeeded.",
        "Error from server (TooManyRequests): admission webhook \"pods.quorate.dev\" denied the request: ",
        "every step had the expected result",
    ] {
        assert!(output.contains(line), "{line:?} is missing in:\n{output}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("the folder").collect();
    assert!(left.is_empty(), "something is left behind: {left:?}");
}
