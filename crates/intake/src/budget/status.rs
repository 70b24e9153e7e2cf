//! Patches that write the engine's counts into a budget's status.

use std::collections::BTreeMap;

use quorate_engine::basics::{Text, Time};
use quorate_engine::condition_reason::ConditionReason;
use quorate_engine::facts::BudgetKind;
use quorate_engine::status::{Condition, ConditionType, Group, Status};
use serde_json::{Map, Value, json};

use super::memory;
use crate::time;

/// The JSON merge patch from the last observed `status` of a budget to the engine's status; `None` if nothing has
/// changed.
///
/// It holds counters, groups and conditions, and nothing of the ledger, so that it never conflicts with a commit.
/// Conditions of other writers do not change. A condition keeps its transition time while its status is the same.
pub fn patch(kind: BudgetKind, seen: &Value, status: &Status, now: Time) -> Option<Value> {
    let pruned = claims_were_pruned(seen).then(|| nothing_sticks(status));
    let status = pruned.as_ref().unwrap_or(status);
    let mut wanted = numbers(kind, status);
    wanted.extend([
        ("observedGeneration", json!(status.generation)),
        ("groups", or_null(!status.groups.is_empty(), status.groups.iter().map(group).collect())),
        ("groupsOmitted", or_null(status.groups_omitted > 0, count(status.groups_omitted))),
        ("conditions", conditions(seen, status, now)),
    ]);
    wanted.extend(memory::write(&status.memory));
    let mut changes: Map<String, Value> = wanted
        .into_iter()
        .filter(|(name, value)| seen.get(name).unwrap_or(&Value::Null) != value)
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    for (name, pods) in [("disruptedPods", &status.disrupted), ("unavailablePods", &status.updating)] {
        if let Some(change) = times(seen.get(name), pods) {
            changes.insert(name.to_owned(), change);
        }
    }
    (!changes.is_empty()).then(|| json!({ "status": changes }))
}

/// The same as steps of a JSON patch, to send together with a write to the ledger. Empty if more than the counts has
/// changed: such a change is reported to users, so it needs a write of its own.
pub fn steps(kind: BudgetKind, seen: &Value, status: &Status, now: Time) -> Vec<Value> {
    if claims_were_pruned(seen) || !status.conditions.iter().all(|condition| only_counts(seen, condition)) {
        return Vec::new();
    }
    let changes = patch(kind, seen, status, now).unwrap_or_default();
    let changes = changes.get("status").and_then(Value::as_object).into_iter().flatten();
    changes.map(|(name, change)| step(&format!("/status/{name}"), seen.get(name), change)).collect()
}

