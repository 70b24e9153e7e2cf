//! Tests of custom resource schemas: pruning, defaults and validation.

use quorate_testbed::{Cluster, Patch, Wire, WireResponse, eventually, stories};
use serde_json::{Value, json};

use crate::fixtures::TestNamespace;

stories!(ApiServer:
    unknown_fields_are_pruned,
    strict_validation_names_unknown_fields,
    defaults_are_set,
    a_null_that_the_schema_forbids_counts_as_missing,
    a_wrong_type_is_rejected,
    limits_are_enforced,
    required_fields_must_be_present,
    an_int_or_string_field_accepts_both,
    unknown_fields_can_be_preserved,
    rules_are_enforced,
    an_atomic_map_is_still_merged_by_a_merge_patch,
);

/// A custom kind for one test.
pub(crate) struct Widgets {
    pub(crate) wire: Wire,
    pub(crate) ns: TestNamespace,
    pub(crate) plural: String,
    pub(crate) group: String,
}

impl Widgets {
    /// Creates the kind with `spec` as the schema of its spec, and waits until it is served.
    pub(crate) async fn new(cluster: &Cluster, spec: Value, version: Value) -> Self {
        let ns = TestNamespace::new(cluster, "widgets").await;
        let group = format!("{}.example.com", ns.name);
        let widgets = Self { wire: cluster.wire(), ns, plural: "widgets".to_owned(), group };
        widgets.wire.post(CRDS, &widgets.definition(spec, version)).await.expect(201);
        widgets.await_served().await;
        widgets
    }

    pub(crate) fn definition(&self, spec: Value, version: Value) -> Value {
        let mut entry = json!({"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}});
        if let (Some(entry), Some(version)) = (entry.as_object_mut(), version.as_object()) {
            entry.extend(version.clone());
        }
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{}.{}", self.plural, self.group)},
            "spec": {"group": self.group, "scope": "Namespaced", "versions": [entry],
                "names": {"plural": self.plural, "singular": "widget", "kind": "Widget",
                    "shortNames": ["wdg"]}}})
    }

    pub(crate) async fn await_served(&self) {
        eventually("widgets are served", || async {
            let answer = self.wire.get(&self.path("")).await;
            if answer.code == 200 { Ok(()) } else { Err(answer) }
        })
        .await;
    }

    pub(crate) fn path(&self, rest: &str) -> String {
        self.ns.path(&format!("{}/v1", self.group), &format!("{}{rest}", self.plural))
    }

    pub(crate) fn object(&self, name: &str, spec: &Value) -> Value {
        json!({"apiVersion": format!("{}/v1", self.group), "kind": "Widget", "metadata": {"name": name},
            "spec": spec})
    }

    pub(crate) async fn create(&self, name: &str, spec: Value) -> WireResponse {
        self.wire.post(&self.path(""), &self.object(name, &spec)).await
    }
}

