//! A namespace with pods made by hand: nothing happens to them that the story does not do.

use quorate_testbed::{Answer, Cluster, Patch, Wire, eventually};
use serde_json::{Value, json};

/// One namespace.
pub(crate) struct Town {
    pub(crate) namespace: String,
    pub(crate) wire: Wire,
}

impl Town {
    pub(crate) async fn found(cluster: &Cluster, stem: &str) -> Self {
        let namespace = cluster.namespace(stem).await.expect("a namespace");
        let wire = cluster.wire();
        // Pods on a node that exists are collected by nobody; where it exists already, that is as well.
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "by-hand"}});
        let made = wire.post("/api/v1/nodes", &node).await;
        assert!(matches!(made.code, 201 | 409), "{}", made.body);
        Self { namespace, wire }
    }

    fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace)
    }

    fn budgets(&self) -> String {
        format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{}/disruptionbudgets", self.namespace)
    }

    /// Makes a pod that is ready, with these labels. Nobody runs it, so it goes at once when it is deleted.
    pub(crate) async fn pod(&self, name: &str, labels: Value) {
        self.pod_with(name, labels, json!({})).await;
    }

    /// The same, with more in its spec.
    pub(crate) async fn pod_with(&self, name: &str, labels: Value, more: Value) {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {
                "nodeName": "by-hand", "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "main:1"}],
            },
        });
        for (field, value) in more.as_object().expect("fields") {
            pod["spec"][field] = value.clone();
        }
        self.wire.post(&self.pods(), &pod).await.expect(201);
        self.set_ready(name, true).await;
    }

    pub(crate) async fn set_ready(&self, name: &str, ready: bool) {
        let condition = json!({"type": "Ready", "status": if ready { "True" } else { "False" }});
        let status = json!({"status": {"phase": "Running", "conditions": [condition]}});
        let path = format!("{}/{name}/status", self.pods());
        self.wire.patch(&path, Patch::Merge, &status).await.expect(200);
    }

    /// Makes a budget; it is not waited for.
    pub(crate) async fn new_budget(&self, name: &str, spec: Value) -> Answer {
        let budget = json!({
            "apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget",
            "metadata": {"name": name}, "spec": spec,
        });
        self.wire.post(&self.budgets(), &budget).await
    }

    /// Makes a budget and waits until it is enforced and allows so much.
    pub(crate) async fn budget(&self, name: &str, spec: Value, allowed: u32) {
        self.new_budget(name, spec).await.expect(201);
        self.allows(name, allowed).await;
    }

    /// Waits until a budget is enforced and allows so much.
    pub(crate) async fn allows(&self, name: &str, allowed: u32) {
        self.status_is(name, "it allows as much as it should", |status| {
            is(status, "Enforced", "True") && status["disruptionsAllowed"] == allowed
        })
        .await;
    }

    /// Waits until the status of a budget is as it should be.
    pub(crate) async fn status_is(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) {
        let path = format!("{}/{name}", self.budgets());
        eventually(&format!("{name}: {what}"), || async {
            let status = self.wire.get(&path).await.expect(200)["status"].clone();
            if is(&status) { Ok(()) } else { Err(status) }
        })
        .await;
    }

    pub(crate) async fn delete_budget(&self, name: &str) {
        self.wire.delete(&format!("{}/{name}", self.budgets()), &json!({})).await.expect(200);
    }

    /// The status of a budget.
    pub(crate) async fn status(&self, name: &str) -> Value {
        self.wire.get(&format!("{}/{name}", self.budgets())).await.expect(200)["status"].clone()
    }

    /// Evicts a pod, with these options of the deletion.
    pub(crate) async fn evict_with(&self, pod: &str, options: Value, query: &str) -> Answer {
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self.namespace}, "deleteOptions": options,
        });
        self.wire.post(&format!("{}/{pod}/eviction{query}", self.pods()), &eviction).await
    }

    pub(crate) async fn evict(&self, pod: &str) -> Answer {
        self.evict_with(pod, json!({}), "").await
    }

    pub(crate) async fn delete(&self, pod: &str) -> Answer {
        self.wire.delete(&format!("{}/{pod}", self.pods()), &json!({})).await
    }

    pub(crate) async fn set_image(&self, pod: &str, image: &str) -> Answer {
        let patch = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
        self.wire.patch(&format!("{}/{pod}", self.pods()), Patch::Strategic, &patch).await
    }

    pub(crate) async fn exists(&self, pod: &str) -> bool {
        match self.wire.get(&format!("{}/{pod}", self.pods())).await.code {
            200 => true,
            404 => false,
            code => panic!("{code} for a pod"),
        }
    }
}

/// Whether a condition is as it should be.
pub(crate) fn is(status: &Value, condition: &str, wanted: &str) -> bool {
    let conditions = status["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == condition && c["status"] == wanted)
}

/// What a refusal says, after what the API server puts before it. Fails if it is no refusal as clients expect it.
pub(crate) fn refusal(answer: &Answer) -> String {
    let body = &answer.body;
    assert_eq!((answer.code, body["reason"].as_str()), (429, Some("TooManyRequests")), "{body}");
    assert_eq!(body["details"]["causes"][0]["reason"], "DisruptionBudget", "{body}");
    assert!(answer.retry_after.is_none(), "client libraries would ask again by themselves: {body}");
    let message = body["message"].as_str().expect("a message");
    let (_, sentence) = message.split_once(" denied the request: ").expect("a webhook's refusal");
    assert!(sentence.len() <= 300, "{} characters: {sentence}", sentence.len());
    sentence.to_owned()
}

impl Town {
    /// Deletes the namespace and waits until it is gone.
    pub(crate) async fn ends(&self) {
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        self.wire.delete(&path, &json!({})).await.expect(200);
        eventually("the namespace is gone", || async {
            let answer = self.wire.get(&path).await;
            if answer.code == 404 { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }

    /// Waits until the namespace is labelled, or not.
    pub(crate) async fn labelled(&self, wanted: bool) {
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        eventually("the namespace's label", || async {
            let labels = self.wire.get(&path).await.expect(200)["metadata"]["labels"].clone();
            if labels["quorate.dev/enforced"].is_null() == wanted { Err(labels) } else { Ok(()) }
        })
        .await;
    }

    /// Waits until the API server goes by the label, and so asks about updates: it reads labels a moment after they are
    /// written. A pod that no update is allowed of tells when that is; both it and its budget are gone afterwards.
    pub(crate) async fn asked_about_updates(&self) {
        const DECOY: &str = "decoy";
        self.pod(DECOY, json!({"decoy": "true"})).await;
        let spec = json!({
            "selector": {"matchLabels": {"decoy": "true"}}, "minAvailable": 1, "operations": ["Update"],
        });
        self.new_budget(DECOY, spec).await.expect(201);
        self.update_is_refused(DECOY).await;
        self.delete(DECOY).await.expect(200);
        self.delete_budget(DECOY).await;
    }

    /// Waits until a budget refuses an update of a pod, which is tried without doing it.
    pub(crate) async fn update_is_refused(&self, pod: &str) {
        let patch = json!({"spec": {"containers": [{"name": "main", "image": "main:next"}]}});
        let path = format!("{}/{pod}?dryRun=All", self.pods());
        eventually(&format!("an update of {pod} is refused"), || async {
            let answer = self.wire.patch(&path, Patch::Strategic, &patch).await;
            if answer.code == 429 { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }
}
