//! `cargo xtask test`: runs all checks and tests.
//!
//! Each step prints a line when it starts and a line when it ends. The last line counts all tests that ran.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::alone::{self, Differing};
use crate::control_plane::{self, Minor, Part};
use crate::prebuild::{Build, Prebuild};
use crate::{chart, node, release_before, rights, robustness, workspace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Suites to run; default: all
    #[arg(value_enum)]
    suites: Vec<Suite>,
    /// Kubernetes minor release for the suites conformance, stories and node
    #[arg(long, value_enum, default_value = "1.36")]
    kubernetes: Minor,
    /// Fail if this machine lacks a requirement of a suite, instead of skipping a suite that was not named
    #[arg(long)]
    skip_nothing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Format, lints, and checks of each crate alone
    Lint,
    /// All tests that need no cluster
    Unit,
    /// Clusters that live and fail at random: simulated ones, and real processes
    Robustness,
    /// Chart: Helm accepts it, rejects invalid values, and renders the checked-in files; needs Go
    Chart,
    /// Same behaviour of the real control plane and the embedded cluster; needs Go
    Conformance,
    /// User stories with Quorate, on both clusters; needs Go
    Stories,
    /// Probes and drains of containers on real nodes; needs Go, root and some Debian packages
    Node,
}

/// The counts that `cargo test` reported, summed over all test binaries.
#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let chosen = if args.suites.is_empty() { Suite::value_variants() } else { &args.suites };
    // The Go programs are needed late and take long to build, so they are built while earlier suites run.
    let _prebuild = Prebuild::start(&planned(args, chosen));
    let mut counts = Counts::default();
    let mut broken = Vec::new();
    for suite in chosen {
        let outcome = match suite {
            Suite::Lint => lint(),
            Suite::Unit => unit(&mut counts),
            Suite::Robustness => robust(&mut counts),
            Suite::Chart => step("chart", || chart::check(&mut counts.passed, &mut counts.failed)),
            Suite::Conformance => conformance(args.kubernetes, &mut counts),
            Suite::Stories => stories(args.kubernetes, &mut counts),
            Suite::Node => nodes(args, &mut counts),
        };
        if let Err(error) = outcome {
            eprintln!("error: {error:#}");
            broken.push(error);
        }
    }
    println!("{} passed, {} failed", counts.passed, counts.failed);
    match broken.len() {
        0 => Ok(()),
        n => bail!("{n} of {} suites failed; the first: {:#}", chosen.len(), broken[0]),
    }
}

/// The crate that turns on features for tests in its ordinary dependencies. With it, all other crates would have those
/// features too.
pub(crate) const TEST_FEATURES: &str = "quorate-robustness";

fn lint() -> Result<()> {
    step("format", || workspace::run(&mut workspace::cargo(&["fmt", "--all", "--", "--check"])))?;
    step("lints", || {
        workspace::run(&mut workspace::cargo(&[
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ]))
    })?;
    step("crates without dev-dependencies", || {
        let check = ["check", "--quiet", "--locked", "--workspace", "--exclude", TEST_FEATURES];
        workspace::run(&mut workspace::cargo(&check))
    })?;
    step("the released program", || {
        let release = ["check", "--quiet", "--locked", "--package", "quorate", "--no-default-features"];
        workspace::run(&mut workspace::cargo(&release))
    })?;
    let mut differing = Vec::new();
    step("features", || {
        differing = alone::differing(&workspace::crates()?)?;
        Ok(())
    })?;
    for Differing { name, why } in differing {
        step(&format!("{name} alone: {why}"), || {
            workspace::run(&mut workspace::cargo(&["check", "--quiet", "--locked", "--package", &name]))
        })?;
    }
    Ok(())
}

/// The test targets of the suites that need a cluster. All other targets are unit tests.
const CONFORMANCE: [&str; 3] = ["actors", "conformance", "lifetime"];
const STORIES: [&str; 1] = ["stories"];
const NODES: [&str; 2] = ["node", "nodes"];

