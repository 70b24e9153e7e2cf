//! `kubectl delete pod` with a budget that covers deletes.

use quorate_testbed::Cluster;
use serde_json::json;

use crate::fixture::{LLM, TestNamespace};

quorate_testbed::stories!(Whole: a_delete_waits_while_another_group_is_down);

async fn a_delete_waits_while_another_group_is_down(cluster: Cluster) {
    let ns = TestNamespace::with_llm(cluster, json!({"operations": ["Evict", "Delete"]})).await;
    let kubelets = ns.cluster.actors().kubelets().clone();
    kubelets.set_ready(&ns.name, "llm-0-2", false).expect("a pod on a node");
    ns.await_status(LLM, "group 0 is down", |status| status["disruptionsAllowed"] == 0).await;

    let refused =
        ns.kubectl_in_namespace(&["delete", "pod", "llm-1-1"]).await.expect_err("it must be refused").stderr;
    let sentence = refused
        .strip_prefix("Error from server (TooManyRequests): admission webhook \"pods.quorate.dev\" denied the request: ")
        .unwrap_or_else(|| panic!("{refused}"));
    let begins = format!(
        "{}/llm keeps 2 of 3 groups: group 1 would be the second one down \
         (group 0 is missing llm-0-2, not ready for ",
        ns.name
    );
    assert!(sentence.starts_with(&begins), "{sentence}");
    assert!(sentence.trim_end().ends_with("). Waits for group 0."), "{sentence}");
    assert_eq!(ns.budget_status(LLM).await["ledger"], json!(0), "a refusal writes nothing");
    // A pod that is already down may be replaced.
    ns.kubectl_in_namespace(&["delete", "pod", "llm-0-2"]).await.expect("the pod that is down may go");

    ns.await_ready_pods(9).await;
    ns.await_status(LLM, "all groups are whole", |status| status["disruptionsAllowed"] == 1).await;
    ns.kubectl_in_namespace(&["delete", "pod", "llm-1-1"]).await.expect("one group may go");
    ns.await_ready_pods(9).await;
}
