//! Tests of how custom resources are served, created and removed.

use quorate_testbed::{Cluster, Patch, eventually, stories};
use serde_json::json;

use crate::crd_schema::{CRDS, Widgets};
use crate::fixtures::{names, version_of};

stories!(ApiServer:
    a_new_kind_is_discovered,
    a_definition_reports_when_it_is_established,
    a_definition_must_be_named_after_its_resource,
    a_custom_resource_has_a_generation_and_a_status,
    a_custom_resource_without_a_version_is_not_updated,
    a_status_is_patched_with_a_test,
    a_custom_resource_can_be_scaled,
    printer_columns_are_printed,
    a_custom_resource_is_watched,
    removing_a_definition_removes_its_objects,
);

fn sized() -> serde_json::Value {
    json!({"type": "object", "properties": {"size": {"type": "integer"}, "mode": {"type": "string"}}})
}

async fn a_new_kind_is_discovered(cluster: Cluster) {
    let widgets = Widgets::new(&cluster, sized(), json!({})).await;
    let found = eventually("the group is discovered", || async {
        let list = widgets.wire.get(&format!("/apis/{}/v1", widgets.group)).await;
        if list.code == 200 { Ok(list.body) } else { Err(list) }
    })
    .await;
    let resources: Vec<&str> = found["resources"]
        .as_array()
        .expect("resources")
        .iter()
        .filter_map(|resource| resource["name"].as_str())
        .collect();
    assert_eq!(resources, ["widgets", "widgets/status"]);
    assert_eq!(found["resources"][0]["shortNames"], json!(["wdg"]));
    eventually("the group is in the list of groups", || async {
        let groups = widgets.wire.get("/apis").await.expect(200);
        let known = groups["groups"]
            .as_array()
            .is_some_and(|groups| groups.iter().any(|group| group["name"] == widgets.group.as_str()));
        if known { Ok(()) } else { Err("not there") }
    })
    .await;
}

async fn a_definition_reports_when_it_is_established(cluster: Cluster) {
    let widgets = Widgets::new(&cluster, sized(), json!({})).await;
    let path = format!("{CRDS}/widgets.{}", widgets.group);
    eventually("the definition is established", || async {
        let definition = widgets.wire.get(&path).await.expect(200);
        let conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let holds = |kind: &str| conditions.iter().any(|one| one["type"] == kind && one["status"] == "True");
        if holds("Established") && holds("NamesAccepted") { Ok(()) } else { Err(definition) }
    })
    .await;
}

async fn a_definition_must_be_named_after_its_resource(cluster: Cluster) {
    let widgets = Widgets::new(&cluster, sized(), json!({})).await;
    let mut definition = widgets.definition(sized(), json!({}));
    definition["metadata"]["name"] = json!("gadgets.example.com");
    let answer = widgets.wire.post(CRDS, &definition).await;
    assert_eq!((answer.code, answer.reason()), (422, "Invalid"));
    assert!(answer.message().contains("must be spec.names.plural+\".\"+spec.group"), "{}", answer.message());
}

async fn a_custom_resource_has_a_generation_and_a_status(cluster: Cluster) {
    let widgets = Widgets::new(&cluster, sized(), json!({})).await;
    let mut object = widgets.object("one", &json!({"size": 1}));
    object["status"] = json!({"seen": true});
    let made = widgets.wire.post(&widgets.path(""), &object).await.expect(201);
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(made.get("status"), None, "a create ignores the status");
    let path = widgets.path("/one");
    let patch = json!({"spec": {"size": 9}, "status": {"seen": true}});
    let reported = widgets.wire.patch(&format!("{path}/status"), Patch::Merge, &patch).await.expect(200);
    assert_eq!((&reported["spec"]["size"], &reported["status"]), (&json!(1), &json!({"seen": true})));
    assert_eq!(reported["metadata"]["generation"], 1);
    let changed =
        widgets.wire.patch(&path, Patch::Merge, &json!({"spec": {"size": 2}, "status": null})).await;
    let changed = changed.expect(200);
    assert_eq!((&changed["metadata"]["generation"], &changed["status"]["seen"]), (&json!(2), &json!(true)));
}

async fn a_custom_resource_without_a_version_is_not_updated(cluster: Cluster) {
    let widgets = Widgets::new(&cluster, sized(), json!({})).await;
    widgets.create("one", json!({"size": 1})).await.expect(201);
    let answer = widgets.wire.put(&widgets.path("/one"), &widgets.object("one", &json!({"size": 2}))).await;
    assert_eq!((answer.code, answer.reason()), (422, "Invalid"));
    assert!(answer.message().ends_with("must be specified for an update"), "{}", answer.message());
}

