//! The ledger protocol in long random lives of whole clusters: several replicas, hundreds of pods, and everything going
//! wrong that may go wrong. The search (`ledger`) tries every order of a few events; this tries a few orders of a great
//! many.
//!
//! - `cluster`: an API server, its replicas, and the order in which things happen.
//! - `apiserver`: what it stores, and what it does with calls.
//! - `replicas`: processes that start, crash, are cut off, and watch late.
//! - `requests`: what people ask for, and what becomes of it.
//! - `life`: pods and budgets that come, change and go.
//! - `plan`: the workloads and budgets of one cluster.
//! - `truth`: how many healthy units there are, counted without the engine, and what must never happen to them.
//!
//! A run is made of one number and nothing else: `QUORATE_SEED=… cargo test -p quorate-engine simulation` plays it again
//! and prints its last moments. `QUORATE_DECISIONS` says how many decisions are made in all.

mod apiserver;
mod cluster;
mod life;
mod plan;
mod replicas;
mod requests;
mod truth;

use std::collections::BTreeSet;

use quorate_engine::ledger::ProtocolRule;

use cluster::{Cluster, Tallies};

/// Where the runs of every day begin.
const SEED: u64 = 20_260;

/// How many decisions one cluster lives for.
const LIFE: u64 = 20_000;

/// How many decisions all clusters make together, every day and in `cargo xtask soak`.
fn decisions() -> u64 {
    let usual = if std::env::var_os("QUORATE_SOAK").is_some() { 2_000_000 } else { 400_000 };
    number("QUORATE_DECISIONS").unwrap_or(usual)
}

fn chosen_seed() -> Option<u64> {
    number("QUORATE_SEED")
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Lives through a share of the clusters: tests run side by side.
fn live(share: u64) {
    let shares = 2;
    let seeds: Vec<u64> = match chosen_seed() {
        Some(seed) => (share == 0).then_some(seed).into_iter().collect(),
        None => (SEED..).skip(share as usize).step_by(shares).take(lives(shares as u64)).collect(),
    };
    println!("seeds {:?} to {:?}", seeds.first(), seeds.last());
    let mut all = Tallies::default();
    for seed in &seeds {
        match Cluster::live(*seed, LIFE, &BTreeSet::new(), chosen_seed().is_some()) {
            Ok(tallies) => all.add(&tallies),
            Err(what) => panic!("{what}\nplay it again with QUORATE_SEED={seed}"),
        }
    }
    println!("{all}");
    if chosen_seed().is_none() {
        all.must_be_lively();
    }
}

fn lives(shares: u64) -> usize {
    decisions().div_ceil(LIFE * shares) as usize
}

#[test]
fn clusters_live_and_no_budget_is_broken() {
    live(0);
}

#[test]
fn other_clusters_live_and_no_budget_is_broken() {
    live(1);
}

/// Leaves rules out, and lives until that is noticed.
fn is_noticed(rules: &[ProtocolRule]) {
    let without: BTreeSet<ProtocolRule> = rules.iter().copied().collect();
    for seed in SEED..SEED + 20 {
        if let Err(what) = Cluster::live(seed, LIFE, &without, false) {
            println!("without {rules:?}, seed {seed}: {what}");
            return;
        }
    }
    panic!("{rules:?} left out, and nothing happened");
}

#[test]
fn a_commit_that_tests_no_number_is_noticed() {
    is_noticed(&[ProtocolRule::TestNumber]);
}

#[test]
fn tokens_that_never_expire_are_noticed() {
    is_noticed(&[ProtocolRule::Expiry]);
}

#[test]
fn free_passes_on_stale_pods_are_noticed() {
    is_noticed(&[ProtocolRule::FreshList]);
}
