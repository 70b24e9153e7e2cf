//! Many runs, each in a process of its own.

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::judge::Verdict;

/// Which runs to make.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// No run begins after this many seconds.
    pub seconds: u64,
    /// Nor after this many admissions.
    pub admissions: Option<u64>,
    /// The first seed; the others follow.
    pub first_seed: u64,
    /// Number of runs at the same time.
    pub at_once: usize,
    /// Simulated seconds with faults in each run.
    pub life: u64,
    /// Rule of the servers to leave out.
    pub without: Option<String>,
    /// Whether to stop at the first run that is not clean.
    pub stop_at_first: bool,
}

/// The sum of all verdicts.
#[derive(Debug, Default)]
struct Total {
    seeds: u64,
    admissions: u64,
    judged: u64,
    denials: u64,
    violations: usize,
    stuck: usize,
    /// Runs that ended without a verdict.
    broken: u64,
}

impl Total {
    fn add(&mut self, verdict: &Verdict) {
        self.seeds += 1;
        self.admissions += verdict.admissions;
        self.judged += verdict.judged;
        self.denials += verdict.denials;
        self.violations += verdict.violations.len();
        self.stuck += verdict.stuck.len();
    }

    fn is_clean(&self) -> bool {
        self.violations == 0 && self.stuck == 0 && self.broken == 0
    }
}

/// A process that makes one run. Dropping it ends the process.
struct Running {
    seed: u64,
    child: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes runs until the time is over, and prints what is wrong and the sum.
///
/// # Errors
/// A process cannot be started.
pub fn run(campaign: &Campaign) -> Result<ExitCode> {
    let end = Instant::now() + Duration::from_secs(campaign.seconds);
    let mut total = Total::default();
    let mut next = campaign.first_seed;
    let mut running: Vec<Running> = Vec::new();
    loop {
        let stops = campaign.stop_at_first && !total.is_clean();
        let enough = campaign.admissions.is_some_and(|enough| total.admissions >= enough);
        while !stops && !enough && running.len() < campaign.at_once.max(1) && Instant::now() < end {
            running.push(start(campaign, next)?);
            next += 1;
        }
        if running.is_empty() || stops {
            break;
        }
        let ended = running.iter_mut().position(|run| matches!(run.child.try_wait(), Ok(Some(_)) | Err(_)));
        match ended {
            Some(index) => finish(running.swap_remove(index), &mut total),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    let Total { seeds, admissions, judged, denials, violations, stuck, broken } = &total;
    println!(
        "admissions={admissions} denials={denials} violations={violations} stuck={stuck} seeds={seeds} \
         judged={judged} broken={broken}"
    );
    Ok(if total.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

fn start(campaign: &Campaign, seed: u64) -> Result<Running> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(program);
    command.args(["--json", "--seed", &seed.to_string(), "--life", &campaign.life.to_string()]);
    if let Some(rule) = &campaign.without {
        command.args(["--without", rule]);
    }
    // The output is a few kilobytes: it fits into the pipe, so the process never waits for a reader.
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start a run")?;
    Ok(Running { seed, child })
}

fn finish(mut run: Running, total: &mut Total) {
    let seed = run.seed;
    let mut output = String::new();
    if let Some(mut stdout) = run.child.stdout.take() {
        let _ = std::io::Read::read_to_string(&mut stdout, &mut output);
    }
    match Verdict::from_json(output.lines().last().unwrap_or_default()) {
        Ok(verdict) => {
            print!("{verdict}");
            total.add(&verdict);
        }
        Err(error) => {
            println!("seed {seed}: the run ended without a verdict: {error:#}");
            total.broken += 1;
        }
    }
}
