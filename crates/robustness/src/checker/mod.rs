//! The checker: was every admission allowed, and was progress made wherever it was possible?
//!
//! It shares no code with what it judges, and works on the raw objects of a [`History`]. It knows the truth and judges
//! servers by what they can have known. A server may see each kind as it was up to 90 s before, so an admission is
//! allowed if the most healthy units of that window, without what was voluntarily disrupted, meet the fewest desired
//! units of it. Voluntary disruptions are counted exactly: servers record what they admit.
//!
//! - `decode`: from raw objects to the few fields that matter.
//! - `states`: the states of each namespace; `memory`: what stays expected without pods.
//! - `coverage`, `count`: units, healthy, expected and desired in one state.
//! - `find`: which changes requests caused; `taken`: these voluntary disruptions, in the order of decisions; `callers`:
//!   callers and operations; `trust`: whose probes count.
//! - `judge`: admissions; `case`: what servers can have seen of one; `stuck`: what made no progress.

mod callers;
mod case;
mod count;
mod coverage;
mod decode;
mod find;
mod judge;
mod memory;
mod report;
mod states;
mod stuck;
mod taken;
mod trust;

use std::time::Duration;

use crate::history::{History, Request};
use decode::Pod;
use find::Finder;
use judge::Judge;
pub use report::{Arithmetic, Breach, Report, Stuck, Summary, Violation};
use states::ClusterHistory;

/// Judges a run.
///
/// First it finds all disruptions: one that was decided early may be carried out late, after others that had to take it
/// into account.
#[must_use]
pub fn check(history: &History) -> Report {
    let mut report = Report::default();
    let mut finder = Finder::new(history);
    replay(history, &mut finder, Finder::observe, |finder, cluster, index, request| {
        finder.request(cluster, index, request, &mut report.summary);
    });
    let Finder { taken, caused, .. } = finder;
    let judge = Judge::new(history, &taken);
    let mut cluster = replay(
        history,
        &mut report,
        |_, _, _| {},
        |report, cluster, index, request| {
            let records = caused.get(&index).into_iter().flatten().filter_map(|place| taken.get(*place));
            records.for_each(|record| judge.disruption(cluster, request, record, report));
            report.stuck.extend(stuck::denied(history, cluster, request));
        },
    );
    report.stuck.extend(stuck::at_the_end(history, &mut cluster, &taken));
    report.summary.violations = report.violations.len();
    report.summary.stuck = report.stuck.len();
    report
}

/// Replays a history in the order in which its requests ended. `observe` gets each change of a pod with its revision;
/// `judge` gets the cluster as it was when a request ended, and the place of the request in the history.
fn replay<S>(
    history: &History,
    to: &mut S,
    observe: fn(&mut S, &Pod, u64),
    mut judge: impl FnMut(&mut S, &ClusterHistory, usize, &Request),
) -> ClusterHistory {
    let longest = history.requests.iter().map(duration).max().unwrap_or_default();
    let mut cluster = ClusterHistory::new(stuck::PATIENCE + longest + Duration::from_secs(5));
    let mut requests: Vec<(usize, &Request)> = history.requests.iter().enumerate().collect();
    requests.sort_by_key(|(_, request)| (request.ended_at, request.ended));
    let mut changes = history.changes.iter().peekable();
    for (index, request) in requests {
        while let Some(change) = changes.next_if(|change| change.revision <= request.ended_at) {
            if let Some(pod) = cluster.apply(change) {
                observe(to, &pod, change.revision);
            }
        }
        judge(to, &cluster, index, request);
    }
    for change in changes {
        if let Some(pod) = cluster.apply(change) {
            observe(to, &pod, change.revision);
        }
    }
    cluster
}

fn duration(request: &Request) -> Duration {
    request.ended.saturating_sub(request.received)
}
