//! The checker: was every admission allowed, and did everything go on that could?
//!
//! It shares no code with what it judges, and works on the raw objects of a [`History`]. It knows the truth and judges
//! servers by what they can have known. A server may see each kind as it was up to 90 s before, so an admission is
//! allowed if the most healthy units of that window, without what was voluntarily disrupted, meet the fewest desired
//! units of it. Voluntary disruptions are counted exactly: servers record what they admit.
//!
//! - `decode`: from raw objects to the few fields that matter.
//! - `world`: the states of each namespace; `memory`: what stays expected without pods.
//! - `coverage`, `count`: units, healthy, expected and desired in one state.
//! - `taken`: voluntary disruptions; `callers`: who asks for what.
//! - `judge`: admissions; `stuck`: what does not go on.

mod callers;
mod count;
mod coverage;
mod decode;
mod judge;
mod memory;
mod report;
mod stuck;
mod taken;
mod world;

use std::time::Duration;

use crate::history::{History, Request};
use judge::Judge;
pub use report::{Arithmetic, Breach, Report, Stuck, Summary, Violation};
use world::World;

/// Judges a run.
#[must_use]
pub fn check(history: &History) -> Report {
    let longest = history.requests.iter().map(duration).max().unwrap_or_default();
    let mut world = World::new(stuck::PATIENCE + longest + Duration::from_secs(5));
    let mut judge = Judge::new(history);
    let mut report = Report::default();
    let mut requests: Vec<usize> = (0..history.requests.len()).collect();
    requests
        .sort_by_key(|index| history.requests.get(*index).map(|request| (request.ended_at, request.ended)));
    let mut changes = history.changes.iter().peekable();
    for request in requests.into_iter().filter_map(|index| history.requests.get(index)) {
        while let Some(change) = changes.next_if(|change| change.revision <= request.ended_at) {
            if let Some(pod) = world.apply(change) {
                judge.observe(&pod, change.revision);
            }
        }
        judge.request(&world, request, &mut report);
        report.stuck.extend(stuck::denied(history, &world, request));
    }
    for change in changes {
        if let Some(pod) = world.apply(change) {
            judge.observe(&pod, change.revision);
        }
    }
    report.stuck.extend(stuck::at_the_end(history, &mut world, &judge.taken));
    report.summary.violations = report.violations.len();
    report.summary.stuck = report.stuck.len();
    report
}

fn duration(request: &Request) -> Duration {
    request.ended.saturating_sub(request.received)
}
