//! Speed and memory of the engine: `cargo xtask bench engine`.
//!
//! Prints one `name=value unit` per line. With arguments, only the clusters with these names are measured, as in
//! `cargo bench -p quorate-engine --bench engine -- 1m lws_100k`.
//!
//! Facts are created before the clock starts, with texts of their own, as a watch delivers them; they share nothing
//! with the engine. They are created a few at a time: what a watch has just decoded is in the CPU cache, and what the
//! engine stores for a million pods is not. Times are CPU times of this thread, so that a busy machine does not count
//! against the engine.

mod cluster;
mod commits;

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

use cluster::{Cluster, Layout};
use quorate_engine::Snapshot;
use quorate_engine::basics::{Time, Version};
use quorate_engine::decision::Decision;
use quorate_engine::facts::Input;

const NOW: Time = Time(1_000_000);
const BUDGETS: usize = 10_000;
/// The number of facts that are created at a time.
const BATCH: usize = 32;
/// The largest number of new pods. Never more than the cluster has, so that its name stays true.
const NEW: usize = 100_000;

fn main() {
    // The largest first, so that its whole memory is measured as new.
    let spread = [("1m", 1_000_000), ("100k", 100_000), ("1k", 1_000)]
        .map(|(name, pods)| (name, Layout::Spread { pods, budgets: BUDGETS }));
    let one = [("budget_10", 10), ("budget_10k", 10_000), ("budget_100k", 100_000)]
        .map(|(name, pods)| (name, Layout::One { pods }));
    let groups = [("lws_100k", Layout::LeaderWorkers { pods: 100_000 })];
    for (name, layout) in spread.into_iter().chain(one).chain(groups) {
        if is_asked_for(name) {
            measure(name, layout);
        }
    }
    if is_asked_for("ratios") {
        ratios();
    }
    for (name, case) in commits::CASES {
        if is_asked_for(name) {
            case(name);
        }
    }
}

/// Whether the arguments name this cluster, or no cluster. Cargo adds a flag of its own.
fn is_asked_for(name: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|arg| arg == name)
}

/// Measures everything in one cluster.
fn measure(name: &str, layout: Layout) {
    let before = resident();
    let mut cluster = Cluster::new(layout);
    let without_pods = resident();
    cluster.fill();
    let pods = cluster.pods();
    if name == "1m" {
        print("bytes_per_pod", (resident() - without_pods) / pods as f64, "B");
        print("bytes_per_budget", (without_pods - before) / BUDGETS as f64, "B");
    }
    print(&format!("decide_{name}"), decide(&mut cluster, 0..pods), "us");
    if pods >= BUDGETS {
        print(&format!("deny_{name}"), deny(&mut cluster, 0..pods), "us");
    }
    print(&format!("apply_ready_{name}"), apply_ready(&mut cluster, 0..pods), "us");
    print(&format!("apply_new_{name}"), apply_new(&mut cluster), "us");
    print(&format!("sync_{name}"), sync(&mut cluster), "ms");
}

/// Compares a budget of 100,000 pods with budgets of 10 in the same cluster, so that only the size of the budget
/// differs.
fn ratios() {
    let mut cluster = Cluster::new(Layout::Sizes { large: 100_000, small: 10, count: BUDGETS });
    cluster.fill();
    let (large, small) = (0..100_000, 100_000..200_000);
    let decide_ratio = decide(&mut cluster, large.clone()) / decide(&mut cluster, small.clone());
    let apply_ratio = apply_ready(&mut cluster, large) / apply_ready(&mut cluster, small);
    print("decide_size_ratio", decide_ratio, "x");
    print("apply_size_ratio", apply_ratio, "x");
}

pub(crate) fn print(name: &str, value: f64, unit: &str) {
    println!("{name}={value:.3} {unit}");
}

/// Resident memory of the process, in bytes.
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(f64::NAN);
    pages * 4096.0
}

/// Decisions that allow, in microseconds each.
fn decide(cluster: &mut Cluster, range: std::ops::Range<usize>) -> f64 {
    time_decisions(cluster, range, true)
}

/// Decisions that deny, because each budget has a pod down; without the text.
fn deny(cluster: &mut Cluster, range: std::ops::Range<usize>) -> f64 {
    cluster.break_budgets();
    let time = time_decisions(cluster, range, false);
    cluster.mend_budgets();
    time
}

fn time_decisions(cluster: &mut Cluster, range: std::ops::Range<usize>, allowed: bool) -> f64 {
    let sample: Vec<usize> = cluster.sample(range, 100_000).collect();
    let (mut time, mut as_wanted) = (0.0, 0);
    for batch in sample.chunks(BATCH) {
        let requests: Vec<_> = batch.iter().map(|at| cluster.evict(*at)).collect();
        let start = busy();
        for request in &requests {
            let decision = cluster.engine.decide(black_box(request), NOW);
            as_wanted += usize::from(matches!(decision, Decision::Allow(_)) == allowed);
        }
        time += busy() - start;
    }
    assert!(as_wanted * 10 >= sample.len() * 8, "only {as_wanted} of {} as wanted", sample.len());
    time * 1e6 / sample.len() as f64
}

/// Pods that become unready, and ready again.
fn apply_ready(cluster: &mut Cluster, range: std::ops::Range<usize>) -> f64 {
    let sample: Vec<usize> = cluster.sample(range, 50_000).collect();
    time_events(cluster, sample.len() * 2, |cluster, n| {
        Input::Pod(cluster.changed(sample[n / 2], n % 2 == 1))
    })
}

/// New pods, which are deleted again when there are enough of them. Only their creation is timed.
fn apply_new(cluster: &mut Cluster) -> f64 {
    let (rounds, count) = match cluster.pods() {
        pods if pods >= NEW => (1, NEW),
        pods => (NEW / 10 / pods, pods),
    };
    let mut time = 0.0;
    for _ in 0..rounds {
        time += time_events(cluster, count, |cluster, n| Input::Pod(cluster.another(n)));
        for n in 0..count {
            let uid = cluster.another(n).uid;
            cluster.engine.apply(Input::PodGone(uid, Version(0)), NOW);
        }
    }
    time / rounds as f64
}

/// The time that the engine takes for an event, in microseconds.
fn time_events(cluster: &mut Cluster, count: usize, make: impl Fn(&mut Cluster, usize) -> Input) -> f64 {
    let mut time = 0.0;
    // One buffer for all batches: to free a large one makes the allocator clean up, which must not be timed.
    let mut events: Vec<Input> = Vec::with_capacity(BATCH);
    for first in (0..count).step_by(BATCH) {
        events.extend((first..count.min(first + BATCH)).map(|n| make(cluster, n)));
        let start = busy();
        for event in events.drain(..) {
            black_box(cluster.engine.apply(event, NOW));
        }
        time += busy() - start;
    }
    time * 1e6 / count as f64
}

/// A complete list in which nothing has changed.
fn sync(cluster: &mut Cluster) -> f64 {
    let pods = (0..cluster.pods()).map(|at| cluster.unchanged(at)).collect();
    let start = busy();
    black_box(cluster.engine.sync(Snapshot::Pods(pods, Version(u64::MAX)), NOW));
    (busy() - start) * 1e3
}

/// The CPU time of this thread, in seconds.
pub(crate) fn busy() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
