//! Decides what to write for a native budget and the budget of the same name.

use quorate_api::DisruptionBudgetSpec;
use quorate_api::budget::StoredBudget;
use quorate_api::slim::{Condition, PodDisruptionBudget};
use quorate_engine::condition_reason::ConditionReason;
use quorate_engine::status::ConditionType;
use quorate_intake::objects::{self, Groups};
use serde_json::Value;

/// A `DisruptionBudget`, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TwinState {
    /// The twin; `None` if a user created the budget.
    pub(super) twin: Option<Box<Twin>>,
}

/// A budget that was created for a native budget.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Twin {
    /// Its UID.
    pub(super) uid: String,
    /// The UID of the native budget.
    pub(super) owner: String,
    /// `None` if it cannot be read.
    pub(super) spec: Option<DisruptionBudgetSpec>,
    /// Its condition `BudgetConfigured`: status, reason and message.
    pub(super) configured: Option<(String, String, String)>,
    /// The groups that it counts, once its status has them.
    pub(super) groups: Option<Groups>,
}

impl TwinState {
    pub(super) fn of(budget: &StoredBudget) -> Self {
        let twin = objects::native_owner(&budget.metadata).map(|owner| {
            Box::new(Twin {
                uid: budget.metadata.uid.clone().unwrap_or_default(),
                owner: owner.uid.clone(),
                spec: serde_json::from_value(budget.spec.clone()).ok(),
                configured: configured(&budget.status),
                groups: groups(&budget.status),
            })
        });
        Self { twin }
    }
}

fn configured(status: &Value) -> Option<(String, String, String)> {
    let conditions = status.get("conditions")?.as_array()?;
    let found =
        conditions.iter().find(|condition| condition["type"] == ConditionType::BudgetConfigured.name())?;
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

fn groups(status: &Value) -> Option<Groups> {
    let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or_default();
    let size = |group: &Value| number(&group["pods"]).max(number(&group["minCount"]));
    let listed = status.get("groups")?.as_array()?;
    Some(Groups {
        size: listed.iter().map(size).max()?,
        may_be_down: number(&status["expectedReplicas"])
            .saturating_sub(number(&status["desiredHealthyReplicas"])),
        pods: number(&status["expectedPods"]),
    })
}

/// A write to the twin.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TwinStep {
    /// Create the twin of the native budget with this UID.
    Create { owner: String, spec: Box<DisruptionBudgetSpec> },
    /// Replace the spec of the twin with this UID.
    Change { twin: String, spec: Box<DisruptionBudgetSpec> },
    /// Delete the twin with this UID.
    Delete { twin: String },
}

/// The next write, if one is needed. A budget that a user created is never changed. A twin whose native budget became
/// invalid stays as it is: an invalid request for a twin is not a request to remove the twin.
pub(super) fn step(native: Option<&PodDisruptionBudget>, known: Option<&TwinState>) -> Option<TwinStep> {
    let twin = match known {
        Some(TwinState { twin: None }) => return None,
        Some(TwinState { twin: Some(twin) }) => Some(&**twin),
        None => None,
    };
    let delete = |twin: &Twin| TwinStep::Delete { twin: twin.uid.clone() };
    let Some((native, requested)) = native.and_then(|native| Some((native, objects::twin(native)?))) else {
        return twin.map(delete);
    };
    let uid = native.metadata.uid.clone().unwrap_or_default();
    match (requested.ok(), twin) {
        // The twin belongs to an earlier native budget of that name, which is gone.
        (_, Some(twin)) if twin.owner != uid => Some(delete(twin)),
        (Some(spec), Some(twin)) if twin.spec.as_ref() != Some(&spec) => {
            Some(TwinStep::Change { twin: twin.uid.clone(), spec: Box::new(spec) })
        }
        (Some(spec), None) => Some(TwinStep::Create { owner: uid, spec: Box::new(spec) }),
        (None, _) | (Some(_), Some(_)) => None,
    }
}

/// The condition that was last written to a native budget.
pub(super) fn current_condition(native: &PodDisruptionBudget) -> Option<&Condition> {
    Condition::find(&native.status.conditions, ConditionType::BudgetConfigured.name())
}

/// A change of the condition of a native budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Set the condition.
    Set { status: &'static str, reason: String, message: String },
    /// Remove the condition: the native budget does not request a twin any more.
    Remove,
}

