//! Tests of `cargo xtask control-plane`, without Go or with a fake Go.

#![cfg(unix)]
#![allow(clippy::expect_used, reason = "a test's helpers may fail the test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A fake Go: prints a new version, and writes the file that `-o` names.
const FAKE_GO: &str = r#"#!/bin/sh
if [ "$1" = env ]; then echo go1.26.8; exit 0; fi
while [ "$1" != -o ]; do shift; done
echo "built $3" > "$2"
"#;

/// A machine with its own `PATH` and its own folder for control planes. Both are removed on drop.
struct Machine {
    home: PathBuf,
}

impl Machine {
    fn new(name: &str) -> Self {
        let home = std::env::temp_dir().join(format!("quorate-xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(home.join("path")).expect("a folder");
        Self { home }
    }

    fn with_go(self) -> Self {
        let go = self.home.join("path/go");
        fs::write(&go, FAKE_GO).expect("a program");
        fs::set_permissions(&go, fs::Permissions::from_mode(0o755)).expect("a program that runs");
        self
    }

    fn control_plane(&self, flags: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_xtask"))
            .arg("control-plane")
            .args(flags)
            .env("PATH", self.home.join("path"))
            .env("QUORATE_CONTROL_PLANES", self.home.join("planes"))
            .output()
            .expect("xtask runs")
    }

    /// The programs that a run built.
    fn built(&self, flags: &[&str]) -> Vec<String> {
        let output = self.control_plane(flags);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let done = |line: &str| Some(line.strip_prefix("<== ")?.split_once(": ok")?.0.to_owned());
        text(&output.stdout).lines().filter_map(done).collect()
    }

    fn path(&self, release: &str, file: &str) -> PathBuf {
        self.home.join("planes").join(release).join(file)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const PROGRAMS: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];

#[test]
fn without_go_the_error_is_one_line_with_a_remedy() {
    let output = Machine::new("without-go").control_plane(&[]);
    assert!(!output.status.success());
    let errors = text(&output.stderr);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("needs Go") && errors.contains("https://go.dev/doc/install"), "{errors}");
}

#[test]
fn a_built_program_is_not_rebuilt() {
    let machine = Machine::new("again").with_go();
    assert_eq!(machine.built(&[]), PROGRAMS);
    assert_eq!(machine.built(&[]), [""; 0]);
    // If all programs are built, Go is not needed.
    fs::remove_file(machine.home.join("path/go")).expect("removed");
    assert_eq!(machine.built(&[]), [""; 0]);
}

#[test]
fn a_program_of_other_sources_is_rebuilt() {
    let machine = Machine::new("anew").with_go();
    machine.built(&[]);
    fs::write(machine.path("1.36", "kubectl.sha256"), "of another go.sum").expect("a note");
    fs::remove_file(machine.path("1.36", "bin/etcd")).expect("removed");
    assert_eq!(machine.built(&[]), ["etcd", "kubectl"]);
}

#[test]
fn the_kubelet_and_other_releases_are_built_on_request() {
    let machine = Machine::new("requested").with_go();
    machine.built(&[]);
    assert!(!machine.path("1.36", "bin/kubelet").exists());
    assert_eq!(machine.built(&["--kubelet"]), ["kubelet"]);
    assert!(machine.path("1.36", "bin/kubelet").exists());
    assert_eq!(machine.built(&["--kubernetes", "1.32"]), PROGRAMS);
    assert!(machine.path("1.32", "bin/kube-apiserver").exists());
}
