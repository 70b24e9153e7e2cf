//! Where most stories begin: three nodes, a LeaderWorkerSet of three groups of three, a budget that lets one be down.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use quorate_testbed::{Cluster, Kubectl, User, eventually};
use serde_json::{Value, json};

use crate::quorate::Quorate;

/// The label that makes the groups.
pub(crate) const GROUP: &str = "leaderworkerset.sigs.k8s.io/group-index";

/// Groups 0, 1 and 2, under the budget llm, which is enforced.
pub(crate) struct Scene {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) pods: Api<Pod>,
    pub(crate) kubectl: Kubectl,
    pub(crate) quorate: Quorate,
}

impl Scene {
    /// Sets the scene; `more` goes into the budget's spec.
    pub(crate) async fn set(cluster: Cluster, more: Value) -> Self {
        let quorate = Quorate::start(&cluster).await;
        for node in ["node-1", "node-2", "node-3"] {
            cluster.actors().nodes().add(node).await.expect("a node");
        }
        let namespace = cluster.namespace("inference").await.expect("a namespace");
        let pods: Api<Pod> = Api::namespaced(cluster.admin(), &namespace);
        let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
        let scene = Self { cluster, namespace, pods, kubectl, quorate };
        scene.create("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", llm()).await;
        scene.ready(9).await;
        let mut spec = json!({
            "selector": {"matchLabels": {"app": "llm"}},
            "podGroupPolicy": {"groupLabelKey": GROUP},
            "maxUnavailable": 1,
        });
        for (field, value) in more.as_object().expect("fields of a spec") {
            spec[field] = value.clone();
        }
        scene.create("policy.quorate.dev/v1alpha1", "DisruptionBudget", spec).await;
        let (stdout, stderr) = scene
            .kubectl(&["wait", "--for=condition=Enforced", "dbu/llm", "--timeout=30s"])
            .await
            .unwrap_or_else(|(stdout, stderr)| panic!("the budget is not enforced: {stdout}{stderr}"));
        assert_eq!(
            (stdout.as_str(), stderr.as_str()),
            ("disruptionbudget.policy.quorate.dev/llm condition met\n", "")
        );
        scene
    }

    async fn create(&self, version: &str, kind: &str, spec: Value) {
        let path = format!("/apis/{version}/namespaces/{}/{}s", self.namespace, kind.to_lowercase());
        let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "llm"}, "spec": spec});
        self.cluster.wire().post(&path, &object).await.expect(201);
    }

    /// Runs kubectl in the namespace of the scene; what it printed, by whether it went well.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Result<(String, String), (String, String)> {
        let args = [args, &["--namespace", &self.namespace]].concat();
        let printed = self.kubectl.run(&args).await.expect("kubectl");
        let output = (printed.stdout, printed.stderr);
        if printed.success { Ok(output) } else { Err(output) }
    }

    /// Waits until there are exactly so many pods and all are ready.
    pub(crate) async fn ready(&self, count: usize) {
        all_ready(&self.pods, count).await;
    }

    /// The budget as it is stored.
    pub(crate) async fn budget(&self) -> Value {
        let path =
            format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{}/disruptionbudgets/llm", self.namespace);
        self.cluster.wire().get(&path).await.expect(200)
    }

    /// Deletes the budget, and makes another one of the same name and spec.
    pub(crate) async fn make_budget_again(&self, budget: &Value) {
        let path =
            format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{}/disruptionbudgets/llm", self.namespace);
        self.cluster.wire().delete(&path, &json!({})).await.expect(200);
        self.create("policy.quorate.dev/v1alpha1", "DisruptionBudget", budget["spec"].clone()).await;
    }

    /// The status of the budget.
    pub(crate) async fn status(&self) -> Value {
        self.budget().await["status"].clone()
    }

    /// Waits until the status of the budget is as it should be.
    pub(crate) async fn status_is(&self, what: &str, is: impl Fn(&Value) -> bool) {
        eventually(what, || async {
            let status = self.status().await;
            if is(&status) { Ok(()) } else { Err(status) }
        })
        .await;
    }
}

fn llm() -> Value {
    let pod = json!({
        "metadata": {"labels": {"app": "llm"}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "serve", "image": "llm:1"}]},
    });
    json!({"replicas": 3, "leaderWorkerTemplate": {"size": 3, "workerTemplate": pod}})
}

/// Waits until there are exactly so many pods and all are ready.
pub(crate) async fn all_ready(pods: &Api<Pod>, count: usize) {
    eventually(&format!("{count} pods are ready"), || async {
        let all = pods.list(&ListParams::default()).await.expect("a list").items;
        let state = |pod: &Pod| format!("{} {}", pod.name_any(), is_ready(pod));
        let whole = all.len() == count && all.iter().all(is_ready);
        if whole { Ok(()) } else { Err(all.iter().map(state).collect::<Vec<_>>()) }
    })
    .await;
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}
