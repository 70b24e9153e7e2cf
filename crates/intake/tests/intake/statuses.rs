//! What is written to a budget's status.

use quorate_engine::basics::Time;
use quorate_engine::condition_reason::ConditionReason;
use quorate_engine::decision::{Noun, Numbers};
use quorate_engine::facts::BudgetKind;
use quorate_engine::status::{Condition, ConditionType, Group, Scope, Status};
use quorate_intake::budget::{release_patch, status_patch, status_steps};
use serde_json::{Value, json};

use crate::data::{TEN, before_ten, load};

fn condition(kind: ConditionType, status: bool, reason: ConditionReason) -> Condition {
    Condition { kind, status, reason, message: "m".to_owned() }
}

fn status() -> Status {
    Status {
        generation: 4,
        scope: Scope::Group,
        noun: Noun::Group,
        group_size: None,
        units: Numbers { allowed: 0, current: 3, desired: 3, expected: 4 },
        pods_healthy: 13,
        pods_desired: 12,
        pods_expected: 16,
        disrupted: vec![("llm-1-3".into(), before_ten(1))],
        updating: Vec::new(),
        groups: vec![
            Group {
                name: "llm/7".into(),
                healthy: 0,
                min_count: 4,
                pods: 0,
                gone_since: Some(before_ten(5)),
            },
            Group { name: "llm/1".into(), healthy: 3, min_count: 4, pods: 4, gone_since: None },
        ],
        groups_omitted: 0,
        memory: quorate_engine::facts::Memory::default(),
        conditions: [
            condition(ConditionType::DisruptionAllowed, false, ConditionReason::InsufficientReplicas),
            condition(ConditionType::BudgetConfigured, true, ConditionReason::ValidConfig),
            condition(ConditionType::Enforced, true, ConditionReason::AllReplicas),
        ],
    }
}

/// Applies a merge patch as the API server does.
fn written(mut stored: Value, patch: &Value) -> Value {
    json_patch::merge(&mut stored, patch);
    stored
}

fn patched(stored: &Value, status: &Status, now: Time) -> Value {
    let patch = status_patch(BudgetKind::DisruptionBudget, &stored["status"], status, now).expect("a change");
    written(stored.clone(), &patch)
}

#[test]
fn a_status_patch_leaves_the_ledger_unchanged() {
    let stored = load("budget.json");
    let after = patched(&stored, &status(), TEN);
    for part in ["claims", "ledger", "settledVersion", "protocol", "opened", "openedFor"] {
        assert_eq!(after["status"][part], stored["status"][part], "{part}");
        let patch = status_patch(BudgetKind::DisruptionBudget, &stored["status"], &status(), TEN).unwrap();
        assert!(patch["status"].get(part).is_none(), "{part} in {patch}");
    }
    assert_eq!(after["status"]["scope"], "Group");
    let numbers = [
        ("observedGeneration", 4),
        ("disruptionsAllowed", 0),
        ("currentHealthy", 13),
        ("desiredHealthy", 12),
        ("expectedPods", 16),
        ("disruptionsAllowedReplicas", 0),
        ("currentHealthyReplicas", 3),
        ("desiredHealthyReplicas", 3),
        ("expectedReplicas", 4),
    ];
    for (name, number) in numbers {
        assert_eq!(after["status"][name], json!(number), "{name}");
    }
    assert_eq!(after["status"]["disruptedPods"], json!({ "llm-1-3": "2026-11-15T09:59:00Z" }));
    assert_eq!(after["status"]["groups"][0]["goneSince"], json!("2026-11-15T09:55:00Z"));
    // It fits the type, and the engine remembers what is gone.
    let typed: quorate_api::DisruptionBudget = serde_json::from_value(after.clone()).unwrap();
    assert_eq!(typed.status.unwrap().groups.len(), 2);
    let fact = quorate_intake::budget::budget(&crate::budgets::any(after)).unwrap();
    assert_eq!(&*fact.gone, [("llm/7".into(), before_ten(5))]);
}

