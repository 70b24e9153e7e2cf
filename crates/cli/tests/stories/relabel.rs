//! Changes of labels and owners that take a pod out of a budget or a group.

use quorate_testbed::{Cluster, Patch, Reply, Webhook, WireResponse, eventually};
use serde_json::{Value, json};

use crate::fixture::{PDBS, TestNamespace, denial, spec_for_app};
use crate::quorate::{Quorate, scrape};

quorate_testbed::stories!(Whole:
    a_relabel_before_a_delete_is_denied,
    a_relabel_that_no_budget_decides_is_noticed,
    a_pod_leaves_a_pod_unavailable_budget,
    a_pod_leaves_the_twin_of_a_native_budget,
    a_primary_fails_over,
    a_move_between_groups_charges_the_group_that_the_pod_leaves,
    a_replica_set_releases_a_pod,
    updates_without_labels_and_owners_are_not_sent,
);

/// Changes labels of a pod; `null` removes one.
pub(crate) async fn relabel(ns: &TestNamespace, pod: &str, labels: Value) -> WireResponse {
    ns.patch_pod(pod, &json!({"metadata": {"labels": labels}})).await
}

/// Waits until the API server sends changes of labels in this namespace. A dry run changes nothing.
pub(crate) async fn await_labels_webhook(ns: &TestNamespace, pod: &str, labels: &Value) {
    let path = ns.pod_path(&format!("{pod}?dryRun=All"));
    let patch = json!({"metadata": {"labels": labels}});
    eventually("a change of labels is reviewed", || async {
        let answer = ns.wire.patch(&path, Patch::Merge, &patch).await;
        let reviewed = answer.code == 429 || !answer.warnings.is_empty();
        if reviewed { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

fn decided(mut spec: Value) -> Value {
    spec["operations"] = json!(["Evict", "Delete", "Relabel"]);
    spec
}

async fn a_relabel_before_a_delete_is_denied(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "relabelled").await;
    ns.create_pods("web", 2).await;
    ns.create_budget_allowing("web", decided(spec_for_app("web", "minAvailable", 1)), 1).await;
    ns.create_pods("bare", 1).await;
    ns.create_budget_allowing("bare", decided(spec_for_app("bare", "minAvailable", 1)), 0).await;
    await_labels_webhook(&ns, "bare-0", &json!({"app": "debug"})).await;
    // Labels that make no difference move freely, and the first pod may leave.
    relabel(&ns, "web-0", json!({"track": "canary"})).await.expect(200);
    relabel(&ns, "web-0", json!({"app": "debug"})).await.expect(200);
    ns.await_allowed("web", 0).await;
    let sentence = denial(&relabel(&ns, "web-1", json!({"app": "debug"})).await);
    assert!(sentence.starts_with(&format!("{}/web keeps 1 of ", ns.name)), "{sentence}");
    denial(&relabel(&ns, "web-1", json!({"app": null})).await);
    denial(&ns.delete_pod("web-1").await);
    // By its status: that can change labels, too.
    let path = ns.pod_path("web-1/status");
    let by_status =
        ns.wire.patch(&path, Patch::Merge, &json!({"metadata": {"labels": {"app": "debug"}}})).await;
    let stays = by_status.code == 429 || by_status.body["metadata"]["labels"]["app"] == "web";
    assert!(stays, "{}", by_status.body);
    // A claim of a change that happened does not last.
    ns.await_status("web", "no claims", |status| status["claims"].as_object().is_none_or(|c| c.is_empty()))
        .await;
    // The pod comes back, and there is room again.
    relabel(&ns, "web-0", json!({"app": "web"})).await.expect(200);
    ns.await_allowed("web", 1).await;
}

async fn a_relabel_that_no_budget_decides_is_noticed(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "noticed").await;
    ns.create_pods("web", 2).await;
    let mut spec = spec_for_app("web", "minAvailable", 1);
    spec["operations"] = json!(["Evict", "Delete"]);
    ns.create_budget_allowing("web", spec, 1).await;
    await_labels_webhook(&ns, "web-0", &json!({"app": "debug"})).await;
    let answer = relabel(&ns, "web-0", json!({"app": "debug"})).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    let expected = format!(
        "pod web-0 leaves {}/web: 1 pod is healthy without it, 1 must stay. The budget does not decide this; to let it, \
         add Relabel to its operations.",
        ns.name
    );
    assert!(answer.warnings.iter().any(|warning| warning.contains(&expected)), "{:?}", answer.warnings);
    assert!(relabel(&ns, "web-1", json!({"track": "canary"})).await.warnings.is_empty());
    // What has left is missing.
    ns.await_allowed("web", 0).await;
    denial(&ns.delete_pod("web-1").await);
    ns.delete_pod("web-0").await.expect(200);
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", ns.name);
    let event = eventually("an Event on the budget", || async {
        let events = ns.wire.get(&path).await.expect(200);
        let all = events["items"].as_array().cloned().unwrap_or_default();
        all.iter().find(|event| event["reason"] == "PodLeft").cloned().ok_or(all)
    })
    .await;
    assert_eq!((&event["regarding"]["name"], &event["note"]), (&json!("web"), &json!(expected)));
    let counted = format!("quorate_pods_left_total{{namespace=\"{}\",budget=\"web\"}} 1", ns.name);
    let text = scrape(quorate.server.admin).await;
    assert!(text.lines().any(|line| line == counted), "{text}");
}

async fn a_pod_leaves_a_pod_unavailable_budget(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "left-pub").await;
    ns.create_pods("web", 2).await;
    let protect = |operations: &str| json!({"kruise.io/pub-protect-operations": operations});
    let spec = spec_for_app("web", "minAvailable", 2);
    ns.create_pub("web", protect("EVICT,DELETE,RELABEL"), spec).await.expect(201);
    ns.await_pub_allowed("web", 0).await;
    await_labels_webhook(&ns, "web-0", &json!({"app": "debug"})).await;
    let sentence = denial(&relabel(&ns, "web-0", json!({"app": "debug"})).await);
    assert!(
        sentence.contains(&format!("PodUnavailableBudget {}/web keeps 2 of 2 pods", ns.name)),
        "{sentence}"
    );
    // Without the word, the pod leaves with a warning.
    ns.patch_pub("web", &json!({"metadata": {"annotations": protect("EVICT,DELETE")}})).await.expect(200);
    let warnings = eventually("the budget does not decide relabels any more", || async {
        let answer = relabel(&ns, "web-0", json!({"app": "debug"})).await;
        if answer.code == 200 { Ok(answer.warnings) } else { Err(answer.body) }
    })
    .await;
    let remedy = "add RELABEL to its annotation kruise.io/pub-protect-operations.";
    assert!(warnings.iter().any(|warning| warning.contains(remedy)), "{warnings:?}");
    let healthy = |status: &Value| status["currentAvailable"] == 1;
    ns.await_pub_status("web", "the pod that left does not count", healthy).await;
}

/// The annotations that request a twin have no operations, so pods always leave it with a warning.
async fn a_pod_leaves_the_twin_of_a_native_budget(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "left-twin").await;
    for shard in ["a", "b"] {
        ns.create_pod(&format!("llm-{shard}"), json!({"app": "llm", "shard": shard})).await;
    }
    let native = json!({
        "apiVersion": PDBS.0, "kind": "PodDisruptionBudget",
        "metadata": {"name": "llm", "annotations": {"quorate.dev/group-label-key": "shard"}},
        "spec": {"selector": {"matchLabels": {"app": "llm"}}, "maxUnavailable": 1},
    });
    ns.create(PDBS.0, PDBS.1, &native).await;
    ns.await_allowed("llm", 1).await;
    await_labels_webhook(&ns, "llm-a", &json!({"app": "debug"})).await;
    let answer = relabel(&ns, "llm-a", json!({"app": "debug"})).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    let expected = format!(
        "pod llm-a leaves group a of {}/llm: 1 group is healthy without it, 1 must stay. The budget does not decide this; \
         to let it, replace the PodDisruptionBudget with a DisruptionBudget that has Relabel in its operations.",
        ns.name
    );
    assert!(answer.warnings.iter().any(|warning| warning.contains(&expected)), "{:?}", answer.warnings);
    // The group is missing, so the other one stays.
    ns.await_allowed("llm", 0).await;
    denial(&ns.evict("llm-b").await);
}

