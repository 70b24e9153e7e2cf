//! Workloads whose pods are all gone, under a budget that covers other workloads too: their pods are still expected,
//! also by a server that started later, until the workload is scaled down or deleted.

use quorate_devcluster::actors::install_leader_worker_sets;
use quorate_testbed::{Cluster, Options, Patch};
use serde_json::{Value, json};

use crate::fixture::{TestNamespace, denial};
use crate::quorate::{Quorate, install_workloads};

// Without controllers: deleted pods are not replaced.
quorate_testbed::stories!(Private(Options::default()):
    a_pod_group_whose_pod_is_gone_is_still_expected,
    a_leader_worker_set_whose_pods_are_gone_is_still_expected,
    a_deployment_whose_pods_are_gone_is_still_expected,
    a_job_whose_pods_are_gone_is_still_expected,
);

/// Creates a namespace with a service account, which no controller creates here.
async fn create_namespace(cluster: &Cluster, stem: &str) -> TestNamespace {
    let ns = TestNamespace::with_manual_pods(cluster, stem).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let path = ns.path("v1", "serviceaccounts");
    let made = ns.wire.post(&path, &account).await;
    assert!(matches!(made.code, 201 | 409), "{}", made.body);
    ns
}

impl TestNamespace {
    async fn create_object(&self, version: &str, kind: &str, name: &str, object: Value) -> Value {
        let mut object = object;
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        object["metadata"]["name"] = json!(name);
        self.create(version, &format!("{}s", kind.to_lowercase()), &object).await
    }
}

/// Three pod groups of one replica each, one of which may be down.
async fn a_pod_group_whose_pod_is_gone_is_still_expected(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    install_workloads(&cluster).await;
    let ns = create_namespace(&cluster, "train").await;
    let group = |name: &str| json!({"name": name, "replicas": 1, "policy": {"basic": {}}});
    let groups = json!([group("ps"), group("worker"), group("eval")]);
    let workload = json!({"spec": {"podGroups": groups}});
    ns.create_object("scheduling.quorate.dev/v1alpha1", "Workload", "train", workload).await;
    for name in ["ps", "worker", "eval"] {
        let labels = json!({"app": "train", "quorate.dev/workload": "train", "quorate.dev/pod-group": name,
            "quorate.dev/pod-group-replica": "0"});
        ns.create_pod(&format!("{name}-0"), labels).await;
    }
    let spec = json!({"selector": {"matchLabels": {"app": "train"}}, "maxUnavailable": 1, "budgetScope": "Workload"});
    ns.create_budget_allowing("train", spec, 1).await;

    ns.evict("ps-0").await.expect(201);
    let misses_one = |status: &Value| {
        status["expectedReplicas"] == 3
            && status["currentHealthyReplicas"] == 2
            && status["disruptionsAllowed"] == 0
            && status["claims"] == json!({})
    };
    ns.await_status("train", "the group is missing", misses_one).await;
    let refused = denial(&ns.evict("worker-0").await);
    assert!(refused.contains("keeps 2 of 3 groups"), "{refused}");

    // A server that started later knows the missing group from the status.
    quorate.end().await;
    let _quorate = Quorate::start(&cluster).await;
    let refused = ns.denial_after_start("worker-0").await;
    assert!(refused.contains("keeps 2 of 3 groups"), "{refused}");

    // The group is scaled to zero.
    let mut fewer = groups;
    fewer[0]["replicas"] = json!(0);
    let path = format!("{}/train", ns.path("scheduling.quorate.dev/v1alpha1", "workloads"));
    ns.wire.patch(&path, Patch::Merge, &json!({"spec": {"podGroups": fewer}})).await.expect(200);
    ns.await_allowed("train", 1).await;
    ns.evict("worker-0").await.expect(201);
}