async fn a_status_is_patched_with_a_test(cluster: Cluster) {
    let widgets = Widgets::new(&cluster, sized(), json!({})).await;
    widgets.create("one", json!({})).await.expect(201);
    let path = widgets.path("/one/status");
    widgets
        .wire
        .patch(&path, Patch::Merge, &json!({"status": {"ledger": 1, "claims": {}}}))
        .await
        .expect(200);
    let step = json!([{"op": "test", "path": "/status/ledger", "value": 1},
        {"op": "replace", "path": "/status/ledger", "value": 2},
        {"op": "add", "path": "/status/claims/pod-1", "value": {"tokens": ["a"]}}]);
    let after = widgets.wire.patch(&path, Patch::Json, &step).await.expect(200);
    assert_eq!(after["status"], json!({"ledger": 2, "claims": {"pod-1": {"tokens": ["a"]}}}));
    let late = widgets.wire.patch(&path, Patch::Json, &step).await;
    assert_eq!((late.code, late.reason()), (422, "Invalid"), "{:#}", late.body);
    let absent = json!([{"op": "remove", "path": "/status/claims/pod-2"}]);
    assert_eq!(widgets.wire.patch(&path, Patch::Json, &absent).await.code, 422);
    let stored = widgets.wire.get(&widgets.path("/one")).await.expect(200);
    assert_eq!(version_of(&stored), version_of(&after));
}

async fn a_custom_resource_can_be_scaled(cluster: Cluster) {
    let subresources = json!({"subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size",
        "statusReplicasPath": ".status.size", "labelSelectorPath": ".status.selector"}}});
    let widgets = Widgets::new(&cluster, sized(), subresources).await;
    widgets.create("one", json!({"size": 3})).await.expect(201);
    let status = json!({"status": {"size": 2, "selector": "app=one"}});
    widgets.wire.patch(&widgets.path("/one/status"), Patch::Merge, &status).await.expect(200);
    let path = widgets.path("/one/scale");
    let mut scale = widgets.wire.get(&path).await.expect(200);
    assert_eq!(scale["kind"], "Scale");
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["replicas"]), (&json!(3), &json!(2)));
    assert_eq!(scale["status"]["selector"], "app=one");
    scale["spec"]["replicas"] = json!(5);
    widgets.wire.put(&path, &scale).await.expect(200);
    assert_eq!(widgets.wire.get(&widgets.path("/one")).await.expect(200)["spec"]["size"], 5);
}

async fn printer_columns_are_printed(cluster: Cluster) {
    let columns = json!({"additionalPrinterColumns": [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Mode", "type": "string", "jsonPath": ".spec.mode", "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]});
    let widgets = Widgets::new(&cluster, sized(), columns).await;
    widgets.create("one", json!({"size": 3})).await.expect(201);
    let table = widgets.wire.table(&widgets.path("")).await.expect(200);
    let columns: Vec<(&str, i64)> = table["columnDefinitions"]
        .as_array()
        .expect("columns")
        .iter()
        .map(|column| {
            (column["name"].as_str().unwrap_or_default(), column["priority"].as_i64().unwrap_or_default())
        })
        .collect();
    assert_eq!(columns, [("Name", 0), ("Size", 0), ("Mode", 1), ("Age", 0)]);
    let cells = table["rows"][0]["cells"].as_array().expect("cells");
    assert_eq!(cells[..3], [json!("one"), json!(3), json!(null)]);
    // An age is a string like `2s`.
    assert!(cells[3].as_str().is_some_and(|age| age.ends_with('s')), "{cells:?}");
}

async fn a_custom_resource_is_watched(cluster: Cluster) {
    let widgets = Widgets::new(&cluster, sized(), json!({})).await;
    widgets.create("one", json!({"size": 1})).await.expect(201);
    let list = widgets.wire.get(&widgets.path("")).await.expect(200);
    assert_eq!((&list["kind"], names(&list)), (&json!("WidgetList"), vec!["one"]));
    let mut watch =
        widgets.wire.watch(&widgets.path(&format!("?resourceVersion={}", version_of(&list)))).await;
    widgets.create("two", json!({"size": 1})).await.expect(201);
    widgets.wire.delete(&widgets.path("/one"), &json!({})).await.expect(200);
    assert_eq!(watch.next_change().await, ("ADDED".to_owned(), "two".to_owned()));
    assert_eq!(watch.next_change().await, ("DELETED".to_owned(), "one".to_owned()));
}

async fn removing_a_definition_removes_its_objects(cluster: Cluster) {
    let widgets = Widgets::new(&cluster, sized(), json!({})).await;
    widgets.create("one", json!({"size": 1})).await.expect(201);
    let path = format!("{CRDS}/widgets.{}", widgets.group);
    widgets.wire.delete(&path, &json!({})).await.expect(200);
    eventually("the definition is gone", || async {
        let code = widgets.wire.get(&path).await.code;
        if code == 404 { Ok(()) } else { Err(code) }
    })
    .await;
    widgets.wire.post(CRDS, &widgets.definition(sized(), json!({}))).await.expect(201);
    widgets.await_served().await;
    assert_eq!(names(&widgets.wire.get(&widgets.path("")).await.expect(200)), Vec::<&str>::new());
}
