//! `kubectl delete pod`, where the budget protects against that too.

use quorate_testbed::Cluster;
use serde_json::json;

use crate::scene::Scene;

quorate_testbed::stories!(Whole: a_delete_waits_while_another_group_is_down);

async fn a_delete_waits_while_another_group_is_down(cluster: Cluster) {
    let scene = Scene::set(cluster, json!({"operations": ["Evict", "Delete"]})).await;
    let kubelets = scene.cluster.actors().kubelets().clone();
    kubelets.set_ready(&scene.namespace, "llm-0-2", false).expect("a pod on a node");
    scene.status_is("group 0 is down", |status| status["disruptionsAllowed"] == 0).await;

    let (_, refused) = scene.kubectl(&["delete", "pod", "llm-1-1"]).await.expect_err("it must be refused");
    let sentence = refused
        .strip_prefix("Error from server (TooManyRequests): admission webhook \"pods.quorate.dev\" denied the request: ")
        .unwrap_or_else(|| panic!("{refused}"));
    let begins = format!(
        "{}/llm keeps 2 of 3 groups: group 1 would be the second one down \
         (group 0 is missing llm-0-2, not ready for ",
        scene.namespace
    );
    assert!(sentence.starts_with(&begins), "{sentence}");
    assert!(sentence.trim_end().ends_with("). Waits for group 0."), "{sentence}");
    assert_eq!(scene.status().await["ledger"], json!(0), "a refusal writes nothing");
    // What is down already may be replaced.
    scene.kubectl(&["delete", "pod", "llm-0-2"]).await.expect("the pod that is down may go");

    scene.ready(9).await;
    scene.status_is("all groups are whole", |status| status["disruptionsAllowed"] == 1).await;
    scene.kubectl(&["delete", "pod", "llm-1-1"]).await.expect("one group may go");
    scene.ready(9).await;
}
