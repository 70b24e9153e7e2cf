//! One container's probe: when it is asked, and what its answers amount to.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use quorate_intake::probe::Probe;

use crate::clock::Now;
use crate::pod_view::{ContainerState, ProbedContainer, RunningContainer};
use crate::streak::{Streak, StreakResult};

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// Yes.
    Passed,
    /// No, or nobody to be asked: this is what was heard.
    Failed(String),
    /// Nothing was heard in time.
    TimedOut(Duration),
}

/// What one container says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerResult {
    Yes,
    No {
        reason: &'static str,
        message: String,
    },
    /// It has not been asked often enough.
    Undecided(String),
}

/// Why a pod is not disruptable, in one word.
pub(crate) mod reason {
    pub(crate) const FAILED: &str = "ProbeFailed";
    pub(crate) const MALFORMED: &str = "ProbeMalformed";
    pub(crate) const NOT_RUNNING: &str = "ContainerNotRunning";
    pub(crate) const PENDING: &str = "ProbePending";
    pub(crate) const SUCCEEDED: &str = "ProbeSucceeded";
    pub(crate) const MIRRORED: &str = "MirrorsReady";
}

/// Containers that start together are not asked together: the first question waits up to this long, by chance, and
/// never longer than a period.
pub(crate) const JITTER: Duration = Duration::from_secs(1);

/// The same after a start of the agent, when all of a node's containers are asked anew.
pub(crate) const JITTER_AT_START: Duration = Duration::from_secs(5);

/// Long after the answer was due, whoever should have brought it is not coming.
const LOST: Duration = Duration::from_secs(30);

/// One container's probe.
#[derive(Debug)]
pub(crate) struct ContainerProbe {
    pub(crate) probed: ProbedContainer,
    /// Between 0 and 1; this container's own, so that its questions keep their distance from the others'.
    chance: f64,
    streak: Streak,
    /// What the last answer that was a no said.
    why: String,
    /// When the last answer came, in seconds since 1970.
    pub(crate) answered: Option<i64>,
    /// The last question was not answered in time.
    pub(crate) hangs: bool,
    /// Until when an answer may come; nothing where none is awaited.
    asking: Option<Duration>,
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
            asking: None,
            due: None,
        };
        container_probe.start_over(jitter, now);
        container_probe
    }

    /// The run of the container that is asked, and how; nothing while there is nobody to ask.
    pub(crate) fn asks(&self) -> Option<(&Probe, &RunningContainer)> {
        match (&self.probed.probe, &self.probed.runs) {
            (Ok(probe), ContainerState::Since(run)) => Some((probe, run)),
            _ => None,
        }
    }

    /// When the next question is due.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Forgets all answers and begins again.
    pub(crate) fn start_over(&mut self, jitter: Duration, now: Now) {
        self.streak = Streak::default();
        self.why.clear();
        self.answered = None;
        self.hangs = false;
        self.asking = None;
        self.due = self.asks().map(|(probe, run)| {
            let since_start = run.started.map_or(i64::MAX, |started| now.wall.saturating_sub(started * 1000));
            // A clock that was set back must not make the wait longer than it was asked for.
            let since_start = Duration::from_millis(u64::try_from(since_start).unwrap_or(0));
            let wait = probe.initial_delay.saturating_sub(since_start);
            now.steady + wait + jitter.min(probe.period).mul_f64(self.chance)
        });
    }

    /// How the container looks now. Returns whether it begins again: another probe, another run.
    pub(crate) fn observe(&mut self, probed: ProbedContainer, now: Now) -> bool {
        let same = self.probed.probe == probed.probe && self.probed.runs == probed.runs;
        self.probed = probed;
        if !same {
            self.start_over(JITTER, now);
        }
        !same
    }

    /// The question is due: whether it is to be asked now. The next one is a period later, by the clock of the first:
    /// the schedule does not drift, and what was missed is not made up for.
    pub(crate) fn ask(&mut self, now: Now) -> bool {
        let (Some(due), Some((probe, _))) = (self.due, self.asks()) else { return false };
        let (period, timeout) = (probe.period, probe.timeout);
        let late = now.steady.saturating_sub(due).as_nanos() / period.as_nanos().max(1);
        let periods = u32::try_from(late).unwrap_or(u32::MAX).saturating_add(1);
        self.due = Some(due + period.saturating_mul(periods));
        match self.asking {
            Some(until) if now.steady < until => return false,
            Some(_) => self.take(ProbeResult::TimedOut(timeout), now),
            None => {}
        }
        // Waiting for a free place takes as long as the answer may, at most.
        self.asking = Some(now.steady + timeout * 2 + LOST);
        true
    }

    /// Takes the answer to the question.
    pub(crate) fn take(&mut self, answer: ProbeResult, now: Now) {
        self.asking = None;
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

    /// What the container says.
    pub(crate) fn says(&self) -> ContainerResult {
        let name = &self.probed.container;
        let no =
            |reason, message: &str| ContainerResult::No { reason, message: format!("{name}: {message}") };
        let probe = match &self.probed.probe {
            Ok(probe) => probe,
            Err(why) => return ContainerResult::No { reason: reason::MALFORMED, message: why.clone() },
        };
        match (&self.probed.runs, self.streak.result()) {
            (ContainerState::NotYet, _) => ContainerResult::Undecided(format!("{name} has not started yet")),
            (ContainerState::NoMore, _) => no(reason::NOT_RUNNING, "the container does not run"),
            (ContainerState::Since(_), StreakResult::Yes) => ContainerResult::Yes,
            (ContainerState::Since(_), StreakResult::No) => no(reason::FAILED, &self.why),
            (ContainerState::Since(_), StreakResult::Undecided) if probe.success_threshold > 1 => {
                ContainerResult::Undecided(format!(
                    "{name} has not passed its probe {} times in a row since it started",
                    probe.success_threshold
                ))
            }
            (ContainerState::Since(_), StreakResult::Undecided) => {
                ContainerResult::Undecided(format!("{name} has not answered since it started"))
            }
        }
    }
}
