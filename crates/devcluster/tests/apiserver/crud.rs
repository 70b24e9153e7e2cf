//! Tests of create, read, update, patch and delete.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};

use crate::fixture::{
    admin, budgets, delete_now, evict, object, pod, pods, post, raw, refusal, running, server,
};

#[tokio::test]
async fn a_pod_gets_the_defaults_of_the_server() {
    let server = server().await;
    let client = admin(&server);
    let made = pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    let spec = made.spec.as_ref().unwrap();
    assert_eq!(spec.termination_grace_period_seconds, Some(30));
    assert_eq!(spec.restart_policy.as_deref(), Some("Always"));
    let status = made.status.as_ref().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    assert!(made.metadata.uid.is_some() && made.metadata.creation_timestamp.is_some());
    assert_eq!(made.metadata.generation, Some(1));
    let again = refusal(pods(&client).create(&PostParams::default(), &pod("a")).await);
    assert_eq!((again.code, again.reason.as_str()), (409, "AlreadyExists"));
    assert_eq!(again.message, "pods \"a\" already exists");
}

#[tokio::test]
async fn names_are_generated_and_invalid_names_rejected() {
    let server = server().await;
    let client = admin(&server);
    let mut wanted = pod("x");
    wanted.metadata.name = None;
    wanted.metadata.generate_name = Some("web-".into());
    let first = pods(&client).create(&PostParams::default(), &wanted).await.unwrap();
    let second = pods(&client).create(&PostParams::default(), &wanted).await.unwrap();
    assert!(first.metadata.name.as_ref().unwrap().starts_with("web-"));
    assert_ne!(first.metadata.name, second.metadata.name);
    let bad = refusal(pods(&client).create(&PostParams::default(), &pod("Not_a_name")).await);
    assert_eq!((bad.code, bad.reason.as_str()), (422, "Invalid"));
    assert!(
        bad.message.contains("metadata.name: Invalid value: \"Not_a_name\": a lowercase RFC 1123 subdomain")
    );
    let empty = json!({"metadata": {"name": "e"}, "spec": {"containers": []}});
    let (code, status) = post(&client, "/api/v1/namespaces/default/pods", empty).await;
    assert_eq!(code, 422);
    assert_eq!(status["message"], "Pod \"e\" is invalid: spec.containers: Required value");
    assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueRequired");
}

#[tokio::test]
async fn wrong_types_and_strictly_unknown_fields_are_rejected() {
    let server = server().await;
    let client = admin(&server);
    let body = json!({"metadata": {"name": "a"}, "spec": {"containers": "none"}});
    assert_eq!(post(&client, "/api/v1/namespaces/default/pods", body).await.0, 400);
    let body = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i", "imge": "j"}]}});
    let (code, status) =
        post(&client, "/api/v1/namespaces/default/pods?fieldValidation=Strict", body.clone()).await;
    assert_eq!(code, 400);
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("strict decoding error: unknown field \"spec.containers[0].imge\"")
    );
    let (code, made) = post(&client, "/api/v1/namespaces/default/pods", body).await;
    assert_eq!(code, 201);
    assert!(made["spec"]["containers"][0].get("imge").is_none());
}

#[tokio::test]
async fn a_stale_update_conflicts_and_a_patch_does_not() {
    let server = server().await;
    let client = admin(&server);
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let old = maps
        .create(&PostParams::default(), &object(json!({"metadata": {"name": "m"}, "data": {"a": "1"}})))
        .await
        .unwrap();
    maps.patch("m", &PatchParams::default(), &Patch::Merge(json!({"data": {"b": "2"}}))).await.unwrap();
    let conflict = refusal(maps.replace("m", &PostParams::default(), &old).await);
    assert_eq!((conflict.code, conflict.reason.as_str()), (409, "Conflict"));
    assert_eq!(
        conflict.message,
        "Operation cannot be fulfilled on configmaps \"m\": the object has been modified; please apply your changes to the latest version and try again"
    );
    let same =
        maps.patch("m", &PatchParams::default(), &Patch::Merge(json!({"data": {"b": "2"}}))).await.unwrap();
    let read = maps.get("m").await.unwrap();
    assert_eq!(
        same.metadata.resource_version, read.metadata.resource_version,
        "a patch that changes nothing writes nothing"
    );
}

#[tokio::test]
async fn a_budget_cannot_be_updated_without_a_resource_version() {
    let server = server().await;
    let client = admin(&server);
    let wanted: PodDisruptionBudget = object(json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1}}));
    budgets(&client).create(&PostParams::default(), &wanted).await.unwrap();
    let status = refusal(budgets(&client).replace("b", &PostParams::default(), &wanted).await);
    assert_eq!(status.code, 422);
    assert!(
        status.message.contains("metadata.resourceVersion")
            && status.message.contains("must be specified for an update")
    );
}

