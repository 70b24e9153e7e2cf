//! Tests of custom resources.

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use quorate_devcluster::apiserver::Server;
use serde_json::{Value, json};

use crate::fixture::{admin, dynamic, get, object, post, refusal, server};

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition() -> Value {
    let schema = json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "replicas": {"type": "integer", "minimum": 0, "default": 1},
                    "mode": {"type": "string", "enum": ["A", "B"]},
                    "min": {"x-kubernetes-int-or-string": true},
                },
                "x-kubernetes-validations": [
                    {"rule": "self.replicas < 10", "message": "too many"},
                    {"rule": "!has(oldSelf.mode) || self.mode == oldSelf.mode", "message": "mode is for good"},
                ],
            },
            "status": {
                "type": "object",
                "properties": {"replicas": {"type": "integer"}, "ledger": {"type": "integer"}, "selector": {"type": "string"}},
            },
        },
    });
    let version = |name: &str, storage: bool| {
        json!({
            "name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": {
                "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector",
            }},
            "additionalPrinterColumns": [
                {"name": "Want", "type": "integer", "jsonPath": ".spec.replicas"},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            ],
        })
    };
    json!({
        "metadata": {"name": "gadgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "kind": "Gadget", "shortNames": ["gd"], "categories": ["all"]},
            "versions": [version("v1", true), version("v1beta1", false)],
        },
    })
}

async fn defined() -> (Server, kube::Client) {
    let server = server().await;
    let client = admin(&server);
    let (code, made) = post(&client, PATH, definition()).await;
    assert_eq!(code, 201, "{made}");
    (server, client)
}

fn gadget(name: &str, spec: Value) -> DynamicObject {
    object(
        json!({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": spec}),
    )
}

#[tokio::test]
async fn a_definition_is_served_at_once() {
    let (_server, client) = defined().await;
    let (_, made) = get(&client, &format!("{PATH}/gadgets.example.com"), "").await;
    let conditions = made["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True"));
    let (_, list) = get(&client, "/apis/example.com/v1", "").await;
    let names: Vec<_> =
        list["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["gadgets", "gadgets/status", "gadgets/scale"]);
    assert_eq!(list["resources"][0]["shortNames"], json!(["gd"]));
    assert_eq!(get(&client, "/apis/example.com", "").await.1["preferredVersion"]["version"], "v1");
}

#[tokio::test]
async fn objects_are_pruned_defaulted_and_validated() {
    let (_server, client) = defined().await;
    let api = dynamic(&client, "example.com", "v1", "Gadget", "gadgets");
    let made =
        api.create(&PostParams::default(), &gadget("a", json!({"unknown": 1, "min": "50%"}))).await.unwrap();
    assert_eq!(made.data["spec"], json!({"replicas": 1, "min": "50%"}));
    assert_eq!(made.metadata.generation, Some(1));
    for (bad, text) in [
        (
            json!({"replicas": "x"}),
            "spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\"",
        ),
        (json!({"replicas": -1}), "spec.replicas in body should be greater than or equal to 0"),
        (json!({"mode": "C"}), "spec.mode: Unsupported value: \"C\": supported values: \"A\", \"B\""),
        (json!({"replicas": 10}), "spec: Invalid value: \"object\": too many"),
    ] {
        let status = refusal(api.create(&PostParams::default(), &gadget("b", bad.clone())).await);
        assert_eq!(status.code, 422);
        assert!(status.message.contains(text), "{bad}: {}", status.message);
    }
    let missing: DynamicObject =
        object(json!({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "b"}}));
    assert!(
        refusal(api.create(&PostParams::default(), &missing).await).message.contains("spec: Required value")
    );
}

#[tokio::test]
async fn transition_rules_see_the_old_object() {
    let (_server, client) = defined().await;
    let api = dynamic(&client, "example.com", "v1", "Gadget", "gadgets");
    api.create(&PostParams::default(), &gadget("a", json!({"mode": "A"}))).await.unwrap();
    let change = Patch::Merge(json!({"spec": {"mode": "B"}}));
    let status = refusal(api.patch("a", &PatchParams::default(), &change).await);
    assert!(status.message.contains("mode is for good"), "{}", status.message);
}

#[tokio::test]
async fn status_is_a_subresource_and_a_failed_patch_test_writes_nothing() {
    let (server, client) = defined().await;
    let api = dynamic(&client, "example.com", "v1", "Gadget", "gadgets");
    let with_status = object(json!({
        "apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "a"}, "spec": {}, "status": {"ledger": 5},
    }));
    let made = api.create(&PostParams::default(), &with_status).await.unwrap();
    assert!(made.data.get("status").is_none());
    let status = json!({"metadata": {"labels": {"x": "y"}}, "spec": {"replicas": 7}, "status": {"ledger": 1, "gone": 1}});
    let written = api.patch_status("a", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    assert_eq!(written.data["status"], json!({"ledger": 1}), "pruned too");
    assert_eq!(written.data["spec"]["replicas"], 1);
    assert!(written.metadata.labels.is_none(), "a status write touches no labels of a custom resource");
    assert_eq!(written.metadata.generation, Some(1));
    let commit = |n: u64| {
        let ops = json!([
            {"op": "test", "path": "/metadata/generation", "value": 1},
            {"op": "test", "path": "/status/ledger", "value": n},
            {"op": "replace", "path": "/status/ledger", "value": n + 1},
        ]);
        Patch::Json::<DynamicObject>(serde_json::from_value(ops).unwrap())
    };
    api.patch_status("a", &PatchParams::default(), &commit(1)).await.unwrap();
    let before = server.revision();
    let refused = refusal(api.patch_status("a", &PatchParams::default(), &commit(1)).await);
    assert_eq!((refused.code, refused.reason.as_str()), (422, "Invalid"));
    assert_eq!(server.revision(), before);
}

#[tokio::test]
async fn scale_uses_the_paths_of_the_definition() {
    let (_server, client) = defined().await;
    let api = dynamic(&client, "example.com", "v1", "Gadget", "gadgets");
    api.create(&PostParams::default(), &gadget("a", json!({"replicas": 3}))).await.unwrap();
    api.patch_status(
        "a",
        &PatchParams::default(),
        &Patch::Merge(json!({"status": {"replicas": 2, "selector": "a=b"}})),
    )
    .await
    .unwrap();
    let scale = api.get_scale("a").await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(3));
    assert_eq!(scale.status.unwrap().selector.as_deref(), Some("a=b"));
    api.patch_scale("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 4}})))
        .await
        .unwrap();
    assert_eq!(api.get("a").await.unwrap().data["spec"]["replicas"], 4);
    let many =
        api.patch_scale("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 40}}))).await;
    assert!(refusal(many).message.contains("too many"));
}

#[tokio::test]
async fn versions_are_views_of_one_object() {
    let (_server, client) = defined().await;
    let v1 = dynamic(&client, "example.com", "v1", "Gadget", "gadgets");
    let beta = dynamic(&client, "example.com", "v1beta1", "Gadget", "gadgets");
    v1.create(&PostParams::default(), &gadget("a", json!({"replicas": 3}))).await.unwrap();
    let seen = beta.get("a").await.unwrap();
    assert_eq!(seen.types.unwrap().api_version, "example.com/v1beta1");
    beta.patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 5}}))).await.unwrap();
    let seen = v1.get("a").await.unwrap();
    assert_eq!(
        (seen.types.unwrap().api_version.as_str(), &seen.data["spec"]["replicas"]),
        ("example.com/v1", &json!(5))
    );
}

