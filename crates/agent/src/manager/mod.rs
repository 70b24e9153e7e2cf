//! The pods of a node: whom to ask now, what to write, whether to say that somebody is here.
//!
//! Pure: pods, answers and the outcomes of writes go in, with the time; questions, conditions and heartbeats come out.
//!
//! A verdict is believed by the server while the Lease of this node is renewed, if it was probed after the agent began,
//! which the Lease tells too. Three rules make that safe:
//! - An agent begins when its process starts, and anew when it was stopped or its clock was set back: whatever was
//!   written before, by whomever, is then not its own word.
//! - The Lease follows the verdicts. While what is written is still to be replaced by what is known, it is not renewed.
//! - At a beginning it is renewed only when every pod that shows a verdict has a new one, for a while at least. So the
//!   old ones count until the new ones are there, under the old Lease, and no budget sees a gap.

mod pod_probes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::clock::Now;
use crate::container_probe::{ContainerProbe, JITTER, JITTER_AT_START, ProbeResult};
use crate::pod_view::{PodCondition, PodView};
use crate::target::{self, Kind, ProbeRequest};
use pod_probes::{Plan, PodProbes};

/// For how long a renewal of the Lease holds.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(40);

/// How often the Lease is renewed.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(10);

/// An agent that did nothing for so long was stopped. Half of what a renewal holds: the verdicts of before are still
/// believed then, and will be until they are replaced or that time is over.
const STOPPED: Duration = Duration::from_secs(20);

/// A clock that goes back by more than this was set; by less, it is being corrected.
const SET_BACK: i64 = -1000;

/// After a beginning, the old verdicts may stand for so long before those that have no successor yet are no longer
/// believed.
const HANDOVER: Duration = Duration::from_secs(10);

/// One question to one container. Another one after each start of the container: what is answered to an old one is not
/// heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProbeId(u64);

/// A question to be asked now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DueProbe {
    pub(crate) id: ProbeId,
    pub(crate) kind: Kind,
    pub(crate) request: ProbeRequest,
    /// Nothing was heard the last time: whoever has few places keeps this one apart.
    pub(crate) hangs: bool,
}

/// A condition to be written now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConditionWrite {
    pub(crate) pod: PodView,
    pub(crate) condition: PodCondition,
    life: u64,
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// It stands, from this version of the pod on.
    Done(u64),
    /// The pod is gone, or is another one by now.
    Gone,
    /// It is not known to stand.
    Failed,
}

/// Whether to renew the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    /// Yes, as an agent that began in this second.
    Renew(i64),
    /// Not before what is known is written.
    Hold,
    /// Nothing is probed here.
    Idle,
}

/// All pods of the node that have a probe, or are to have a copy of their Ready.
pub(crate) struct ProbeManager {
    mirror: bool,
    pods: HashMap<String, PodProbes>,
    /// Whose question each ticket is: the pod and the container.
    by_id: HashMap<ProbeId, (String, String)>,
    asked: u64,
    queue: BTreeSet<(Duration, ProbeId)>,
    /// Pods whose condition may have to be written.
    dirty: BTreeSet<String>,
    /// Pods to look at again later.
    later: BTreeSet<(Duration, String)>,
    /// Counts beginnings.
    life: u64,
    began: Now,
    seen: Now,
    listed: bool,
}

impl ProbeManager {
    /// An empty one; `mirror` asks for a copy of Ready on pods without a probe.
    pub(crate) fn new(mirror: bool, now: Now) -> Self {
        Self {
            mirror,
            pods: HashMap::new(),
            by_id: HashMap::new(),
            asked: 0,
            queue: BTreeSet::new(),
            dirty: BTreeSet::new(),
            later: BTreeSet::new(),
            life: 0,
            began: now,
            seen: now,
            listed: false,
        }
    }

    /// Time has come this far. To be told often, at least every few seconds: it is how a stop is noticed.
    pub(crate) fn tick(&mut self, now: Now) {
        let stopped = now.steady.saturating_sub(self.seen.steady) > STOPPED;
        let moved = now.moved_since(self.seen);
        // A machine that slept may not count that in its steady clock.
        let slept = moved > i64::try_from(STOPPED.as_millis()).unwrap_or(i64::MAX);
        self.seen = now;
        if stopped || slept || moved < SET_BACK {
            self.begin(now);
        }
    }

