//! Random histories: after every step, the engine and the oracle must agree.

mod drive;
mod step;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use drive::Drive;
use step::steps;

/// `HISTORIES=20000 cargo test -p quorate-engine histories` runs more cases.
fn cases() -> u32 {
    std::env::var("HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(1500)
}

#[test]
fn histories_agree_with_the_oracle() {
    let config =
        Config { cases: cases(), failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
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
