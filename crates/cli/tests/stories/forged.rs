//! Reviews that no API server sent. A server cannot distinguish them, so they must not change what it counts.

use http::{Method, Request, header};
use kube::{Client, Config};
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::fixture::{LLM, TestNamespace, await_ready};

quorate_testbed::stories!(Whole: a_forged_review_opens_no_budget);

/// Larger than any resourceVersion of an API server.
const NEWEST: &str = "18446744073709551615";

async fn a_forged_review_opens_no_budget(cluster: Cluster) {
    let ns = TestNamespace::with_llm(cluster, json!({"operations": ["Evict", "Delete"]})).await;
    let forger = Forger::new(&ns);

    // A pod that is down, and ready in the forged review.
    let kubelets = ns.cluster.actors().kubelets().clone();
    kubelets.set_ready(&ns.name, "llm-0-2", false).expect("a pod on a node");
    ns.await_status(LLM, "group 0 is down", |status| status["disruptionsAllowed"] == 0).await;
    let path = ns.pod_path("llm-0-2");
    let mut down = ns.wire.get(&path).await.expect(200);
    forger.delete(make_ready(&mut down)).await;
    let refused =
        ns.kubectl_in_namespace(&["delete", "pod", "llm-1-1"]).await.expect_err("group 0 is still down");
    assert!(refused.stderr.contains("group 1 would be the second one down"), "{}", refused.stderr);
    kubelets.set_ready(&ns.name, "llm-0-2", true).expect("a pod on a node");
    ns.await_ready_pods(9).await;

    // Pods that do not exist.
    let budget = json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 3, "operations": ["Evict", "Delete"]});
    let budgets = ns.path("policy.quorate.dev/v1alpha1", "disruptionbudgets");
    let object = json!({"apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget",
        "metadata": {"name": "web"}, "spec": budget});
    ns.wire.post(&budgets, &object).await.expect(201);
    for name in ["web-0", "web-1", "web-2"] {
        let pods = ns.path("v1", "pods");
        ns.wire.post(&pods, &web(name)).await.expect(201);
    }
    await_ready(&ns.pods, 12).await;
    let waited =
        ns.kubectl_in_namespace(&["wait", "--for=condition=Enforced", "dbu/web", "--timeout=100s"]).await;
    waited.unwrap_or_else(|printed| panic!("the budget is not enforced: {printed:?}"));
    for ghost in ["ghost1", "ghost2", "ghost3"] {
        let mut ghost = web(ghost);
        ghost["metadata"]["namespace"] = json!(ns.name);
        ghost["metadata"]["uid"] = json!(format!("uid-of-{}", ghost["metadata"]["name"]));
        forger.delete(make_ready(&mut ghost)).await;
    }
    let refused =
        ns.kubectl_in_namespace(&["delete", "pod", "-l", "app=web"]).await.expect_err("all three are needed");
    assert_eq!(refused.stdout, "", "a pod was deleted");
    let path = format!("{budgets}/web");
    eventually("three pods are counted", || async {
        let status = ns.wire.get(&path).await.expect(200)["status"].clone();
        let counts =
            ["disruptionsAllowed", "currentHealthy", "expectedPods"].map(|field| status[field].clone());
        if counts == [json!(0), json!(3), json!(3)] { Ok(()) } else { Err(status) }
    })
    .await;
}

fn web(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "web:1"}]},
    })
}

/// Makes a pod look ready, in a state that is newer than any other.
fn make_ready(pod: &mut Value) -> &Value {
    pod["metadata"]["resourceVersion"] = json!(NEWEST);
    pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    pod
}

/// A client that reaches the port of the server and pretends to be the API server.
struct Forger {
    client: Client,
    namespace: String,
}

impl Forger {
    fn new(ns: &TestNamespace) -> Self {
        let url = format!("https://{}", ns.server().address).parse().expect("an address");
        let mut config = Config::new(url);
        config.accept_invalid_certs = true;
        Self { client: Client::try_from(config).expect("a client"), namespace: ns.name.clone() }
    }

    /// Sends a review of a delete that no client requested.
    async fn delete(&self, pod: &Value) {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "forged", "operation": "DELETE", "dryRun": true,
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "namespace": self.namespace, "name": pod["metadata"]["name"],
                "userInfo": {"username": "mallory"},
                "oldObject": pod, "options": {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"},
            },
        });
        let request = Request::builder()
            .method(Method::POST)
            .uri("/pods?timeout=10s")
            .header(header::CONTENT_TYPE, "application/json")
            .body(review.to_string().into_bytes())
            .expect("a request");
        let answer: Value = self.client.request(request).await.expect("an answer");
        assert_eq!(answer["response"]["uid"], "forged", "{answer}");
    }
}
