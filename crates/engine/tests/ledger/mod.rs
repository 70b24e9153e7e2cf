//! The ledger protocol, tried where it can go wrong.
//!
//! - `world`: an API server, its watches and its clients, small enough to be searched.
//! - `truth`: what must never happen in it.
//! - `scenarios`: the small cases.
//! - `search`: every interleaving of each of them.
//! - `mutations`: each rule left out once; the search must find what that breaks.
//! - `opening`: when a budget is said to be open.
//! - `ahead`: a settled version that is from another time.
//! - `ages`: how old what is known of each kind may be.
//! - `alone`: one replica, with events by hand that the search does not distinguish.
//! - `labels`: how long an admitted label counts as a disruption.
//! - `drafts`: the ledger of a write in flight.
//! - `free_passes`: a storm of evictions, of which some rest on consistent lists.
//! - `kinds`: budgets of two kinds, each known by a watch of its own.
//! - `owners`: a controller between a pod and the workload of a budget that is not known.
//! - `reviews`: what a review is believed, and what is read instead.
//! - `settling`: how often what has ended is taken out.
//! - `sizes`: how large a ledger may become.
//! - `sources`: a group that seems to be one too many.

mod ages;
mod ahead;
mod alone;
mod drafts;
mod free_passes;
mod kinds;
mod labels;
mod mutations;
mod opening;
mod owners;
mod reviews;
mod scenarios;
mod search;
mod settling;
mod sizes;
mod sources;
mod truth;
mod world;

use quorate_engine::ledger::ProtocolRule;

/// Every heading of `docs/ledger.md` that a test cites exists, and every set of rules there has a test that cites it.
#[test]
fn cited_headings_exist_and_every_set_of_rules_is_cited() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/ledger.md")).expect("docs/ledger.md");
    let anchor = |heading: &str| heading.to_lowercase().replace(' ', "-");
    let headings = |mark: &str| -> std::collections::BTreeSet<String> {
        page.lines().filter_map(|line| line.strip_prefix(mark)).map(anchor).collect()
    };
    let (sections, rules) = (headings("## "), headings("### "));
    let mut cited = std::collections::BTreeSet::new();
    let files = ["tests/ledger", "tests/ledger/world"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(root.join(folder)).expect("a folder"));
    for file in files {
        let path = file.expect("a file").path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        // Not written in one piece, so that this line is no citation.
        for citation in text.split(concat!("`docs/", "ledger.md#")).skip(1) {
            let heading = citation.split('`').next().unwrap_or_default().to_owned();
            assert!(sections.contains(&heading) || rules.contains(&heading), "{}: {heading}", path.display());
            cited.insert(heading);
        }
    }
    assert!(rules.len() >= 5, "{rules:?}");
    assert!(rules.is_subset(&cited), "not cited: {:?}", rules.difference(&cited));
}

/// `docs/ledger.md` describes each rule: a row of its tables has the rule's name.
#[test]
fn the_page_describes_every_rule() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/ledger.md")).expect("docs/ledger.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
    let described = |rule: &&ProtocolRule| rows.iter().any(|row| row.contains(&format!("`{rule:?}`")));
    let missing: Vec<_> = ProtocolRule::ALL.iter().filter(|rule| !described(rule)).collect();
    assert!(missing.is_empty(), "docs/ledger.md does not describe {missing:?}");
}