    /// Whether every pod has been seen.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    /// How many pods are probed.
    pub(crate) fn probed(&self) -> usize {
        self.pods.values().filter(|pod_probes| !pod_probes.containers.is_empty()).count()
    }

    fn begin(&mut self, now: Now) {
        self.life += 1;
        self.began = now;
        self.queue.clear();
        self.by_id.clear();
        for (uid, pod_probes) in &mut self.pods {
            pod_probes.begin();
            for container_probe in pod_probes.containers.values_mut() {
                container_probe.start_over(JITTER_AT_START, now);
            }
            self.dirty.insert(uid.clone());
        }
        let uids: Vec<String> = self.pods.keys().cloned().collect();
        for uid in uids {
            self.enqueue_all(&uid);
        }
    }

    /// Everything there is on the node. Pods that could not be read stay as they were.
    pub(crate) fn list(&mut self, pods: Vec<PodView>, unreadable: &BTreeSet<String>, now: Now) {
        let there: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        let gone = |uid: &&String| !there.contains(uid.as_str()) && !unreadable.contains(*uid);
        let gone: Vec<String> = self.pods.keys().filter(gone).cloned().collect();
        gone.iter().for_each(|uid| self.forget(uid));
        if !self.listed {
            self.began = now;
        }
        for pod in pods {
            self.observe(pod, now);
        }
        self.listed = true;
    }

    /// A pod looks like this now.
    pub(crate) fn observe(&mut self, pod: PodView, now: Now) {
        let uid = pod.uid.clone();
        let wanted = !pod.over && (self.mirror || !pod.probed.is_empty());
        if !wanted {
            return self.forget(&uid);
        }
        let jitter = if self.listed { JITTER } else { JITTER_AT_START };
        let inherits = !self.listed;
        let pod_probes = self.pods.entry(uid.clone()).or_insert_with(|| PodProbes::new(&pod, inherits));
        if pod.version < pod_probes.pod.version {
            return;
        }
        let mut begins = Vec::new();
        let mut before = std::mem::take(&mut pod_probes.containers);
        for probed in &pod.probed {
            let name = probed.container.clone();
            let container_probe = match before.remove(&name) {
                Some(mut container_probe) => {
                    if container_probe.observe(probed.clone(), now) {
                        begins.push(name.clone());
                    }
                    container_probe
                }
                None => {
                    begins.push(name.clone());
                    ContainerProbe::new(&uid, probed.clone(), jitter, now)
                }
            };
            pod_probes.containers.insert(name, container_probe);
        }
        pod_probes.pod = pod;
        let stale = |container: &String| begins.contains(container) || before.contains_key(container);
        self.by_id.retain(|_, (of, container)| *of != uid || !stale(container));
        for container in &begins {
            self.enqueue(&uid, container);
        }
        self.dirty.insert(uid);
    }

    /// A pod is gone.
    pub(crate) fn forget(&mut self, uid: &str) {
        if self.pods.remove(uid).is_some() {
            self.by_id.retain(|_, (of, _)| of != uid);
            self.dirty.remove(uid);
        }
    }

    fn enqueue_all(&mut self, uid: &str) {
        let containers: Vec<String> = self
            .pods
            .get(uid)
            .map(|pod_probes| pod_probes.containers.keys().cloned().collect())
            .unwrap_or_default();
        for container in &containers {
            self.enqueue(uid, container);
        }
    }

    /// Gives the container a new ticket, and puts its next question in the queue.
    fn enqueue(&mut self, uid: &str, container: &str) {
        let due = self.pods.get(uid).and_then(|pod_probes| pod_probes.containers.get(container)?.due());
        if let Some(due) = due {
            self.asked += 1;
            let id = ProbeId(self.asked);
            self.by_id.insert(id, (uid.to_owned(), container.to_owned()));
            self.queue.insert((due, id));
        }
    }