fn unit(counts: &mut Counts) -> Result<()> {
    let clustered = [&CONFORMANCE[..], &STORIES, &NODES].concat();
    let targets = workspace::test_targets()?;
    let targets = targets.iter().map(String::as_str).filter(|name| !clustered.contains(name));
    cargo_test("unit tests", &[&["--lib", "--bins"], &*named(targets)].concat(), &[], counts)?;
    // Cargo cannot run doc tests together with other targets. The testbed's doc tests need a control plane.
    let examples = ["--doc", "--exclude", "quorate-testbed"];
    cargo_test("examples in documentation", &examples, &[], counts)
}

/// The number of simulated runs in a test run: the same ones on each machine, about two minutes on two cores.
const SIMULATED_RUNS: u64 = 8;

/// No simulated run begins after so many seconds.
const ROBUSTNESS_SECONDS: u64 = 600;

/// How long the released program runs in real processes, in seconds.
const PROCESS_SECONDS: u64 = 60;

/// Each tier counts as one test: either no run breaks a budget, or it fails.
fn robust(counts: &mut Counts) -> Result<()> {
    let simulation = step("robustness", || {
        let (runs, seconds) = (format!("--runs={SIMULATED_RUNS}"), format!("--seconds={ROBUSTNESS_SECONDS}"));
        robustness::simulate(&["--replay".to_owned(), runs, seconds])
    });
    let processes = step("robustness of processes", || {
        let seconds = [format!("--seconds={PROCESS_SECONDS}")];
        robustness::in_real_time(robustness::Cluster::Embedded, false, &seconds)
    });
    for outcome in [&simulation, &processes] {
        match outcome {
            Ok(()) => counts.passed += 1,
            Err(_) => counts.failed += 1,
        }
    }
    simulation.and(processes)
}

/// The Go builds that the chosen suites need, in the order in which the suites need them.
fn planned(args: &Args, chosen: &[Suite]) -> Vec<Build> {
    let needs = |suites: &[Suite]| suites.iter().any(|suite| chosen.contains(suite));
    let mut builds = Vec::new();
    if needs(&[Suite::Chart]) {
        builds.push(Build::Helm);
    }
    let with_nodes = needs(&[Suite::Node]) && node::missing_requirements().is_none();
    if with_nodes || needs(&[Suite::Conformance, Suite::Stories]) {
        let part = if with_nodes { Part::WithKubelet } else { Part::Whole };
        builds.push(Build::ControlPlane(args.kubernetes, part));
    }
    if needs(&[Suite::Stories]) {
        builds.push(Build::ControlPlane(Minor::V1_35, Part::Server));
    }
    builds
}

fn conformance(kubernetes: Minor, counts: &mut Counts) -> Result<()> {
    step("control plane", || control_plane::build(kubernetes, Part::Whole))?;
    let name = format!("conformance with {}", kubernetes.name());
    cargo_test(&name, &named(CONFORMANCE), &[on(kubernetes)], counts)?;
    cargo_test("all examples in documentation", &["--doc"], &[on(kubernetes)], counts)
}