/// Why `Relabel` is not among the operations by default: a database moves the label of its primary, and must not wait.
async fn a_primary_fails_over(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "failover").await;
    ns.create_pod("db-0", json!({"app": "db", "role": "primary"})).await;
    ns.create_pod("db-1", json!({"app": "db", "role": "replica"})).await;
    let primary = json!({"selector": {"matchLabels": {"role": "primary"}}, "minAvailable": 1});
    ns.create_budget_allowing("primary", primary, 0).await;
    let by_role = json!({
        "selector": {"matchLabels": {"app": "db"}}, "minAvailable": 2, "podGroupPolicy": {"groupLabelKey": "role"},
    });
    ns.create_budget_allowing("by-role", by_role, 0).await;
    await_labels_webhook(&ns, "db-0", &json!({"role": "replica"})).await;
    denial(&ns.evict("db-0").await);
    assert_eq!(
        relabel(&ns, "db-0", json!({"role": "replica"})).await.expect(200)["metadata"]["name"],
        "db-0"
    );
    relabel(&ns, "db-1", json!({"role": "primary"})).await.expect(200);
    // The budget protects the new primary, and no longer the old one.
    ns.await_status("primary", "healthy again", |status| status["currentHealthyReplicas"] == 1).await;
    denial(&ns.evict("db-1").await);
    // Nor does the fail-over depend on a server.
    quorate.end().await;
    relabel(&ns, "db-1", json!({"role": "replica"})).await.expect(200);
    relabel(&ns, "db-0", json!({"role": "primary"})).await.expect(200);
}

