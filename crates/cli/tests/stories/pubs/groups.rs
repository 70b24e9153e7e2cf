//! The proposal for groups, word for word, over a LeaderWorkerSet of three groups of three.

use quorate_testbed::{Cluster, User, eventually};
use serde_json::{Value, json};

use crate::group_log::GroupLog;
use crate::quorate::Quorate;
use crate::scene::GROUP;
use crate::town::{Town, is, refusal};

quorate_testbed::stories!(Whole: a_budget_over_the_groups_of_a_leader_worker_set);

/// The budget of the proposal. Its LeaderWorkerSet is of a kind that nobody has; this one is real.
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

async fn a_budget_over_the_groups_of_a_leader_worker_set(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    for node in ["node-1", "node-2", "node-3"] {
        cluster.actors().nodes().add(node).await.expect("a node");
    }
    let town = Town::found(&cluster, "inference").await;
    let serving = serving(&town).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("budget.yaml");
    std::fs::write(&file, BUDGET.replace("NAMESPACE", &town.namespace)).expect("a file");
    let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
    let applied = kubectl.run(&["apply", "-f", &file.to_string_lossy()]).await.expect("kubectl");
    assert!(applied.success, "{}{}", applied.stdout, applied.stderr);

    let log = GroupLog::begin(&cluster, &town.namespace, GROUP, 3).await;
    for rule in [
        json!({"maxUnavailable": 1, "minAvailable": null}),
        json!({"maxUnavailable": null, "minAvailable": 2}),
        json!({"maxUnavailable": 2, "minAvailable": 2}),
    ] {
        town.change_pub(NAME, &json!({"spec": rule})).await.expect(200);
        whole(&town).await;
        let leader = serving.leader().await;
        one_group_at_a_time(&cluster, &town).await;
        // The group is rebuilt from its leader on.
        serving.rebuilt(&leader).await;
    }
    let fewest = log.moments().iter().map(|moment| moment.whole).min();
    assert_eq!(fewest, Some(2), "one group down, and never two");
    conditions(&town).await;
}

/// Waits until all groups are counted as whole; the numbers are of groups.
async fn whole(town: &Town) {
    let status = town
        .pub_is(NAME, "all groups are whole", |status| {
            is(status, "Enforced", "True")
                && status["unavailableAllowed"] == 1
                && status["claims"] == json!({})
        })
        .await;
    let numbers = ["currentAvailable", "desiredAvailable", "totalReplicas", "unavailableReplicas"];
    let numbers = numbers.map(|name| status[name].as_u64());
    assert_eq!(numbers, [Some(3), Some(2), Some(3), Some(0)], "{status}");
    assert_eq!(status["groups"].as_array().map(Vec::len), Some(3), "{status}");
}

async fn one_group_at_a_time(cluster: &Cluster, town: &Town) {
    // A worker that is not ready takes its group down.
    let kubelets = cluster.actors().kubelets().clone();
    kubelets.set_ready(&town.namespace, "llm-serving-0-2", false).expect("a pod on a node");
    town.pub_is(NAME, "group 0 is down", |status| {
        status["unavailableAllowed"] == 0 && status["unavailableReplicas"] == 1
    })
    .await;
    for answer in [town.evict("llm-serving-1").await, town.delete("llm-serving-2-1").await] {
        let sentence = refusal(&answer);
        let begins = format!("PodUnavailableBudget {}/{NAME} keeps 2 of 3 groups: group ", town.namespace);
        assert!(sentence.starts_with(&begins), "{sentence}");
        assert!(sentence.contains("(group 0 is missing llm-serving-0-2, not ready for "), "{sentence}");
    }
    // What is down already may go, all of it.
    town.delete("llm-serving-0-2").await.expect(200);
}

struct Serving<'a>(&'a Town);

impl Serving<'_> {
    fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.0.namespace)
    }

    /// The UID of the leader of group 0.
    async fn leader(&self) -> Value {
        let leader = self.0.wire.get(&format!("{}/llm-serving-0", self.pods())).await;
        leader.body["metadata"]["uid"].clone()
    }

    /// Waits until all pods are ready, and the leader of group 0 is another one.
    async fn rebuilt(&self, before: &Value) {
        eventually("nine pods are ready", || async {
            let pods = self.0.wire.get(&self.pods()).await.expect(200)["items"].clone();
            let ready = |pod: &Value| {
                pod["metadata"]["deletionTimestamp"].is_null() && is(&pod["status"], "Ready", "True")
            };
            let ready = pods.as_array().into_iter().flatten().filter(|pod| ready(pod)).count();
            if ready == 9 && self.leader().await != *before { Ok(()) } else { Err(ready) }
        })
        .await;
    }
}

async fn serving(town: &Town) -> Serving<'_> {
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
    let path = format!("/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets", town.namespace);
    town.wire.post(&path, &set).await.expect(201);
    let serving = Serving(town);
    serving.rebuilt(&Value::Null).await;
    serving
}

/// A minimum that no group can reach, and pods without the label, are said in a condition.
async fn conditions(town: &Town) {
    let reason = |status: &Value| {
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().find(|c| c["type"] == "BudgetConfigured").map(|c| c["reason"].clone())
    };
    let policy = |policy| json!({"spec": {"podGroupPolicy": policy}});
    town.change_pub(NAME, &policy(json!({"minReadyReplicas": 4}))).await.expect(200);
    town.pub_is(NAME, "no group can have so many", |status| {
        reason(status) == Some(json!("UnreachableMinimum"))
    })
    .await;
    town.change_pub(NAME, &policy(json!({"minReadyReplicas": 3}))).await.expect(200);
    town.pod("stray", json!({"app": "llm-serving"})).await;
    town.pub_is(NAME, "a pod has no label", |status| reason(status) == Some(json!("MissingGroupLabel")))
        .await;
}
