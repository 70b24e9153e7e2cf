//! Tests of discovery, tables, users, other response forms, and rejected requests.

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams, PostParams};
use quorate_devcluster::apiserver::{Options, Server, WorkloadApi};
use serde_json::json;

use crate::fixture::{admin, dynamic, get, object, pod, pods, post, raw, refusal, running, server};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

#[tokio::test]
async fn discovery_is_served_plain_and_aggregated() {
    let server = server().await;
    let client = admin(&server);
    let plain = kube::Discovery::new(client.clone()).run().await.unwrap();
    assert!(plain.groups().any(|g| g.name() == "policy"));
    let found = plain.resolve_gvk(&kube::core::GroupVersionKind::gvk("apps", "v1", "Deployment")).unwrap();
    assert_eq!(found.0.plural, "deployments");
    let aggregated = kube::Discovery::new(client.clone()).run_aggregated().await.unwrap();
    assert!(aggregated.resolve_gvk(&kube::core::GroupVersionKind::gvk("", "v1", "Pod")).is_some());
    let (_, core) = get(&client, "/api/v1", "").await;
    let eviction =
        core["resources"].as_array().unwrap().iter().find(|r| r["name"] == "pods/eviction").unwrap();
    assert_eq!(
        (&eviction["group"], &eviction["version"], &eviction["kind"]),
        (&json!("policy"), &json!("v1"), &json!("Eviction"))
    );
    assert_eq!(get(&client, "/readyz", "").await, (200, json!("ok")));
    assert_eq!(get(&client, "/version", "").await.1["minor"], "36");
    assert_eq!(get(&client, "/apis/nothing.example.com", "").await.0, 404);
    assert_eq!(get(&client, "/nothing", "").await.0, 404);
}

#[tokio::test]
async fn tables_are_served_for_kubectl_get() {
    let server = server().await;
    let client = admin(&server);
    running(&client, "a", true).await;
    let (_, table) = get(&client, "/api/v1/namespaces/default/pods", TABLE).await;
    assert_eq!(table["kind"], "Table");
    let names: Vec<_> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"]
    );
    assert_eq!(table["rows"][0]["cells"][2], "Running");
    assert_eq!(table["rows"][0]["cells"][6], "n1");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    pods(&client).delete("a", &Default::default()).await.unwrap();
    let (_, table) = get(&client, "/api/v1/namespaces/default/pods/a", TABLE).await;
    assert_eq!(table["rows"][0]["cells"][2], "Terminating");
    let meta = pods(&client).list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(meta.items[0].metadata.name.as_deref(), Some("a"));
}

#[tokio::test]
async fn an_event_is_served_in_both_event_apis() {
    let server = server().await;
    let client = admin(&server);
    let body = json!({
        "metadata": {"name": "e"}, "eventTime": "2026-01-01T00:00:00.000000Z", "reason": "R", "note": "what happened", "type": "Normal",
        "action": "Act", "reportingController": "me", "reportingInstance": "me-1",
        "regarding": {"kind": "Pod", "name": "a", "namespace": "default", "uid": "u"},
    });
    let (code, made) = post(&client, "/apis/events.k8s.io/v1/namespaces/default/events", body).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["regarding"]["name"], "a");
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let found = events
        .list(&ListParams::default().fields("involvedObject.name=a,involvedObject.uid=u"))
        .await
        .unwrap();
    assert_eq!(found.items[0].message.as_deref(), Some("what happened"));
    let (_, table) = get(&client, "/api/v1/namespaces/default/events", TABLE).await;
    assert_eq!(table["rows"][0]["cells"][3], "pod/a");
}

#[tokio::test]
async fn users_come_from_tokens_and_impersonation() {
    let server = server().await;
    let (_, answer) = post(
        &server.client_as("jane", &["dev"]).unwrap(),
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        json!({}),
    )
    .await;
    assert_eq!(
        answer["status"]["userInfo"],
        json!({"username": "jane", "groups": ["dev", "system:authenticated"]})
    );
    let impersonating = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header("impersonate-user", "john")
        .header("impersonate-group", "ops");
    let (_, answer) = raw(&admin(&server), impersonating, "{}".into()).await;
    assert_eq!(answer["status"]["userInfo"]["username"], "john");
    let wrong = http::Request::get("/api/v1/pods").header("authorization", "Bearer nonsense");
    let mut config = server.config_as("x", &[]);
    config.auth_info.token = None;
    let anonymous = kube::Client::try_from(config).unwrap();
    assert_eq!(raw(&anonymous, wrong, String::new()).await.0, 401);
    let (code, answer) =
        post(&anonymous, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json!({"spec": {}})).await;
    assert_eq!((code, &answer["status"]["allowed"]), (201, &json!(true)));
    let account = json!({"metadata": {"name": "robot"}});
    post(&anonymous, "/api/v1/namespaces/default/serviceaccounts", account).await;
    let (_, token) =
        post(&anonymous, "/api/v1/namespaces/default/serviceaccounts/robot/token", json!({"spec": {}})).await;
    let review = json!({"spec": {"token": token["status"]["token"]}});
    let (_, answer) = post(&anonymous, "/apis/authentication.k8s.io/v1/tokenreviews", review).await;
    assert_eq!(answer["status"]["user"]["username"], "system:serviceaccount:default:robot");
}

