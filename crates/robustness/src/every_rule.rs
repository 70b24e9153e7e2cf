//! Leaves out each rule in turn, until a run shows it.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::campaign::{Outcome, Running};
use crate::provocations::{self, Provocation};

/// How long each rule is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Seeds, from 1 on.
    pub seeds: u64,
    /// Seconds for each rule.
    pub seconds: u64,
    /// Number of runs at the same time.
    pub at_once: usize,
    /// Simulated seconds with faults in each run.
    pub life: u64,
}

/// The rules that a run must show if they are left out. Most have a provocation. Every run with provocations ends with
/// unused claims, which must expire.
pub fn rules() -> Vec<&'static str> {
    let mut rules: Vec<&'static str> =
        Provocation::ALL.iter().flat_map(|provocation| provocation.provokes()).copied().collect();
    rules.push(EXPIRY);
    rules.extend(UNPROVOKED);
    rules
}

/// The end of each run with provocations provokes this rule.
const EXPIRY: &str = "Expiry";

/// What happens at random in every run brings about what these rules prevent: clients relabel pods, and controllers scale
/// down while agents die and servers have just started.
const UNPROVOKED: [&str; 2] = ["RelabelsDecided", "DoubtedPodsAreCharged"];

/// Whether a run with this seed can show that a rule is left out.
fn can_show(rule: &str, seed: u64) -> bool {
    let provokes = |provocation: &Provocation| rule == EXPIRY || provocation.provokes().contains(&rule);
    UNPROVOKED.contains(&rule) || provocations::of_seed(seed).iter().any(provokes)
}

/// Looks for each rule, or for one, and prints a line for each. A rule is found only if the same seed with all rules is
/// clean.
///
/// # Errors
/// A process cannot be started.
pub fn run(limits: &Limits, only: Option<&str>) -> Result<ExitCode> {
    let mut missed = 0;
    let mut baselines = Baselines { life: limits.life, clean: BTreeMap::new() };
    for rule in rules().into_iter().filter(|rule| only.is_none_or(|only| only == *rule)) {
        let began = Instant::now();
        let (found, runs) = find(limits, rule)?;
        let seconds = began.elapsed().as_secs();
        match found {
            Some(verdict) => {
                let (violations, stuck) = (verdict.violations.len(), verdict.stuck.len());
                let example = verdict.violations.iter().chain(&verdict.stuck).next();
                println!(
                    "rule={rule} seed={} seconds={seconds} violations={violations} stuck={stuck} runs={runs}",
                    verdict.seed
                );
                println!("  {}", example.map_or("", String::as_str));
                if !baselines.is_clean(verdict.seed)? {
                    println!("  seed {} is not clean with all rules either: it shows nothing", verdict.seed);
                    missed += 1;
                }
            }
            None => {
                println!("rule={rule} seed=none seconds={seconds} runs={runs}");
                missed += 1;
            }
        }
    }
    println!("rules={} missed={missed}", rules().len());
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// Runs with all rules, by seed: whether each is clean.
struct Baselines {
    life: u64,
    clean: BTreeMap<u64, bool>,
}

impl Baselines {
    fn is_clean(&mut self, seed: u64) -> Result<bool> {
        if let Some(clean) = self.clean.get(&seed) {
            return Ok(*clean);
        }
        let outcome = Running::start(seed, self.life, None)?.finish();
        let clean = matches!(outcome, Outcome::Verdict(verdict) if verdict.is_clean());
        self.clean.insert(seed, clean);
        Ok(clean)
    }
}

/// Makes runs without a rule until one is not clean. Returns its verdict, and the number of runs that ended.
fn find(limits: &Limits, rule: &str) -> Result<(Option<crate::verdict::Verdict>, u64)> {
    let end = Instant::now() + Duration::from_secs(limits.seconds);
    let mut seeds = (1..=limits.seeds).filter(|seed| can_show(rule, *seed)).peekable();
    let mut running: Vec<Running> = Vec::new();
    let mut runs = 0;
    loop {
        while running.len() < limits.at_once.max(1)
            && let Some(seed) = seeds.next()
        {
            running.push(Running::start(seed, limits.life, Some(rule))?);
        }
        if running.is_empty() || Instant::now() >= end {
            return Ok((None, runs));
        }
        let Some(index) = running.iter_mut().position(Running::has_ended) else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        runs += 1;
        match running.swap_remove(index).finish() {
            Outcome::Verdict(verdict) if !verdict.is_clean() => return Ok((Some(verdict), runs)),
            Outcome::Verdict(_) => {}
            Outcome::Broken(seed, error) => {
                println!("  seed {seed}: the run ended without a verdict: {error:#}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use quorate_engine::SafetyRule;
    use quorate_engine::ledger::ProtocolRule;

    use super::*;

    /// A safety rule that no run shows stands here, with the reason.
    const NOT_SHOWN: [SafetyRule; 1] = [
        // The checker accepts views of up to 90 s.
        SafetyRule::SurgeIsRead,
    ];

    #[test]
    fn every_safety_rule_is_left_out_or_named_with_a_reason() {
        let shown = rules();
        for rule in SafetyRule::ALL {
            let is_shown = shown.contains(&format!("{rule:?}").as_str());
            assert_ne!(is_shown, NOT_SHOWN.contains(rule), "{rule:?}");
        }
    }

    /// The table of `docs/testing.md` has each rule that a run must show, and those that no run can show.
    #[test]
    fn the_page_lists_the_rules_that_are_left_out() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/testing.md");
        let page = std::fs::read_to_string(page).expect("docs/testing.md");
        let (_, table) = page.split_once("| left out |").expect("the table");
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(2));
        let mut listed: Vec<&str> =
            cells.flat_map(|cell| cell.split(',')).map(|name| name.trim().trim_matches('`')).collect();
        let mut expected = rules();
        let not_shown = NOT_SHOWN.map(|rule| format!("{rule:?}"));
        expected.extend(not_shown.iter().map(String::as_str));
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }

    #[test]
    fn the_first_seeds_can_show_every_rule() {
        let safety = SafetyRule::ALL.iter().map(|rule| format!("{rule:?}"));
        let names: Vec<String> =
            safety.chain(ProtocolRule::ALL.iter().map(|rule| format!("{rule:?}"))).collect();
        for rule in rules() {
            assert!(names.iter().any(|name| name == rule), "{rule} is no rule");
            assert!((1..=6).any(|seed| can_show(rule, seed)), "no seed up to 6 can show {rule}");
        }
    }
}
