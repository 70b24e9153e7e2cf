//! What the checker found, in words that a person can follow.

use std::fmt;
use std::time::Duration;

/// What the checker found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Admissions that a budget must have denied.
    pub violations: Vec<Violation>,
    /// What did not go on although nothing was in its way.
    pub stuck: Vec<Stuck>,
    /// The numbers.
    pub summary: Summary,
}

/// The numbers of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Voluntary disruptions that were carried out.
    pub admissions: usize,
    /// Requests that Quorate denied.
    pub denials: usize,
    /// Admissions that an enforced budget protected against.
    pub judged: usize,
    /// Admissions that a budget must have denied.
    pub violations: usize,
    /// What did not go on.
    pub stuck: usize,
}

/// An admission that a budget must have denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When the request ended.
    pub at: Duration,
    /// The request, in words.
    pub request: String,
    /// The kind, namespace and name of the budget.
    pub budget: String,
    /// Why the budget did not allow it.
    pub breach: Breach,
}

/// Why a budget did not allow a disruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// Too few units were healthy at every instant that a server can have seen.
    TooFew(Arithmetic),
    /// The disruption probe of the pod said no since this time.
    PodSaidNo(Duration),
    /// No result of the disruption probe of the pod counted since this time.
    NoResultCounts(Duration),
    /// The budget was enforced, and its claims never had the pod: no server had decided for this budget.
    NotRecorded,
}

/// The arithmetic of the envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// The unit that the disruption took down.
    pub unit: String,
    /// What is counted: `pod` or `group`.
    pub counted: &'static str,
    /// The begin of the window.
    pub from: Duration,
    /// The most units that were healthy at once without this one and without the outstanding ones.
    pub healthy: usize,
    /// When they were.
    pub healthy_at: Duration,
    /// The fewest units that were desired.
    pub desired: u32,
    /// The units that were expected then.
    pub expected: u32,
    /// When that was.
    pub desired_at: Duration,
    /// Voluntary disruptions that were not made good: pod, request, time.
    pub outstanding: Vec<(String, String, Duration)>,
}

/// Something that did not go on although nothing was in its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// When it was noticed.
    pub at: Duration,
    /// What it is, in words.
    pub what: String,
}

/// A time in seconds.
pub(super) struct Seconds(pub(super) Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.0.as_secs_f64())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in &self.violations {
            writeln!(f, "VIOLATION {violation}")?;
        }
        for stuck in &self.stuck {
            writeln!(f, "STUCK {stuck}")?;
        }
        write!(f, "{}", self.summary)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { admissions, denials, judged, violations, stuck } = self;
        write!(
            f,
            "admissions: {admissions}, of which judged: {judged}; denials: {denials}; violations: {violations}; stuck: {stuck}"
        )
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, request, budget, breach } = self;
        write!(f, "at {}: {request}, but {budget} did not allow it: {breach}", Seconds(*at))
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFew(arithmetic) => write!(f, "{arithmetic}"),
            Self::PodSaidNo(since) => {
                write!(f, "the pod was Ready and its disruption probe said no since {}", Seconds(*since))
            }
            Self::NoResultCounts(since) => {
                write!(
                    f,
                    "the pod was Ready and no result of its disruption probe counted since {}",
                    Seconds(*since)
                )
            }
            Self::NotRecorded => write!(f, "the pod was healthy, and the budget had no claim for it"),
        }
    }
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "since {}, without {}, at most {} {}{} healthy at once (at {}), and at least {} had to be ({} expected, at {})",
            Seconds(self.from),
            self.unit,
            self.healthy,
            self.counted,
            if self.healthy == 1 { " was" } else { "s were" },
            Seconds(self.healthy_at),
            self.desired,
            self.expected,
            Seconds(self.desired_at),
        )?;
        if self.outstanding.is_empty() {
            return write!(f, "; nothing else was outstanding");
        }
        write!(f, "; outstanding:")?;
        for (index, (pod, by, since)) in self.outstanding.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma} {pod} since {} ({by})", Seconds(*since))?;
        }
        Ok(())
    }
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}: {}", Seconds(self.at), self.what)
    }
}