#[test]
fn a_condition_keeps_its_time_while_its_status_is_the_same() {
    let stored = load("budget.json");
    let after = patched(&stored, &status(), TEN);
    let find = |object: &Value, kind: &str| {
        let list = object["status"]["conditions"].as_array().unwrap();
        list.iter().find(|condition| condition["type"] == kind).cloned().unwrap()
    };
    let allowed = find(&after, "DisruptionAllowed");
    assert_eq!(allowed["lastTransitionTime"], json!("2026-11-15T09:30:00Z"));
    assert_eq!(allowed["message"], json!("m"), "the message is new");
    assert_eq!(find(&after, "Enforced")["lastTransitionTime"], json!("2026-11-15T10:00:00Z"));
    assert_eq!(find(&after, "Enforced")["observedGeneration"], json!(4));
    assert_eq!(find(&after, "example.com/Reviewed"), find(&stored, "example.com/Reviewed"), "not ours");

    let mut turned = status();
    turned.conditions[0] =
        condition(ConditionType::DisruptionAllowed, true, ConditionReason::SufficientReplicas);
    let later = patched(&after, &turned, Time(TEN.0 + 60_000));
    assert_eq!(find(&later, "DisruptionAllowed")["lastTransitionTime"], json!("2026-11-15T10:01:00Z"));
    assert_eq!(find(&later, "DisruptionAllowed")["status"], json!("True"));
}

#[test]
fn an_unchanged_status_is_not_written() {
    let after = patched(&load("budget.json"), &status(), TEN);
    assert_eq!(
        status_patch(BudgetKind::DisruptionBudget, &after["status"], &status(), Time(TEN.0 + 60_000)),
        None
    );
    let mut one = status();
    one.pods_healthy = 12;
    let patch = status_patch(BudgetKind::DisruptionBudget, &after["status"], &one, TEN).unwrap();
    assert_eq!(patch, json!({ "status": { "currentHealthy": 12 } }));
}

#[test]
fn finished_disruptions_and_groups_are_removed() {
    let after = patched(&load("budget.json"), &status(), TEN);
    let mut calm = status();
    calm.disrupted = vec![("llm-2-0".into(), before_ten(0))];
    let changed = patched(&after, &calm, TEN);
    assert_eq!(changed["status"]["disruptedPods"], json!({ "llm-2-0": "2026-11-15T10:00:00Z" }));
    calm.disrupted = Vec::new();
    calm.groups = Vec::new();
    let empty = patched(&changed, &calm, TEN);
    assert!(empty["status"].get("disruptedPods").is_none() && empty["status"].get("groups").is_none());
    assert_eq!(status_patch(BudgetKind::DisruptionBudget, &empty["status"], &calm, TEN), None);
}

#[test]
fn the_first_status_has_all_conditions() {
    let patch = status_patch(BudgetKind::DisruptionBudget, &Value::Null, &status(), TEN).unwrap();
    let after = written(json!({}), &patch);
    assert_eq!(after["status"]["conditions"].as_array().unwrap().len(), 3);
    assert_eq!(status_patch(BudgetKind::DisruptionBudget, &after["status"], &status(), TEN), None);
}

#[test]
fn numbers_are_limited_to_the_schema() {
    let mut huge = status();
    huge.pods_expected = u32::MAX;
    let patch = status_patch(BudgetKind::DisruptionBudget, &Value::Null, &huge, Time(i64::MAX)).unwrap();
    assert_eq!(patch["status"]["expectedPods"], json!(i32::MAX));
}

#[test]
fn openkruise_has_its_own_names_for_the_numbers() {
    let patch = status_patch(BudgetKind::PodUnavailableBudget, &Value::Null, &status(), TEN).unwrap();
    let after = &patch["status"];
    let numbers = ["unavailableAllowed", "currentAvailable", "desiredAvailable", "totalReplicas"];
    assert_eq!(numbers.map(|name| after[name].as_u64()), [Some(0), Some(3), Some(3), Some(4)], "groups");
    assert_eq!(after["unavailableReplicas"], 1);
    assert_eq!(after["disruptedPods"], json!({ "llm-1-3": "2026-11-15T09:59:00Z" }));
    assert!(after.get("currentHealthy").is_none() && after.get("ledger").is_none(), "{after}");
}

/// Applies the status that is written together with a commit.
fn committed(stored: &Value, status: &Status) -> Value {
    let steps = status_steps(BudgetKind::DisruptionBudget, &stored["status"], status, TEN);
    assert!(!steps.is_empty(), "the status changed");
    let mut stored = stored.clone();
    json_patch::patch(&mut stored, &serde_json::from_value::<json_patch::Patch>(json!(steps)).unwrap())
        .unwrap();
    stored
}

#[test]
fn a_status_in_a_commit_equals_a_separate_status_write() {
    let stored = patched(&load("budget.json"), &status(), TEN);
    let mut more = status();
    more.units.allowed = 1;
    more.conditions[0] =
        condition(ConditionType::DisruptionAllowed, true, ConditionReason::SufficientReplicas);
    more.disrupted = vec![("llm-2-0".into(), before_ten(0)), ("llm-2-1".into(), before_ten(0))];
    let mut fewer = more.clone();
    fewer.disrupted.pop();
    let mut none = fewer.clone();
    none.disrupted.clear();
    none.groups.clear();
    let mut stored = stored;
    for next in [more, fewer, none] {
        let after = committed(&stored, &next);
        assert_eq!(after, patched(&stored, &next, TEN));
        assert_eq!(
            status_steps(BudgetKind::DisruptionBudget, &after["status"], &next, TEN),
            [] as [Value; 0]
        );
        stored = after;
    }
}

