//! Tests of Deployments, ReplicaSets and StatefulSets on hollow nodes.

use kube::ResourceExt;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::fixture::{Fixture, describe, is_ready, template};

mod alone {
    use super::*;
    quorate_testbed::stories!(ApiServer:
        a_replica_set_keeps_its_number_of_pods,
        a_stateful_set_keeps_the_names_of_its_pods,
        a_stateful_set_with_volume_claims_gets_an_event,
        a_rollout_stays_within_surge_and_unavailable,
    );
}
/// The same stories with the real controllers: the actors must behave like them.
mod beside {
    #[test]
    fn a_replica_set_keeps_its_number_of_pods() {
        quorate_testbed::run_story(
            quorate_testbed::Backend::Real,
            quorate_testbed::Setup::Controllers,
            super::a_replica_set_keeps_its_number_of_pods,
        );
    }

    #[test]
    fn a_stateful_set_keeps_the_names_of_its_pods() {
        quorate_testbed::run_story(
            quorate_testbed::Backend::Real,
            quorate_testbed::Setup::Controllers,
            super::a_stateful_set_keeps_the_names_of_its_pods,
        );
    }

    #[test]
    fn a_rollout_stays_within_surge_and_unavailable() {
        quorate_testbed::run_story(
            quorate_testbed::Backend::Real,
            quorate_testbed::Setup::Controllers,
            super::a_rollout_stays_within_surge_and_unavailable,
        );
    }
}

async fn a_replica_set_keeps_its_number_of_pods(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "replicas").await;
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": {
        "replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template(json!({"app": "web"}), "web:1")}});
    fixture.create(set.clone()).await;
    let pods = fixture.ready("app=web", 3).await;
    let nodes: std::collections::BTreeSet<_> =
        pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect();
    assert_eq!(nodes.len(), 3, "spread over the nodes");

    let lost = pods[0].name_any();
    fixture.pods().delete(&lost, &DeleteParams::default()).await.unwrap();
    let after = eventually("the pod is replaced", || async {
        let pods = fixture.ready("app=web", 3).await;
        if pods.iter().any(|pod| pod.name_any() == lost) { Err(()) } else { Ok(pods) }
    })
    .await;
    assert_eq!(after.len(), 3);

    let api = fixture.api(&set);
    api.patch("web", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 1}}))).await.unwrap();
    fixture.ready("app=web", 1).await;
    eventually("the status has the new number", || async {
        let status = api.get("web").await.unwrap().data["status"].clone();
        if status["readyReplicas"] == 1 && status["replicas"] == 1 { Ok(()) } else { Err(status) }
    })
    .await;
}

async fn a_stateful_set_keeps_the_names_of_its_pods(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "members").await;
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {
        "replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
        "template": template(json!({"app": "db"}), "db:1")}});
    fixture.create(set.clone()).await;
    let pods = fixture.ready("app=db", 3).await;
    let created: Vec<_> = pods.iter().map(|pod| (pod.name_any(), pod.uid().unwrap())).collect();
    assert_eq!(created.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["db-0", "db-1", "db-2"]);

    fixture.pods().delete("db-1", &DeleteParams::default()).await.unwrap();
    eventually("db-1 is another pod with the same name", || async {
        let pods = fixture.ready("app=db", 3).await;
        if pods[1].name_any() == "db-1" && pods[1].uid().unwrap() != created[1].1 { Ok(()) } else { Err(()) }
    })
    .await;

    let api = fixture.api(&set);
    let image = json!({"spec": {"template": template(json!({"app": "db"}), "db:2")}});
    api.patch("db", &PatchParams::default(), &Patch::Merge(image)).await.unwrap();
    eventually("all pods run the new image", || async {
        let pods = fixture.ready("app=db", 3).await;
        let images: Vec<_> =
            pods.iter().map(|pod| pod.spec.as_ref().unwrap().containers[0].image.clone()).collect();
        if images.iter().all(|image| image.as_deref() == Some("db:2")) { Ok(()) } else { Err(images) }
    })
    .await;
    let status: Value = eventually("the rollout is complete", || async {
        let status = api.get("db").await.unwrap().data["status"].clone();
        if status["currentRevision"] == status["updateRevision"] { Ok(status) } else { Err(status) }
    })
    .await;
    assert_eq!(status["updatedReplicas"], 3);
}

/// Not run with the real controllers: they do create volume claims.
async fn a_stateful_set_with_volume_claims_gets_an_event(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "volumes").await;
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {
        "replicas": 1, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
        "volumeClaimTemplates": [claim], "template": template(json!({"app": "db"}), "db:1")}});
    fixture.create(set).await;
    let events = fixture.api(&json!({"apiVersion": "v1", "kind": "Event"}));
    let message = eventually("an event reports it", || async {
        let events = events.list(&ListParams::default()).await.unwrap();
        let event = events.iter().find(|event| event.data["reason"] == "FailedCreate");
        event.map(|event| event.data["message"].clone()).ok_or(())
    })
    .await;
    assert_eq!(message, "volumeClaimTemplates are not supported here: this cluster makes no volumes");
    assert_eq!(describe(&fixture.list("app=db").await), [""; 0]);
}

fn desired_replicas(set: &DynamicObject) -> i64 {
    set.data["spec"]["replicas"].as_i64().expect("a number")
}

async fn a_rollout_stays_within_surge_and_unavailable(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "rollout").await;
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": 5, "selector": {"matchLabels": {"app": "web"}},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
        "template": template(json!({"app": "web"}), "web:1")}});
    fixture.create(deployment.clone()).await;
    fixture.ready("app=web", 5).await;
    let api = fixture.api(&deployment);
    let image = json!({"spec": {"template": template(json!({"app": "web"}), "web:2")}});
    api.patch("web", &PatchParams::default(), &Patch::Merge(image)).await.unwrap();
    let sets = fixture.api(&json!({"apiVersion": "apps/v1", "kind": "ReplicaSet"}));
    eventually("all run the new image, with never less than four or more than six", || async {
        // The replicas of the ReplicaSets respect the upper bound. Their pods follow a moment later, and the new pods
        // may come before the old ones end.
        let desired: i64 =
            sets.list(&ListParams::default()).await.unwrap().iter().map(desired_replicas).sum();
        assert!(desired <= 6, "{desired}");
        let pods = fixture.list("app=web").await;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        assert!(ready >= 4, "{:?}", describe(&pods));
        let new = |pod: &&k8s_openapi::api::core::v1::Pod| {
            pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("web:2")
        };
        if pods.iter().filter(new).count() == 5 && pods.len() == 5 && ready == 5 {
            Ok(())
        } else {
            Err(describe(&pods))
        }
    })
    .await;
    let done = eventually("the status is complete", || async {
        let done = api.get("web").await.unwrap();
        let status = &done.data["status"];
        let numbers = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"];
        if numbers.iter().all(|field| status[*field] == 5)
            && status["observedGeneration"] == json!(done.metadata.generation)
        {
            Ok(done)
        } else {
            Err(done.data["status"].clone())
        }
    })
    .await;
    assert_eq!(done.annotations()["deployment.kubernetes.io/revision"], "2");
}
