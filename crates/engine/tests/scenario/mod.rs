//! Runs the scenario files: Markdown whose code blocks are executed.
//!
//! A block contains commands, then `----`, then their output. A heading of the second level starts with an empty
//! cluster, so that each section can be read on its own. `REWRITE=1 cargo test -p quorate-engine` updates the output in
//! the files; read the diff before you commit it.

mod cluster;
mod queries;
mod words;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use cluster::Cluster;

const FENCE: &str = "```";
const BAR: &str = "----";

#[test]
fn the_output_is_that_of_the_scenario_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no scenarios in {}", folder.display());
    let rewrite = std::env::var_os("REWRITE").is_some();
    let mut differences = String::new();
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.ends_with(".md"), "{name} is not a scenario");
        let expected = std::fs::read_to_string(&file).unwrap();
        let actual = run(&name, &expected);
        if rewrite {
            std::fs::write(&file, &actual).unwrap();
        } else if expected != actual {
            let _ = writeln!(differences, "{name}:\n{}", difference(&expected, &actual));
        }
    }
    assert!(differences.is_empty(), "the output differs from the scenario files:\n{differences}");
}

/// The same file with the actual output of its blocks.
fn run(name: &str, expected: &str) -> String {
    let mut actual = String::new();
    let mut cluster = Cluster::new();
    let mut lines = expected.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        let _ = writeln!(actual, "{line}");
        if line.starts_with("## ") {
            cluster = Cluster::new();
        }
        if line != FENCE {
            continue;
        }
        let mut printed = String::new();
        let mut commands = true;
        for (number, line) in lines.by_ref() {
            if line == FENCE {
                break;
            }
            commands &= line != BAR;
            if commands {
                let _ = writeln!(actual, "{line}");
                printed += &command(&mut cluster, line).unwrap_or_else(|why| {
                    panic!("{name}:{}: {line}\n  {why}", number + 1);
                });
            }
        }
        if !printed.is_empty() {
            let _ = writeln!(actual, "{BAR}\n{}", printed.trim_end());
        }
        let _ = writeln!(actual, "{FENCE}");
    }
    actual
}

fn command(cluster: &mut Cluster, line: &str) -> Result<String, String> {
    let mut printed = String::new();
    let line = line.split('#').next().unwrap_or_default().trim();
    if line.is_empty() {
        return Ok(printed);
    }
    for line in words::expand(line) {
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let mut words = words::Words::new(rest)?;
        match queries::run(cluster, verb, &mut words)? {
            Some(text) => printed += &text,
            None => cluster.run(verb, &mut words)?,
        }
        words.done()?;
    }
    Ok(printed)
}

/// The first lines that differ, with some context before them.
fn difference(expected: &str, actual: &str) -> String {
    let (expected, actual): (Vec<_>, Vec<_>) = (expected.lines().collect(), actual.lines().collect());
    let at = expected.iter().zip(&actual).take_while(|(a, b)| a == b).count();
    let mut text = String::new();
    for line in &expected[at.saturating_sub(6)..at] {
        let _ = writeln!(text, "   {line}");
    }
    expected.iter().skip(at).take(4).for_each(|line| text += &format!("  -{line}\n"));
    actual.iter().skip(at).take(4).for_each(|line| text += &format!("  +{line}\n"));
    text
}
