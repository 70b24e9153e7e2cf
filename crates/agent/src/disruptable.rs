//! The result of all probes of a pod, and the condition `Disruptable` that shows it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use quorate_api::names::DISRUPTABLE;
use serde_json::{Value, json};

use crate::container_probe::{ContainerResult, reason};
use crate::pod_view::{PodCondition, PodView};

/// Status, reason and message of the condition `Disruptable`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disruptable {
    pub(crate) status: String,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Disruptable {
    pub(crate) fn no(reason: &'static str, message: String) -> Self {
        Self { status: "False".to_owned(), reason, message }
    }

    /// The combined result of all probes of a pod: each must pass. `Err` has the reason why there is no result yet.
    pub(crate) fn of(probes: impl IntoIterator<Item = ContainerResult>) -> Result<Self, String> {
        let mut undecided = None;
        for result in probes {
            match result {
                ContainerResult::Yes => {}
                ContainerResult::No { reason, message } => return Ok(Self::no(reason, message)),
                ContainerResult::Undecided(why) => undecided = undecided.or(Some(why)),
            }
        }
        match undecided {
            Some(why) => Err(why),
            None => Ok(Self { status: "True".to_owned(), reason: reason::SUCCEEDED, message: String::new() }),
        }
    }

    /// A copy of the pod's condition `Ready`.
    pub(crate) fn mirror(ready: &PodCondition) -> Self {
        Self { status: ready.status.clone(), reason: reason::MIRRORED, message: String::new() }
    }

    /// Whether a condition has this status and reason.
    pub(crate) fn matches(&self, condition: &PodCondition) -> bool {
        condition.status == self.status && condition.reason == self.reason
    }

    /// The condition to write, given the present one (`before`). `probed` and `now` are in seconds since 1970. The
    /// transition time changes only with the status.
    pub(crate) fn condition(&self, before: Option<&PodCondition>, probed: i64, now: i64) -> PodCondition {
        let since = before.filter(|before| before.status == self.status).and_then(|before| before.since);
        PodCondition {
            status: self.status.clone(),
            reason: self.reason.to_owned(),
            message: self.message.clone(),
            probed: Some(probed),
            since: Some(since.unwrap_or(now)),
        }
    }
}

/// The patch that writes a condition. It applies only to the pod with this UID and changes no other field.
pub(crate) fn patch(pod: &PodView, condition: &PodCondition) -> Value {
    let time = |second: Option<i64>| second.and_then(|at| Timestamp::from_second(at).ok()).map(Time);
    json!({
        "metadata": {"uid": pod.uid},
        "status": {"conditions": [{
            "type": DISRUPTABLE,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastProbeTime": time(condition.probed),
            "lastTransitionTime": time(condition.since),
        }]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_probes_must_pass() {
        let no = |message: &str| ContainerResult::No { reason: reason::FAILED, message: message.to_owned() };
        let wait = |why: &str| ContainerResult::Undecided(why.to_owned());
        let summary = |results: &[ContainerResult]| match Disruptable::of(results.iter().cloned()) {
            Ok(disruptable) => {
                format!("{} {} {}", disruptable.status, disruptable.reason, disruptable.message)
            }
            Err(why) => why,
        };
        for (results, expected) in [
            (&[ContainerResult::Yes][..], "True ProbeSucceeded "),
            (&[ContainerResult::Yes, ContainerResult::Yes], "True ProbeSucceeded "),
            (&[ContainerResult::Yes, no("b: 503")], "False ProbeFailed b: 503"),
            (&[no("a: 500"), no("b: 503")], "False ProbeFailed a: 500"),
            // One failed probe decides, even if others have no result yet.
            (&[wait("a waits"), no("b: 503")], "False ProbeFailed b: 503"),
            (&[ContainerResult::Yes, wait("b waits"), wait("c waits")], "b waits"),
        ] {
            assert_eq!(summary(results), expected);
        }
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let disruptable = Disruptable::no(reason::FAILED, "main: 503".to_owned());
        let first = disruptable.condition(None, 10, 11);
        assert_eq!((first.probed, first.since), (Some(10), Some(11)));
        let again = disruptable.condition(Some(&first), 20, 21);
        assert_eq!((again.probed, again.since), (Some(20), Some(11)));
        let yes = Disruptable::of([ContainerResult::Yes]).unwrap().condition(Some(&again), 30, 31);
        assert_eq!((yes.probed, yes.since), (Some(30), Some(31)));
    }
}
