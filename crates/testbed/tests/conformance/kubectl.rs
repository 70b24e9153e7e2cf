//! Tests with the real kubectl.

use std::time::Duration;

use quorate_testbed::{Cluster, Kubectl, Patch, Printed, User, eventually, stories};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::fixtures::{TestNamespace, deployment, names};

stories!(Whole:
    applied_objects_are_printed_and_described,
    kubectl_wait_waits_for_conditions,
    deleted_objects_are_removed,
    a_node_is_cordoned_and_uncordoned,
    a_drain_waits_for_a_budget_and_continues,
    a_dry_run_drain_evicts_no_pod,
);

/// A cluster with two nodes, and kubectl for it.
struct KubectlFixture {
    ns: TestNamespace,
    kubectl: Kubectl,
}

impl KubectlFixture {
    async fn new(cluster: &Cluster) -> Self {
        for node in ["node-a", "node-b"] {
            cluster.actors().nodes().add(node).await.expect("a node");
        }
        let ns = TestNamespace::new(cluster, "kubectl").await;
        Self { ns, kubectl: cluster.kubectl(&User::admin()).expect("kubectl") }
    }

    async fn run(&self, line: &str) -> Printed {
        let mut args = vec!["--namespace", &self.ns.name];
        args.extend(line.split_whitespace());
        self.kubectl.run(&args).await.expect("kubectl runs")
    }

    /// Runs a command that must succeed. Returns its output.
    async fn succeed(&self, line: &str) -> String {
        let printed = self.run(line).await;
        assert!(printed.success, "kubectl {line}: {}", printed.stderr);
        printed.stdout
    }

    async fn apply(&self, object: &Value) -> String {
        let args = ["--namespace", &self.ns.name, "apply", "-f", "-"];
        let printed = self.kubectl.run_with_input(&args, &object.to_string()).await.expect("kubectl runs");
        assert!(printed.success, "{}", printed.stderr);
        printed.stdout.trim().to_owned()
    }

    /// Applies a deployment and waits until its rollout is complete.
    async fn deploy(&self, replicas: u32) {
        self.apply(&deployment("web", replicas)).await;
        self.succeed("rollout status deployment/web --timeout=60s").await;
    }

    async fn pods(&self) -> Value {
        self.ns.wire.get(&self.ns.core("pods?labelSelector=app%3Dweb")).await.expect(200)
    }
}

async fn applied_objects_are_printed_and_described(cluster: Cluster) {
    let fixture = KubectlFixture::new(&cluster).await;
    assert_eq!(fixture.apply(&deployment("web", 2)).await, "deployment.apps/web created");
    assert_eq!(fixture.apply(&deployment("web", 2)).await, "deployment.apps/web unchanged");
    assert_eq!(fixture.apply(&deployment("web", 1)).await, "deployment.apps/web configured");
    fixture.succeed("rollout status deployment/web --timeout=60s").await;
    eventually("one pod is left", || async {
        let pods = fixture.pods().await;
        if names(&pods).len() == 1 { Ok(()) } else { Err(names(&pods).len()) }
    })
    .await;
    eventually("the status counts one pod", || async {
        let path = fixture.ns.path("apps/v1", "deployments/web");
        let status = fixture.ns.wire.get(&path).await.expect(200)["status"].clone();
        let counts_one = status["replicas"] == 1 && status["readyReplicas"] == 1;
        if counts_one { Ok(()) } else { Err(status) }
    })
    .await;

    let narrow = fixture.succeed("get pods").await;
    let lines: Vec<Vec<&str>> = narrow.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert_eq!(lines[1][1..4], ["1/1", "Running", "0"]);
    let wide = fixture.succeed("get pods -o wide").await;
    assert!(wide.lines().next().is_some_and(|head| head.contains("NODE")), "{wide}");
    assert!(wide.contains("node-a") || wide.contains("node-b"), "{wide}");
    let all = fixture.succeed("get deployments,replicasets,nodes").await;
    assert!(all.contains("deployment.apps/web") && all.contains("node/node-a"), "{all}");
    assert_eq!(fixture.succeed("get deployment web -o jsonpath={.status.readyReplicas}").await, "1");

    let described = fixture.succeed("describe deployment web").await;
    assert!(
        described.contains("1 desired | 1 updated | 1 total | 1 available | 0 unavailable"),
        "{described}"
    );
    let described = fixture.succeed("describe pods").await;
    assert!(described.contains("Controlled By:  ReplicaSet/web-"), "{described}");
    let described = fixture.succeed("describe node node-a").await;
    assert!(described.contains("Unschedulable:      false"), "{described}");
    let missing = fixture.run("get pod none").await;
    assert!(!missing.success);
    assert_eq!(missing.stderr.trim(), "Error from server (NotFound): pods \"none\" not found");
}