#[tokio::test]
async fn printer_columns_are_in_the_table() {
    let (_server, client) = defined().await;
    let api = dynamic(&client, "example.com", "v1", "Gadget", "gadgets");
    api.create(&PostParams::default(), &gadget("a", json!({"replicas": 3}))).await.unwrap();
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let (_, table) = get(&client, "/apis/example.com/v1/gadgets", accept).await;
    let names: Vec<_> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Name", "Want", "Age"]);
    assert_eq!(table["rows"][0]["cells"][0], "a");
    assert_eq!(table["rows"][0]["cells"][1], 3);
}

#[tokio::test]
async fn removing_a_definition_removes_its_objects() {
    let (_server, client) = defined().await;
    let api = dynamic(&client, "example.com", "v1", "Gadget", "gadgets");
    api.create(&PostParams::default(), &gadget("a", json!({}))).await.unwrap();
    let delete = http::Request::delete(format!("{PATH}/gadgets.example.com"));
    assert_eq!(crate::fixture::raw(&client, delete, String::new()).await.0, 200);
    assert_eq!(refusal(api.get("a").await).message, "the server could not find the requested resource");
    post(&client, PATH, definition()).await;
    assert_eq!(refusal(api.get("a").await).message, "gadgets.example.com \"a\" not found");
    api.delete("a", &DeleteParams::default()).await.unwrap_err();
}

#[tokio::test]
async fn invalid_definitions_are_rejected() {
    let server = server().await;
    let client = admin(&server);
    let mut wrong_name = definition();
    wrong_name["metadata"]["name"] = "x.example.com".into();
    assert!(
        post(&client, PATH, wrong_name).await.1["message"]
            .as_str()
            .unwrap()
            .contains("must be spec.names.plural")
    );
    let mut bad_rule = definition();
    bad_rule["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"]
        [0]["rule"] = "self.".into();
    let (code, status) = post(&client, PATH, bad_rule).await;
    assert_eq!(code, 422);
    assert!(status["message"].as_str().unwrap().contains("x-kubernetes-validations[0].rule"), "{status}");
    let mut webhook = definition();
    webhook["spec"]["conversion"] = json!({"strategy": "Webhook"});
    assert_eq!(post(&client, PATH, webhook).await.0, 422);
    let mut two_storages = definition();
    two_storages["spec"]["versions"][1]["storage"] = true.into();
    assert!(
        post(&client, PATH, two_storages).await.1["message"]
            .as_str()
            .unwrap()
            .contains("exactly one version marked as storage")
    );
}
