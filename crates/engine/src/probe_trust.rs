//! When the yes of a disruption probe is believed. Everything else denies the disruption: a probe fails closed.
//!
//! A pod with a disruption probe may be disrupted only if the agent on its node has said so, recently, about the
//! containers that run now. Each part of this is written by another process:
//!
//! | rule | written by |
//! |---|---|
//! | the annotation is well formed | the author of the pod; `quorate-intake` reads it (`probe.rs`) |
//! | the node has an agent that has renewed its Lease | the agent (`heartbeat.rs`); the server times the renewals by its own clock (`watches/heartbeats.rs`) |
//! | the node is Ready | the kubelet: on a lost node the condition is stale, however new it looks |
//! | the condition `Disruptable` is True | the agent (`disruptable.rs`) |
//! | its last probe is not older than the agent | the agent: an earlier agent may have used other settings |
//! | its last probe is not older than the containers | the kubelet: `quorate-intake` takes the latest start (`objects/pod.rs`) |

use crate::SafetyRule;
use crate::ages::FRESH_FOR;
use crate::basics::Time;
use crate::decision::ProbeDoubt;
use crate::facts::{Agent, Node, Probe};

/// Everything that decides whether the result of a pod's probes is believed.
pub(crate) struct ProbeTrust<'a> {
    pub(crate) probe: &'a Probe,
    /// The agent of the pod's node.
    pub(crate) agent: Option<&'a Agent>,
    /// The pod's node.
    pub(crate) node: Option<&'a Node>,
    pub(crate) now: Time,
}

impl ProbeTrust<'_> {
    /// Why the probes do not allow a disruption; `None` if they do and their result is believed.
    pub(crate) fn doubt(&self) -> Option<ProbeDoubt> {
        if let Some(why) = &self.probe.malformed {
            return Some(ProbeDoubt::Malformed(why.clone()));
        }
        let Some(agent) = self.agent else { return Some(ProbeDoubt::NoAgent) };
        if !is_fresh(agent, self.now) {
            return Some(ProbeDoubt::AgentStale);
        }
        if !self.node.is_some_and(|node| node.ready) {
            return Some(ProbeDoubt::NodeNotReady);
        }
        match self.probe.disruptable {
            None => Some(ProbeDoubt::Silent),
            Some(false) => Some(ProbeDoubt::SaysNo(self.probe.message.clone())),
            Some(true) if self.is_about_the_present(agent) => None,
            Some(true) => Some(ProbeDoubt::Outdated),
        }
    }

    /// Whether the last probe ran under this agent and on the containers that run now.
    fn is_about_the_present(&self, agent: &Agent) -> bool {
        let begun = |probed| probed >= agent.started || SafetyRule::OldResultsDoNotCount.is_left_out();
        self.probe.probed.is_some_and(begun) && self.is_about_these_containers()
    }

    fn is_about_these_containers(&self) -> bool {
        let Probe { probed, started, .. } = self.probe;
        probed.is_some_and(|probed| started.is_none_or(|started| probed >= started))
    }

    /// Whether the probes surely do not allow a disruption, if the pod is as it is known. What is known of its agent and its
    /// node may be older: an agent that seems to be gone may be back, and a server that has just started cannot date the
    /// last renewal of a Lease. A stale agent is surely gone after the time for which a kind is fresh.
    pub(crate) fn surely_denies(&self) -> bool {
        let by_pod = self.probe.malformed.is_some()
            || self.probe.disruptable != Some(true)
            || !self.is_about_these_containers();
        let by_agent = |agent: &Agent| {
            !self.is_about_the_present(agent)
                || (self.now >= expiry(agent).after(FRESH_FOR) && !SafetyRule::AgentsExpire.is_left_out())
        };
        by_pod || self.agent.is_some_and(by_agent)
    }
}

/// When an agent counts as stale, unless it renews its Lease before.
pub(crate) fn expiry(agent: &Agent) -> Time {
    agent.renewed.after(agent.holds)
}