async fn kubectl_wait_waits_for_conditions(cluster: Cluster) {
    let fixture = KubectlFixture::new(&cluster).await;
    fixture.apply(&deployment("web", 2)).await;
    let waited = fixture.succeed("wait --for=condition=Available deployment/web --timeout=60s").await;
    assert_eq!(waited.trim(), "deployment.apps/web condition met");
    fixture.succeed("wait --for=condition=Ready pods --selector app=web --timeout=60s").await;
    let impatient = fixture.run("wait --for=condition=Nonsense deployment/web --timeout=1s").await;
    assert!(!impatient.success);
    assert!(impatient.stderr.contains("timed out waiting for the condition"), "{}", impatient.stderr);
}

async fn deleted_objects_are_removed(cluster: Cluster) {
    let fixture = KubectlFixture::new(&cluster).await;
    fixture.deploy(2).await;
    let pods = fixture.pods().await;
    let first = names(&pods)[0].to_owned();
    let output = fixture.succeed(&format!("delete pod {first}")).await;
    assert!(output.starts_with(&format!("pod \"{first}\" deleted")), "{output}");
    assert_eq!(fixture.ns.code(&fixture.ns.core(&format!("pods/{first}"))).await, 404);
    fixture.succeed("delete deployment web").await;
    fixture.succeed("wait --for=delete pods --selector app=web --timeout=60s").await;
    assert_eq!(names(&fixture.pods().await), Vec::<&str>::new());
}

async fn a_node_is_cordoned_and_uncordoned(cluster: Cluster) {
    let fixture = KubectlFixture::new(&cluster).await;
    assert_eq!(fixture.succeed("cordon node-a").await.trim(), "node/node-a cordoned");
    assert!(fixture.succeed("get node node-a").await.contains("Ready,SchedulingDisabled"));
    fixture.deploy(3).await;
    for pod in fixture.pods().await["items"].as_array().expect("pods") {
        assert_eq!(pod["spec"]["nodeName"], "node-b");
    }
    assert_eq!(fixture.succeed("uncordon node-a").await.trim(), "node/node-a uncordoned");
}

/// A budget that needs both pods of the deployment.
async fn tight_budget(fixture: &KubectlFixture) {
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "tight"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}});
    fixture.apply(&budget).await;
    eventually("the budget has its numbers", || async {
        let budget = fixture.ns.wire.get(&fixture.ns.budgets("/tight")).await.expect(200);
        if budget["status"]["currentHealthy"] == 2 { Ok(()) } else { Err(budget["status"].clone()) }
    })
    .await;
}

async fn a_drain_waits_for_a_budget_and_continues(cluster: Cluster) {
    let fixture = KubectlFixture::new(&cluster).await;
    fixture.succeed("cordon node-b").await;
    fixture.deploy(2).await;
    fixture.succeed("uncordon node-b").await;
    tight_budget(&fixture).await;

    let mut drain =
        fixture.kubectl.command(&["drain", "node-a", "--timeout=100s"]).spawn().expect("kubectl runs");
    let mut lines = BufReader::new(drain.stderr.take().expect("its messages")).lines();
    let refused = loop {
        let line = lines.next_line().await.expect("a line").expect("kubectl continues");
        if line.contains("error when evicting") {
            break line;
        }
    };
    assert!(refused.contains("(will retry after 5s)"), "{refused}");
    assert!(
        refused.contains("Cannot evict pod as it would violate the pod's disruption budget."),
        "{refused}"
    );
    assert_eq!(names(&fixture.pods().await).len(), 2);

    let patch = json!({"spec": {"minAvailable": 1}});
    fixture.ns.wire.patch(&fixture.ns.budgets("/tight"), Patch::Merge, &patch).await.expect(200);
    let rest = tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let ended = tokio::time::timeout(Duration::from_secs(100), drain.wait()).await;
    assert!(ended.expect("it ends").expect("a status").success());
    rest.await.expect("all was read");
    for pod in fixture.pods().await["items"].as_array().expect("pods") {
        assert_ne!(pod["spec"]["nodeName"], "node-a");
    }
}

async fn a_dry_run_drain_evicts_no_pod(cluster: Cluster) {
    let fixture = KubectlFixture::new(&cluster).await;
    fixture.deploy(2).await;
    let before = fixture.pods().await;
    fixture.succeed("drain node-a node-b --dry-run=server --timeout=30s").await;
    assert_eq!(names(&fixture.pods().await), names(&before));
    assert!(!fixture.succeed("get nodes").await.contains("SchedulingDisabled"));
}
