//! Tests of owner references in pod templates: every kind keeps them, and no pod gets them.

use quorate_testbed::{Backend, Cluster, Patch, eventually, stories};
use serde_json::{Value, json};

use crate::fixtures::{TestNamespace, deployment, stateful_set, text, uid_of};

stories!(Controllers:
    templates_keep_owner_references_and_pods_drop_them,
    a_definition_may_drop_owner_references_and_keeps_annotations,
);

/// A workload of each kind, whose only pod has the label `app: <kind>`.
fn workloads(node: &str) -> Vec<(&'static str, &'static str, Value)> {
    let plain = |kind: &str| {
        let mut object = deployment(&kind.to_lowercase(), 1);
        object["kind"] = json!(kind);
        object
    };
    let mut daemons = plain("DaemonSet");
    daemons["spec"].as_object_mut().expect("a spec").remove("replicas");
    daemons["spec"]["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    let mut controller = plain("ReplicationController");
    controller["apiVersion"] = json!("v1");
    controller["spec"]["selector"] = json!({"app": "replicationcontroller"});
    let mut job = plain("Job");
    job["apiVersion"] = json!("batch/v1");
    job["spec"] = json!({"template": job["spec"]["template"]});
    job["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    vec![
        ("apps/v1", "deployments", plain("Deployment")),
        ("apps/v1", "replicasets", plain("ReplicaSet")),
        ("apps/v1", "statefulsets", stateful_set("statefulset", 1)),
        ("apps/v1", "daemonsets", daemons),
        ("batch/v1", "jobs", job),
        ("v1", "replicationcontrollers", controller),
    ]
}

async fn templates_keep_owner_references_and_pods_drop_them(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "templates").await;
    let node = cluster.unique("for-daemons");
    let object = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}}});
    ns.wire.post("/api/v1/nodes", &object).await.expect(201);
    let [first, second] = ["first", "second"].map(|name| (name, ns.config_map(name, json!({}))));
    let reference = |name: &str, owner: &Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid_of(owner), "controller": false});
    let first = reference(first.0, &first.1.await);
    let second = reference(second.0, &second.1.await);
    let annotation = json!({"quorate.dev/owner-references": json!([first]).to_string()});

    let path = |version: &str, rest: &str| match version {
        "v1" => ns.core(rest),
        _ => ns.path(version, rest),
    };
    for (version, plural, mut object) in workloads(&node) {
        let name = text(&object, "/metadata/name").to_owned();
        object["spec"]["template"]["metadata"]["ownerReferences"] = json!([first]);
        object["spec"]["template"]["metadata"]["annotations"] = annotation.clone();
        let made = ns.wire.post(&path(version, plural), &object).await.expect(201);
        assert_eq!(
            made["spec"]["template"]["metadata"]["ownerReferences"],
            json!([first]),
            "{plural}: on create"
        );
        check_pods(&cluster, &ns, plural, &name, &annotation).await;

        // A Job's template is immutable; other changes do not affect it.
        let patch = match plural {
            "jobs" => json!({"spec": {"backoffLimit": 3}}),
            _ => json!({"spec": {"template": {"metadata": {"ownerReferences": [first, second]}}}}),
        };
        let rest = format!("{plural}/{name}");
        ns.wire.patch(&path(version, &rest), Patch::Merge, &patch).await.expect(200);
        let stored = ns.wire.get(&path(version, &rest)).await.expect(200);
        let kept = if plural == "jobs" { json!([first]) } else { json!([first, second]) };
        assert_eq!(stored["spec"]["template"]["metadata"]["ownerReferences"], kept, "{plural}: on update");
        check_pods(&cluster, &ns, plural, &name, &annotation).await;
    }
    ns.wire.delete(&format!("/api/v1/nodes/{node}"), &json!({})).await.expect(200);
}

/// Asserts that every pod has its controller as the only owner, and has the annotation of its template.
async fn check_pods(cluster: &Cluster, ns: &TestNamespace, plural: &str, app: &str, annotation: &Value) {
    if cluster.backend() == Backend::Embedded && ["daemonsets", "replicationcontrollers"].contains(&plural) {
        // The embedded cluster stores these kinds, but has no controllers for them.
        return;
    }
    let path = ns.core(&format!("pods?labelSelector=app%3D{app}"));
    let pods = eventually(&format!("{plural} create pods"), || async {
        let list = ns.wire.get(&path).await.expect(200);
        let pods = list["items"].as_array().cloned().unwrap_or_default();
        if pods.is_empty() { Err("none") } else { Ok(pods) }
    })
    .await;
    for pod in pods {
        let owners = pod["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        assert_eq!((owners.len(), &owners[0]["controller"]), (1, &json!(true)), "{plural}: {owners:#?}");
        for (key, text) in annotation.as_object().into_iter().flatten() {
            assert_eq!(pod["metadata"]["annotations"][key], *text, "{plural}");
        }
    }
}

/// Uses a kind with a pod template as definition generators write it, as for LeaderWorkerSet: of the template's
/// metadata, only the listed fields are kept.
async fn a_definition_may_drop_owner_references_and_keeps_annotations(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "pruned").await;
    let group = format!("{}.example.com", cluster.unique("pruning"));
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let metadata = json!({"type": "object", "properties": {"name": {"type": "string"}, "namespace": {"type": "string"},
        "labels": texts, "annotations": texts, "finalizers": {"type": "array", "items": {"type": "string"}}}});
    let template = json!({"type": "object", "properties": {"metadata": metadata}});
    let spec = json!({"type": "object", "properties": {"template": template}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("sets.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"kind": "Set", "plural": "sets", "singular": "set", "listKind": "SetList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}]},
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    ns.wire.post(definitions, &definition).await.expect(201);
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "a-uid"});
    let annotations = json!({"quorate.dev/owner-references": json!([owner]).to_string()});
    let object = json!({"apiVersion": format!("{group}/v1"), "kind": "Set", "metadata": {"name": "one"},
        "spec": {"template": {"metadata": {"annotations": annotations, "ownerReferences": [owner]}}}});
    let path = ns.path(&format!("{group}/v1"), "sets");
    let made = eventually("the kind is served", || async {
        let answer = ns.wire.post(&path, &object).await;
        if answer.code == 404 { Err(answer) } else { Ok(answer) }
    })
    .await
    .expect(201);
    assert_eq!(made["spec"]["template"]["metadata"], json!({"annotations": annotations}));
    ns.wire.delete(&format!("{definitions}/sets.{group}"), &json!({})).await.expect(200);
}
