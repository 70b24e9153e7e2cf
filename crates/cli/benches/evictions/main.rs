//! How fast evictions go: `cargo xtask bench evictions`.
//!
//! The same storm on one real control plane without a budget, under a native PodDisruptionBudget and under Quorate.
//! All budgets have room for all evictions: what is measured is the cost of a decision. Prints one `name=value unit` per line;
//! in the names `c` is how many evictions are under way at once, `b` over how many budgets the pods are spread, `r` how
//! many servers there are. A part of a name as argument runs only the storms that have it in theirs. A storm of 16 at
//! once takes two seconds, and others use the machine too: the middle one of three is printed.

#![allow(clippy::expect_used, clippy::panic, reason = "a measurement that cannot go on ends")]

mod cost;
#[path = "../../tests/stories/endpoints.rs"]
mod endpoints;
#[path = "../../tests/stories/quorate.rs"]
#[allow(dead_code, reason = "shared with the stories")]
mod quorate;
#[path = "../../tests/stories/replicas.rs"]
#[allow(dead_code, reason = "shared with the stories")]
mod replicas;
mod storm;

use std::collections::BTreeMap;

use cost::Cost;
use quorate_testbed::{Backend, Cluster, Options};
use replicas::Replicas;
use storm::{Figures, Rule, Storm};

const AT_ONCE: [usize; 3] = [1, 16, 64];
const SPREADS: [usize; 2] = [1, 30];
/// How many at once are compared with what others do.
const COMPARED: usize = 16;

#[tokio::main]
async fn main() {
    let options = Options { controllers: true, ..Options::default() };
    // cargo itself adds flags of its own.
    let only: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part.as_str()));
    let mut rates = BTreeMap::new();
    // A cluster of its own for each number of servers, so that none finds what another has left.
    for servers in [0, 1, 3] {
        let storms: Vec<(String, Storm)> =
            storms(servers).into_iter().filter(|(name, _)| wanted(name)).collect();
        if storms.is_empty() {
            continue;
        }
        let cluster = Cluster::whole(Backend::Real, options.clone()).await.expect("a control plane");
        let replicas = match servers {
            0 => None,
            count => Some(Replicas::start(&cluster, count, &[]).await),
        };
        storm::node(&cluster).await;
        for (name, storm) in storms {
            let (figures, cost) = middle(&storm, &cluster, replicas.as_ref()).await;
            print(&name, &figures, &cost);
            rates.insert(name, figures.rate);
        }
    }
    for at_once in AT_ONCE {
        for servers in [1, 3] {
            for spread in SPREADS {
                let end = if (servers, spread) == (1, 1) {
                    String::new()
                } else {
                    format!("_b{spread}_r{servers}")
                };
                let ours = rates.get(&format!("quorate_c{at_once}_b{spread}_r{servers}"));
                for (to, rule) in
                    [("none", format!("none_c{at_once}")), ("pdb", format!("pdb_c{at_once}_b{spread}"))]
                {
                    if let (Some(ours), Some(theirs)) = (ours, rates.get(&rule)) {
                        println!("evict{at_once}_vs_{to}{end}={:.2} x", ours / theirs);
                    }
                }
            }
        }
    }
}

/// The storm, or of several the one that was neither the fastest nor the slowest.
async fn middle(storm: &Storm, cluster: &Cluster, replicas: Option<&Replicas>) -> (Figures, Cost) {
    let rounds = if storm.at_once == COMPARED { 3 } else { 1 };
    let mut runs = Vec::new();
    for _ in 0..rounds {
        runs.push(storm.run(cluster, replicas).await);
    }
    runs.sort_by(|(a, _), (b, _)| a.rate.total_cmp(&b.rate));
    runs.swap_remove(rounds / 2)
}

/// The storms on a cluster with so many servers, by their names.
fn storms(servers: usize) -> Vec<(String, Storm)> {
    let rules = if servers == 0 { &[Rule::None, Rule::Native][..] } else { &[Rule::Quorate][..] };
    let mut storms = Vec::new();
    for rule in rules.iter().copied() {
        // Without a rule there is nothing to spread over.
        let spreads = if rule == Rule::None { &SPREADS[..1] } else { &SPREADS[..] };
        for spread in spreads.iter().copied() {
            for at_once in AT_ONCE {
                let name = match rule {
                    Rule::None => format!("none_c{at_once}"),
                    Rule::Native => format!("pdb_c{at_once}_b{spread}"),
                    Rule::Quorate => format!("quorate_c{at_once}_b{spread}_r{servers}"),
                };
                storms.push((name, Storm { rule, spread, at_once }));
            }
        }
    }
    storms
}

fn print(name: &str, figures: &Figures, cost: &Cost) {
    println!("{name}_rate={:.1} /s", figures.rate);
    println!("{name}_p50={:.1} ms", figures.p50.as_secs_f64() * 1000.0);
    println!("{name}_p99={:.1} ms", figures.p99.as_secs_f64() * 1000.0);
    println!("{name}_api_server={:.2} ms of processor per eviction", cost.api_server.as_secs_f64() * 1000.0);
    if name.starts_with("quorate") {
        println!("{name}_writes={:.2} per eviction", cost.writes);
        println!("{name}_refused={:.2} per eviction", cost.refused);
        println!("{name}_processor={:.2} ms per eviction", cost.processor.as_secs_f64() * 1000.0);
    }
    if figures.retries > 0 {
        println!("{name}_retries={}", figures.retries);
    }
}
