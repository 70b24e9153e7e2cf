//! Random histories: after every step, the engine and the oracle must agree.

mod drive;
mod step;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use quorate_engine::facts::Phase;

use drive::Drive;
use step::{BudgetSpec, PodEdit, Step, steps};

/// How many histories, and which. A test of every day repeats the same ones: a failure then belongs to the change that
/// caused it. `HISTORIES=20000 cargo test -p quorate-engine histories` tries others, each time.
fn cases() -> (u32, RngSeed) {
    match std::env::var("HISTORIES").ok().and_then(|cases| cases.parse().ok()) {
        Some(cases) => (cases, RngSeed::Random),
        None => (1500, RngSeed::Fixed(1)),
    }
}

#[test]
fn histories_agree_with_the_oracle() {
    let (cases, rng_seed) = cases();
    let config =
        Config { cases, rng_seed, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let histories =
        (prop_oneof![6 => Just((true, true)), 1 => Just((false, true)), 1 => Just((true, false))], steps());
    let outcome = TestRunner::new(config).run(&histories, |((groups, probes), steps)| {
        let mut drive = Drive::new(groups, probes);
        for step in &steps {
            drive.take(step).map_err(TestCaseError::fail)?;
        }
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// Three groups, one of them complete, and the budget expects two. A list shows that all pods are gone: whether the complete
/// group is remembered must not depend on which pod is removed first.
#[test]
fn a_list_removes_all_pods_of_more_groups_than_expected() {
    let groups = BudgetSpec {
        covers: 13,
        min: None,
        max: None,
        units: 6,
        min_ready: None,
        expected: Some(2),
        always_allow: false,
        operations: 0,
        observe: false,
        strict: false,
        open: false,
    };
    let mut drive = Drive::new(true, true);
    for step in [
        Step::Budget(0, groups),
        Step::Pod(2, PodEdit::GroupOwner(Some((0, false)))),
        Step::Pod(0, PodEdit::Phase(Phase::Succeeded, false)),
        Step::Pod(0, PodEdit::GroupOwner(Some((1, false)))),
        Step::Pod(3, PodEdit::GroupOwner(Some((0, true)))),
        Step::Relist(0b1101),
    ] {
        drive.take(&step).unwrap_or_else(|difference| panic!("{difference}"));
    }
}
