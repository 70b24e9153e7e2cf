//! Updates and deletions that are announced in a pod's status before they are made.
//!
//! Some controllers first make a pod unready through their own readiness gate, and then change it. At that time the pod
//! is already unavailable, so the change itself would always be allowed. Quorate therefore decides on the announcement,
//! as on the change, while the pod is still available.

use quorate_api::names::kruise::{INPLACE_UPDATE_READY, POD_READY, PRE_DELETE_HOOK};
use quorate_api::slim::{Condition, Pod};
use quorate_engine::facts::Operation;

/// The conditions that announce a change when they stop being True, on pods that name them as readiness gates. Without
/// the gate the kubelet ignores the condition. All other gates (load balancers, meshes) report health, and a health
/// report is never denied.
pub(crate) const ANNOUNCEMENTS: &[&str] = &[INPLACE_UPDATE_READY, POD_READY];

/// The readiness gates of a pod that announce changes.
fn gates(pod: &Pod) -> impl Iterator<Item = &str> {
    let gates = pod.spec.readiness_gates.iter().map(|gate| gate.condition_type.as_str());
    gates.filter(|gate| ANNOUNCEMENTS.contains(gate))
}

fn is_true(pod: &Pod, gate: &str) -> bool {
    Condition::find(&pod.status.conditions, gate).is_some_and(Condition::is_true)
}

/// Whether a change of the pod is announced: about to begin, or in progress.
pub(crate) fn is_announced(pod: &Pod) -> bool {
    gates(pod).any(|gate| !is_true(pod, gate))
}

/// The operation that a write of the status announces: an update of the pod, or its deletion if OpenKruise runs a hook
/// before it. A controller that scales down must be able to do so, and only deletes are decided by what it wants.
pub(crate) fn announced(old: &Pod, new: &Pod) -> Option<Operation> {
    let mut closing = gates(old).filter(|gate| is_true(old, gate) && !is_true(new, gate)).peekable();
    closing.peek()?;
    let is_deletion = closing.all(|gate| gate == POD_READY) && {
        let condition = Condition::find(&new.status.conditions, POD_READY);
        let message = condition.and_then(|condition| condition.message.as_deref());
        message.is_some_and(|message| message.contains(PRE_DELETE_HOOK))
    };
    Some(if is_deletion { Operation::Delete } else { Operation::Update })
}

/// Whether [`announced`] returns an operation, as a CEL expression on `oldObject` and `object`.
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
