//! One pod: what it should show, what it shows, and whether that is to be written.

use std::time::Duration;

use super::{ContainerProbes, HANDOVER, WriteOutcome};
use crate::clock::Now;
use crate::container_probe::reason;
use crate::disruptable::Disruptable;
use crate::pod_view::{ContainerState, PodCondition, PodView};

/// Where only the words differ, they are told this often at most: some targets say something else every time.
const WORDS: Duration = Duration::from_secs(60);

/// What somebody else wrote over ours is put right after so long: a second agent by accident shall not make a storm.
const DISPUTE: Duration = Duration::from_secs(5);

/// The longest wait before a write is tried again.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct PodProbes {
    pub(super) pod: PodView,
    pub(super) containers: ContainerProbes,
    /// A write is under way.
    pub(super) writing: bool,
    /// It showed a verdict when the agent began, and that one has no successor yet.
    inherited: bool,
    /// What this agent wrote since it began, and the version of the pod that shows it.
    written: Option<(PodCondition, u64)>,
    written_at: Option<Duration>,
    failures: u32,
    retry: Option<Duration>,
}

/// What to do for a pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Plan {
    Nothing,
    /// Look again then.
    Later(Duration),
    ConditionWrite(PodCondition),
}

impl PodProbes {
    /// A pod that was not known; `inherits`: the agent has just begun.
    pub(super) fn new(pod: &PodView, inherits: bool) -> Self {
        Self {
            pod: pod.clone(),
            containers: ContainerProbes::new(),
            writing: false,
            inherited: inherits && pod.condition.is_some(),
            written: None,
            written_at: None,
            failures: 0,
            retry: None,
        }
    }

    /// The agent begins: nothing that was written is its own.
    pub(super) fn begin(&mut self) {
        self.inherited = self.condition().is_some();
        // What a pod shows is what was written, also where the watch has not shown it yet.
        if let Some((condition, version)) = self.written.take()
            && version > self.pod.version
        {
            self.pod.condition = Some(condition);
        }
    }

    /// Whether the verdict of before is still to be replaced.
    pub(super) fn hands_over(&self) -> bool {
        self.inherited && !self.containers.is_empty()
    }

    /// What the pod shows, as far as that is known.
    fn condition(&self) -> Option<&PodCondition> {
        match &self.written {
            Some((condition, version)) if *version >= self.pod.version => Some(condition),
            _ => self.pod.condition.as_ref(),
        }
    }

    /// The first second in which a probe is later than the agent's beginning and the containers' starts, for sure: both
    /// are told in whole seconds.
    fn floor(&self, began: Now) -> i64 {
        let starts =
            self.containers.values().filter_map(|container_probe| match &container_probe.probed.runs {
                ContainerState::Since(run) => run.started,
                ContainerState::NotYet | ContainerState::NoMore => None,
            });
        starts.max().unwrap_or(i64::MIN).max(began.second()).saturating_add(1)
    }

    /// What the pod should show; nothing where nothing need be said.
    fn wanted(&self, began: Now, mirror: bool, now: Now) -> Option<Disruptable> {
        if self.containers.is_empty() {
            return self.pod.ready.as_ref().filter(|_| mirror).map(Disruptable::mirror);
        }
        let why =
            match Disruptable::of(self.containers.values().map(crate::container_probe::ContainerProbe::says))
            {
                Ok(disruptable) => return Some(disruptable),
                Err(why) => why,
            };
        // Too early for a verdict. What is shown stays, unless it is a yes that nobody has given now.
        let condition = self.condition()?;
        let ours = self.written.is_some();
        let believed = condition.probed.is_some_and(|probed| probed > began.second());
        let handed_over = !self.inherited || now.steady >= began.steady + HANDOVER;
        let baseless = condition.status == "True" && (ours || (believed && handed_over));
        let pending = baseless || (ours && condition.reason == reason::PENDING);
        pending.then(|| Disruptable::no(reason::PENDING, why))
    }

    /// What to do now.
    pub(super) fn plan(&self, began: Now, mirror: bool, now: Now) -> Plan {
        if self.writing {
            return Plan::Nothing;
        }
        let Some(wanted) = self.wanted(began, mirror, now) else {
            let handover = began.steady + HANDOVER;
            return if self.inherited && now.steady < handover {
                Plan::Later(handover)
            } else {
                Plan::Nothing
            };
        };
        let condition = self.condition();
        let floor = self.floor(began);
        let write = || {
            let answered =
                self.containers.values().filter_map(|container_probe| container_probe.answered).max();
            let probed = answered.unwrap_or_else(|| now.second()).max(floor);
            match self.retry.filter(|at| *at > now.steady) {
                Some(at) => Plan::Later(at),
                None => {
                    let mut condition = wanted.condition(condition, probed, now.second());
                    if let (true, Some(ready)) = (self.containers.is_empty(), &self.pod.ready) {
                        condition.since = ready.since.or(condition.since);
                    }
                    Plan::ConditionWrite(condition)
                }
            }
        };
        let told = condition.is_some_and(|condition| {
            wanted.is_told_by(condition)
                && (self.containers.is_empty() || condition.probed.is_some_and(|probed| probed >= floor))
        });
        let mirrored = self.containers.is_empty();
        match (&self.written, self.written_at) {
            // The first verdict is told once, also where the same is shown: that one may be anybody's.
            (None, _) if mirrored && told => Plan::Nothing,
            (None, _) | (_, None) => write(),
            (Some((ours, _)), Some(at)) => {
                let disputed = condition != Some(ours) && wanted.is_told_by(ours);
                let after = match (told, disputed) {
                    (false, true) => DISPUTE,
                    (false, false) => Duration::ZERO,
                    (true, _) if condition.is_some_and(|condition| condition.message == wanted.message) => {
                        return Plan::Nothing;
                    }
                    (true, _) => WORDS,
                };
                if now.steady >= at + after { write() } else { Plan::Later(at + after) }
            }
        }
    }

    /// Whether the pod shows a yes that is to be taken back.
    pub(super) fn withdraws(&self, began: Now, mirror: bool, now: Now) -> bool {
        !self.containers.is_empty()
            && self.condition().is_some_and(|condition| condition.status == "True")
            && self.wanted(began, mirror, now).is_some_and(|wanted| wanted.status != "True")
    }

    /// What came of a write; `ours`: since the agent began.
    pub(super) fn wrote(&mut self, condition: PodCondition, wrote: WriteOutcome, ours: bool, now: Now) {
        self.writing = false;
        let WriteOutcome::Done(version) = wrote else {
            let wait =
                Duration::from_millis(250).saturating_mul(1 << self.failures.min(10)).min(LONGEST_WAIT);
            self.failures = self.failures.saturating_add(1);
            self.retry = Some(now.steady + wait);
            return;
        };
        self.failures = 0;
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