#[tokio::test]
async fn budgets_are_validated_as_by_the_real_api_server() {
    let server = server().await;
    let client = admin(&server);
    for (bad, text) in [
        (json!({"minAvailable": "1.1%"}), "spec.minAvailable"),
        (json!({"maxUnavailable": "101%"}), "must not be greater than 100%"),
        (json!({"minAvailable": -1}), "must be greater than or equal to 0"),
        (json!({"minAvailable": 1, "maxUnavailable": 1}), "cannot be both set"),
        (json!({"unhealthyPodEvictionPolicy": ""}), "Unsupported value"),
        (json!({"unhealthyPodEvictionPolicy": "Invalid"}), "Unsupported value"),
    ] {
        let body = json!({"metadata": {"name": "b"}, "spec": bad});
        let (code, status) =
            post(&client, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", body).await;
        assert_eq!(code, 422, "{bad}");
        assert!(status["message"].as_str().unwrap().contains(text), "{bad}: {status}");
    }
    for good in [json!({"minAvailable": "0%"}), json!({"maxUnavailable": 0}), json!({})] {
        let body = json!({"metadata": {"generateName": "b-"}, "spec": good});
        let (code, made) =
            post(&client, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", body).await;
        assert_eq!(code, 201, "{made}");
        assert_eq!(made["status"]["disruptionsAllowed"], 0);
        assert_eq!(made["metadata"]["generation"], 1);
    }
}

#[tokio::test]
async fn generation_counts_the_spec_and_status_is_a_subresource() {
    let server = server().await;
    let client = admin(&server);
    let api = budgets(&client);
    let wanted = object(
        json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1}, "status": {"currentHealthy": 5}}),
    );
    let made = api.create(&PostParams::default(), &wanted).await.unwrap();
    assert_eq!(made.status.unwrap().current_healthy, 0, "a create ignores the status");
    let patched = api
        .patch(
            "b",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"minAvailable": 2}, "status": {"currentHealthy": 7}})),
        )
        .await
        .unwrap();
    assert_eq!(patched.metadata.generation, Some(2));
    assert_eq!(patched.status.unwrap().current_healthy, 0);
    let status = api
        .patch_status(
            "b",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"minAvailable": 9}, "status": {"currentHealthy": 7}})),
        )
        .await
        .unwrap();
    assert_eq!(status.metadata.generation, Some(2));
    assert_eq!(status.status.unwrap().current_healthy, 7);
    assert_eq!(serde_json::to_value(status.spec.unwrap()).unwrap()["minAvailable"], 2);
    let negative = refusal(
        api.patch_status(
            "b",
            &PatchParams::default(),
            &Patch::Merge(json!({"status": {"disruptionsAllowed": -1}})),
        )
        .await,
    );
    assert_eq!(negative.code, 422);
}

#[tokio::test]
async fn json_patches_test_and_remove_strictly() {
    let server = server().await;
    let client = admin(&server);
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    let patch = |ops: Value| Patch::Json::<Pod>(serde_json::from_value(ops).unwrap());
    let send = |ops: Value| {
        let (api, patch) = (pods(&client), patch(ops));
        async move { api.patch("a", &PatchParams::default(), &patch).await }
    };
    for failing in [
        json!([{"op": "test", "path": "/metadata/labels/app", "value": "db"}, {"op": "add", "path": "/metadata/labels/x", "value": "y"}]),
        json!([{"op": "add", "path": "/metadata/labels/x", "value": "y"}, {"op": "remove", "path": "/metadata/labels/nothing"}]),
    ] {
        let status = refusal(send(failing).await);
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    }
    assert!(!pods(&client).get("a").await.unwrap().metadata.labels.unwrap().contains_key("x"));
    let done = send(json!([{"op": "test", "path": "/metadata/labels/app", "value": "web"}, {"op": "add", "path": "/metadata/labels/x", "value": "y"}])).await.unwrap();
    assert_eq!(done.metadata.labels.unwrap()["x"], "y");
}

