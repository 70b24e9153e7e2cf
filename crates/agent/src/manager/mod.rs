//! All pods of a node: which probes are due, which conditions to write, whether to renew the Lease.
//!
//! This module does no I/O. Pods, probe results, write outcomes and the time go in; probes, conditions and Lease
//! actions come out.
//!
//! The server trusts a condition while the Lease of the node is renewed, if its probe is later than the beginning of
//! the agent, which the Lease has as `acquireTime`. Three rules make that safe:
//! - An agent begins when its process starts. It begins anew after it was stopped or its clock was set back. Conditions
//!   from before the beginning, from this agent or another writer, do not count as its own.
//! - The Lease follows the conditions. It is not renewed while a pod has the status `True` and the agent has yet to
//!   write `False`.
//! - After a beginning, the Lease is renewed only once every pod with an old condition has a new one, or after
//!   `HANDOVER`. Until then the server trusts the old conditions under the old Lease, so no budget sees a gap.

mod pod_probes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::clock::Now;
use crate::container_probe::{ContainerProbe, JITTER, JITTER_AT_START, ProbeResult};
use crate::pod_view::{PodCondition, PodView};
use crate::target::{self, Kind, ProbeRequest};
use pod_probes::{ConditionPlan, PodProbes};

/// Duration of the Lease.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(40);

/// Interval between two renewals of the Lease.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(10);

/// An agent whose loop did not run for this long was stopped. Half of the Lease duration: the server still trusts the
/// old conditions then, until they are replaced or the Lease expires.
const STOPPED: Duration = Duration::from_secs(20);

/// A clock that goes back by more than this, in milliseconds, was set; a smaller step is a correction.
const SET_BACK: i64 = -1000;

/// After a beginning, the agent waits this long for new results before it renews the Lease. The renewal makes the old
/// conditions that are not replaced by then untrusted.
const HANDOVER: Duration = Duration::from_secs(10);

/// Identifies the probe of one container. Each time the probe starts over it gets a new ID, so late results of the old
/// one are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProbeId(u64);

/// A probe to run now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DueProbe {
    pub(crate) id: ProbeId,
    pub(crate) kind: Kind,
    pub(crate) request: ProbeRequest,
    /// The last probe timed out. The prober has separate slots for such targets.
    pub(crate) hangs: bool,
}

/// A condition to write now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConditionWrite {
    pub(crate) pod: PodView,
    pub(crate) condition: PodCondition,
    life: u64,
}

/// The outcome of a patch of the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchOutcome {
    /// Written; the pod has the condition from this version on.
    Done(u64),
    /// The pod is gone, or another pod has its name.
    Gone,
    /// It is not known whether the condition was written.
    Failed,
}

/// Whether to renew the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    /// Renew it, with this beginning of the agent in seconds since 1970.
    Renew(i64),
    /// Do not renew it yet: conditions must be written first.
    Hold,
    /// No pod is probed: no Lease is needed.
    Idle,
}

/// All pods of the node that have a probe, or get a copy of their condition `Ready`.
pub(crate) struct ProbeManager {
    mirror: bool,
    pods: HashMap<String, PodProbes>,
    /// The pod UID and the container of each probe.
    by_id: HashMap<ProbeId, (String, String)>,
    last_id: u64,
    queue: BTreeSet<(Duration, ProbeId)>,
    /// Pods whose condition may need a write.
    dirty: BTreeSet<String>,
    /// Pods to check again at a later time.
    later: BTreeSet<(Duration, String)>,
    /// Number of beginnings, to recognize writes from before the last one.
    life: u64,
    began: Now,
    seen: Now,
    listed: bool,
}

impl ProbeManager {
    /// A manager without pods; `mirror` copies `Ready` into `Disruptable` on pods without a probe.
    pub(crate) fn new(mirror: bool, now: Now) -> Self {
        Self {
            mirror,
            pods: HashMap::new(),
            by_id: HashMap::new(),
            last_id: 0,
            queue: BTreeSet::new(),
            dirty: BTreeSet::new(),
            later: BTreeSet::new(),
            life: 0,
            began: now,
            seen: now,
            listed: false,
        }
    }

    /// Takes the present time. The caller must call this at least every few seconds: a long gap means a stop.
    pub(crate) fn tick(&mut self, now: Now) {
        let stopped = now.steady.saturating_sub(self.seen.steady) > STOPPED;
        let moved = now.moved_since(self.seen);
        // The steady clock may not count the time that the machine slept.
        let slept = moved > i64::try_from(STOPPED.as_millis()).unwrap_or(i64::MAX);
        self.seen = now;
        if stopped || slept || moved < SET_BACK {
            self.begin(now);
        }
    }