pub(crate) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn schema(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

async fn unknown_fields_are_pruned(cluster: Cluster) {
    let widgets = Widgets::new(
        &cluster,
        schema(json!({"size": {"type": "integer"}, "inner": schema(json!({"a": {"type": "string"}}))})),
        json!({}),
    )
    .await;
    let made =
        widgets.create("one", json!({"size": 3, "colour": "red", "inner": {"a": "x", "b": "y"}})).await;
    assert_eq!(made.expect(201)["spec"], json!({"size": 3, "inner": {"a": "x"}}));
    let patch = json!({"spec": {"colour": "blue", "size": 4}});
    let after = widgets.wire.patch(&widgets.path("/one"), Patch::Merge, &patch).await.expect(200);
    assert_eq!(after["spec"], json!({"size": 4, "inner": {"a": "x"}}));
}

async fn strict_validation_names_unknown_fields(cluster: Cluster) {
    let widgets = Widgets::new(&cluster, schema(json!({"size": {"type": "integer"}})), json!({})).await;
    let object = widgets.object("one", &json!({"colour": "red"}));
    let answer = widgets.wire.post(&widgets.path("?fieldValidation=Strict"), &object).await;
    assert_eq!((answer.code, answer.reason()), (400, "BadRequest"), "{:#}", answer.body);
    assert!(answer.message().contains("unknown field \"spec.colour\""), "{}", answer.message());
}

async fn defaults_are_set(cluster: Cluster) {
    let spec = json!({"type": "object", "default": {}, "properties": {
        "size": {"type": "integer", "default": 7},
        "list": {"type": "array", "items": {"type": "object",
            "properties": {"kind": {"type": "string", "default": "plain"}}}}}});
    let widgets = Widgets::new(&cluster, spec, json!({})).await;
    let made = widgets.create("one", json!({"list": [{}, {"kind": "fancy"}]})).await.expect(201);
    assert_eq!(made["spec"], json!({"size": 7, "list": [{"kind": "plain"}, {"kind": "fancy"}]}));
    let mut bare = widgets.object("two", &json!({}));
    bare.as_object_mut().expect("an object").remove("spec");
    assert_eq!(widgets.wire.post(&widgets.path(""), &bare).await.expect(201)["spec"], json!({"size": 7}));
}

async fn a_null_that_the_schema_forbids_counts_as_missing(cluster: Cluster) {
    let text = json!({"type": "string"});
    let widgets = Widgets::new(
        &cluster,
        schema(json!({
            "field": text,
            "size": {"type": "integer", "default": 7},
            "may": {"type": "string", "nullable": true},
            "inner": schema(json!({"field": text})),
            "map": {"type": "object", "additionalProperties": text},
            "list": {"type": "array", "items": text},
        })),
        json!({}),
    )
    .await;
    let nothing =
        json!({"field": null, "size": null, "may": null, "inner": {"field": null}, "map": {"a": null}});
    let made = widgets.create("one", nothing).await.expect(201);
    assert_eq!(made["spec"], json!({"size": 7, "may": null, "inner": {}, "map": {}}));
    // An item cannot be removed from a list without moving the other items.
    let answer = widgets.create("two", json!({"list": [null]})).await;
    assert_eq!((answer.code, &answer.body["details"]["causes"][0]["field"]), (422, &json!("spec.list[0]")));
}

async fn a_wrong_type_is_rejected(cluster: Cluster) {
    let widgets = Widgets::new(&cluster, schema(json!({"size": {"type": "integer"}})), json!({})).await;
    let answer = widgets.create("one", json!({"size": "large"})).await;
    let message = "Widget.WG \"one\" is invalid: spec.size: Invalid value: \"string\": spec.size in body must be of \
                   type integer: \"string\"";
    assert_eq!(answer.failure(), (422, "Invalid", message.replace("WG", &widgets.group).as_str()));
    assert_eq!(answer.body["details"]["causes"][0]["field"], "spec.size");
    assert_eq!(answer.body["details"]["kind"], "Widget");
}

async fn limits_are_enforced(cluster: Cluster) {
    let widgets = Widgets::new(
        &cluster,
        schema(json!({
            "size": {"type": "integer", "minimum": 1, "maximum": 10},
            "mode": {"type": "string", "enum": ["Fast", "Slow"]},
            "code": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
            "tags": {"type": "array", "maxItems": 1, "items": {"type": "string"}},
        })),
        json!({}),
    )
    .await;
    for (spec, expected) in [
        (
            json!({"size": 0}),
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ),
        (
            json!({"size": 11}),
            "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10",
        ),
        (
            json!({"mode": "Medium"}),
            "spec.mode: Unsupported value: \"Medium\": supported values: \"Fast\", \"Slow\"",
        ),
        (json!({"code": "A"}), "spec.code: Invalid value: \"A\": spec.code in body should match '^[a-z]+$'"),
        (json!({"code": "abcd"}), "spec.code: Too long: may not be more than 3 bytes"),
        (json!({"tags": ["a", "b"]}), "spec.tags: Too many: 2: must have at most 1 item"),
    ] {
        let answer = widgets.create("one", spec).await;
        assert_eq!((answer.code, answer.reason()), (422, "Invalid"), "{expected}");
        assert!(answer.message().contains(expected), "{}\n{expected}", answer.message());
    }
    let good = json!({"size": 10, "mode": "Fast", "code": "abc", "tags": ["a"]});
    widgets.create("one", good).await.expect(201);
}

async fn required_fields_must_be_present(cluster: Cluster) {
    let spec = json!({"type": "object", "required": ["size"], "properties": {"size": {"type": "integer"}}});
    let widgets = Widgets::new(&cluster, spec, json!({})).await;
    let answer = widgets.create("one", json!({})).await;
    assert_eq!(answer.code, 422);
    assert!(answer.message().ends_with("spec.size: Required value"), "{}", answer.message());
}

async fn an_int_or_string_field_accepts_both(cluster: Cluster) {
    let widgets =
        Widgets::new(&cluster, schema(json!({"min": {"x-kubernetes-int-or-string": true}})), json!({})).await;
    widgets.create("one", json!({"min": 1})).await.expect(201);
    widgets.create("two", json!({"min": "50%"})).await.expect(201);
    assert_eq!(widgets.create("three", json!({"min": true})).await.code, 422);
}

async fn unknown_fields_can_be_preserved(cluster: Cluster) {
    let spec = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"size": {"type": "integer"}}});
    let widgets = Widgets::new(&cluster, spec, json!({})).await;
    let made = widgets.create("one", json!({"size": 1, "any": {"thing": [1, 2]}})).await.expect(201);
    assert_eq!(made["spec"], json!({"size": 1, "any": {"thing": [1, 2]}}));
}

async fn rules_are_enforced(cluster: Cluster) {
    let spec = json!({"type": "object", "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.low <= self.high", "message": "low must not exceed high"}]});
    let widgets = Widgets::new(&cluster, spec, json!({})).await;
    widgets.create("one", json!({"low": 1, "high": 2})).await.expect(201);
    let answer = widgets.create("two", json!({"low": 3, "high": 2})).await;
    assert_eq!((answer.code, answer.reason()), (422, "Invalid"));
    assert!(answer.message().contains("low must not exceed high"), "{}", answer.message());
}

async fn an_atomic_map_is_still_merged_by_a_merge_patch(cluster: Cluster) {
    // `atomic` applies only to server-side apply; a merge patch still merges the map.
    let spec = schema(json!({"map": {"type": "object", "x-kubernetes-map-type": "atomic",
        "additionalProperties": {"type": "string"}}}));
    let widgets = Widgets::new(&cluster, spec, json!({})).await;
    widgets.create("one", json!({"map": {"a": "1"}})).await.expect(201);
    let patch = json!({"spec": {"map": {"b": "2"}}});
    let after = widgets.wire.patch(&widgets.path("/one"), Patch::Merge, &patch).await.expect(200);
    assert_eq!(after["spec"]["map"], json!({"a": "1", "b": "2"}));
    let strategic = widgets.wire.patch(&widgets.path("/one"), Patch::Strategic, &patch).await;
    assert_eq!((strategic.code, strategic.reason()), (415, "UnsupportedMediaType"));
}