#[tokio::test]
async fn most_of_a_pods_spec_is_immutable() {
    let server = server().await;
    let client = admin(&server);
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    let patch = |spec: Value| Patch::Strategic(json!({"spec": spec}));
    let image = pods(&client)
        .patch("a", &PatchParams::default(), &patch(json!({"containers": [{"name": "c", "image": "img:2"}]})))
        .await
        .unwrap();
    assert_eq!(image.metadata.generation, Some(2));
    let frozen = refusal(
        pods(&client)
            .patch(
                "a",
                &PatchParams::default(),
                &patch(json!({"containers": [{"name": "c", "command": ["x"]}]})),
            )
            .await,
    );
    assert!(frozen.message.contains("spec: Forbidden: pod updates may not change fields other than"));
    let resize = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}});
    let refused =
        refusal(pods(&client).patch("a", &PatchParams::default(), &Patch::Strategic(resize.clone())).await);
    assert_eq!(refused.code, 422);
}

#[tokio::test]
async fn the_pages_of_a_list_are_one_snapshot() {
    let server = server().await;
    let client = admin(&server);
    for n in 0..5 {
        pods(&client).create(&PostParams::default(), &pod(&format!("p{n}"))).await.unwrap();
    }
    let first = pods(&client).list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.items.len(), 2);
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    let token = first.metadata.continue_.clone().unwrap();
    delete_now(&client, "p3").await;
    pods(&client).create(&PostParams::default(), &pod("p9")).await.unwrap();
    let rest = pods(&client).list(&ListParams::default().limit(10).continue_token(&token)).await.unwrap();
    let names: Vec<_> = rest.items.iter().map(|p| p.metadata.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["p2", "p3", "p4"], "as it was when the first page was read");
    assert_eq!(rest.metadata.resource_version, first.metadata.resource_version);
    server.faults().compact();
    let expired = refusal(pods(&client).list(&ListParams::default().limit(10).continue_token(&token)).await);
    assert_eq!((expired.code, expired.reason.as_str()), (410, "Expired"));
}

#[tokio::test]
async fn lists_select_by_label_and_field() {
    let server = server().await;
    let client = admin(&server);
    running(&client, "a", true).await;
    pods(&client).create(&PostParams::default(), &pod("b")).await.unwrap();
    let on_node = pods(&client).list(&ListParams::default().fields("spec.nodeName=n1")).await.unwrap();
    assert_eq!(on_node.items.len(), 1);
    assert_eq!(
        pods(&client).list(&ListParams::default().labels("app in (web),!x")).await.unwrap().items.len(),
        2
    );
    let unknown = refusal(pods(&client).list(&ListParams::default().fields("spec.hostname=x")).await);
    assert_eq!(unknown.code, 400);
    let ahead = kube::api::ListParams::default()
        .at("999999")
        .matching(kube::core::params::VersionMatch::NotOlderThan);
    let future = refusal(pods(&client).list(&ahead).await);
    assert_eq!((future.code, future.reason.as_str()), (504, "Timeout"));
}

#[tokio::test]
async fn a_running_pod_is_deleted_gracefully() {
    let server = server().await;
    let client = admin(&server);
    let made = running(&client, "a", true).await;
    let uid = made.metadata.uid.clone().unwrap();
    let wrong = DeleteParams {
        preconditions: Some(Preconditions { uid: Some("x".into()), resource_version: None }),
        ..Default::default()
    };
    let refused = refusal(pods(&client).delete("a", &wrong).await);
    assert_eq!(refused.code, 409);
    assert!(
        refused.message.contains("the UID in the precondition (x) does not match the UID in record"),
        "{}",
        refused.message
    );
    let marked = pods(&client).delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(marked.metadata.deletion_grace_period_seconds, Some(30));
    assert_eq!(marked.metadata.generation, Some(2));
    // A longer grace period has no effect; a shorter one has.
    let longer =
        pods(&client).delete("a", &DeleteParams::default().grace_period(60)).await.unwrap().left().unwrap();
    assert_eq!(longer.metadata.deletion_grace_period_seconds, Some(30));
    let shorter =
        pods(&client).delete("a", &DeleteParams::default().grace_period(5)).await.unwrap().left().unwrap();
    assert_eq!(shorter.metadata.deletion_grace_period_seconds, Some(5));
    assert!(shorter.metadata.deletion_timestamp < marked.metadata.deletion_timestamp);
    let last = DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::default().grace_period(0)
    };
    pods(&client).delete("a", &last).await.unwrap();
    assert_eq!(refusal(pods(&client).get("a").await).code, 404);
}

