//! How fast the engine is, and how small: `cargo xtask bench engine`.
//!
//! Prints one `name=value unit` per line. Facts are made before the clock starts, with texts of their own, as a watch
//! brings them; nothing is shared with what the engine keeps. Times are those for which this thread had a processor, so
//! that a busy machine does not count against the engine.

mod cluster;

use std::hint::black_box;

use cluster::{Cluster, Layout};
use quorate_engine::Snapshot;
use quorate_engine::basics::{Time, Version};
use quorate_engine::facts::Input;
use quorate_engine::verdict::Verdict;

const NOW: Time = Time(1_000_000);
const BUDGETS: usize = 10_000;

fn main() {
    // The largest first: what it takes from the system shows in full.
    for (name, pods) in [("1m", 1_000_000), ("100k", 100_000), ("1k", 1_000)] {
        measure(name, Layout::Spread { pods, budgets: BUDGETS });
    }
    for (name, pods) in [("budget_10", 10), ("budget_10k", 10_000), ("budget_100k", 100_000)] {
        measure(name, Layout::One { pods });
    }
    measure("lws_100k", Layout::LeaderWorkers { pods: 100_000 });
    ratios();
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
    let requests: Vec<_> = cluster.sample(range, 100_000).map(|at| cluster.evict(at)).collect();
    let start = busy();
    let mut as_wanted = 0;
    for request in &requests {
        let verdict = cluster.engine.decide(black_box(request), NOW);
        as_wanted += usize::from(matches!(verdict, Verdict::Allow(_)) == allowed);
    }
    let time = micros(start, requests.len());
    assert!(as_wanted * 10 >= requests.len() * 8, "only {as_wanted} of {} as wanted", requests.len());
    time
}

/// Pods that become unready and ready again.
fn apply_ready(cluster: &mut Cluster, range: std::ops::Range<usize>) -> f64 {
    let sample: Vec<usize> = cluster.sample(range, 50_000).collect();
    let mut events: Vec<Input> = Vec::with_capacity(sample.len() * 2);
    for at in sample {
        events.push(Input::Pod(cluster.changed(at, false)));
        events.push(Input::Pod(cluster.changed(at, true)));
    }
    let count = events.len();
    let start = busy();
    for event in events {
        black_box(cluster.engine.apply(event, NOW));
    }
    micros(start, count)
}

/// Pods that are new.
fn apply_new(cluster: &mut Cluster) -> f64 {
    let events: Vec<Input> = (0..20_000).map(|n| Input::Pod(cluster.another(n))).collect();
    let count = events.len();
    let start = busy();
    for event in events {
        black_box(cluster.engine.apply(event, NOW));
    }
    micros(start, count)
}

/// A whole list in which nothing has changed but the pods that were added last, which are gone.
fn sync(cluster: &mut Cluster) -> f64 {
    let pods = (0..cluster.pods()).map(|at| cluster.unchanged(at)).collect();
    let start = busy();
    black_box(cluster.engine.sync(Snapshot::Pods(pods, Version(u64::MAX)), NOW));
    (busy() - start) * 1e3
}

fn micros(start: f64, count: usize) -> f64 {
    (busy() - start) * 1e6 / count as f64
}

/// For how many seconds this thread has had a processor.
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos: f64 = text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(f64::NAN);
    nanos / 1e9
}
