//! Stored budgets, readable or not.

use quorate_api::budget::StoredBudget;
use quorate_engine::basics::{GroupKind, ObjectKey, Quantity, Version};
use quorate_engine::facts::{
    Broken, Budget, BudgetKey, BudgetKind, Covers, HealthRule, Operation, Operations, Rules, UnhealthyPolicy,
    Units,
};
use quorate_engine::selector::{Operator, Requirement, Selector};
use quorate_intake::budget;
use serde_json::{Value, json};

use crate::data::{before_ten, load, object, with};

pub(crate) fn any(value: Value) -> StoredBudget {
    object(value)
}

fn fact(value: Value) -> Budget {
    budget::budget(&any(value)).unwrap()
}

fn spec(spec: Value) -> Result<Rules, Broken> {
    fact(with(load("budget.json"), "/spec", spec)).spec
}

fn everything() -> Covers {
    Covers::Selector(Selector::default())
}

#[test]
fn a_stored_budget_is_read() {
    let budget = fact(load("budget.json"));
    let key = ObjectKey::new("inference", "llm");
    assert_eq!(budget.key, BudgetKey { object: key, kind: BudgetKind::DisruptionBudget });
    assert_eq!((&*budget.uid, budget.generation, budget.version), ("b-1", 4, Version(100)));
    let rules = Rules {
        covers: Covers::Selector(Selector::labels([("app", "llm")])),
        min_available: Some(Quantity::Count(2)),
        max_unavailable: Some(Quantity::Percent(25)),
        units: Units::Label { key: "leaderworkerset.sigs.k8s.io/group-index".into(), min_ready: None },
        expected: None,
        unhealthy: UnhealthyPolicy::IfHealthyBudget,
        operations: Operations::of(&[Operation::Evict, Operation::Delete]),
        observe: false,
        health: HealthRule::Ready,
        waivable: false,
    };
    assert_eq!(budget.spec, Ok(rules));
    assert_eq!(&*budget.gone, [("llm/7".into(), before_ten(25))]);
}

#[test]
fn a_minimal_budget_has_the_defaults() {
    let rules = spec(json!({ "selector": {}, "maxUnavailable": 1 })).unwrap();
    assert_eq!(rules.covers, everything());
    assert_eq!(rules.units, Units::Pods);
    assert_eq!(rules.operations, Operations::of(&[Operation::Evict]));
    assert_eq!(rules.unhealthy, UnhealthyPolicy::IfHealthyBudget);
    assert!(!rules.observe);
}