/// The change of the condition of a native budget, if one is needed.
pub(super) fn condition(native: &PodDisruptionBudget, known: Option<&TwinState>) -> Option<Change> {
    let set =
        |status, reason: &str, message: String| Change::Set { status, reason: reason.to_owned(), message };
    let wanted = match objects::twin(native) {
        None => return current_condition(native).map(|_| Change::Remove),
        Some(Err(problem)) => set("False", ConditionReason::Invalid.name(), problem.to_string()),
        Some(Ok(_)) => match known {
            None => return None,
            Some(TwinState { twin: None }) => set(
                "False",
                ConditionReason::NameTaken.name(),
                "A DisruptionBudget of this name exists that does not belong to this PodDisruptionBudget, so groups \
                 are not counted for this one. Rename or remove one of the two."
                    .to_owned(),
            ),
            Some(TwinState { twin: Some(twin) }) => {
                let tight = twin.groups.and_then(|groups| objects::too_tight(native, groups));
                match (&twin.configured, tight) {
                    (None, _) => return None,
                    (Some((status, _, _)), Some(tight)) if status == "True" => {
                        set("False", ConditionReason::NativeRuleTooTight.name(), tight.to_string())
                    }
                    (Some((status, reason, message)), _) => {
                        set(if status == "True" { "True" } else { "False" }, reason, message.clone())
                    }
                }
            }
        },
    };
    let Change::Set { status, reason, message } = &wanted else { return None };
    let same = current_condition(native).is_some_and(|current| {
        current.status == *status
            && current.reason.as_deref() == Some(reason)
            && current.message.as_deref() == Some(message)
    });
    (!same).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn native(annotations: &Value, conditions: &Value) -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "p", "generation": 2, "annotations": annotations},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    fn annotated() -> PodDisruptionBudget {
        native(&json!({"quorate.dev/budget-scope": "Workload"}), &json!([]))
    }

    fn budget(owner: Option<&str>, spec: &Value, status: &Value) -> TwinState {
        let owners: Vec<Value> = owner
            .map(|uid| {
                json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "name": "web", "uid": uid,
                    "controller": true})
            })
            .into_iter()
            .collect();
        TwinState::of(
            &serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "shop", "uid": "t", "ownerReferences": owners},
                "spec": spec, "status": status,
            }))
            .unwrap(),
        )
    }

    fn spec() -> Value {
        json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1, "budgetScope": "Workload"})
    }

    fn status(configured: &str, reason: &str) -> Value {
        json!({
            "expectedReplicas": 3, "desiredHealthyReplicas": 2, "expectedPods": 9,
            "groups": [{"name": "a", "pods": 3, "minCount": 3}],
            "conditions": [{"type": "BudgetConfigured", "status": configured, "reason": reason, "message": "so"}],
        })
    }

    fn name_of(step: Option<&TwinStep>) -> &'static str {
        match step {
            None => "nothing",
            Some(TwinStep::Create { .. }) => "create",
            Some(TwinStep::Change { .. }) => "change",
            Some(TwinStep::Delete { .. }) => "delete",
        }
    }

    #[test]
    fn the_twin_is_kept_in_sync() {
        let twin = |spec: Value| budget(Some("p"), &spec, &json!({}));
        let (annotated, plain) = (annotated(), native(&json!({}), &json!([])));
        let wrong = native(&json!({"quorate.dev/budget-scope": "Gang"}), &json!([]));
        let mut other = spec();
        other["maxUnavailable"] = json!(2);
        let made = budget(None, &spec(), &json!({}));
        let foreign = budget(Some("older"), &spec(), &json!({}));
        let cases: [(&str, Option<&PodDisruptionBudget>, Option<TwinState>, &str); 12] = [
            ("new", Some(&annotated), None, "create"),
            ("in sync", Some(&annotated), Some(twin(spec())), "nothing"),
            ("out of sync", Some(&annotated), Some(twin(other)), "change"),
            ("unreadable", Some(&annotated), Some(twin(json!({"budgetScope": 7}))), "change"),
            ("of an older native budget", Some(&annotated), Some(foreign), "delete"),
            ("created by a user", Some(&annotated), Some(made.clone()), "nothing"),
            ("does not request a twin any more", Some(&plain), Some(twin(spec())), "delete"),
            ("never requested a twin", Some(&plain), Some(made.clone()), "nothing"),
            ("gone", None, Some(twin(spec())), "delete"),
            ("gone, and never requested a twin", None, Some(made), "nothing"),
            ("requests something invalid", Some(&wrong), None, "nothing"),
            ("requests something invalid now", Some(&wrong), Some(twin(spec())), "nothing"),
        ];
        for (case, native, known, expected) in cases {
            assert_eq!(name_of(step(native, known.as_ref()).as_ref()), expected, "{case}");
        }
    }

    fn reason_of(change: Option<Change>) -> String {
        match change {
            None => "nothing".to_owned(),
            Some(Change::Remove) => "remove".to_owned(),
            Some(Change::Set { status, reason, .. }) => format!("{status} {reason}"),
        }
    }

    #[test]
    fn the_condition_of_the_native_budget_shows_the_state_of_the_twin() {
        let wide = |mut native: PodDisruptionBudget| {
            native.spec.max_unavailable =
                Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(3));
            native
        };
        let well = budget(Some("p"), &spec(), &status("True", "ValidConfig"));
        assert_eq!(reason_of(condition(&wide(annotated()), Some(&well))), "True ValidConfig");
        assert_eq!(reason_of(condition(&annotated(), Some(&well))), "False NativeRuleTooTight");
        let lost = budget(Some("p"), &spec(), &status("False", "MissingWorkloadReference"));
        assert_eq!(reason_of(condition(&annotated(), Some(&lost))), "False MissingWorkloadReference");
        let new = budget(Some("p"), &spec(), &json!({}));
        assert_eq!(reason_of(condition(&annotated(), Some(&new))), "nothing");
        let made = budget(None, &spec(), &json!({}));
        assert_eq!(reason_of(condition(&annotated(), Some(&made))), "False NameTaken");
        let wrong = native(&json!({"quorate.dev/budget-scope": "Gang"}), &json!([]));
        assert_eq!(reason_of(condition(&wrong, None)), "False Invalid");
    }

    #[test]
    fn an_unchanged_condition_is_not_written_and_an_obsolete_one_is_removed() {
        let well = budget(Some("p"), &spec(), &status("False", "MissingWorkloadReference"));
        let conditions = json!([{"type": "BudgetConfigured", "status": "False", "reason": "MissingWorkloadReference",
            "message": "so"}]);
        let again = native(&json!({"quorate.dev/budget-scope": "Workload"}), &conditions);
        assert_eq!(condition(&again, Some(&well)), None);
        assert_eq!(condition(&native(&json!({}), &conditions), None), Some(Change::Remove));
        assert_eq!(condition(&native(&json!({}), &json!([])), None), None);
    }
}
