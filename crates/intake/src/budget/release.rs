//! The patch that ends Quorate's service of a budget.

use quorate_engine::basics::Time;
use quorate_engine::condition_reason::ConditionReason;
use quorate_engine::status::ConditionType;
use serde_json::{Value, json};

use crate::time;

/// The conditions that Quorate writes.
const OWN: [ConditionType; 3] =
    [ConditionType::DisruptionAllowed, ConditionType::BudgetConfigured, ConditionType::Enforced];

const MESSAGE: &str = "Quorate does not serve this budget: OpenKruise enforces it, or nothing does.";

/// The JSON patch after which the status of a budget no longer states that Quorate enforces it; `None` if it does not
/// state this.
///
/// `Enforced` becomes False, and the other conditions of Quorate end. `opened` and `openedFor` end too: servers that
/// serve the budget again must not take it for open before all of them know it. Counts and claims stay, as they may belong to
/// another writer by now. The patch tests what it replaces, so it fails if the status has changed.
pub fn release_patch(uid: &str, generation: i64, seen: &Value, now: Time) -> Option<Value> {
    let old = seen.get("conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let is = |condition: &Value, kind: ConditionType| condition.get("type") == Some(&json!(kind.name()));
    let is_own = |condition: &Value| OWN.iter().any(|kind| is(condition, *kind));
    let opened: Vec<(&str, &Value)> =
        ["opened", "openedFor"].into_iter().filter_map(|name| Some((name, seen.get(name)?))).collect();
    if opened.is_empty() && !old.iter().any(is_own) {
        return None;
    }
    let enforced = old.iter().find(|condition| is(condition, ConditionType::Enforced));
    let was_false = enforced.filter(|condition| condition.get("status") == Some(&json!("False")));
    let since = was_false.and_then(|condition| condition.get("lastTransitionTime")).cloned();
    let mut conditions: Vec<Value> = old.iter().filter(|condition| !is_own(condition)).cloned().collect();
    conditions.push(json!({
        "type": ConditionType::Enforced.name(),
        "status": "False",
        "reason": ConditionReason::NotServed.name(),
        "message": MESSAGE,
        "observedGeneration": generation,
        "lastTransitionTime": since.unwrap_or_else(|| json!(time::to_object(now))),
    }));
    if opened.is_empty() && conditions == old {
        return None;
    }
    let mut steps = vec![json!({ "op": "test", "path": "/metadata/uid", "value": uid })];
    if let Some(old) = seen.get("conditions") {
        steps.push(json!({ "op": "test", "path": "/status/conditions", "value": old }));
    }
    steps.push(json!({ "op": "add", "path": "/status/conditions", "value": conditions }));
    for (name, value) in opened {
        let path = format!("/status/{name}");
        steps.push(json!({ "op": "test", "path": path, "value": value }));
        steps.push(json!({ "op": "remove", "path": path }));
    }
    Some(Value::Array(steps))
}
