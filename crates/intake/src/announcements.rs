//! Updates that are announced in a pod's status before they are made.
//!
//! Some controllers make a pod unready by a readiness gate of their own, and change it after that. The update itself then
//! finds a pod that is down already, which is free. So the announcement is the request: it is decided as an update, while
//! the pod still counts.

use quorate_api::names::kruise::INPLACE_UPDATE_READY;
use quorate_api::slim::{Condition, Pod};

/// The conditions that announce an update when they stop being True, on pods that name them as readiness gates. Without
/// the gate a kubelet does not look at the condition. All other gates (load balancers, meshes) report health, and a report
/// is never refused.
pub(crate) const ANNOUNCEMENTS: &[&str] = &[INPLACE_UPDATE_READY];

/// The readiness gates of a pod that announce updates.
fn gates(pod: &Pod) -> impl Iterator<Item = &str> {
    let gates = pod.spec.readiness_gates.iter().map(|gate| gate.condition_type.as_str());
    gates.filter(|gate| ANNOUNCEMENTS.contains(gate))
}

fn is_true(pod: &Pod, gate: &str) -> bool {
    Condition::find(&pod.status.conditions, gate).is_some_and(Condition::is_true)
}

/// Whether an update of the pod is announced, be it about to begin or under way.
pub(crate) fn is_announced(pod: &Pod) -> bool {
    gates(pod).any(|gate| !is_true(pod, gate))
}

/// Whether a write of the status announces an update of the pod.
pub(crate) fn announces(old: &Pod, new: &Pod) -> bool {
    gates(old).any(|gate| is_true(old, gate) && !is_true(new, gate))
}

/// The same as an expression in CEL, about what is stored and what is written.
pub(crate) fn expression() -> String {
    let conditions: Vec<String> = ANNOUNCEMENTS.iter().map(|condition| format!("'{condition}'")).collect();
    let is_true = |object: &str| {
        format!(
            "has({object}.status) && has({object}.status.conditions) && {object}.status.conditions.exists(c, \
             c.type == g.conditionType && c.status == 'True')"
        )
    };
    format!(
        "has(oldObject.spec.readinessGates) && oldObject.spec.readinessGates.exists(g, g.conditionType in [{}] \
         && {} && !({}))",
        conditions.join(", "),
        is_true("oldObject"),
        is_true("object")
    )
}