async fn a_move_between_groups_charges_the_group_that_the_pod_leaves(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "moved").await;
    for (group, count) in [("a", 2), ("b", 3)] {
        for number in 0..count {
            ns.create_pod(&format!("{group}-{number}"), json!({"app": "llm", "shard": group})).await;
        }
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "llm"}}, "minAvailable": 2, "expectedReplicas": 2,
        "podGroupPolicy": {"groupLabelKey": "shard", "minReadyReplicas": 2},
    });
    ns.create_budget_allowing("llm", decided(spec), 0).await;
    await_labels_webhook(&ns, "a-0", &json!({"shard": "b"})).await;
    let sentence = denial(&relabel(&ns, "a-0", json!({"shard": "b"})).await);
    assert!(sentence.contains("group a would be the first one down"), "{sentence}");
    // Group b has one pod more than it needs, and group a may then lose one.
    relabel(&ns, "b-0", json!({"shard": "a"})).await.expect(200);
    eventually("the pod counts in its new group", || async {
        let answer = relabel(&ns, "a-0", json!({"shard": null})).await;
        if answer.code == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    eventually("the group needs the others", || async {
        let answer = relabel(&ns, "a-1", json!({"shard": "b"})).await;
        if answer.code == 429 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

/// The controller gives up a pod whose labels its selector does not match any more. The budget has no room for that.
async fn a_replica_set_releases_a_pod(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "released").await;
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": "main:1"}]},
            },
        },
    });
    ns.create("apps/v1", "deployments", &deployment).await;
    ns.await_ready_pods(2).await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let spec = json!({"targetRef": target, "minAvailable": 2, "operations": ["Evict", "Relabel"]});
    ns.create_budget_allowing("web", spec, 0).await;
    let pods = ns.wire.get(&ns.path("v1", "pods")).await.expect(200);
    let pod = pods["items"][0]["metadata"]["name"].as_str().expect("a name").to_owned();
    let orphan = json!({"metadata": {"ownerReferences": null}});
    eventually("a user may not release the pod", || async {
        let path = ns.pod_path(&format!("{pod}?dryRun=All"));
        let answer = ns.wire.patch(&path, Patch::Merge, &orphan).await;
        if answer.code == 429 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    // By its owner the pod still belongs to the budget.
    assert!(relabel(&ns, &pod, json!({"app": "debug"})).await.warnings.is_empty());
    eventually("the ReplicaSet has released the pod", || async {
        let found = ns.wire.get(&ns.pod_path(&pod)).await.expect(200);
        let owners = found["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len);
        if owners == 0 { Ok(()) } else { Err(found) }
    })
    .await;
    ns.await_ready_pods(3).await;
    // It adopts the pod again, and deletes one that is too many.
    relabel(&ns, &pod, json!({"app": "web"})).await.expect(200);
    ns.await_ready_pods(2).await;
}

/// A recorder in the place of Quorate: the same rules and conditions.
async fn updates_without_labels_and_owners_are_not_sent(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "unsent").await;
    ns.create_pods("web", 2).await;
    ns.create_budget_allowing("web", decided(spec_for_app("web", "minAvailable", 1)), 1).await;
    let recorder = Webhook::start(|_| Reply::Allow).await.expect("a webhook");
    let configurations = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let quorate = ns.wire.get(&format!("{configurations}/quorate")).await.expect(200);
    let mut entries = quorate["webhooks"].as_array().cloned().expect("entries");
    entries.retain(|entry| {
        let config = &entry["clientConfig"];
        let path = config["url"].as_str().or(config["service"]["path"].as_str()).unwrap_or_default();
        path.ends_with("/pods") || path.ends_with("/labels")
    });
    assert_eq!(entries.len(), 4, "{entries:#?}");
    for entry in &mut entries {
        entry["clientConfig"] = recorder.client_config();
        entry["failurePolicy"] = json!("Fail");
    }
    let name = format!("recorder-{}", ns.name);
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name}, "webhooks": entries,
    });
    ns.wire.post(configurations, &configuration).await.expect(201);
    let here = |request: &&Value| request["namespace"] == json!(ns.name);
    eventually("the recorder is called", || async {
        let path = ns.pod_path("web-0?dryRun=All");
        ns.wire.patch(&path, Patch::Merge, &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
        if recorder.seen().iter().any(|request| here(&request)) { Ok(()) } else { Err("not called") }
    })
    .await;
    let before = recorder.seen().iter().filter(here).count();
    for (path, patch) in [
        ("web-0", json!({"metadata": {"annotations": {"a": "b"}}})),
        ("web-0", json!({"metadata": {"finalizers": ["example.com/hold"]}})),
        ("web-0", json!({"metadata": {"finalizers": null}})),
        ("web-0", json!({"metadata": {"labels": {"app": "web"}}})),
        ("web-0", json!({"spec": {"activeDeadlineSeconds": null}})),
        ("web-0/status", json!({"status": {"message": "hello"}})),
    ] {
        ns.wire.patch(&ns.pod_path(path), Patch::Merge, &patch).await.expect(200);
    }
    let sent: Vec<Value> = recorder.seen().iter().filter(here).skip(before).cloned().collect();
    assert!(sent.is_empty(), "{sent:#?}");
    relabel(&ns, "web-0", json!({"track": "canary"})).await.expect(200);
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"});
    ns.patch_pod("web-0", &json!({"metadata": {"ownerReferences": [owner]}})).await.expect(200);
    let mut sent: Vec<_> =
        recorder.seen().iter().filter(here).skip(before).map(|request| metadata_changes(request)).collect();
    // An API server whose cache is behind applies a patch once more to the newer object, and calls the webhooks again.
    sent.dedup();
    assert_eq!(sent, [["labels"], ["ownerReferences"]]);
    ns.wire.delete(&format!("{configurations}/{name}"), &json!({})).await.expect(200);
}

/// The fields of the metadata that a reviewed update changes, among those that take a pod out of a budget.
fn metadata_changes(request: &Value) -> Vec<&'static str> {
    let differs = |field: &&str| {
        let [old, new] = ["oldObject", "object"].map(|object| &request[object]["metadata"][*field]);
        old != new
    };
    ["labels", "ownerReferences"].into_iter().filter(differs).collect()
}
