//! `cargo xtask test`: the one test command.
//!
//! Each step prints a line when it starts and a line when it ends; the closing line counts every test that ran.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::alone::{self, Differing};
use crate::control_plane::{self, Minor, Part};
use crate::prebuild::{Build, Prebuild};
use crate::{chart, node, release_before, rights, workspace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these suites; all of them when none is named.
    #[arg(value_enum)]
    suites: Vec<Suite>,
    /// The Kubernetes that conformance, stories and nodes run on.
    #[arg(long, value_enum, default_value = "1.36")]
    kubernetes: Minor,
    /// Fail where this machine lacks what a suite needs; else a suite that was not named is skipped there.
    #[arg(long)]
    skip_nothing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// Format, lints, and each crate checked alone.
    Lint,
    /// All tests that need no cluster.
    Unit,
    /// The chart: that Helm takes it, refuses wrong values, and renders what is checked in. Needs Go.
    Chart,
    /// What stories may rest on, on the real control plane and on the embedded cluster. Needs Go.
    Conformance,
    /// What people live through with Quorate, on both. Needs Go.
    Stories,
    /// Probes and drains of containers that run on real nodes. Needs Go, root and some Debian packages.
    Node,
}

/// What `cargo test` reported, summed over test binaries.
#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let chosen = if args.suites.is_empty() { Suite::value_variants() } else { &args.suites };
    // The programs of Go are needed late and take long: they are built beside what comes before.
    let _prebuild = Prebuild::start(&planned(args, chosen));
    let mut counts = Counts::default();
    let mut broken = Vec::new();
    for suite in chosen {
        let outcome = match suite {
            Suite::Lint => lint(),
            Suite::Unit => unit(&mut counts),
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
    step("crates without what is for tests", || {
        workspace::run(&mut workspace::cargo(&["check", "--quiet", "--locked", "--workspace"]))
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

/// The test targets of the suites that need a cluster. Unit tests are all others.
const CONFORMANCE: [&str; 3] = ["actors", "conformance", "lifetime"];
const STORIES: [&str; 1] = ["stories"];
const NODES: [&str; 2] = ["node", "nodes"];

fn unit(counts: &mut Counts) -> Result<()> {
    let clustered = [&CONFORMANCE[..], &STORIES, &NODES].concat();
    let targets = workspace::test_targets()?;
    let targets = targets.iter().map(String::as_str).filter(|name| !clustered.contains(name));
    cargo_test("unit tests", &[&["--lib", "--bins"], &*named(targets)].concat(), &[], counts)?;
    // Cargo runs the examples in documentation by themselves or not at all; the testbed's need a control plane.
    let examples = ["--doc", "--exclude", "quorate-testbed"];
    cargo_test("examples in documentation", &examples, &[], counts)
}

/// What of Go the chosen suites need, in the order in which they need it.
fn planned(args: &Args, chosen: &[Suite]) -> Vec<Build> {
    let needs = |suites: &[Suite]| suites.iter().any(|suite| chosen.contains(suite));
    let mut builds = Vec::new();
    if needs(&[Suite::Chart]) {
        builds.push(Build::Helm);
    }
    let with_nodes = needs(&[Suite::Node]) && node::lacks().is_none();
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
    // Only this release has Workloads that hold their groups themselves.
    step("control plane of 1.35", || control_plane::build(Minor::V1_35, Part::Server))?;
    let mut before = None;
    step("release before", || {
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
    // A story waits for a cluster most of the time, so more of them are told at once than there are cores.
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) * 2;
    let threads = std::env::var("RUST_TEST_THREADS").unwrap_or_else(|_| threads.to_string());
    let more = [on(kubernetes), ("RUST_TEST_THREADS", threads.as_str())];
    let env: Vec<_> = paths.iter().map(|(name, path)| (*name, &**path)).chain(more).collect();
    cargo_test(&name, &named(STORIES), &env, counts)?;
    // Only this release and the one before serve everything that rights are granted for.
    match kubernetes {
        Minor::V1_36 => step("rights", || rights::compare(&used)),
        Minor::V1_35 | Minor::V1_32 => Ok(()),
    }
}

fn nodes(args: &Args, counts: &mut Counts) -> Result<()> {
    if let Some(lacks) = node::lacks() {
        let asked_for = args.skip_nothing || args.suites.contains(&Suite::Node);
        if asked_for {
            bail!("real nodes need {lacks}");
        }
        println!("==> node: skipped, it needs {lacks}");
        return Ok(());
    }
    let kubernetes = args.kubernetes;
    step("control plane with kubelet", || control_plane::build(kubernetes, Part::WithKubelet))?;
    cargo_test("nodes", &named(NODES), &[on(kubernetes)], counts)
}

/// Has the testbed run this release.
fn on(kubernetes: Minor) -> (&'static str, &'static str) {
    ("QUORATE_KUBERNETES", kubernetes.name())
}

/// The arguments that choose these test targets.
fn named<'a>(targets: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    targets.into_iter().flat_map(|name| ["--test", name]).collect()
}

/// Runs `cargo test` with `args` and `env`, passes its output on, and adds what it counted. The whole workspace is chosen each
/// time: with fewer crates their dependencies have fewer features, and all of them are built once more.
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

/// Reads `test result: ok. 3 passed; 0 failed; …`.
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
    fn reads_the_closing_line_of_cargo_test() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.1s";
        assert_eq!(result_line(line), Some((12, 3)));
        assert_eq!(result_line("running 12 tests"), None);
    }
}
