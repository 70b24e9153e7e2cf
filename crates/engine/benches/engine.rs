//! How fast the engine is, and how small: `cargo xtask bench engine`.
//!
//! Prints one `name=value unit` per line; with arguments only what lies in the clusters of these names, as in
//! `cargo bench -p quorate-engine --bench engine -- 1m lws_100k`.
//!
//! Facts are made before the clock starts, with texts of their own, as a watch brings them; nothing is shared with what
//! the engine keeps. They are made a few at a time: what a watch has just decoded is in the processor's cache, and what
//! the engine knows of a million pods is not. Times are those for which this thread had a processor, so that a busy
//! machine does not count against the engine.

mod cluster;

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

use cluster::{Cluster, Layout};
use quorate_engine::Snapshot;
use quorate_engine::basics::{Time, Version};
use quorate_engine::decision::Decision;
use quorate_engine::facts::Input;

const NOW: Time = Time(1_000_000);
const BUDGETS: usize = 10_000;
/// How many facts are made at a time.
const BATCH: usize = 32;
/// How many pods are new, at the most: no more than there were, so that the cluster stays what it is called.
const NEW: usize = 100_000;

fn main() {
    // The largest first: what it takes from the system shows in full.
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
}

/// Whether the arguments name this cluster, or none at all. Cargo adds a flag of its own.
fn is_asked_for(name: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|arg| arg == name)
}

/// One cluster, everything measured in it.
fn measure(name: &str, layout: Layout) {
    let before = resident();
    let mut cluster = Cluster::new(layout);
    let without_pods = resident();
    cluster.fill();
    let pods = cluster.pods();
    if name == "1m" {
        say("bytes_per_pod", (resident() - without_pods) / pods as f64, "B");
        say("bytes_per_budget", (without_pods - before) / BUDGETS as f64, "B");
    }
    say(&format!("decide_{name}"), decide(&mut cluster, 0..pods), "us");
    if pods >= BUDGETS {
        say(&format!("deny_{name}"), deny(&mut cluster, 0..pods), "us");
    }
    say(&format!("apply_ready_{name}"), apply_ready(&mut cluster, 0..pods), "us");
    say(&format!("apply_new_{name}"), apply_new(&mut cluster), "us");
    say(&format!("sync_{name}"), sync(&mut cluster), "ms");
}

/// A budget of 100,000 pods against budgets of 10, in one and the same cluster: only the budget's size differs.
fn ratios() {
    let mut cluster = Cluster::new(Layout::Sizes { large: 100_000, small: 10, count: BUDGETS });
    cluster.fill();
    let (large, small) = (0..100_000, 100_000..200_000);
    let decide_ratio = decide(&mut cluster, large.clone()) / decide(&mut cluster, small.clone());
    let apply_ratio = apply_ready(&mut cluster, large) / apply_ready(&mut cluster, small);
    say("decide_size_ratio", decide_ratio, "x");
    say("apply_size_ratio", apply_ratio, "x");
}

fn say(name: &str, value: f64, unit: &str) {
    println!("{name}={value:.3} {unit}");
}

/// Memory that the process has in use, in bytes.
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(f64::NAN);
    pages * 4096.0
}

/// Decisions that admit, in microseconds each.
fn decide(cluster: &mut Cluster, range: std::ops::Range<usize>) -> f64 {
    time_decisions(cluster, range, true)
}

/// Decisions that refuse, because each budget has a pod down; without the sentence.
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

/// Pods that become unready and ready again.
fn apply_ready(cluster: &mut Cluster, range: std::ops::Range<usize>) -> f64 {
    let sample: Vec<usize> = cluster.sample(range, 50_000).collect();
    time_events(cluster, sample.len() * 2, |cluster, n| {
        Input::Pod(cluster.changed(sample[n / 2], n % 2 == 1))
    })
}

/// Pods that are new, and that go again when there are enough of them; only their coming is timed.
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

/// How long the engine takes for an event, in microseconds.
fn time_events(cluster: &mut Cluster, count: usize, make: impl Fn(&mut Cluster, usize) -> Input) -> f64 {
    let mut time = 0.0;
    // One buffer for all: giving a large one back has the allocator tidy up, which is not the engine's doing.
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

/// A whole list in which nothing has changed.
fn sync(cluster: &mut Cluster) -> f64 {
    let pods = (0..cluster.pods()).map(|at| cluster.unchanged(at)).collect();
    let start = busy();
    black_box(cluster.engine.sync(Snapshot::Pods(pods, Version(u64::MAX)), NOW));
    (busy() - start) * 1e3
}

/// For how many seconds this thread has had a processor.
fn busy() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
