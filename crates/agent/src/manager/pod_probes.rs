//! One pod: the condition it should have, the condition it has, and whether to write.

use std::time::Duration;

use quorate_kit::backoff::Backoff;

use super::{ContainerProbes, HANDOVER, PatchOutcome};
use crate::clock::Now;
use crate::container_probe::reason;
use crate::disruptable::Disruptable;
use crate::pod_view::{ContainerState, PodCondition, PodView};

/// Shortest interval between writes that change only the message: some targets return another text every time.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(60);

/// Delay before the agent overwrites the condition of another writer: two agents by accident must not write in a loop.
const DISPUTE: Duration = Duration::from_secs(5);

/// First and longest wait before a failed write is retried.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));

#[derive(Debug)]
pub(super) struct PodProbes {
    pub(super) pod: PodView,
    pub(super) containers: ContainerProbes,
    /// A write is in flight.
    pub(super) writing: bool,
    /// The pod had a condition when the agent began, and the agent has not replaced it yet.
    inherited: bool,
    /// The last condition that this agent wrote since it began, and the pod version that has it.
    written: Option<(PodCondition, u64)>,
    written_at: Option<Duration>,
    backoff: Backoff,
    retry: Option<Duration>,
}

/// Whether to write the condition of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ConditionPlan {
    Nothing,
    /// Check again at this time.
    Later(Duration),
    ConditionWrite(PodCondition),
}

impl PodProbes {
    /// A new pod; `inherits` means that the agent has just begun and a present condition is an old one.
    pub(super) fn new(pod: &PodView, inherits: bool) -> Self {
        Self {
            pod: pod.clone(),
            containers: ContainerProbes::new(),
            writing: false,
            inherited: inherits && pod.condition.is_some(),
            written: None,
            written_at: None,
            backoff: Backoff::without_jitter(RETRY_DELAYS.0, RETRY_DELAYS.1),
            retry: None,
        }
    }

    /// The agent begins anew: conditions that it wrote before do not count as its own.
    pub(super) fn begin(&mut self) {
        self.inherited = self.condition().is_some();
        // A written condition is on the pod even if the watch has not delivered that version yet.
        if let Some((condition, version)) = self.written.take()
            && version > self.pod.version
        {
            self.pod.condition = Some(condition);
        }
    }

    /// Whether a condition from before the beginning still waits for its replacement.
    pub(super) fn awaits_handover(&self) -> bool {
        self.inherited && !self.containers.is_empty()
    }

    /// The condition that the pod has, by the newest version known.
    fn condition(&self) -> Option<&PodCondition> {
        match &self.written {
            Some((condition, version)) if *version >= self.pod.version => Some(condition),
            _ => self.pod.condition.as_ref(),
        }
    }

    /// The first second that is surely later than the agent's beginning and the containers' starts: both are in whole
    /// seconds.
    fn floor(&self, began: Now) -> i64 {
        let starts =
            self.containers.values().filter_map(|container_probe| match &container_probe.probed.runs {
                ContainerState::Running(run) => run.started,
                ContainerState::NotStarted | ContainerState::Stopped => None,
            });
        starts.max().unwrap_or(i64::MIN).max(began.second()).saturating_add(1)
    }

    /// The condition that the pod should have; `None` if no write is needed.
    fn wanted(&self, began: Now, mirror: bool, now: Now) -> Option<Disruptable> {
        if self.containers.is_empty() {
            return self.pod.ready.as_ref().filter(|_| mirror).map(Disruptable::mirror);
        }
        let why = match Disruptable::of(
            self.containers.values().map(crate::container_probe::ContainerProbe::result),
        ) {
            Ok(disruptable) => return Some(disruptable),
            Err(why) => why,
        };
        // There is no result yet. The present condition stays, unless it is a `True` that no current result supports.
        let condition = self.condition()?;
        let ours = self.written.is_some();
        let believed = condition.probed.is_some_and(|probed| probed > began.second());
        let handed_over = !self.inherited || now.steady >= began.steady + HANDOVER;
        let baseless = condition.status == "True" && (ours || (believed && handed_over));
        let pending = baseless || (ours && condition.reason == reason::PENDING);
        pending.then(|| Disruptable::no(reason::PENDING, why))
    }

    /// Decides what to do now.
    pub(super) fn plan(&self, began: Now, mirror: bool, now: Now) -> ConditionPlan {
        if self.writing {
            return ConditionPlan::Nothing;
        }
        let Some(wanted) = self.wanted(began, mirror, now) else {
            let handover = began.steady + HANDOVER;
            return if self.inherited && now.steady < handover {
                ConditionPlan::Later(handover)
            } else {
                ConditionPlan::Nothing
            };
        };
        let condition = self.condition();
        let floor = self.floor(began);
        let write = || {
            let answered =
                self.containers.values().filter_map(|container_probe| container_probe.answered).max();
            let probed = answered.unwrap_or_else(|| now.second()).max(floor);
            match self.retry.filter(|at| *at > now.steady) {
                Some(at) => ConditionPlan::Later(at),
                None => {
                    let mut condition = wanted.condition(condition, probed, now.second());
                    if let (true, Some(ready)) = (self.containers.is_empty(), &self.pod.ready) {
                        condition.since = ready.since.or(condition.since);
                    }
                    ConditionPlan::ConditionWrite(condition)
                }
            }
        };
        let current = condition.is_some_and(|condition| {
            wanted.matches(condition)
                && (self.containers.is_empty() || condition.probed.is_some_and(|probed| probed >= floor))
        });
        let mirrored = self.containers.is_empty();
        match (&self.written, self.written_at) {
            // The first result is always written, even if the pod already has the same condition: another writer may
            // have set it. A mirrored `Ready` needs no such write.
            (None, _) if mirrored && current => ConditionPlan::Nothing,
            (None, _) | (_, None) => write(),
            (Some((ours, _)), Some(at)) => {
                let disputed = condition != Some(ours) && wanted.matches(ours);
                let after = match (current, disputed) {
                    (false, true) => DISPUTE,
                    (false, false) => Duration::ZERO,
                    (true, _) if condition.is_some_and(|condition| condition.message == wanted.message) => {
                        return ConditionPlan::Nothing;
                    }
                    (true, _) => MESSAGE_INTERVAL,
                };
                if now.steady >= at + after { write() } else { ConditionPlan::Later(at + after) }
            }
        }
    }

    /// Whether the pod has a condition `True` that must become `False`.
    pub(super) fn withdraws(&self, began: Now, mirror: bool, now: Now) -> bool {
        !self.containers.is_empty()
            && self.condition().is_some_and(|condition| condition.status == "True")
            && self.wanted(began, mirror, now).is_some_and(|wanted| wanted.status != "True")
    }

    /// Takes the outcome of a write; `ours` means that the write started after the agent's last beginning.
    pub(super) fn wrote(&mut self, condition: PodCondition, wrote: PatchOutcome, ours: bool, now: Now) {
        self.writing = false;
        let PatchOutcome::Done(version) = wrote else {
            self.retry = Some(now.steady + self.backoff.failed());
            return;
        };
        self.backoff.reset();
        self.retry = None;
        if ours {
            self.inherited = false;
            self.written = Some((condition, version));
            self.written_at = Some(now.steady);
        } else if version > self.pod.version {
            self.pod.condition = Some(condition);
        }
    }
}
