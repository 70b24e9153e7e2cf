//! Tests of real nodes: containers run on them, and nothing is left of them, whatever ends the process that started
//! them.

#![allow(clippy::expect_used, clippy::panic, reason = "a test's helpers may fail the test")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quorate_testbed::{BUSYBOX, Backend, Cluster, Node, Options, Setup, User, eventually, run_story};
use serde_json::json;

fn setup() -> Setup {
    Setup::Bare(Options { controllers: true, scheduler: true, ..Options::default() })
}

#[test]
fn containers_run_on_two_isolated_nodes() {
    run_story(Backend::Real, setup(), |cluster: Cluster| async move {
        let plane = cluster.control_plane().expect("a control plane");
        let before = footprints();
        let [one, two] = ["node-1", "node-2"];
        let (one, two) = tokio::join!(Node::start(plane, one), Node::start(plane, two));
        let (one, two) = (one.expect("a node"), two.expect("a node"));
        assert_ne!(one.folder(), two.folder());

        let namespace = cluster.namespace("web").await.expect("a namespace");
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let serve =
            "mkdir /tmp/www && hostname > /tmp/www/name && echo ready && exec httpd -f -p 8080 -h /tmp/www";
        for (name, node) in [("web-1", one.name()), ("web-2", two.name())] {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
                // The scheduler places the pod.
                "nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never",
                    "command": ["sh", "-c", serve],
                    "readinessProbe": {"httpGet": {"path": "/name", "port": 8080}, "periodSeconds": 1}}]}});
            cluster.wire().post(&pods, &pod).await.expect(201);
        }
        let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
        let run = async |args: &[&str]| {
            let printed = kubectl.run(&[&["--namespace", &namespace], args].concat()).await.expect("kubectl");
            assert!(printed.success, "{args:?}: {}{}", printed.stdout, printed.stderr);
            printed.stdout
        };
        run(&["wait", "--for=condition=Ready", "pod/web-1", "pod/web-2", "--timeout=100s"]).await;
        assert_eq!(run(&["exec", "web-2", "--", "wget", "-qO-", "127.0.0.1:8080/name"]).await, "web-2\n");
        assert_eq!(run(&["logs", "web-1"]).await, "ready\n");

        // Kubelets and agents send their requests from the same network.
        let address = run(&["get", "pod", "web-1", "--output=jsonpath={.status.podIP}"]).await;
        let url = format!("http://{address}:8080/name");
        let mut request = one
            .run("request", Path::new("busybox"), &["wget", "-qO-", &url].map(str::to_owned))
            .expect("busybox");
        eventually("the request is answered", || {
            let ended = request.log();
            async move { if ended == "web-1\n" { Ok(()) } else { Err(ended) } }
        })
        .await;
        assert!(request.ended().is_none_or(|status| status.success()));

        run(&["drain", "node-1", "--force", "--timeout=100s"]).await;
        assert_eq!(cluster.wire().get(&format!("{pods}/web-1")).await.code, 404);
        cluster.wire().get(&format!("{pods}/web-2")).await.expect(200);

        // Containers survive a killed kubelet.
        two.signal_kubelet("KILL").expect("a kubelet");
        eventually("the kubelet is gone", || async {
            two.signal_kubelet("0").err().map(drop).ok_or("still there")
        })
        .await;
        assert_eq!(footprints(), before, "a node leaves files only in its folder and its own namespaces");
        let remains = of(two.folder());
        assert!(programs(two.folder()).iter().any(|program| program == "containerd"));
        drop((one, two));
        await_nothing(&remains);
    });
}

/// The folder and ID by which the remains of a node are found.
struct Remains {
    folder: PathBuf,
    /// The last six characters of the folder's name.
    id: String,
}

fn of(folder: &Path) -> Remains {
    let id = folder.to_string_lossy().rsplit('-').next().expect("an id").to_owned();
    Remains { folder: folder.to_owned(), id }
}

const NOTHING: [String; 0] = [];

/// The files that containerd, the network plugins and kubelets leave on a machine.
fn footprints() -> Vec<PathBuf> {
    let folders = [
        "/run/containerd/s",
        "/run/containerd/runc/k8s.io",
        "/var/lib/cni/results",
        "/var/lib/kubelet/device-plugins",
        "/var/log/containers",
    ];
    let mut found: Vec<PathBuf> = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// Everything that is left of a node.
fn found(remains: &Remains) -> Vec<String> {
    let mut found = programs(&remains.folder);
    if remains.folder.exists() {
        found.push(remains.folder.display().to_string());
    }
    let links = Command::new("ip").args(["-oneline", "link"]).output().expect("ip").stdout;
    let mounts = fs::read("/proc/self/mounts").expect("mounts");
    for text in [links, mounts] {
        let text = String::from_utf8_lossy(&text).into_owned();
        found.extend(text.lines().filter(|line| line.contains(&remains.id)).map(str::to_owned));
    }
    let groups = Command::new("find")
        .args(["/sys/fs/cgroup", "-name", &format!("*{}*", remains.id)])
        .output()
        .expect("find");
    found.extend(String::from_utf8_lossy(&groups.stdout).lines().map(str::to_owned));
    found
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
        .map(str::to_owned)
        .collect()
}

#[test]
fn nothing_is_left_after_a_kill() {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_control-plane"))
        .args(["controllers", "node"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("control-plane starts");
    let mut output = BufReader::new(holder.stdout.take().expect("its output")).lines();
    let folder = loop {
        let line = output.next().expect("a node").expect("a line");
        if let Some(folder) = line.strip_prefix("# node-1: ") {
            break PathBuf::from(folder);
        }
    };
    let running = programs(&folder);
    for program in ["containerd", "kubelet"] {
        assert!(running.iter().any(|name| name == program), "{program} is not among {running:?}");
    }
    let killed = Command::new("kill").args(["-KILL", &holder.id().to_string()]).status().expect("kill");
    assert!(killed.success());
    holder.wait().expect("its end");
    await_nothing(&of(&folder));
}

/// Waits until nothing is left: the processes of a node end with its namespaces, a moment later.
fn await_nothing(remains: &Remains) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while found(remains) != NOTHING {
        assert!(Instant::now() < deadline, "still left: {:?}", found(remains));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn nothing_is_left_after_a_panic() {
    let (folder_sender, folder) = std::sync::mpsc::channel();
    let outcome = std::panic::catch_unwind(move || {
        run_story(Backend::Real, setup(), |cluster: Cluster| async move {
            let plane = cluster.control_plane().expect("a control plane");
            let node = Node::start(plane, "node-1").await.expect("a node");
            folder_sender.send(node.folder().to_owned()).expect("a receiver");
            panic!("a story that fails");
        });
    });
    assert!(outcome.is_err());
    await_nothing(&of(&folder.recv().expect("the folder")));
}
