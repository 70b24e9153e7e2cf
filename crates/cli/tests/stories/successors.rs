//! A StatefulSet's pod comes back under its name: an eviction that was admitted for it never strikes the new one.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::quorate::Quorate;
use crate::scene::is_ready;
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: an_eviction_never_strikes_the_successor);

async fn an_eviction_never_strikes_the_successor(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    cluster.actors().nodes().add("node-1").await.expect("a node");
    let town = Town::found(&cluster, "sts").await;
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {
            "replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "db", "image": "db:1"}]},
            },
        },
    });
    let path = format!("/apis/apps/v1/namespaces/{}/statefulsets", town.namespace);
    town.wire.post(&path, &set).await.expect(201);
    let pods: Api<Pod> = Api::namespaced(cluster.admin(), &town.namespace);
    let ready = |name: &'static str, not: Option<String>| {
        let pods = pods.clone();
        async move {
            eventually(&format!("{name} is ready"), || async {
                let pod = pods.get_opt(name).await.map_err(|error| error.to_string())?;
                match pod {
                    Some(pod) if is_ready(&pod) && pod.uid() != not => Ok(pod.uid()),
                    other => Err(format!("{:?}", other.map(|pod| pod.uid()))),
                }
            })
            .await
        }
    };
    ready("db-0", None).await;
    let first = ready("db-1", None).await;
    town.budget("db", json!({"selector": {"matchLabels": {"app": "db"}}, "maxUnavailable": 1}), 1).await;

    // Two at once: whichever comes second finds the pod terminating, or held; both are pinned to it.
    let (one, two) = tokio::join!(town.evict("db-1"), town.evict("db-1"));
    for answer in [one, two] {
        assert!(matches!(answer.code, 201 | 404 | 409), "{}", answer.body);
    }
    let second = ready("db-1", first.clone()).await;
    assert_ne!(first, second);
    town.allows("db", 1).await;
    // The successor has to be asked for anew, and stays otherwise.
    let insists = json!({"preconditions": {"uid": first}});
    assert_eq!(town.evict_with("db-1", insists, "").await.code, 409);
    assert_eq!(ready("db-1", None).await, second);
    town.evict("db-0").await.expect(201);
    refusal(&town.evict("db-1").await);
    ready("db-0", None).await;
}