    /// The questions to be asked now.
    pub(crate) fn due(&mut self, now: Now) -> Vec<DueProbe> {
        let mut asks = Vec::new();
        while let Some((due, id)) = self.queue.first().copied().filter(|(due, _)| *due <= now.steady) {
            self.queue.remove(&(due, id));
            let Some((uid, container)) = self.by_id.get(&id) else { continue };
            let Some(pod_probes) = self.pods.get_mut(uid) else { continue };
            let Some(container_probe) = pod_probes.containers.get_mut(container) else { continue };
            let asked = container_probe.ask(now);
            if container_probe.hangs {
                // Its last question may just have been given up.
                self.dirty.insert(uid.clone());
            }
            if let Some(next) = container_probe.due() {
                self.queue.insert((next, id));
            }
            if let (true, Some((probe, run))) = (asked, container_probe.asks()) {
                let address = pod_probes.pod.address.as_deref();
                asks.push(DueProbe {
                    id,
                    kind: target::kind(probe),
                    request: target::request(probe, &container_probe.probed, run, address),
                    hangs: container_probe.hangs,
                });
            }
        }
        asks
    }

    /// What came of a question.
    pub(crate) fn answer(&mut self, id: ProbeId, answer: ProbeResult, now: Now) {
        let Some((uid, container)) = self.by_id.get(&id) else { return };
        if let Some(container_probe) =
            self.pods.get_mut(uid).and_then(|pod_probes| pod_probes.containers.get_mut(container))
        {
            container_probe.take(answer, now);
            self.dirty.insert(uid.clone());
        }
    }

    /// The conditions to be written now, at most so many; the others wait.
    pub(crate) fn writes(&mut self, room: usize, now: Now) -> Vec<ConditionWrite> {
        while let Some((at, uid)) = self.later.first().cloned().filter(|(at, _)| *at <= now.steady) {
            self.later.remove(&(at, uid.clone()));
            self.dirty.insert(uid);
        }
        let mut writes = Vec::new();
        for uid in std::mem::take(&mut self.dirty) {
            let Some(pod_probes) = self.pods.get_mut(&uid) else { continue };
            if writes.len() >= room {
                self.dirty.insert(uid);
                continue;
            }
            match pod_probes.plan(self.began, self.mirror, now) {
                Plan::Nothing => {}
                Plan::Later(at) => drop(self.later.insert((at, uid))),
                Plan::ConditionWrite(condition) => {
                    pod_probes.writing = true;
                    writes.push(ConditionWrite { pod: pod_probes.pod.clone(), condition, life: self.life });
                }
            }
        }
        writes
    }

    /// What came of a write.
    pub(crate) fn wrote(&mut self, write: ConditionWrite, wrote: WriteOutcome, now: Now) {
        let uid = write.pod.uid.clone();
        if wrote == WriteOutcome::Gone {
            return self.forget(&uid);
        }
        if let Some(pod_probes) = self.pods.get_mut(&uid) {
            let ours = write.life == self.life;
            pod_probes.wrote(write.condition, wrote, ours, now);
            self.dirty.insert(uid);
        }
    }

    /// Whether to renew the Lease now.
    pub(crate) fn beat(&self, now: Now) -> LeaseAction {
        if self.probed() == 0 {
            return LeaseAction::Idle;
        }
        let handing_over = now.steady < self.began.steady + HANDOVER;
        let holds = |pod_probes: &PodProbes| {
            (handing_over && pod_probes.hands_over()) || pod_probes.withdraws(self.began, self.mirror, now)
        };
        if !self.listed || self.pods.values().any(holds) {
            return LeaseAction::Hold;
        }
        LeaseAction::Renew(self.began.second())
    }

    /// When there will be something to do, if nothing happens before.
    pub(crate) fn next(&self) -> Option<Duration> {
        let request = self.queue.first().map(|(due, _)| *due);
        let look = self.later.first().map(|(at, _)| *at);
        request.into_iter().chain(look).min()
    }
}

/// Rounds of one pod by container.
type ContainerProbes = BTreeMap<String, ContainerProbe>;
