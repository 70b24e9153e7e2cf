//! The verdict of a pod from its probes, and the condition that tells it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use quorate_api::names::DISRUPTABLE;
use serde_json::{Value, json};

use crate::round::{Say, reason};
use crate::sight::{Shown, Sight};

/// What is to be told of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) status: String,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Verdict {
    pub(crate) fn no(reason: &'static str, message: String) -> Self {
        Self { status: "False".to_owned(), reason, message }
    }

    /// What all probes of a pod say together: each must pass. `Err` is why that cannot be said yet.
    pub(crate) fn of(probes: impl IntoIterator<Item = Say>) -> Result<Self, String> {
        let mut undecided = None;
        for say in probes {
            match say {
                Say::Yes => {}
                Say::No { reason, message } => return Ok(Self::no(reason, message)),
                Say::Undecided(why) => undecided = undecided.or(Some(why)),
            }
        }
        match undecided {
            Some(why) => Err(why),
            None => Ok(Self { status: "True".to_owned(), reason: reason::SUCCEEDED, message: String::new() }),
        }
    }

    /// The copy of a pod's Ready.
    pub(crate) fn mirror(ready: &Shown) -> Self {
        Self { status: ready.status.clone(), reason: reason::MIRRORED, message: String::new() }
    }

    /// Whether a condition tells this.
    pub(crate) fn is_told_by(&self, shown: &Shown) -> bool {
        shown.status == self.status && shown.reason == self.reason
    }

    /// The condition that tells this, probed and told in these seconds, where another one is shown so far. The time of
    /// the transition stays where the status does.
    pub(crate) fn condition(&self, before: Option<&Shown>, probed: i64, now: i64) -> Shown {
        let since = before.filter(|before| before.status == self.status).and_then(|before| before.since);
        Shown {
            status: self.status.clone(),
            reason: self.reason.to_owned(),
            message: self.message.clone(),
            probed: Some(probed),
            since: Some(since.unwrap_or(now)),
        }
    }
}

/// The patch that writes a condition on this pod and no other, and leaves everything else alone.
pub(crate) fn patch(pod: &Sight, condition: &Shown) -> Value {
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
        let no = |message: &str| Say::No { reason: reason::FAILED, message: message.to_owned() };
        let wait = |why: &str| Say::Undecided(why.to_owned());
        let told = |says: &[Say]| match Verdict::of(says.iter().cloned()) {
            Ok(verdict) => format!("{} {} {}", verdict.status, verdict.reason, verdict.message),
            Err(why) => why,
        };
        for (says, expected) in [
            (&[Say::Yes][..], "True ProbeSucceeded "),
            (&[Say::Yes, Say::Yes], "True ProbeSucceeded "),
            (&[Say::Yes, no("b: 503")], "False ProbeFailed b: 503"),
            (&[no("a: 500"), no("b: 503")], "False ProbeFailed a: 500"),
            // One no is enough, whatever the others will say.
            (&[wait("a waits"), no("b: 503")], "False ProbeFailed b: 503"),
            (&[Say::Yes, wait("b waits"), wait("c waits")], "b waits"),
        ] {
            assert_eq!(told(says), expected);
        }
    }

    #[test]
    fn the_transition_is_as_old_as_the_status() {
        let verdict = Verdict::no(reason::FAILED, "main: 503".to_owned());
        let first = verdict.condition(None, 10, 11);
        assert_eq!((first.probed, first.since), (Some(10), Some(11)));
        let again = verdict.condition(Some(&first), 20, 21);
        assert_eq!((again.probed, again.since), (Some(20), Some(11)));
        let yes = Verdict::of([Say::Yes]).unwrap().condition(Some(&again), 30, 31);
        assert_eq!((yes.probed, yes.since), (Some(30), Some(31)));
    }
}
