//! Workloads whose pods are all gone, under a budget that they share with others: they are still missed, also by a server
//! that was not there when the pods went, until somebody says that they are not wanted.

use quorate_devcluster::actors::install_leader_worker_sets;
use quorate_testbed::{Cluster, Options, Patch};
use serde_json::{Value, json};

use crate::quorate::{Quorate, install_workloads};
use crate::town::{Town, refusal};

// No controllers: what is gone stays away.
quorate_testbed::stories!(Private(Options::default()):
    a_pod_group_whose_pod_is_gone_is_missed,
    a_leader_worker_set_whose_pods_are_gone_is_missed,
    a_deployment_whose_pods_are_gone_is_missed,
);

/// A town where pods can be made though no controller makes their service account.
async fn found(cluster: &Cluster, stem: &str) -> Town {
    let town = Town::found(cluster, stem).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let path = format!("/api/v1/namespaces/{}/serviceaccounts", town.namespace);
    let made = town.wire.post(&path, &account).await;
    assert!(matches!(made.code, 201 | 409), "{}", made.body);
    town
}

impl Town {
    fn path(&self, version: &str, plural: &str) -> String {
        format!("/apis/{version}/namespaces/{}/{plural}", self.namespace)
    }

    async fn make(&self, version: &str, kind: &str, name: &str, object: Value) -> Value {
        let mut object = object;
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        object["metadata"]["name"] = json!(name);
        let path = self.path(version, &format!("{}s", kind.to_lowercase()));
        quorate_testbed::eventually("the object is made", || async {
            let answer = self.wire.post(&path, &object).await;
            if answer.code == 404 { Err(answer.body) } else { Ok(answer) }
        })
        .await
        .expect(201)
    }
}

/// As it was tried: three pod groups of one replica each, one of which may be down.
async fn a_pod_group_whose_pod_is_gone_is_missed(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    install_workloads(&cluster).await;
    let town = found(&cluster, "train").await;
    let group = |name: &str| json!({"name": name, "replicas": 1, "policy": {"basic": {}}});
    let groups = json!([group("ps"), group("worker"), group("eval")]);
    let workload = json!({"spec": {"podGroups": groups}});
    town.make("scheduling.quorate.dev/v1alpha1", "Workload", "train", workload).await;
    for name in ["ps", "worker", "eval"] {
        let labels = json!({"app": "train", "quorate.dev/workload": "train", "quorate.dev/pod-group": name,
            "quorate.dev/pod-group-replica": "0"});
        town.pod(&format!("{name}-0"), labels).await;
    }
    let spec = json!({"selector": {"matchLabels": {"app": "train"}}, "maxUnavailable": 1, "budgetScope": "Workload"});
    town.budget("train", spec, 1).await;

    town.evict("ps-0").await.expect(201);
    let misses_one = |status: &Value| {
        status["expectedReplicas"] == 3
            && status["currentHealthyReplicas"] == 2
            && status["disruptionsAllowed"] == 0
            && status["claims"] == json!({})
    };
    town.status_is("train", "the group is missed", misses_one).await;
    let refused = refusal(&town.evict("worker-0").await);
    assert!(refused.contains("keeps 2 of 3 groups"), "{refused}");

    // A server that was not there when the pod went knows it from the status.
    quorate.end().await;
    let _quorate = Quorate::start(&cluster).await;
    let refused = refusal(&town.evict("worker-0").await);
    assert!(refused.contains("keeps 2 of 3 groups"), "{refused}");

    // The group is not wanted any more.
    let mut fewer = groups;
    fewer[0]["replicas"] = json!(0);
    let path = format!("{}/train", town.path("scheduling.quorate.dev/v1alpha1", "workloads"));
    town.wire.patch(&path, Patch::Merge, &json!({"spec": {"podGroups": fewer}})).await.expect(200);
    town.allows("train", 1).await;
    town.evict("worker-0").await.expect(201);
}

async fn a_leader_worker_set_whose_pods_are_gone_is_missed(cluster: Cluster) {
    install_leader_worker_sets(&cluster.admin()).await.expect("a definition");
    let quorate = Quorate::start(&cluster).await;
    let town = found(&cluster, "llm").await;
    let template = json!({"metadata": {"labels": {"app": "llm"}}, "spec": {"containers": [{"name": "main", "image": "main:1"}]}});
    for set in ["a", "b"] {
        let spec = json!({"replicas": 2, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}});
        town.make("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", set, json!({"spec": spec})).await;
        for index in ["0", "1"] {
            let labels = json!({"app": "llm", "leaderworkerset.sigs.k8s.io/name": set,
                "leaderworkerset.sigs.k8s.io/group-index": index});
            town.pod(&format!("{set}-{index}"), labels).await;
        }
    }
    let group = json!({"groupLabelKey": "leaderworkerset.sigs.k8s.io/group-index"});
    let spec =
        json!({"selector": {"matchLabels": {"app": "llm"}}, "maxUnavailable": 2, "podGroupPolicy": group});
    town.budget("llm", spec, 2).await;
    town.evict("a-0").await.expect(201);
    town.evict("a-1").await.expect(201);
    let refused = refusal(&town.evict("b-0").await);
    assert!(refused.contains("keeps 2 of 4 groups"), "{refused}");
    quorate.end().await;
    let _quorate = Quorate::start(&cluster).await;
    let refused = refusal(&town.evict("b-0").await);
    assert!(refused.contains("keeps 2 of 4 groups"), "{refused}");

    let path = format!("{}/a", town.path("leaderworkerset.x-k8s.io/v1", "leaderworkersets"));
    town.wire.delete(&path, &json!({})).await.expect(200);
    town.allows("llm", 2).await;
}

async fn a_deployment_whose_pods_are_gone_is_missed(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let town = found(&cluster, "web").await;
    for name in ["a", "b"] {
        let labels = json!({"app": "web", "name": name});
        let template = json!({"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "main", "image": "main:1"}]}});
        let spec = json!({"replicas": 2, "selector": {"matchLabels": {"name": name}}, "template": template});
        let deployment = town.make("apps/v1", "Deployment", name, json!({"spec": spec})).await;
        let set = json!({"metadata": {"ownerReferences": [owner(&deployment)]}, "spec": spec});
        let set = town.make("apps/v1", "ReplicaSet", &format!("{name}-1"), set).await;
        for number in 0..2 {
            let pod = format!("{name}-{number}");
            let object = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": pod, "labels": labels, "ownerReferences": [owner(&set)]},
                "spec": {"nodeName": "by-hand", "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": "main:1"}]},
            });
            let path = format!("/api/v1/namespaces/{}/pods", town.namespace);
            town.wire.post(&path, &object).await.expect(201);
            town.set_ready(&pod, true).await;
        }
    }
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 2});
    town.budget("web", spec, 2).await;
    town.evict("a-0").await.expect(201);
    town.evict("a-1").await.expect(201);
    let refused = refusal(&town.evict("b-0").await);
    assert!(refused.contains("keeps 2 of 4 pods"), "{refused}");
    quorate.end().await;
    let _quorate = Quorate::start(&cluster).await;
    let refused = refusal(&town.evict("b-0").await);
    assert!(refused.contains("keeps 2 of 4 pods"), "{refused}");

    let path = format!("{}/a", town.path("apps/v1", "deployments"));
    town.wire.patch(&path, Patch::Merge, &json!({"spec": {"replicas": 0}})).await.expect(200);
    town.allows("web", 2).await;
}

fn owner(object: &Value) -> Value {
    json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "controller": true})
}