    /// Whether all pods of the node have been listed.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    /// Number of pods that have a probe.
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

    /// Takes a list of all pods of the node. Unreadable pods keep their last state.
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

    /// Takes a new version of a pod.
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

    /// Removes a pod.
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

    /// Gives the container's probe a new ID and queues its next run.
    fn enqueue(&mut self, uid: &str, container: &str) {
        let due = self.pods.get(uid).and_then(|pod_probes| pod_probes.containers.get(container)?.due());
        if let Some(due) = due {
            self.last_id += 1;
            let id = ProbeId(self.last_id);
            self.by_id.insert(id, (uid.to_owned(), container.to_owned()));
            self.queue.insert((due, id));
        }
    }

    /// The probes to run now.
    pub(crate) fn due(&mut self, now: Now) -> Vec<DueProbe> {
        let mut due_probes = Vec::new();
        while let Some((due, id)) = self.queue.first().copied().filter(|(due, _)| *due <= now.steady) {
            self.queue.remove(&(due, id));
            let Some((uid, container)) = self.by_id.get(&id) else { continue };
            let Some(pod_probes) = self.pods.get_mut(uid) else { continue };
            let Some(container_probe) = pod_probes.containers.get_mut(container) else { continue };
            let started = container_probe.start(now);
            if container_probe.hangs {
                // `start` may just have counted the lost last probe as timed out.
                self.dirty.insert(uid.clone());
            }
            if let Some(next) = container_probe.due() {
                self.queue.insert((next, id));
            }
            if let (true, Some((probe, run))) = (started, container_probe.runnable()) {
                let address = pod_probes.pod.address.as_deref();
                due_probes.push(DueProbe {
                    id,
                    kind: target::kind(probe),
                    request: target::request(probe, &container_probe.probed, run, address),
                    hangs: container_probe.hangs,
                });
            }
        }
        due_probes
    }

    /// Takes the result of a probe.
    pub(crate) fn answer(&mut self, id: ProbeId, answer: ProbeResult, now: Now) {
        let Some((uid, container)) = self.by_id.get(&id) else { return };
        if let Some(container_probe) =
            self.pods.get_mut(uid).and_then(|pod_probes| pod_probes.containers.get_mut(container))
        {
            container_probe.take(answer, now);
            self.dirty.insert(uid.clone());
        }
    }

    /// The conditions to write now, at most `room`; the others wait.
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
                ConditionPlan::Nothing => {}
                ConditionPlan::Later(at) => drop(self.later.insert((at, uid))),
                ConditionPlan::ConditionWrite(condition) => {
                    pod_probes.writing = true;
                    writes.push(ConditionWrite { pod: pod_probes.pod.clone(), condition, life: self.life });
                }
            }
        }
        writes
    }

    /// Takes the outcome of a write.
    pub(crate) fn wrote(&mut self, write: ConditionWrite, wrote: PatchOutcome, now: Now) {
        let uid = write.pod.uid.clone();
        if wrote == PatchOutcome::Gone {
            return self.forget(&uid);
        }
        if let Some(pod_probes) = self.pods.get_mut(&uid) {
            let ours = write.life == self.life;
            pod_probes.wrote(write.condition, wrote, ours, now);
            self.dirty.insert(uid);
        }
    }

    /// Whether to renew the Lease now.
    pub(crate) fn lease_action(&self, now: Now) -> LeaseAction {
        if self.probed() == 0 {
            return LeaseAction::Idle;
        }
        let handing_over = now.steady < self.began.steady + HANDOVER;
        let holds = |pod_probes: &PodProbes| {
            (handing_over && pod_probes.awaits_handover())
                || pod_probes.withdraws(self.began, self.mirror, now)
        };
        if !self.listed || self.pods.values().any(holds) {
            return LeaseAction::Hold;
        }
        LeaseAction::Renew(self.began.second())
    }

    /// When the next probe or check is due.
    pub(crate) fn next(&self) -> Option<Duration> {
        let probe = self.queue.first().map(|(due, _)| *due);
        let check = self.later.first().map(|(at, _)| *at);
        probe.into_iter().chain(check).min()
    }
}

/// The probes of one pod by container.
type ContainerProbes = BTreeMap<String, ContainerProbe>;
