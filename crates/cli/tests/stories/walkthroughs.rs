//! The console blocks of the documentation: each command is run, and its output compared with the page.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use quorate_testbed::{Cluster, User};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::fixture::{GROUP, await_ready};
use crate::quorate::Quorate;

quorate_testbed::stories!(Whole: the_readme_shows_the_real_output, the_quick_start_shows_the_real_output);

/// The cluster that the demo creates, without the probe.
async fn the_readme_shows_the_real_output(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    nodes(&cluster, 6).await;
    let wire = cluster.wire();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "inference"}});
    wire.post("/api/v1/namespaces", &namespace).await.expect(201);
    let create = async |version: &str, kind: &str, name: &str, spec: Value| {
        let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec});
        let path = format!("/apis/{version}/namespaces/inference/{}s", kind.to_lowercase());
        wire.post(&path, &object).await.expect(201);
    };
    let pod = |app: &str| {
        json!({"metadata": {"labels": {"app": app}},
            "spec": {"containers": [{"name": "main", "image": format!("{app}:1")}]}})
    };
    let llm = json!({"replicas": 4, "leaderWorkerTemplate": {"size": 4, "workerTemplate": pod("llm")}});
    create("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "llm", llm).await;
    for (kind, app) in [("StatefulSet", "db"), ("Deployment", "web")] {
        let mut spec =
            json!({"replicas": 3, "selector": {"matchLabels": {"app": app}}, "template": pod(app)});
        if kind == "StatefulSet" {
            spec["serviceName"] = json!(app);
        }
        create("apps/v1", kind, app, spec).await;
    }
    let pods: Api<Pod> = Api::namespaced(cluster.admin(), "inference");
    await_ready(&pods, 4 * 4 + 3 + 3).await;
    let selector = |app: &str| json!({"matchLabels": {"app": app}});
    let budgets = [
        (
            "llm",
            json!({"selector": selector("llm"), "maxUnavailable": 1, "podGroupPolicy": {"groupLabelKey": GROUP}}),
        ),
        ("db", json!({"selector": selector("db"), "maxUnavailable": 1})),
        ("web", json!({"selector": selector("web"), "minAvailable": 3, "operations": ["Evict", "Delete"]})),
    ];
    for (name, spec) in budgets {
        create("policy.quorate.dev/v1alpha1", "DisruptionBudget", name, spec).await;
    }
    let terminal = Terminal::new(&cluster);
    let wait = "kubectl wait dbu --all -n inference --for=condition=Enforced --timeout=60s";
    assert!(terminal.run(wait).await.contains("web condition met"));
    terminal.follow(include_str!("../../../../README.md")).await;
}

async fn the_quick_start_shows_the_real_output(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    nodes(&cluster, 2).await;
    let page = include_str!("../../../../docs/quick-start.md");
    let terminal = Terminal::new(&cluster);
    let mut manifests = blocks(page, "yaml").into_iter();
    for file in ["shards.yaml", "budget.yaml"] {
        let manifest = manifests.next().unwrap_or_else(|| panic!("the page has no {file}"));
        std::fs::write(terminal.folder.path().join(file), manifest).expect("a file");
    }
    terminal.follow(page).await;
}

async fn nodes(cluster: &Cluster, count: usize) {
    for number in 1..=count {
        cluster.actors().nodes().add(&format!("node-{number}")).await.expect("a node");
    }
}

/// The blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let parts = page.split("```").skip(1).step_by(2);
    parts.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).collect()
}

/// Runs the commands of a page.
struct Terminal {
    cluster: Cluster,
    folder: TempDir,
}

impl Terminal {
    fn new(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), folder: tempfile::tempdir().expect("a folder") }
    }

    /// Runs every line of a page that has a prompt, and compares the output.
    async fn follow(&self, page: &str) {
        let mut typed = 0;
        for block in blocks(page, "console") {
            for part in block.split("$ ").filter(|part| !part.trim().is_empty()) {
                let (line, shown) = part.split_once('\n').unwrap_or((part, ""));
                let printed = self.run(line).await;
                assert!(is_as_shown(&printed, shown), "$ {line}\n{printed}\nand not\n{shown}");
                typed += 1;
            }
        }
        assert!(typed >= 5, "only {typed} lines were found");
    }

    /// The output of a line.
    async fn run(&self, line: &str) -> String {
        let words = words(line);
        let (program, args) = words.split_first().expect("a command");
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let admin = User::admin();
        let mut command = match program.as_str() {
            "kubectl" => self.cluster.kubectl(&admin).expect("kubectl").command(&args),
            "quorate" => {
                let mut quorate = Command::new(env!("CARGO_BIN_EXE_quorate"));
                quorate.args(&args).env("KUBECONFIG", self.cluster.kubeconfig(&admin).expect("a kubeconfig"));
                quorate
            }
            other => panic!("{other} is not at hand"),
        };
        let output = command.current_dir::<&Path>(self.folder.path()).output().await.expect("a command");
        let errors = String::from_utf8_lossy(&output.stderr);
        format!("{}{errors}", String::from_utf8_lossy(&output.stdout))
    }
}

/// The words of a line; text in single quotes is one word.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.trim().chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().expect("a word").push(c),
        }
    }
    words
}

/// Whether the output is as shown, except for ages, nodes and the width of columns. A line that ends with … is a
/// prefix.
fn is_as_shown(printed: &str, shown: &str) -> bool {
    let plain = |text: &str| -> Vec<String> { text.trim_end().lines().map(plain).collect() };
    let (printed, shown) = (plain(printed), plain(shown));
    let same = |(printed, shown): (&String, &String)| match shown.strip_suffix('…') {
        Some(begin) => printed.starts_with(begin),
        None => printed == shown,
    };
    printed.len() == shown.len() && printed.iter().zip(&shown).all(same)
}

fn plain(line: &str) -> String {
    let age = |word: &str| {
        let bare = word.trim_end_matches(['.', ',', ')']);
        bare.starts_with(|c: char| c.is_ascii_digit()) && bare.ends_with(['s', 'm', 'h'])
    };
    let word = |word: &str| match word {
        word if age(word) => "AGE".to_owned(),
        word if word.starts_with("node-") => "NODE".to_owned(),
        word => word.to_owned(),
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}
