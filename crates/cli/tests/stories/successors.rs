//! The replacement pod of a StatefulSet has the same name: an eviction that was admitted for the old pod never removes
//! it.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::fixture::{TestNamespace, denial, is_ready};
use crate::quorate::Quorate;

quorate_testbed::stories!(Whole: an_eviction_never_removes_the_replacement_pod);

async fn an_eviction_never_removes_the_replacement_pod(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    cluster.actors().nodes().add("node-1").await.expect("a node");
    let ns = TestNamespace::with_manual_pods(&cluster, "sts").await;
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
    let path = ns.path("apps/v1", "statefulsets");
    ns.wire.post(&path, &set).await.expect(201);
    let pods: Api<Pod> = Api::namespaced(cluster.admin(), &ns.name);
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
    ns.create_budget_allowing(
        "db",
        json!({"selector": {"matchLabels": {"app": "db"}}, "maxUnavailable": 1}),
        1,
    )
    .await;

    // Two at once: the second one finds the pod terminating or claimed. Both have the UID of the pod as a precondition.
    let (one, two) = tokio::join!(ns.evict("db-1"), ns.evict("db-1"));
    for answer in [one, two] {
        assert!(matches!(answer.code, 201 | 404 | 409), "{}", answer.body);
    }
    let second = ready("db-1", first.clone()).await;
    assert_ne!(first, second);
    ns.await_allowed("db", 1).await;
    // The replacement needs an eviction of its own, and stays otherwise.
    let insists = json!({"preconditions": {"uid": first}});
    assert_eq!(ns.evict_with("db-1", insists, "").await.code, 409);
    assert_eq!(ready("db-1", None).await, second);
    ns.replace_slowly(true);
    ns.evict("db-0").await.expect(201);
    denial(&ns.evict("db-1").await);
}