fn stories(kubernetes: Minor, counts: &mut Counts) -> Result<()> {
    step("control plane", || control_plane::build(kubernetes, Part::Whole))?;
    // Only this release has Workloads that contain their pod groups.
    step("control plane of 1.35", || control_plane::build(Minor::V1_35, Part::Server))?;
    let mut before = None;
    step("previous release", || {
        before = release_before::build()?;
        Ok(())
    })?;
    let name = format!("stories with {}", kubernetes.name());
    let used = workspace::target().join("rights");
    if used.exists() {
        std::fs::remove_dir_all(&used).with_context(|| format!("cannot empty {}", used.display()))?;
    }
    std::fs::create_dir_all(&used).with_context(|| format!("cannot make {}", used.display()))?;
    let mut paths = vec![("QUORATE_USED_RIGHTS", used.clone())];
    if let Some(release_before::ReleaseBefore { program, rendered }) = before {
        paths.extend([("QUORATE_BEFORE", program), ("QUORATE_BEFORE_RENDERED", rendered)]);
    }
    let paths: Vec<_> = paths.iter().map(|(name, path)| (*name, path.to_string_lossy())).collect();
    // A story waits for its cluster most of the time, so twice as many stories run in parallel as there are cores.
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) * 2;
    let threads = std::env::var("RUST_TEST_THREADS").unwrap_or_else(|_| threads.to_string());
    let more = [on(kubernetes), ("RUST_TEST_THREADS", threads.as_str())];
    let env: Vec<_> = paths.iter().map(|(name, path)| (*name, &**path)).chain(more).collect();
    cargo_test(&name, &named(STORIES), &env, counts)?;
    // Only 1.36 and 1.35 together serve all resources for which the chart grants rights. Only a run on 1.36 uses both.
    match kubernetes {
        Minor::V1_36 => step("rights", || rights::compare(&used)),
        Minor::V1_35 | Minor::V1_32 => Ok(()),
    }
}

fn nodes(args: &Args, counts: &mut Counts) -> Result<()> {
    if let Some(missing_requirements) = node::missing_requirements() {
        let required = args.skip_nothing || args.suites.contains(&Suite::Node);
        if required {
            bail!("real nodes need {missing_requirements}");
        }
        println!("==> node: skipped; real nodes need {missing_requirements}");
        return Ok(());
    }
    let kubernetes = args.kubernetes;
    step("control plane with kubelet", || control_plane::build(kubernetes, Part::WithKubelet))?;
    cargo_test("nodes", &named(NODES), &[on(kubernetes)], counts)
}

/// The environment variable that makes the testbed run this release.
fn on(kubernetes: Minor) -> (&'static str, &'static str) {
    ("QUORATE_KUBERNETES", kubernetes.name())
}

/// The arguments that select these test targets.
fn named<'a>(targets: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    targets.into_iter().flat_map(|name| ["--test", name]).collect()
}

/// Runs `cargo test` with `args` and `env`, prints its output, and adds its counts. Always selects the whole workspace:
/// with fewer crates, their dependencies would have fewer features and would be built again.
fn cargo_test(name: &str, args: &[&str], env: &[(&str, &str)], counts: &mut Counts) -> Result<()> {
    step(name, || {
        let mut command = workspace::cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]);
        let mut child = command
            .args(args)
            .envs(env.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start cargo test")?;
        let stdout = child.stdout.take().context("cargo test has no output")?;
        let mut seen = 0;
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            if let Some((passed, failed)) = result_line(&line) {
                seen += passed + failed;
                counts.passed += passed;
                counts.failed += failed;
            }
            println!("{line}");
        }
        let status = child.wait()?;
        if !status.success() {
            bail!("{name} failed");
        }
        if seen == 0 {
            bail!("{name} ran no test");
        }
        Ok(())
    })
}

/// Parses `test result: ok. 3 passed; 0 failed; …`.
fn result_line(line: &str) -> Option<(u64, u64)> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let number =
        |word: &str| counts.split("; ").find_map(|part| part.strip_suffix(word)?.trim().parse::<u64>().ok());
    Some((number("passed")?, number("failed")?))
}

fn step(name: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("==> {name}");
    let start = Instant::now();
    let outcome = body();
    let word = if outcome.is_ok() { "ok" } else { "FAILED" };
    println!("<== {name}: {word} ({:.1} s)", start.elapsed().as_secs_f64());
    outcome
}

#[cfg(test)]
mod tests {
    use super::result_line;

    #[test]
    fn the_result_line_of_cargo_test_is_parsed() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.1s";
        assert_eq!(result_line(line), Some((12, 3)));
        assert_eq!(result_line("running 12 tests"), None);
    }
}