#[tokio::test]
async fn finalizers_delay_the_removal_of_an_object() {
    let server = server().await;
    let client = admin(&server);
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    maps.create(&PostParams::default(), &object(json!({"metadata": {"name": "m", "finalizers": ["a.b/c"]}})))
        .await
        .unwrap();
    let marked = maps.delete("m", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert!(marked.metadata.deletion_timestamp.is_some());
    let more = refusal(
        maps.patch(
            "m",
            &PatchParams::default(),
            &Patch::Merge(json!({"metadata": {"finalizers": ["a.b/c", "d.e/f"]}})),
        )
        .await,
    );
    assert!(more.message.contains("no new finalizers can be added if the object is being deleted"));
    maps.patch("m", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}})))
        .await
        .unwrap();
    assert_eq!(refusal(maps.get("m").await).code, 404);
}

#[tokio::test]
async fn propagation_becomes_a_finalizer() {
    let server = server().await;
    let client = admin(&server);
    let api: Api<Deployment> = Api::namespaced(client, "default");
    let wanted: Deployment = object(json!({
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    }));
    api.create(&PostParams::default(), &wanted).await.unwrap();
    let foreground = api.delete("d", &DeleteParams::foreground()).await.unwrap().left().unwrap();
    assert_eq!(foreground.metadata.finalizers, Some(vec!["foregroundDeletion".to_owned()]));
    let mut unmatched = wanted;
    unmatched.metadata.name = Some("e".into());
    unmatched.spec.as_mut().unwrap().template.metadata.as_mut().unwrap().labels = None;
    assert!(
        refusal(api.create(&PostParams::default(), &unmatched).await)
            .message
            .contains("`selector` does not match template `labels`")
    );
}

#[tokio::test]
async fn dry_runs_change_nothing() {
    let server = server().await;
    let client = admin(&server);
    let before = server.revision();
    let dry = PostParams { dry_run: true, field_manager: None };
    let made = pods(&client).create(&dry, &pod("a")).await.unwrap();
    assert!(made.metadata.uid.is_some());
    assert_eq!(server.revision(), before);
    running(&client, "a", true).await;
    let before = server.revision();
    pods(&client).delete("a", &DeleteParams::default().dry_run()).await.unwrap();
    evict(&client, "a", json!({"dryRun": ["All"]}), "").await;
    assert_eq!(server.revision(), before);
}

#[tokio::test]
async fn only_an_active_namespace_accepts_objects() {
    let server = server().await;
    let client = admin(&server);
    let in_it: Api<Pod> = Api::namespaced(client.clone(), "x");
    let missing = refusal(in_it.create(&PostParams::default(), &pod("a")).await);
    assert_eq!((missing.code, missing.message.as_str()), (404, "namespaces \"x\" not found"));
    let api: Api<Namespace> = Api::all(client.clone());
    let made = api.create(&PostParams::default(), &object(json!({"metadata": {"name": "x"}}))).await.unwrap();
    assert_eq!(made.metadata.labels.unwrap()["kubernetes.io/metadata.name"], "x");
    in_it.create(&PostParams::default(), &pod("a")).await.unwrap();
    let ending = api.delete("x", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(ending.status.as_ref().unwrap().phase.as_deref(), Some("Terminating"));
    let refused = refusal(in_it.create(&PostParams::default(), &pod("b")).await);
    assert_eq!(refused.code, 403);
    assert_eq!(refused.details.as_ref().unwrap().causes[0].reason, "NamespaceTerminating");
    let mut done = serde_json::to_value(&ending).unwrap();
    done["spec"]["finalizers"] = json!([]);
    let finalize =
        http::Request::put("/api/v1/namespaces/x/finalize").header("content-type", "application/json");
    assert_eq!(raw(&client, finalize, done.to_string()).await.0, 200);
    assert_eq!(refusal(api.get("x").await).code, 404);
    let kept = refusal(api.delete("default", &DeleteParams::default()).await);
    assert_eq!(kept.message, "namespaces \"default\" is forbidden: this namespace may not be deleted");
}

#[tokio::test]
async fn scale_reads_and_writes_replicas() {
    let server = server().await;
    let client = admin(&server);
    let api: Api<Deployment> = Api::namespaced(client, "default");
    api.create(&PostParams::default(), &object(json!({
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    }))).await.unwrap();
    let scale = api.get_scale("d").await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(2));
    assert_eq!(scale.status.unwrap().selector.as_deref(), Some("a=b"));
    api.patch_scale("d", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 5}})))
        .await
        .unwrap();
    let scaled = api.get("d").await.unwrap();
    assert_eq!((scaled.spec.unwrap().replicas, scaled.metadata.generation), (Some(5), Some(2)));
    let negative = refusal(
        api.patch_scale("d", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": -1}}))).await,
    );
    assert_eq!(negative.code, 422);
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    let server = server().await;
    let client = admin(&server);
    running(&client, "a", true).await;
    let again = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n2"}});
    let (code, status) = post(&client, "/api/v1/namespaces/default/pods/a/binding", again).await;
    assert_eq!(code, 409);
    assert!(status["message"].as_str().unwrap().contains("already assigned to node \"n1\""));
    let nodes: Api<Node> = Api::all(client);
    assert_eq!(refusal(nodes.get("n1").await).message, "nodes \"n1\" not found");
}

