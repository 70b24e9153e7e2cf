//! How fast evictions go: `cargo xtask bench evictions`.
//!
//! The same storm on one real control plane without a budget, under a native PodDisruptionBudget and under Quorate.
//! All budgets have room for everybody: what is measured is what asking costs. Prints one `name=value unit` per line;
//! in the names `c` is how many evictions are under way at once, `b` over how many budgets the pods are spread, `r` how
//! many servers there are.

#![allow(clippy::expect_used, clippy::panic, reason = "a measurement that cannot go on ends")]

#[path = "../../tests/stories/quorate.rs"]
#[allow(dead_code, reason = "shared with the stories")]
mod quorate;
#[path = "../../tests/stories/replicas.rs"]
#[allow(dead_code, reason = "shared with the stories")]
mod replicas;
mod storm;

use std::collections::BTreeMap;

use quorate_testbed::{Cluster, Options, Place};
use replicas::Replicas;
use storm::{Figures, Rule, Storm};

const AT_ONCE: [usize; 3] = [1, 16, 64];
const SPREADS: [usize; 2] = [1, 30];

#[tokio::main]
async fn main() {
    let options = Options { controllers: true, ..Options::default() };
    let mut rates = BTreeMap::new();
    // A cluster of its own for each number of servers, so that none finds what another has left.
    for servers in [0, 1, 3] {
        let cluster = Cluster::whole(Place::Real, options.clone()).await.expect("a control plane");
        let rules = if servers == 0 { &[Rule::None, Rule::Native][..] } else { &[Rule::Quorate][..] };
        let replicas = match servers {
            0 => None,
            count => Some(Replicas::start(&cluster, count, &[]).await),
        };
        storm::node(&cluster).await;
        for rule in rules {
            for spread in SPREADS {
                for at_once in AT_ONCE {
                    if *rule == Rule::None && spread != 1 {
                        continue;
                    }
                    let figures = Storm { rule: *rule, spread, at_once }.run(&cluster).await;
                    let name = match rule {
                        Rule::None => format!("none_c{at_once}"),
                        Rule::Native => format!("pdb_c{at_once}_b{spread}"),
                        Rule::Quorate => format!("quorate_c{at_once}_b{spread}_r{servers}"),
                    };
                    say(&name, &figures);
                    rates.insert(name, figures.rate);
                }
            }
        }
        drop(replicas);
    }
    let ratio = |of: &str, to: &str| rates[of] / rates[to];
    for at_once in AT_ONCE {
        for servers in [1, 3] {
            for spread in SPREADS {
                let ours = format!("quorate_c{at_once}_b{spread}_r{servers}");
                let end = if (servers, spread) == (1, 1) {
                    String::new()
                } else {
                    format!("_b{spread}_r{servers}")
                };
                println!("evict{at_once}_vs_none{end}={:.2} x", ratio(&ours, &format!("none_c{at_once}")));
                println!(
                    "evict{at_once}_vs_pdb{end}={:.2} x",
                    ratio(&ours, &format!("pdb_c{at_once}_b{spread}"))
                );
            }
        }
    }
}

fn say(name: &str, figures: &Figures) {
    println!("{name}_rate={:.1} /s", figures.rate);
    println!("{name}_p50={:.1} ms", figures.p50.as_secs_f64() * 1000.0);
    println!("{name}_p99={:.1} ms", figures.p99.as_secs_f64() * 1000.0);
    if figures.retries > 0 {
        println!("{name}_retries={}", figures.retries);
    }
}
