//! The budget of the proposal for groups, over a LeaderWorkerSet of three groups of three pods.

use quorate_testbed::{Cluster, User, eventually};
use serde_json::{Value, json};

use crate::fixture::{GROUP, TestNamespace, denial, has_condition};
use crate::quorate::Quorate;
use crate::witness::Witness;

quorate_testbed::stories!(Whole: a_pod_unavailable_budget_keeps_two_groups_whole);

/// The budget of the proposal. The LeaderWorkerSet there has a kind that does not exist; the story uses the real one.
const BUDGET: &str = "\
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata:
  name: llm-serving-budget
  namespace: NAMESPACE
spec:
  selector:
    matchLabels:
      app: llm-serving
  maxUnavailable: 1         # interpreted as groups
  podGroupPolicy:
    groupLabelKey: leaderworkerset.sigs.k8s.io/group-index
    minReadyReplicas: 3     # 1 leader + 2 workers Ready → group serves traffic
";

const NAME: &str = "llm-serving-budget";

async fn a_pod_unavailable_budget_keeps_two_groups_whole(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    for node in ["node-1", "node-2", "node-3"] {
        cluster.actors().nodes().add(node).await.expect("a node");
    }
    let ns = TestNamespace::with_manual_pods(&cluster, "inference").await;
    let serving = serving(&ns).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("budget.yaml");
    std::fs::write(&file, BUDGET.replace("NAMESPACE", &ns.name)).expect("a file");
    let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
    let applied = kubectl.run(&["apply", "-f", &file.to_string_lossy()]).await.expect("kubectl");
    assert!(applied.success, "{}{}", applied.stdout, applied.stderr);

    let witness = Witness::start(&cluster, &ns.name, GROUP).await;
    for rule in [
        json!({"maxUnavailable": 1, "minAvailable": null}),
        json!({"maxUnavailable": null, "minAvailable": 2}),
        json!({"maxUnavailable": 2, "minAvailable": 2}),
    ] {
        ns.patch_pub(NAME, &json!({"spec": rule})).await.expect(200);
        whole(&ns).await;
        let leader = serving.leader().await;
        one_group_at_a_time(&cluster, &ns).await;
        // The whole group is recreated, first its leader.
        serving.rebuilt(&leader).await;
    }
    assert_eq!(witness.counts().1, 1, "the watch broke off");
    let fewest = witness.samples().iter().map(|sample| sample.whole(3)).min();
    assert_eq!(fewest, Some(2), "one group down, and never two");
    conditions(&ns).await;
}

/// Waits until all groups are counted as whole; the numbers count groups.
async fn whole(ns: &TestNamespace) {
    let status = ns
        .await_pub_status(NAME, "all groups are whole", |status| {
            has_condition(status, "Enforced", "True")
                && status["unavailableAllowed"] == 1
                && status["claims"] == json!({})
        })
        .await;
    let numbers = ["currentAvailable", "desiredAvailable", "totalReplicas", "unavailableReplicas"];
    let numbers = numbers.map(|name| status[name].as_u64());
    assert_eq!(numbers, [Some(3), Some(2), Some(3), Some(0)], "{status}");
    assert_eq!(status["groups"].as_array().map(Vec::len), Some(3), "{status}");
}

async fn one_group_at_a_time(cluster: &Cluster, ns: &TestNamespace) {
    // A worker that is not ready takes its group down.
    let kubelets = cluster.actors().kubelets().clone();
    kubelets.set_ready(&ns.name, "llm-serving-0-2", false).expect("a pod on a node");
    ns.await_pub_status(NAME, "group 0 is down", |status| {
        status["unavailableAllowed"] == 0 && status["unavailableReplicas"] == 1
    })
    .await;
    for answer in [ns.evict("llm-serving-1").await, ns.delete_pod("llm-serving-2-1").await] {
        let sentence = denial(&answer);
        let begins = format!("PodUnavailableBudget {}/{NAME} keeps 2 of 3 groups: group ", ns.name);
        assert!(sentence.starts_with(&begins), "{sentence}");
        assert!(sentence.contains("(group 0 is missing llm-serving-0-2, not ready for "), "{sentence}");
    }
    // The pods of a group that is already down may go.
    ns.delete_pod("llm-serving-0-2").await.expect(200);
}

struct Serving<'a>(&'a TestNamespace);

impl Serving<'_> {
    /// The UID of the leader of group 0.
    async fn leader(&self) -> Value {
        let leader = self.0.wire.get(&self.0.pod_path("llm-serving-0")).await;
        leader.body["metadata"]["uid"].clone()
    }

    /// Waits until all pods are ready, and the leader of group 0 is another one.
    async fn rebuilt(&self, before: &Value) {
        eventually("nine pods are ready", || async {
            let pods = self.0.wire.get(&self.0.path("v1", "pods")).await.expect(200)["items"].clone();
            let ready = |pod: &Value| {
                pod["metadata"]["deletionTimestamp"].is_null()
                    && has_condition(&pod["status"], "Ready", "True")
            };
            let ready = pods.as_array().into_iter().flatten().filter(|pod| ready(pod)).count();
            if ready == 9 && self.leader().await != *before { Ok(()) } else { Err(ready) }
        })
        .await;
    }
}

async fn serving(ns: &TestNamespace) -> Serving<'_> {
    let pod = json!({
        "metadata": {"labels": {"app": "llm-serving"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "worker", "image": "example.com/worker:latest"}],
        },
    });
    let set = json!({
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": "llm-serving"},
        "spec": {"replicas": 3, "leaderWorkerTemplate": {"size": 3, "workerTemplate": pod}},
    });
    let path = ns.path("leaderworkerset.x-k8s.io/v1", "leaderworkersets");
    ns.wire.post(&path, &set).await.expect(201);
    let serving = Serving(ns);
    serving.rebuilt(&Value::Null).await;
    serving
}

/// A condition reports a minimum that no group can reach, and pods without the label.
async fn conditions(ns: &TestNamespace) {
    let reason = |status: &Value| {
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().find(|c| c["type"] == "BudgetConfigured").map(|c| c["reason"].clone())
    };
    let policy = |policy| json!({"spec": {"podGroupPolicy": policy}});
    ns.patch_pub(NAME, &policy(json!({"minReadyReplicas": 4}))).await.expect(200);
    ns.await_pub_status(NAME, "no group can have so many", |status| {
        reason(status) == Some(json!("UnreachableMinimum"))
    })
    .await;
    ns.patch_pub(NAME, &policy(json!({"minReadyReplicas": 3}))).await.expect(200);
    ns.create_pod("stray", json!({"app": "llm-serving"})).await;
    ns.await_pub_status(NAME, "a pod has no label", |status| {
        reason(status) == Some(json!("MissingGroupLabel"))
    })
    .await;
}