#[tokio::test]
async fn unsupported_and_invalid_requests_are_rejected_clearly() {
    let server = server().await;
    let client = admin(&server);
    running(&client, "a", true).await;
    let (code, status) = get(&client, "/api/v1/namespaces/default/pods/a/log", "").await;
    assert_eq!((code, status["reason"].as_str()), (501, Some("NotImplemented")));
    let (code, _) = raw(
        &client,
        http::Request::patch("/api/v1/namespaces/default/pods/a/ephemeralcontainers"),
        "{}".into(),
    )
    .await;
    assert_eq!(code, 501);
    let (code, status) = raw(
        &client,
        http::Request::post("/api/v1/namespaces/default/pods")
            .header("content-type", "application/vnd.kubernetes.protobuf"),
        "k8s".into(),
    )
    .await;
    assert_eq!((code, status["reason"].as_str()), (415, Some("UnsupportedMediaType")));
    assert_eq!(get(&client, "/api/v1/pods", "application/yaml").await.0, 406);
    assert_eq!(raw(&client, http::Request::put("/api/v1/namespaces/default/pods"), "{}".into()).await.0, 405);
    for body in ["", "[]", "null", "{", "\"x\"", "{\"metadata\": 5}", "{\"metadata\": {\"labels\": 5}}"] {
        let post =
            http::Request::post("/api/v1/namespaces/default/pods").header("content-type", "application/json");
        let (code, answer) = raw(&client, post, body.into()).await;
        assert!((400..500).contains(&code), "{body:?}: {answer}");
    }
    let large = format!("{{\"metadata\": {{\"name\": \"{}\"}}}}", "x".repeat(4 << 20));
    let post =
        http::Request::post("/api/v1/namespaces/default/pods").header("content-type", "application/json");
    assert_eq!(raw(&client, post, large).await.0, 413);
}

#[tokio::test]
async fn gang_scheduling_is_served_in_the_version_of_each_release() {
    for (api, link, kept) in [
        (WorkloadApi::Off, json!({"schedulingGroup": {"podGroupName": "g"}}), false),
        (WorkloadApi::V1Alpha1, json!({"workloadRef": {"name": "w", "podGroup": "g"}}), true),
        (WorkloadApi::V1Alpha2, json!({"schedulingGroup": {"podGroupName": "g"}}), true),
        (WorkloadApi::V1Beta1, json!({"workloadRef": {"name": "w"}}), false),
    ] {
        let server = Server::start(Options { workload_api: api, ..Options::default() }).await.unwrap();
        let client = admin(&server);
        let mut body = serde_json::to_value(pod("a")).unwrap();
        for (field, value) in link.as_object().unwrap() {
            body["spec"][field] = value.clone();
        }
        let (_, made) = post(&client, "/api/v1/namespaces/default/pods", body).await;
        let field = link.as_object().unwrap().keys().next().unwrap();
        assert_eq!(made["spec"].get(field).is_some(), kept, "{api:?}");
        let patch = http::Request::patch("/api/v1/namespaces/default/pods/a")
            .header("content-type", "application/merge-patch+json");
        let (_, patched) = raw(&client, patch, json!({"metadata": {"labels": {"x": "y"}}}).to_string()).await;
        assert_eq!(patched["spec"].get(field).is_some(), kept, "an update keeps it: {api:?}");
    }
}

#[tokio::test]
async fn pod_groups_are_validated() {
    let server =
        Server::start(Options { workload_api: WorkloadApi::V1Alpha2, ..Options::default() }).await.unwrap();
    let client = admin(&server);
    let groups = dynamic(&client, "scheduling.k8s.io", "v1alpha2", "PodGroup", "podgroups");
    let group = |name: &str, spec: serde_json::Value| {
        object::<kube::core::DynamicObject>(json!({
            "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": name}, "spec": spec,
        }))
    };
    let made = groups
        .create(&PostParams::default(), &group("g", json!({"schedulingPolicy": {"gang": {"minCount": 2}}})))
        .await
        .unwrap();
    assert_eq!(made.data["spec"]["disruptionMode"], "Pod");
    let none = groups
        .create(&PostParams::default(), &group("h", json!({"schedulingPolicy": {"gang": {"minCount": 0}}})))
        .await;
    assert_eq!(refusal(none).code, 422);
    let orphan = json!({"schedulingPolicy": {"basic": {}}, "podGroupTemplateRef": {"workload": {"workloadName": "w", "podGroupTemplateName": "t"}}});
    assert_eq!(refusal(groups.create(&PostParams::default(), &group("i", orphan)).await).code, 403);
    let change = kube::api::Patch::Merge(json!({"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}));
    assert_eq!(
        refusal(groups.patch("g", &Default::default(), &change).await).code,
        422,
        "immutable in this release"
    );
}

#[tokio::test]
async fn the_server_stops_when_its_handle_is_dropped() {
    let server = server().await;
    let client = admin(&server);
    let all: Api<Pod> = Api::all(client);
    all.list(&ListParams::default()).await.unwrap();
    drop(server);
    all.list(&ListParams::default()).await.unwrap_err();
}