/// Whether an agent has renewed its Lease in time.
pub(crate) fn is_fresh(agent: &Agent, now: Time) -> bool {
    now < expiry(agent) || SafetyRule::AgentsExpire.is_left_out()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A pod whose containers began at 15 and were probed at 20.
    fn yes() -> Probe {
        Probe {
            malformed: None,
            disruptable: Some(true),
            message: None,
            probed: Some(Time(20)),
            since: None,
            started: Some(Time(15)),
        }
    }

    fn agent() -> Agent {
        Agent { started: Time(10), renewed: Time(30), holds: Duration::from_millis(40) }
    }

    #[test]
    fn a_yes_is_believed_only_if_every_rule_holds() {
        let (yes, agent) = (yes(), agent());
        let (ready, lost) = (Node { ready: true }, Node { ready: false });
        let doubt = |probe: &Probe, agent: Option<&Agent>, node: Option<&Node>, now: i64| {
            ProbeTrust { probe, agent, node, now: Time(now) }.doubt()
        };
        let with = |change: fn(&mut Probe)| {
            let mut probe = yes.clone();
            change(&mut probe);
            doubt(&probe, Some(&agent), Some(&ready), 31)
        };
        assert_eq!(doubt(&yes, Some(&agent), Some(&ready), 31), None);
        assert_eq!(doubt(&yes, None, Some(&ready), 31), Some(ProbeDoubt::NoAgent));
        assert_eq!(doubt(&yes, Some(&agent), Some(&ready), 69), None);
        assert_eq!(doubt(&yes, Some(&agent), Some(&ready), 70), Some(ProbeDoubt::AgentStale));
        assert_eq!(doubt(&yes, Some(&agent), Some(&lost), 31), Some(ProbeDoubt::NodeNotReady));
        assert_eq!(doubt(&yes, Some(&agent), None, 31), Some(ProbeDoubt::NodeNotReady));
        assert_eq!(with(|probe| probe.malformed = Some("x".into())), Some(ProbeDoubt::Malformed("x".into())));
        assert_eq!(with(|probe| probe.disruptable = None), Some(ProbeDoubt::Silent));
        assert_eq!(with(|probe| probe.disruptable = Some(false)), Some(ProbeDoubt::SaysNo(None)));
        assert_eq!(with(|probe| probe.probed = None), Some(ProbeDoubt::Outdated));
        assert_eq!(
            with(|probe| probe.probed = Some(Time(9))),
            Some(ProbeDoubt::Outdated),
            "an earlier agent"
        );
        assert_eq!(
            with(|probe| probe.probed = Some(Time(14))),
            Some(ProbeDoubt::Outdated),
            "a restart since"
        );
        assert_eq!(with(|probe| probe.probed = Some(Time(15))), None);
        assert_eq!(with(|probe| probe.started = None), None);
    }

    #[test]
    fn a_probe_surely_denies_by_its_pod_or_after_its_agent_was_silent_for_long() {
        let (yes, agent) = (yes(), agent());
        let surely = |probe: &Probe, agent: Option<&Agent>, now: i64| {
            ProbeTrust { probe, agent, node: None, now: Time(now) }.surely_denies()
        };
        let by_pod = |probe: Probe| surely(&probe, None, 31);
        assert!(!surely(&yes, None, 31), "its agent may be back");
        assert!(!surely(&yes, Some(&agent), 31), "its node may be back");
        assert!(!by_pod(Probe { started: None, ..yes.clone() }));
        assert!(by_pod(Probe { disruptable: Some(false), ..yes.clone() }));
        assert!(by_pod(Probe { disruptable: None, ..yes.clone() }));
        assert!(by_pod(Probe { probed: Some(Time(14)), ..yes.clone() }), "a restart since");
        assert!(by_pod(Probe { probed: None, ..yes.clone() }));
        assert!(by_pod(Probe { malformed: Some("x".into()), ..yes.clone() }));
        assert!(surely(&Probe { probed: Some(Time(9)), started: None, ..yes.clone() }, Some(&agent), 31));
        assert!(!surely(&yes, Some(&agent), 70 + 89_999), "it may have renewed its Lease since");
        assert!(surely(&yes, Some(&agent), 70 + 90_000));
    }
}
