//! When servers may believe the yes of a disruption probe.
//!
//! The condition of a pod counts while the agent of its node renews its Lease and the node is Ready, and only if the agent
//! had begun before the probe. Pods, Leases and nodes age separately. So servers may have believed a condition if any Lease
//! and any state of the node that they can have seen allow it, and they must believe it only if all of them do.

use std::collections::HashMap;
use std::time::Duration;

use super::decode::{Pod, condition_status, number, text, whole_second};
use super::memory::LAG;
use crate::history::Change;

const LEASES: &str = "leases.coordination.k8s.io";

/// How long after a renewal the next one is late. Agents renew every 10 s.
const LATE: Duration = Duration::from_secs(20);

/// The Leases of the agents, and the nodes.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// By node, in the order of time.
    leases: HashMap<String, Vec<Renewal>>,
    nodes: HashMap<String, Vec<(Duration, bool)>>,
}

/// A write of a Lease.
#[derive(Debug)]
struct Renewal {
    at: Duration,
    /// The second in which the agent began. Nothing if the Lease was deleted.
    began: Option<String>,
    lasts: Duration,
}

impl Trust {
    /// Takes a change in, if it is one of a Lease or of a node.
    pub(super) fn take(&mut self, change: &Change) -> bool {
        let object = &*change.object;
        match &*change.resource {
            LEASES => {
                let spec = &object["spec"];
                let seconds = number(&spec["leaseDurationSeconds"]).unwrap_or(0);
                let renewal = Renewal {
                    at: change.at,
                    began: (!change.deleted).then(|| whole_second(&spec["acquireTime"])),
                    lasts: Duration::from_secs(u64::from(seconds)),
                };
                self.leases.entry(text(&spec["holderIdentity"])).or_default().push(renewal);
                true
            }
            "nodes" => {
                let ready = !change.deleted && condition_status(object, "Ready") == Some(true);
                let states = self.nodes.entry(text(&object["metadata"]["name"])).or_default();
                if states.last().is_none_or(|(_, before)| *before != ready) {
                    states.push((change.at, ready));
                }
                true
            }
            _ => false,
        }
    }

    /// Whether a server can have believed that the probe of this pod says yes, if it decided in this span. A history
    /// without Leases, or without this node, says nothing about them.
    pub(super) fn may(&self, pod: &Pod, from: Duration, to: Duration) -> bool {
        let renewals = self.leases.get(&pod.node).map_or(&[][..], Vec::as_slice);
        let believed = |renewal: &Renewal| {
            // Servers time a renewal by their own clocks, from when they hear of it.
            let until = renewal.at + LAG + renewal.lasts + Duration::from_secs(1);
            let began = renewal.began.as_ref();
            let after = |began: &String| pod.probed.is_empty() || *began <= pod.probed;
            renewal.at <= to && from <= until && began.is_some_and(after)
        };
        pod.disruptable == Some(true)
            && (self.leases.is_empty() || renewals.iter().any(believed))
            && self.node(pod, from.saturating_sub(LAG), to).is_none_or(|(some, _)| some)
    }

    /// Whether servers must have believed for the whole span that the probe of this pod says yes.
    pub(super) fn must(&self, pod: &Pod, from: Duration, to: Duration) -> bool {
        let Some(renewals) = self.leases.get(&pod.node) else { return false };
        let mut last = None;
        for renewal in renewals.iter().filter(|it| it.at + LATE >= from && it.at <= to) {
            let on_time = last.map_or(renewal.at <= from, |last| renewal.at <= last + LATE);
            if !on_time || renewal.began.as_ref().is_none_or(|began| *began >= pod.probed) {
                return false;
            }
            last = Some(renewal.at);
        }
        pod.disruptable == Some(true)
            && last.is_some_and(|last| to <= last + LATE)
            && self.node(pod, from, to).is_some_and(|(_, all)| all)
    }

    /// Whether the node of a pod was Ready at some time of a span, and at all times. Nothing if the node is not known.
    fn node(&self, pod: &Pod, from: Duration, to: Duration) -> Option<(bool, bool)> {
        let states = self.nodes.get(&pod.node)?;
        let begin = states.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        let mut within = states.get(begin..)?.iter().take_while(|(at, _)| *at <= to).map(|(_, ready)| *ready);
        let first = within.next()?;
        Some(within.fold((first, first), |(some, all), ready| (some || ready, all && ready)))
    }
}
