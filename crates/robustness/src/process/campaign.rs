//! Runs in real time, one after the other.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::run::{self, Plan};

/// A run takes no longer. Long enough for every fault, and short enough to find the cause of what went wrong.
const LONGEST: Duration = Duration::from_secs(900);

/// What a run with a whole recovery needs beside its life.
const RECOVERY: Duration = Duration::from_secs(300);

/// What a run without one needs beside its life.
const START: Duration = Duration::from_secs(20);

/// Makes runs until the time is over, and prints what is wrong and the sum. `first` is the plan of the first run, but for
/// its lengths; with `only_one`, no other follows.
///
/// # Errors
/// A run cannot be made.
pub fn run(first: &Plan, seconds: u64, only_one: bool, stop_at_first: bool) -> Result<ExitCode> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut plan = first.clone();
    let (mut seeds, mut admissions, mut judged, mut denials, mut violations, mut stuck) = (0, 0, 0, 0, 0, 0);
    loop {
        let left = end.saturating_duration_since(Instant::now()).min(LONGEST);
        if seeds > 0 && left < START * 2 {
            break;
        }
        plan.long = left >= RECOVERY * 2;
        let rest = if plan.long { RECOVERY } else { START };
        plan.life = left.saturating_sub(rest).max(START);
        let verdict = run::run(&plan)?;
        print!("{verdict}");
        seeds += 1;
        admissions += verdict.admissions;
        judged += verdict.judged;
        denials += verdict.denials;
        violations += verdict.violations.len();
        stuck += verdict.stuck.len();
        if only_one || (stop_at_first && !verdict.is_clean()) {
            break;
        }
        plan.seed += 1;
    }
    println!(
        "admissions={admissions} denials={denials} violations={violations} stuck={stuck} seeds={seeds} judged={judged}"
    );
    Ok(if violations + stuck == 0 { ExitCode::SUCCESS } else { ExitCode::from(2) })
}