#[test]
fn selectors_targets_and_units_are_read() {
    let selector = json!({
        "matchLabels": { "app": "llm", "empty": null },
        "matchExpressions": [
            { "key": "a", "operator": "In", "values": ["1", ""] },
            { "key": "b", "operator": "NotIn", "values": ["2"] },
            { "key": "c", "operator": "Exists" },
            { "key": "d", "operator": "DoesNotExist", "values": [] },
        ],
    });
    let rules = spec(json!({ "selector": selector, "minAvailable": 1 })).unwrap();
    let requirement = |key: &str, operator: Operator| Requirement { key: key.into(), operator };
    let expected = [
        requirement("app", Operator::In(["llm".into()].into())),
        requirement("empty", Operator::In(["".into()].into())),
        requirement("a", Operator::In(["1".into(), "".into()].into())),
        requirement("b", Operator::NotIn(["2".into()].into())),
        requirement("c", Operator::Exists),
        requirement("d", Operator::Absent),
    ];
    let Covers::Selector(selector) = rules.covers else { panic!("{:?}", rules.covers) };
    for requirement in &expected {
        assert!(selector.0.contains(requirement), "{requirement:?} in {selector:?}");
    }
    assert_eq!(selector.0.len(), expected.len());

    let target =
        json!({ "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "llm" });
    let lws = Covers::Target(GroupKind::new("leaderworkerset.x-k8s.io", "LeaderWorkerSet"), "llm".into());
    assert_eq!(spec(json!({ "targetRef": target, "minAvailable": 1 })).unwrap().covers, lws);
    let core = json!({ "apiVersion": "v1", "kind": "ReplicationController", "name": "web" });
    let core = spec(json!({ "targetRef": core, "minAvailable": 1 })).unwrap().covers;
    assert_eq!(core, Covers::Target(GroupKind::new("", "ReplicationController"), "web".into()));

    let units = |part: Value| {
        let mut spec = json!({ "selector": {}, "minAvailable": 1 });
        spec.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        self::spec(spec).unwrap().units
    };
    assert_eq!(units(json!({ "budgetScope": "Workload" })), Units::Workload);
    assert_eq!(units(json!({ "budgetScope": "PodGroup" })), Units::Workload);
    let owner = json!({ "groupOwner": { "apiVersion": "batch.example.com/v1", "kind": "JobGroup" }, "minReadyReplicas": 3 });
    assert_eq!(
        units(json!({ "podGroupPolicy": owner })),
        Units::Owner { kind: GroupKind::new("batch.example.com", "JobGroup"), min_ready: Some(3) }
    );
}

#[test]
fn a_stored_budget_with_selector_and_target_covers_the_target() {
    let target = json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db" });
    let both = json!({ "selector": {}, "targetRef": target, "maxUnavailable": 1 });
    let covers = Covers::Target(GroupKind::new("apps", "StatefulSet"), "db".into());
    assert_eq!(spec(both.clone()).unwrap().covers, covers);
    assert_eq!(budget::validate(&both).len(), 1, "validation rejects it");
}

#[test]
fn an_invalid_budget_denies_for_all_pods_that_it_may_cover() {
    let app = Covers::Selector(Selector::labels([("app", "llm")]));
    let evict = Operations::of(&[Operation::Evict]);
    let all = Operations::of(&[Operation::Evict, Operation::Delete, Operation::Update, Operation::Resize]);
    let selector = json!({ "matchLabels": { "app": "llm" } });
    let broken_selector = json!({ "matchLabels": { "app": "llm" }, "matchExpressions": [{ "key": "a", "operator": "in", "values": ["b"] }] });
    let cases = [
        (json!({ "selector": selector }), &app, evict),
        (json!({ "selector": selector, "minAvailable": "half" }), &app, evict),
        (
            json!({ "selector": selector, "minAvailable": 1, "operations": ["Delete"], "budgetScope": "Node" }),
            &app,
            Operations::of(&[Operation::Delete]),
        ),
        (json!({ "selector": selector, "minAvailable": 1, "operations": ["Evict", "Nap"] }), &app, all),
        (json!({ "selector": selector, "minAvailable": 1, "operations": "Evict" }), &app, all),
        (json!({ "selector": broken_selector, "minAvailable": 1 }), &everything(), evict),
        (json!({ "selector": "app=llm", "minAvailable": 1 }), &everything(), evict),
        (json!({ "minAvailable": 1 }), &everything(), evict),
        (json!({ "targetRef": { "kind": "StatefulSet" }, "minAvailable": 1 }), &everything(), evict),
        (json!("nonsense"), &everything(), evict),
        (json!(null), &everything(), evict),
        // A budget that only observes denies nothing, even if it is invalid.
        (json!({ "selector": {}, "enforcement": "Observe" }), &everything(), Operations::of(&[])),
    ];
    for (stored, covers, operations) in cases {
        let broken = spec(stored.clone()).unwrap_err();
        assert_eq!((&broken.covers, broken.operations), (covers, operations), "{stored}: {}", broken.why);
        assert!(broken.why.starts_with("spec"), "{}", broken.why);
    }
}

#[test]
fn the_reason_names_the_first_problem_and_counts_the_others() {
    let why = |stored| spec(stored).unwrap_err().why;
    assert_eq!(
        &*why(json!({ "selector": {} })),
        "spec: sets no limit: set minAvailable, maxUnavailable or both"
    );
    assert_eq!(
        &*why(
            json!({ "selector": {}, "minAvailable": -1, "maxUnavailable": "101%", "expectedReplicas": -1 })
        ),
        "spec.minAvailable: -1 must be a whole number from 0 to 999999999, or a percentage from \"0%\" to \"100%\"; and \
         2 more problems"
    );
}

#[test]
fn a_typed_budget_reads_like_a_stored_one() {
    let typed = serde_json::from_value(load("budget.json")).unwrap();
    assert_eq!(budget::typed(&typed).unwrap(), self::fact(load("budget.json")));
}

#[test]
fn only_a_budget_without_identity_is_unreadable() {
    for pointer in ["/metadata/name", "/metadata/uid", "/metadata/resourceVersion"] {
        let error = budget::budget(&any(with(load("budget.json"), pointer, json!(null)))).unwrap_err();
        assert!(error.to_string().starts_with("DisruptionBudget inference/"), "{error}");
    }
}
