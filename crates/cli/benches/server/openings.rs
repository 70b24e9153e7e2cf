//! How long new budgets wait until they are enforced: after a planned upgrade, and many at once.

use std::time::Instant;

use futures::StreamExt as _;
use quorate_testbed::{Backend, Cluster, Options, Wire, eventually};
use serde_json::{Value, json};

use super::{Replicas, pod, set_ready};

/// Admissions right before the upgrade.
const ADMITTED: usize = 20;
const MANY: usize = 1_000;

pub(super) async fn measure() {
    let cluster = Cluster::whole(Backend::Embedded, Options::default()).await.expect("a cluster");
    let mut replicas = Replicas::start(&cluster, 1, &["--shutdown-delay-seconds=0"]).await;
    let wire = cluster.wire();
    let namespace = cluster.namespace("upgrade").await.expect("a namespace");
    let budgets = format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{namespace}/disruptionbudgets");
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    wire.post(&budgets, &budget("web", &json!({"app": "web"}))).await.expect(201);
    for number in 0..ADMITTED {
        wire.post(&pods, &pod(number)).await.expect(201);
        set_ready(&wire, &format!("{pods}/pod-{number}"), true).await;
    }
    enforced(&wire, &format!("{budgets}/web")).await;
    // Admitted, and then rejected by the API server: a new budget must know them.
    for number in 0..ADMITTED {
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": format!("pod-{number}")},
            "deleteOptions": {"preconditions": {"resourceVersion": "1"}},
        });
        let answer = wire.post(&format!("{pods}/pod-{number}/eviction"), &eviction).await;
        assert_eq!(answer.code, 409, "{}", answer.body);
    }
    replicas.signal(0, "TERM");
    while replicas.has_ended(0).is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let start = Instant::now();
    replicas.fill(0).await;
    replicas.until_ready(1).await;
    println!("ready_after_upgrade={:.2} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    wire.post(&budgets, &budget("new", &json!({"app": "web"}))).await.expect(201);
    enforced(&wire, &format!("{budgets}/new")).await;
    println!("opening_after_upgrade_seconds={:.2} s", start.elapsed().as_secs_f64());

    let start = Instant::now();
    let create = futures::stream::iter(0..MANY).for_each_concurrent(16, |number| {
        let (wire, budgets) = (&wire, &budgets);
        async move {
            let name = format!("many-{number}");
            wire.post(budgets, &budget(&name, &json!({"app": name}))).await.expect(201);
        }
    });
    create.await;
    println!("created_1k_budgets={:.2} s", start.elapsed().as_secs_f64());
    let is_open =
        |budget: &Value| budget["status"]["openedFor"].as_str().is_some_and(|text| !text.is_empty());
    all(&wire, &budgets, is_open).await;
    println!("opened_1k_budgets={:.2} s", start.elapsed().as_secs_f64());
    all(&wire, &budgets, is_enforced).await;
    println!("enforced_1k_budgets={:.2} s", start.elapsed().as_secs_f64());
}

fn budget(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget", "metadata": {"name": name},
        "spec": {"minAvailable": 0, "selector": {"matchLabels": labels}},
    })
}

fn is_enforced(budget: &Value) -> bool {
    let conditions = budget["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Enforced" && condition["status"] == "True")
}

async fn enforced(wire: &Wire, path: &str) {
    eventually("the budget is enforced", || async {
        let budget = wire.get(path).await.expect(200);
        if is_enforced(&budget) { Ok(()) } else { Err(budget) }
    })
    .await;
}

/// Waits until all budgets fit. Not so often that the lists themselves take long.
async fn all(wire: &Wire, budgets: &str, fits: impl Fn(&Value) -> bool) {
    loop {
        let list = wire.get(budgets).await.expect(200);
        if list["items"].as_array().expect("budgets").iter().all(&fits) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
    }
}
