//! The probe of one container: its schedule and its result.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use quorate_intake::probe::Probe;

use crate::clock::Now;
use crate::pod_view::{ContainerState, ProbedContainer, RunningContainer};
use crate::streak::{Streak, StreakResult};

/// The outcome of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// The probe succeeded.
    Passed,
    /// The probe failed or could not run, with the reason.
    Failed(String),
    /// There was no answer within this timeout.
    TimedOut(Duration),
}

/// The result of one container's probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerResult {
    Yes,
    No {
        reason: &'static str,
        message: String,
    },
    /// There are too few results yet, with an explanation.
    Undecided(String),
}

/// Reasons of the condition `Disruptable`.
pub(crate) mod reason {
    pub(crate) const FAILED: &str = "ProbeFailed";
    pub(crate) const MALFORMED: &str = "ProbeMalformed";
    pub(crate) const NOT_RUNNING: &str = "ContainerNotRunning";
    pub(crate) const PENDING: &str = "ProbePending";
    pub(crate) const SUCCEEDED: &str = "ProbeSucceeded";
    pub(crate) const MIRRORED: &str = "MirrorsReady";
}

/// Longest random delay of a container's first probe, so that containers that start together are not probed together.
/// The delay is never longer than the period of the probe.
pub(crate) const JITTER: Duration = Duration::from_secs(1);

/// The same after a start of the agent, when all containers of the node start over.
pub(crate) const JITTER_AT_START: Duration = Duration::from_secs(5);

/// A probe that is overdue by this long is counted as timed out: the task that runs it has failed.
const LOST: Duration = Duration::from_secs(30);

/// One container's probe.
#[derive(Debug)]
pub(crate) struct ContainerProbe {
    pub(crate) probed: ProbedContainer,
    /// Between 0 and 1, fixed for the container. Spreads the probes of different containers.
    chance: f64,
    streak: Streak,
    /// Why the last failed probe failed.
    why: String,
    /// When the last result came, in seconds since 1970.
    pub(crate) answered: Option<i64>,
    /// The last probe timed out.
    pub(crate) hangs: bool,
    /// Until when the running probe may return; `None` if no probe is running.
    deadline: Option<Duration>,
    due: Option<Duration>,
}

impl ContainerProbe {
    pub(crate) fn new(uid: &str, probed: ProbedContainer, jitter: Duration, now: Now) -> Self {
        let mut hasher = DefaultHasher::new();
        (uid, &probed.container).hash(&mut hasher);
        let chance =
            f64::from(u32::try_from(hasher.finish() >> 32).unwrap_or_default()) / f64::from(u32::MAX);
        let mut container_probe = Self {
            probed,
            chance,
            streak: Streak::default(),
            why: String::new(),
            answered: None,
            hangs: false,
            deadline: None,
            due: None,
        };
        container_probe.start_over(jitter, now);
        container_probe
    }

    /// The probe and the run of the container to probe; `None` while there is nothing to probe.
    pub(crate) fn runnable(&self) -> Option<(&Probe, &RunningContainer)> {
        match (&self.probed.probe, &self.probed.runs) {
            (Ok(probe), ContainerState::Running(run)) => Some((probe, run)),
            _ => None,
        }
    }

    /// When the next probe is due.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Drops all results and schedules the first probe again.
    pub(crate) fn start_over(&mut self, jitter: Duration, now: Now) {
        self.streak = Streak::default();
        self.why.clear();
        self.answered = None;
        self.hangs = false;
        self.deadline = None;
        self.due = self.runnable().map(|(probe, run)| {
            let since_start = run.started.map_or(i64::MAX, |started| now.wall.saturating_sub(started * 1000));
            // A clock that was set back must not make the wait longer than the initial delay.
            let since_start = Duration::from_millis(u64::try_from(since_start).unwrap_or(0));
            let wait = probe.initial_delay.saturating_sub(since_start);
            now.steady + wait + jitter.min(probe.period).mul_f64(self.chance)
        });
    }

    /// Takes the present state of the container. Returns whether the probe starts over: the probe or the run changed.
    pub(crate) fn observe(&mut self, probed: ProbedContainer, now: Now) -> bool {
        let same = self.probed.probe == probed.probe && self.probed.runs == probed.runs;
        self.probed = probed;
        if !same {
            self.start_over(JITTER, now);
        }
        !same
    }

    /// The probe is due. Returns whether to run it now: not while the last one is still running. Later probes are due
    /// whole periods after the first, so the schedule does not drift, and missed probes are skipped.
    pub(crate) fn start(&mut self, now: Now) -> bool {
        let (Some(due), Some((probe, _))) = (self.due, self.runnable()) else { return false };
        let (period, timeout) = (probe.period, probe.timeout);
        let late = now.steady.saturating_sub(due).as_nanos() / period.as_nanos().max(1);
        let periods = u32::try_from(late).unwrap_or(u32::MAX).saturating_add(1);
        self.due = Some(due + period.saturating_mul(periods));
        match self.deadline {
            Some(until) if now.steady < until => return false,
            Some(_) => self.take(ProbeResult::TimedOut(timeout), now),
            None => {}
        }
        // Waiting for a free slot takes at most one timeout, and the probe itself another.
        self.deadline = Some(now.steady + timeout * 2 + LOST);
        true
    }

    /// Takes the result of the running probe.
    pub(crate) fn take(&mut self, answer: ProbeResult, now: Now) {
        self.deadline = None;
        let Ok(probe) = &self.probed.probe else { return };
        self.answered = Some(now.second());
        self.hangs = matches!(answer, ProbeResult::TimedOut(_));
        self.streak.take(answer == ProbeResult::Passed, probe);
        match answer {
            ProbeResult::Passed => {}
            ProbeResult::Failed(why) => self.why = why,
            ProbeResult::TimedOut(limit) => self.why = format!("no answer within {} s", limit.as_secs()),
        }
    }

    /// The result of the container's probe.
    pub(crate) fn result(&self) -> ContainerResult {
        let name = &self.probed.container;
        let no =
            |reason, message: &str| ContainerResult::No { reason, message: format!("{name}: {message}") };
        let probe = match &self.probed.probe {
            Ok(probe) => probe,
            Err(why) => return ContainerResult::No { reason: reason::MALFORMED, message: why.clone() },
        };
        match (&self.probed.runs, self.streak.result()) {
            (ContainerState::NotStarted, _) => {
                ContainerResult::Undecided(format!("{name} has not started yet"))
            }
            (ContainerState::Stopped, _) => no(reason::NOT_RUNNING, "the container is not running"),
            (ContainerState::Running(_), StreakResult::Yes) => ContainerResult::Yes,
            (ContainerState::Running(_), StreakResult::No) => no(reason::FAILED, &self.why),
            (ContainerState::Running(_), StreakResult::Undecided) if probe.success_threshold > 1 => {
                ContainerResult::Undecided(format!(
                    "{name} has not passed its probe {} times in a row since it started",
                    probe.success_threshold
                ))
            }
            (ContainerState::Running(_), StreakResult::Undecided) => {
                ContainerResult::Undecided(format!("{name} has not answered since it started"))
            }
        }
    }
}