#[test]
fn changed_configuration_or_enforcement_is_not_written_with_a_commit() {
    let stored = patched(&load("budget.json"), &status(), TEN);
    let mut trouble = status();
    trouble.units.allowed = 1;
    trouble.conditions[1] = condition(ConditionType::BudgetConfigured, false, ConditionReason::NeverAllows);
    let mut closed = status();
    closed.units.allowed = 1;
    closed.conditions[2] = condition(ConditionType::Enforced, false, ConditionReason::JustCreated);
    for (status, seen) in
        [(&trouble, &stored["status"]), (&closed, &stored["status"]), (&status(), &Value::Null)]
    {
        assert_eq!(status_steps(BudgetKind::DisruptionBudget, seen, status, TEN), [] as [Value; 0]);
    }
    let mut pruned = stored;
    pruned["status"].as_object_mut().unwrap().remove("claims");
    let mut more = status();
    more.units.allowed = 1;
    assert_eq!(status_steps(BudgetKind::DisruptionBudget, &pruned["status"], &more, TEN), [] as [Value; 0]);
}

#[test]
fn a_released_budget_is_not_enforced_and_not_open() {
    let since = "2026-01-01T00:00:00Z";
    let own = |kind: &str, status: &str, reason: &str| {
        json!({ "type": kind, "status": status, "reason": reason, "message": "m", "observedGeneration": 1,
            "lastTransitionTime": since })
    };
    let foreign = json!({ "type": "Theirs", "status": "True", "reason": "R", "message": "", "lastTransitionTime": since });
    let mut stored = json!({
        "metadata": { "uid": "u" },
        "status": {
            "unavailableAllowed": 3, "claims": {}, "ledger": 4, "opened": {"coverage": "0a", "generation": 1}, "openedFor": "0a",
            "conditions": [
                own("DisruptionAllowed", "True", "SufficientPods"), foreign,
                own("BudgetConfigured", "True", "ValidConfig"), own("Enforced", "True", "AllReplicas"),
            ],
        },
    });
    let patch = |stored: &Value| {
        release_patch("u", 1, &stored["status"], TEN).map(|steps| serde_json::from_value(steps).unwrap())
    };
    let before = stored.clone();
    let steps: json_patch::Patch = patch(&stored).expect("a patch");
    json_patch::patch(&mut stored, &steps).unwrap();
    let status = &stored["status"];
    let conditions = status["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 2, "{conditions:#?}");
    assert_eq!(conditions[0], foreign, "that is of another writer");
    assert_eq!(conditions[1]["type"], "Enforced");
    assert_eq!((&conditions[1]["status"], &conditions[1]["reason"]), (&json!("False"), &json!("NotServed")));
    assert_ne!(conditions[1]["lastTransitionTime"], since);
    for field in ["opened", "openedFor"] {
        assert!(status.get(field).is_none(), "servers that serve it again must open it again");
    }
    for kept in ["unavailableAllowed", "claims", "ledger"] {
        assert_eq!(status[kept], before["status"][kept], "{kept}");
    }
    assert!(patch(&stored).is_none(), "once is enough");
    // Another writer was faster, or the name has a new object.
    for (path, value) in [("/status/conditions", json!([])), ("/metadata/uid", json!("v"))] {
        let mut changed = before.clone();
        *changed.pointer_mut(path).unwrap() = value;
        assert!(json_patch::patch(&mut changed, &steps).is_err(), "{path}");
    }
    // Quorate has never served these.
    for status in [json!({}), json!({ "unavailableAllowed": 1 }), json!({ "conditions": [foreign] })] {
        assert_eq!(release_patch("u", 1, &status, TEN), None, "{status}");
    }
    assert_eq!(release_patch("u", 1, &Value::Null, TEN), None);
}

#[test]
fn a_budget_that_was_never_open_is_released_too() {
    let status = json!({ "openedFor": "0a" });
    let steps = release_patch("u", 1, &status, TEN).expect("a patch");
    let mut stored = json!({ "metadata": { "uid": "u" }, "status": status });
    let steps: json_patch::Patch = serde_json::from_value(steps).unwrap();
    json_patch::patch(&mut stored, &steps).unwrap();
    assert_eq!(stored["status"]["conditions"][0]["reason"], "NotServed");
}