/// Whether a condition has not changed, or is DisruptionAllowed, which changes with every disruption.
fn only_counts(seen: &Value, condition: &Condition) -> bool {
    let seen = seen.get("conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let status = json!(if condition.status { "True" } else { "False" });
    condition.kind == ConditionType::DisruptionAllowed
        || seen.iter().any(|old| {
            old["type"] == condition.kind.name()
                && old["status"] == status
                && old["reason"] == condition.reason.name()
        })
}

/// A member of a merge patch as a JSON patch step with the same effect on the observed status.
fn step(path: &str, seen: Option<&Value>, change: &Value) -> Value {
    match (change, seen) {
        (Value::Null, _) => json!({ "op": "remove", "path": path }),
        (Value::Object(changes), Some(Value::Object(seen))) => {
            let mut whole = seen.clone();
            for (name, value) in changes {
                if value.is_null() {
                    whole.remove(name);
                } else {
                    whole.insert(name.clone(), value.clone());
                }
            }
            json!({ "op": "add", "path": path, "value": whole })
        }
        _ => json!({ "op": "add", "path": path, "value": change }),
    }
}

/// The counts, under the field names of the kind.
fn numbers(kind: BudgetKind, status: &Status) -> Vec<(&'static str, Value)> {
    let units = status.units;
    match kind {
        BudgetKind::DisruptionBudget => vec![
            ("scope", json!(status.scope.name())),
            ("disruptionsAllowed", count(units.allowed)),
            ("currentHealthy", count(status.pods_healthy)),
            ("desiredHealthy", count(status.pods_desired)),
            ("expectedPods", count(status.pods_expected)),
            ("disruptionsAllowedReplicas", count(units.allowed)),
            ("currentHealthyReplicas", count(units.current)),
            ("desiredHealthyReplicas", count(units.desired)),
            ("expectedReplicas", count(units.expected)),
        ],
        BudgetKind::PodUnavailableBudget => vec![
            ("unavailableAllowed", count(units.allowed)),
            ("currentAvailable", count(units.current)),
            ("desiredAvailable", count(units.desired)),
            ("totalReplicas", count(units.expected)),
            ("unavailableReplicas", count(units.expected.saturating_sub(units.current))),
        ],
    }
}

/// Whether the installed CustomResourceDefinition drops claims. Each write that increments `ledger` also writes
/// `claims`, even an empty map, so a missing field shows that the API server pruned it.
fn claims_were_pruned(seen: &Value) -> bool {
    seen.get("ledger").and_then(Value::as_u64).is_some_and(|number| number > 0)
        && seen.get("claims").is_none()
}

/// The status of a budget whose claims are not stored: it allows no disruption.
fn nothing_sticks(status: &Status) -> Status {
    let mut status = status.clone();
    status.units.allowed = 0;
    for condition in &mut status.conditions {
        if condition.kind == ConditionType::DisruptionAllowed {
            *condition = Condition {
                kind: ConditionType::DisruptionAllowed,
                status: false,
                reason: ConditionReason::SyncFailed,
                message: "Claims are not stored: the CustomResourceDefinition is older than this server. \
                          Apply the current one (quorate crds)."
                    .to_owned(),
            };
        }
    }
    status
}

/// A number for the status. The schema limits numbers to 31 bits.
fn count(number: u32) -> Value {
    json!(i32::try_from(number).unwrap_or(i32::MAX))
}

fn or_null(there: bool, value: Value) -> Value {
    if there { value } else { Value::Null }
}

fn group(group: &Group) -> Value {
    let mut value = json!({
        "name": &*group.name,
        "healthy": count(group.healthy),
        "minCount": count(group.min_count),
        "pods": count(group.pods),
    });
    if let (Some(since), Some(members)) = (group.gone_since, value.as_object_mut()) {
        members.insert("goneSince".to_owned(), at(since));
    }
    value
}

fn at(moment: Time) -> Value {
    serde_json::to_value(time::to_object(moment)).unwrap_or_default()
}

/// The changes to a map of times. A merge patch removes a member with `null`.
fn times(seen: Option<&Value>, pods: &[(Text, Time)]) -> Option<Value> {
    let wanted: BTreeMap<&str, Value> = pods.iter().map(|(pod, since)| (&**pod, at(*since))).collect();
    let seen = seen.and_then(Value::as_object);
    if wanted.is_empty() {
        return seen.map(|_| Value::Null);
    }
    let mut change = Map::new();
    for name in seen.into_iter().flat_map(Map::keys).filter(|name| !wanted.contains_key(name.as_str())) {
        change.insert(name.clone(), Value::Null);
    }
    for (name, since) in wanted {
        if seen.and_then(|seen| seen.get(name)) != Some(&since) {
            change.insert(name.to_owned(), since);
        }
    }
    (!change.is_empty()).then_some(Value::Object(change))
}

/// The conditions of the engine, merged into the list. Conditions of other writers keep their positions.
fn conditions(seen: &Value, status: &Status, now: Time) -> Value {
    let mut list: Vec<Value> = seen.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    for condition in &status.conditions {
        let index = list.iter().position(|other| other.get("type") == Some(&json!(condition.kind.name())));
        let fresh = self::condition(condition, index.map(|at| &list[at]), status.generation, now);
        match index {
            Some(at) => list[at] = fresh,
            None => list.push(fresh),
        }
    }
    Value::Array(list)
}

fn condition(condition: &Condition, old: Option<&Value>, generation: i64, now: Time) -> Value {
    let status = if condition.status { "True" } else { "False" };
    let since = old
        .filter(|old| old.get("status") == Some(&json!(status)))
        .and_then(|old| old.get("lastTransitionTime"))
        .filter(|since| since.is_string())
        .cloned();
    json!({
        "type": condition.kind.name(),
        "status": status,
        "reason": condition.reason.name(),
        "message": condition.message,
        "observedGeneration": generation,
        "lastTransitionTime": since.unwrap_or_else(|| at(now)),
    })
}
