//! One run, from its seed to its verdict.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::checker;
use crate::determinism;
use crate::run::{self, Shape};

/// The verdict on a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The seed of the run.
    pub seed: u64,
    /// Disruptions that were carried out.
    pub admissions: u64,
    /// Disruptions that were denied.
    pub denials: u64,
    /// Admissions that an enforced budget covered.
    pub judged: u64,
    /// Admissions that broke a budget, in words.
    pub violations: Vec<String>,
    /// Requests and budgets that made no progress, in words.
    pub stuck: Vec<String>,
    /// A fingerprint of the whole history: equal for equal runs.
    pub fingerprint: u64,
    /// The real time that the run took.
    pub took: Duration,
}

/// Simulates a run and judges it. Call [`determinism::begin`] first.
///
/// # Errors
/// The cluster does not come up.
pub fn run(seed: u64, shape: Shape, without: Option<&str>, dump: Option<&Path>) -> Result<Verdict> {
    if let Some(rule) = without {
        quorate_engine::leave_out(rule)?;
    }
    let began = determinism::real_time();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    let history = runtime.block_on(run::simulate(seed, shape))?;
    if let Some(path) = dump {
        history.write(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let report = checker::check(&history);
    Ok(Verdict {
        seed,
        admissions: report.summary.admissions as u64,
        denials: report.summary.denials as u64,
        judged: report.summary.judged as u64,
        violations: report.violations.iter().map(ToString::to_string).collect(),
        stuck: report.stuck.iter().map(ToString::to_string).collect(),
        fingerprint: history.fingerprint(),
        took: determinism::real_time().saturating_sub(began),
    })
}

impl Verdict {
    /// Whether no budget was broken, and everything made progress.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.stuck.is_empty()
    }

    /// As one line of JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "seed": self.seed, "admissions": self.admissions, "denials": self.denials, "judged": self.judged,
            "violations": self.violations, "stuck": self.stuck, "fingerprint": self.fingerprint,
            "milliseconds": u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Reads what [`Verdict::to_json`] made.
    ///
    /// # Errors
    /// It is not a verdict.
    pub fn from_json(line: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(line).context("not a verdict")?;
        let number = |name: &str| value[name].as_u64().with_context(|| format!("no {name}"));
        let texts = |name: &str| -> Vec<String> {
            let all = value[name].as_array().into_iter().flatten();
            all.filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        Ok(Self {
            seed: number("seed")?,
            admissions: number("admissions")?,
            denials: number("denials")?,
            judged: number("judged")?,
            violations: texts("violations"),
            stuck: texts("stuck"),
            fingerprint: number("fingerprint")?,
            took: Duration::from_millis(number("milliseconds")?),
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, admissions, denials, judged, violations, stuck, fingerprint, took } = self;
        for text in violations.iter().chain(stuck) {
            writeln!(f, "seed {seed}: {text}")?;
        }
        writeln!(
            f,
            "seed={seed} admissions={admissions} judged={judged} denials={denials} violations={} stuck={} \
             fingerprint={fingerprint:016x} seconds={:.1}",
            violations.len(),
            stuck.len(),
            took.as_secs_f64()
        )
    }
}
