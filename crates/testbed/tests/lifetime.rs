//! Tests that a control plane ends with the process that started it, whatever ends that process.

#![allow(clippy::expect_used, clippy::panic, reason = "a test's helpers may fail the test")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use quorate_testbed::{Backend, Cluster, Options, Setup, User, run_story};

/// A process that runs a control plane.
struct Holder {
    process: Child,
    /// Kept open: a process that writes to a closed pipe ends by itself.
    _output: BufReader<ChildStdout>,
    /// The folder of the control plane.
    folder: PathBuf,
}

fn holder() -> Holder {
    let mut process = Command::new(env!("CARGO_BIN_EXE_control-plane"))
        .arg("controllers")
        .stdout(Stdio::piped())
        .spawn()
        .expect("control-plane starts");
    let mut output = BufReader::new(process.stdout.take().expect("its output"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    let kubeconfig = line.trim().strip_prefix("export KUBECONFIG=").expect("the kubeconfig");
    let folder = Path::new(kubeconfig).parent().expect("its folder").to_owned();
    Holder { process, _output: output, folder }
}

/// The running programs that have the folder in their arguments.
fn programs(folder: &Path) -> Vec<String> {
    let output = Command::new("ps").args(["-A", "-ww", "-o", "args="]).output().expect("ps");
    let folder = folder.to_str().expect("a readable path");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.contains(folder))
        .filter_map(|line| line.split_whitespace().next())
        .filter_map(|program| program.rsplit('/').next())
        .filter(|program| *program != "sh")
        .map(str::to_owned)
        .collect()
}

fn leaves_nothing_after(signal: &str) {
    let Holder { process: mut holder, folder, _output } = holder();
    // A program that was just started is still a shell for a moment.
    let deadline = Instant::now() + Duration::from_secs(20);
    let running = || {
        let mut running = programs(&folder);
        running.sort();
        running
    };
    while running() != ["etcd", "kube-apiserver", "kube-controller-manager"] {
        assert!(Instant::now() < deadline, "{:?}", running());
        std::thread::sleep(Duration::from_millis(20));
    }

    let killed = Command::new("kill").arg(signal).arg(holder.id().to_string()).status().expect("kill");
    assert!(killed.success());
    holder.wait().expect("its end");
    until_nothing_is_left_of(&folder, signal);
}

fn until_nothing_is_left_of(folder: &Path, end: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !programs(folder).is_empty() || folder.exists() {
        assert!(
            Instant::now() < deadline,
            "after {end}, {:?} still run, and the folder is {}",
            programs(folder),
            if folder.exists() { "there" } else { "gone" }
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends the process that runs a control plane.
fn end(mut holder: Holder) {
    let killed = Command::new("kill").arg(holder.process.id().to_string()).status().expect("kill");
    assert!(killed.success());
    holder.process.wait().expect("its end");
    until_nothing_is_left_of(&holder.folder, "its end");
}

#[test]
fn several_control_planes_run_in_parallel() {
    let [one, other] = [holder(), holder()];
    assert_ne!(one.folder, other.folder);
    let folder = other.folder.clone();
    end(one);
    assert_eq!(programs(&folder).len(), 3, "the end of one does not affect the other");
    end(other);
}

#[test]
fn nothing_is_left_after_a_panic() {
    let (folder_sender, folder) = std::sync::mpsc::channel();
    let outcome = std::panic::catch_unwind(move || {
        run_story(Backend::Real, Setup::Private(Options::default()), |cluster: Cluster| async move {
            let kubeconfig = cluster.kubeconfig(&User::admin()).expect("a kubeconfig");
            folder_sender.send(kubeconfig.parent().expect("its folder").to_owned()).expect("a receiver");
            panic!("a story that fails");
        });
    });
    assert!(outcome.is_err());
    let folder = folder.recv().expect("the folder");
    assert_eq!(programs(&folder), [""; 0]);
    assert!(!folder.exists());
}

#[test]
fn nothing_is_left_after_a_kill() {
    leaves_nothing_after("-KILL");
}

#[test]
fn nothing_is_left_after_a_termination() {
    leaves_nothing_after("-TERM");
}

#[test]
fn nothing_is_left_after_an_interrupt() {
    leaves_nothing_after("-INT");
}
