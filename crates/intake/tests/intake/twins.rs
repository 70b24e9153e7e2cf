//! Native budgets with annotations for groups.

use quorate_api::slim::PodDisruptionBudget;
use quorate_intake::objects::{self, Groups};
use serde_json::{Value, json};

use crate::data::{load, object, with};

fn native(annotations: Value) -> PodDisruptionBudget {
    object(with(load("pdb.json"), "/metadata/annotations", annotations))
}

fn spec(annotations: Value) -> Value {
    serde_json::to_value(objects::twin(&native(annotations)).unwrap().unwrap()).unwrap()
}

fn problem(annotations: Value) -> String {
    objects::twin(&native(annotations)).unwrap().unwrap_err().to_string()
}

#[test]
fn a_native_budget_without_group_annotations_has_no_twin() {
    for annotations in [
        json!({}),
        json!({ "quorate.dev/min-available": "1" }),
        json!({ "quorate.dev/budget-scope": "Pod", "quorate.dev/max-unavailable": "1" }),
    ] {
        assert_eq!(objects::twin(&native(annotations.clone())), None, "{annotations}");
    }
}

#[test]
fn the_twin_has_the_selector_and_numbers_of_the_native_budget() {
    let twin = spec(json!({ "quorate.dev/budget-scope": "Workload" }));
    assert_eq!(twin["selector"], json!({ "matchLabels": { "app": "web" } }));
    assert_eq!((&twin["minAvailable"], &twin["budgetScope"]), (&json!(2), &json!("Workload")));
    assert_eq!(twin["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    assert_eq!(twin["operations"], json!(["Evict"]));
    assert_eq!(twin.get("maxUnavailable"), None);
    let same = spec(json!({ "quorate.dev/budget-scope": "PodGroup" }));
    assert_eq!(same, twin);

    let labelled = spec(json!({ "quorate.dev/group-label-key": "example.com/shard" }));
    assert_eq!(labelled["podGroupPolicy"], json!({ "groupLabelKey": "example.com/shard" }));
    assert_eq!(labelled["budgetScope"], "Pod");
}

#[test]
fn annotations_set_separate_numbers_for_groups() {
    let twin = spec(json!({ "quorate.dev/budget-scope": "Workload", "quorate.dev/max-unavailable": "1" }));
    assert_eq!((twin.get("minAvailable"), &twin["maxUnavailable"]), (None, &json!(1)));
    let both = spec(json!({ "quorate.dev/group-label-key": "shard", "quorate.dev/max-unavailable": "1",
        "quorate.dev/min-available": "50%" }));
    assert_eq!((&both["minAvailable"], &both["maxUnavailable"]), (&json!("50%"), &json!(1)));
}

#[test]
fn an_invalid_annotation_is_reported_with_its_field() {
    let scope = |value: &str| json!({ "quorate.dev/budget-scope": value });
    let min =
        |text: &str| json!({ "quorate.dev/budget-scope": "Workload", "quorate.dev/min-available": text });
    let cases = [
        (scope("Gang"), "metadata.annotations[quorate.dev/budget-scope]: \"Gang\" must be Pod or Workload"),
        (
            json!({ "quorate.dev/budget-scope": "Workload", "quorate.dev/group-label-key": "shard" }),
            "metadata.annotations[quorate.dev/group-label-key]: forms groups of its own and excludes \
             quorate.dev/budget-scope: remove one of the two",
        ),
    ];
    for (annotations, sentence) in cases {
        assert_eq!(problem(annotations), sentence);
    }
    for text in ["", "one", "-1", "+1", "101%", "1.5", "%", "9999999999"] {
        let sentence = problem(min(text));
        assert!(sentence.starts_with("metadata.annotations[quorate.dev/min-available]: "), "{sentence}");
    }
    let key = problem(json!({ "quorate.dev/group-label-key": "not a key" }));
    assert!(key.starts_with("metadata.annotations[quorate.dev/group-label-key]: "), "{key}");
    let bare = with(load("pdb.json"), "/metadata/annotations", scope("Workload"));
    for pointer in ["/spec/selector", "/spec/minAvailable"] {
        let native = object(with(bare.clone(), pointer, json!(null)));
        assert!(objects::twin(&native).unwrap().is_err(), "{pointer}");
    }
}

#[test]
fn a_rule_that_allows_fewer_pods_than_a_group_has_is_too_tight() {
    let groups = Groups { size: 8, may_be_down: 1, pods: 80 };
    let with_numbers = |numbers: Value, annotations: Value| {
        let spec =
            json!({ "selector": {}, "minAvailable": numbers["min"], "maxUnavailable": numbers["max"] });
        let native = with(with(load("pdb.json"), "/spec", spec), "/metadata/annotations", annotations);
        objects::too_tight(&object(native), groups)
    };
    let tight = with_numbers(json!({ "max": 1 }), json!({})).unwrap();
    assert_eq!((tight.allows, tight.needs, tight.numbers.as_str()), (1, 8, "maxUnavailable: 8"));
    assert_eq!(
        tight.to_string(),
        "The API server allows 1 pod to be disrupted, but a group needs 8, so a drain would break a group and then stop. \
         Set maxUnavailable: 8, which counts pods, and the annotation quorate.dev/max-unavailable: \"1\", \
         which counts groups."
    );
    let annotated = with_numbers(json!({ "min": 79 }), json!({ "quorate.dev/min-available": "9" })).unwrap();
    assert_eq!((annotated.numbers.as_str(), annotated.annotation), ("minAvailable: 72", None));
    let share = with_numbers(json!({ "min": "95%" }), json!({})).unwrap();
    assert_eq!((share.allows, share.annotation.as_deref()), (4, Some("quorate.dev/min-available: \"95%\"")));
    for wide in [json!({ "max": 8 }), json!({ "max": "10%" }), json!({ "min": 72 }), json!({ "min": "90%" })]
    {
        assert_eq!(with_numbers(wide.clone(), json!({})), None, "{wide}");
    }
}

#[test]
fn a_budget_is_a_twin_if_a_native_budget_is_its_controller() {
    let owner = |controller: bool, kind: &str| json!([{ "apiVersion": "policy/v1", "kind": kind, "name": "llm", "uid": "n-1", "controller": controller }]);
    let is_twin = |owners: Value| {
        let stored = with(load("budget.json"), "/metadata/ownerReferences", owners);
        quorate_intake::budget::budget(&object(stored)).unwrap().is_twin
    };
    assert!(is_twin(owner(true, "PodDisruptionBudget")));
    assert!(!is_twin(owner(false, "PodDisruptionBudget")), "another controller states its rules");
    assert!(!is_twin(owner(true, "Deployment")));
    assert!(!is_twin(json!([])));
}