async fn a_leader_worker_set_whose_pods_are_gone_is_still_expected(cluster: Cluster) {
    install_leader_worker_sets(&cluster.admin()).await.expect("a definition");
    let quorate = Quorate::start(&cluster).await;
    let ns = create_namespace(&cluster, "llm").await;
    let template = json!({"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [{"name": "main", "image": "main:1"}]}});
    for set in ["a", "b"] {
        let spec = json!({"replicas": 2, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}});
        ns.create_object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", set, json!({"spec": spec})).await;
        for index in ["0", "1"] {
            let labels = json!({"app": "llm", "leaderworkerset.sigs.k8s.io/name": set,
                "leaderworkerset.sigs.k8s.io/group-index": index});
            ns.create_pod(&format!("{set}-{index}"), labels).await;
        }
    }
    let group = json!({"groupLabelKey": "leaderworkerset.sigs.k8s.io/group-index"});
    let spec =
        json!({"selector": {"matchLabels": {"app": "llm"}}, "maxUnavailable": 2, "podGroupPolicy": group});
    ns.create_budget_allowing("llm", spec, 2).await;
    ns.evict("a-0").await.expect(201);
    ns.evict("a-1").await.expect(201);
    let refused = denial(&ns.evict("b-0").await);
    assert!(refused.contains("keeps 2 of 4 groups"), "{refused}");
    quorate.end().await;
    let _quorate = Quorate::start(&cluster).await;
    let refused = ns.denial_after_start("b-0").await;
    assert!(refused.contains("keeps 2 of 4 groups"), "{refused}");

    let path = format!("{}/a", ns.path("leaderworkerset.x-k8s.io/v1", "leaderworkersets"));
    ns.wire.delete(&path, &json!({})).await.expect(200);
    ns.await_allowed("llm", 2).await;
}

impl TestNamespace {
    /// Creates a Deployment of two pods with the label `app=web`, its ReplicaSet, and the pods.
    async fn create_deployment(&self, name: &str) {
        let labels = json!({"app": "web", "name": name});
        let template = json!({"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "main", "image": "main:1"}]}});
        let spec = json!({"replicas": 2, "selector": {"matchLabels": {"name": name}}, "template": template});
        let deployment = self.create_object("apps/v1", "Deployment", name, json!({"spec": spec})).await;
        let set = json!({"metadata": {"ownerReferences": [owner(&deployment)]}, "spec": spec});
        let set = self.create_object("apps/v1", "ReplicaSet", &format!("{name}-1"), set).await;
        self.create_pods_of(name, &set, &labels).await;
    }

    /// Creates the ready pods `name-0` and `name-1` of a controller.
    async fn create_pods_of(&self, name: &str, controller: &Value, labels: &Value) {
        for number in 0..2 {
            let pod = format!("{name}-{number}");
            let object = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": pod, "labels": labels, "ownerReferences": [owner(controller)]},
                "spec": {"nodeName": "by-hand", "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": "main:1"}]},
            });
            self.wire.post(&self.path("v1", "pods"), &object).await.expect(201);
            self.set_pod_ready(&pod, true).await;
        }
    }

    /// Evicts both pods of `a`. Then the budget `web`, which allows two disruptions, must not allow that of a pod of `b`,
    /// and neither by a server that started later, which is returned.
    async fn lose_a_and_keep_b(&self, cluster: &Cluster, quorate: Quorate) -> Quorate {
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 2});
        self.create_budget_allowing("web", spec, 2).await;
        self.evict("a-0").await.expect(201);
        self.evict("a-1").await.expect(201);
        let refused = denial(&self.evict("b-0").await);
        assert!(refused.contains("keeps 2 of 4 pods"), "{refused}");
        let is_settled = |status: &Value| status["claims"] == json!({}) && status["currentHealthy"] == 2;
        self.await_status("web", "the pods are gone", is_settled).await;
        quorate.end().await;
        let quorate = Quorate::start(cluster).await;
        let refused = self.denial_after_start("b-0").await;
        assert!(refused.contains("keeps 2 of 4 pods"), "{refused}");
        quorate
    }
}

async fn a_deployment_whose_pods_are_gone_is_still_expected(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let ns = create_namespace(&cluster, "web").await;
    for name in ["a", "b"] {
        ns.create_deployment(name).await;
    }
    let _quorate = ns.lose_a_and_keep_b(&cluster, quorate).await;

    let path = format!("{}/a", ns.path("apps/v1", "deployments"));
    ns.wire.patch(&path, Patch::Merge, &json!({"spec": {"replicas": 0}})).await.expect(200);
    ns.await_allowed("web", 2).await;
}

/// Servers watch Jobs only while something names them. When the pods of a Job are gone, only the budget does.
async fn a_job_whose_pods_are_gone_is_still_expected(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let ns = create_namespace(&cluster, "batch").await;
    let labels = json!({"app": "web", "name": "a"});
    let template = json!({"metadata": {"labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "main:1"}]}});
    let spec = json!({"spec": {"parallelism": 2, "completions": 2, "template": template}});
    let job = ns.create_object("batch/v1", "Job", "a", spec).await;
    ns.create_pods_of("a", &job, &labels).await;
    ns.create_deployment("b").await;
    let _quorate = ns.lose_a_and_keep_b(&cluster, quorate).await;

    let path = format!("{}/a", ns.path("batch/v1", "jobs"));
    ns.wire.patch(&path, Patch::Merge, &json!({"spec": {"suspend": true}})).await.expect(200);
    ns.await_allowed("web", 2).await;
}

fn owner(object: &Value) -> Value {
    json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "controller": true})
}