#[tokio::test]
async fn server_side_apply_tracks_two_managers() {
    let server = server().await;
    let client = admin(&server);
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let apply = |manager: &str, data: Value, force: bool| {
        let maps = maps.clone();
        let mut params = PatchParams::apply(manager);
        params.force = force;
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data});
        async move { maps.patch("m", &params, &Patch::Apply(body)).await }
    };
    apply("one", json!({"a": "1", "b": "1"}), false).await.unwrap();
    let both = apply("two", json!({"c": "2", "a": "1"}), false).await.unwrap();
    assert_eq!(both.data.unwrap().len(), 3);
    let clash = refusal(apply("two", json!({"b": "2", "c": "2"}), false).await);
    assert_eq!((clash.code, clash.reason.as_str()), (409, "Conflict"));
    assert!(clash.message.contains("conflict with \"one\": .data.b"), "{}", clash.message);
    let fewer = apply("one", json!({"a": "1"}), false).await.unwrap().data.unwrap();
    assert_eq!(fewer.keys().collect::<Vec<_>>(), ["a", "c"], "a field that no manager applies is removed");
    let forced = apply("two", json!({"a": "3"}), true).await.unwrap().data.unwrap();
    assert_eq!(forced["a"], "3");
    let before = server.revision();
    apply("two", json!({"a": "3"}), false).await.unwrap();
    assert_eq!(server.revision(), before, "applying the same again writes nothing");
}

#[tokio::test]
async fn a_status_is_applied_through_its_subresource() {
    let server = server().await;
    let client = admin(&server);
    let api = budgets(&client);
    let body = |more: Value| {
        let mut body =
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}});
        json_patch::merge(&mut body, &more);
        Patch::Apply(body)
    };
    let params = PatchParams::apply("me");
    api.patch("b", &params, &body(json!({"spec": {"minAvailable": 1}, "metadata": {"labels": {"a": "b"}}})))
        .await
        .unwrap();
    let status =
        api.patch_status("b", &params, &body(json!({"status": {"currentHealthy": 3}}))).await.unwrap();
    assert_eq!(status.metadata.managed_fields.unwrap().len(), 2);
    let fewer = api.patch("b", &params, &body(json!({"spec": {"minAvailable": 1}}))).await.unwrap();
    assert!(fewer.metadata.labels.is_none(), "what it applied to the object before is still known");
    assert_eq!(fewer.status.unwrap().current_healthy, 3);
}

#[tokio::test]
async fn a_patch_cannot_rename_and_a_delete_body_overrides_the_query() {
    let server = server().await;
    let client = admin(&server);
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    let rename = Patch::Merge(json!({"metadata": {"name": "b"}}));
    assert_eq!(refusal(pods(&client).patch("a", &PatchParams::default(), &rename).await).code, 400);
    // If a deletion has a body, options in the query are ignored.
    let path = "/api/v1/namespaces/default/pods/a?dryRun=All";
    assert_eq!(raw(&client, http::Request::delete(path), String::new()).await.0, 200);
    pods(&client).get("a").await.unwrap();
    let delete = http::Request::delete(path).header("content-type", "application/json");
    assert_eq!(raw(&client, delete, "{}".into()).await.0, 200);
    assert_eq!(refusal(pods(&client).get("a").await).code, 404);
}

#[tokio::test]
async fn resize_changes_resources_and_nothing_else() {
    let server = server().await;
    let client = admin(&server);
    let container = |cpu: &str, image: &str| json!([{"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}}]);
    let wanted: Pod =
        object(json!({"metadata": {"name": "a"}, "spec": {"containers": container("1", "img:1")}}));
    pods(&client).create(&PostParams::default(), &wanted).await.unwrap();
    let resize = |containers: Value| {
        let patch = http::Request::patch("/api/v1/namespaces/default/pods/a/resize")
            .header("content-type", "application/strategic-merge-patch+json");
        let (client, body) = (client.clone(), json!({"spec": {"containers": containers}}).to_string());
        async move { raw(&client, patch, body).await }
    };
    let (code, resized) = resize(container("2", "img:1")).await;
    assert_eq!((code, &resized["metadata"]["generation"]), (200, &json!(2)));
    assert_eq!(resized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
    assert_eq!(resize(container("2", "img:2")).await.0, 422);
}
