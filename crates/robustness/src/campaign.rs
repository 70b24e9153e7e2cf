//! Many runs, each in a process of its own.

use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::verdict::Verdict;

/// Which runs to make.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// No run begins after this many seconds.
    pub seconds: u64,
    /// Nor after this many admissions. It is not clean if there were fewer.
    pub admissions: Option<u64>,
    /// At most this many runs. Then a machine of any speed makes the same ones.
    pub runs: Option<u64>,
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
    /// Whether to make the first run again at the end: it must have the same history.
    pub replay: bool,
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
pub(crate) struct Running {
    seed: u64,
    child: Child,
    /// Reads the output all the time: a process that fills the pipe would wait for ever.
    output: Option<JoinHandle<String>>,
}

/// What became of a run.
pub(crate) enum Outcome {
    Verdict(Verdict),
    /// The run with this seed ended without a verdict.
    Broken(u64, anyhow::Error),
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Starts a run.
    pub(crate) fn start(seed: u64, life: u64, without: Option<&str>) -> Result<Self> {
        let program = std::env::current_exe().context("the path of this program")?;
        let mut command = Command::new(program);
        command.args(["--json", "--seed", &seed.to_string(), "--life", &life.to_string()]);
        if let Some(rule) = without {
            command.args(["--without", rule]);
        }
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start a run")?;
        let stdout = child.stdout.take();
        let output = std::thread::spawn(move || {
            let mut output = String::new();
            if let Some(mut stdout) = stdout {
                let _ = std::io::Read::read_to_string(&mut stdout, &mut output);
            }
            output
        });
        Ok(Self { seed, child, output: Some(output) })
    }

    /// Whether the run has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)) | Err(_))
    }

    /// The outcome of a run that has ended.
    pub(crate) fn finish(mut self) -> Outcome {
        let output = self.output.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        match Verdict::from_json(output.lines().last().unwrap_or_default()) {
            Ok(verdict) => Outcome::Verdict(verdict),
            Err(error) => Outcome::Broken(self.seed, error),
        }
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
    let mut first = None;
    loop {
        let stops = campaign.stop_at_first && !total.is_clean();
        let enough = campaign.admissions.is_some_and(|enough| total.admissions >= enough)
            || campaign.runs.is_some_and(|runs| next - campaign.first_seed >= runs);
        while !stops && !enough && running.len() < campaign.at_once.max(1) && Instant::now() < end {
            running.push(Running::start(next, campaign.life, campaign.without.as_deref())?);
            next += 1;
        }
        if running.is_empty() || stops {
            break;
        }
        match running.iter_mut().position(Running::has_ended) {
            Some(index) => match running.swap_remove(index).finish() {
                Outcome::Verdict(verdict) => {
                    print!("{verdict}");
                    total.add(&verdict);
                    if verdict.seed == campaign.first_seed {
                        first = Some(verdict);
                    }
                }
                Outcome::Broken(seed, error) => {
                    println!("seed {seed}: the run ended without a verdict: {error:#}");
                    total.broken += 1;
                }
            },
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    let replays = match first.filter(|_| campaign.replay) {
        Some(first) => is_replayed(campaign, &first)?,
        None => true,
    };
    let Total { seeds, admissions, judged, denials, violations, stuck, broken } = &total;
    println!(
        "admissions={admissions} denials={denials} violations={violations} stuck={stuck} seeds={seeds} \
         judged={judged} broken={broken}"
    );
    let too_few = campaign.admissions.filter(|wanted| admissions < wanted);
    if let Some(wanted) = too_few {
        println!(
            "{admissions} admissions in {} s are too few: at least {wanted} are wanted",
            campaign.seconds
        );
    }
    let good = total.is_clean() && too_few.is_none() && replays;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// Makes a run again, and prints and returns whether it has the same history: only then can a run that fails be replayed.
fn is_replayed(campaign: &Campaign, first: &Verdict) -> Result<bool> {
    let again = Running::start(first.seed, campaign.life, campaign.without.as_deref())?.finish();
    let same = matches!(&again, Outcome::Verdict(again) if again.fingerprint == first.fingerprint);
    let seed = first.seed;
    match (&again, same) {
        (_, true) => println!("seed {seed}: replayed with the same history"),
        (Outcome::Verdict(again), false) => {
            println!("seed {seed}: replayed with another history, fingerprint {:016x}", again.fingerprint);
        }
        (Outcome::Broken(_, error), false) => {
            println!("seed {seed}: the replay ended without a verdict: {error:#}");
        }
    }
    Ok(same)
}
