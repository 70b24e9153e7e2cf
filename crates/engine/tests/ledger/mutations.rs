//! Each rule of the protocol left out once: the search must find what it is there for.

use quorate_engine::ledger::Rule;

use super::scenarios;
use super::search::search;

/// Which rules are missed in which case. Most are by themselves; the UID in a write only where nobody looks again
/// either whether the budget is still the one that was asked.
const MISSED: &[(&[Rule], &str)] = &[
    (&[Rule::TestUid, Rule::RecheckCovering], "a budget is deleted and a stricter one made"),
    (&[Rule::TestGeneration], "a budget is tightened"),
    (&[Rule::TestNumber], "two evictions at two replicas"),
    (&[Rule::TestSettled], "two holders settle two pods"),
    (&[Rule::SecondAskWrites], "refused elsewhere, asked again"),
    (&[Rule::WithdrawOnlyOwn], "the second budget is tightened"),
    (&[Rule::Pin], "a successor of the same name"),
    (&[Rule::WaitForSettled], "two evictions at two replicas"),
    (&[Rule::RaiseSettled], "two evictions at two replicas"),
    (&[Rule::SettleOnlySeen], "a pod that is not yet seen"),
    (&[Rule::ExpiryReads], "two holders, expiry"),
    (&[Rule::ClockPerToken], "refused elsewhere, asked again"),
    (&[Rule::Expiry], "refused elsewhere, asked again"),
    (&[Rule::FreshEyes], "an unready pod heals"),
    (&[Rule::FreshEyesAfterNumber], "an unready pod heals"),
    (&[Rule::PendingClaimed], "a pending pod starts"),
    (&[Rule::ReadOther], "a successor that the caller insists on"),
    (&[Rule::DecideAfresh], "a free pass is not inherited"),
    (&[Rule::JoinOnOpening], "a new budget"),
    (&[Rule::WaitForAcknowledgement], "a new budget"),
    (&[Rule::WaitForVanished], "a replica is lost while a budget opens"),
    (&[Rule::ListReplicas], "a replica starts while a budget opens"),
    (&[Rule::ListAfterAcknowledgement], "a new budget, a pod that went before"),
    (&[Rule::RecheckCovering], "a second budget appears"),
    (&[Rule::BudgetByUid], "a budget is deleted and a wider one made"),
    (&[Rule::ClosedDenies], "a new budget, its holder elsewhere"),
    (&[Rule::ReopenOnCoverage], "a budget covers more"),
    (&[Rule::ListOfCoverage], "a budget covers more while its pods are listed"),
    (&[Rule::UpdateSeenRunning], "an update"),
    (&[Rule::UpdateSettlesUpdates], "an update and an eviction of one pod"),
];

/// Searches a share of the table: tests run side by side.
fn left_out(share: usize) {
    let mut unmissed = Vec::new();
    for (rules, name) in MISSED.iter().skip(share).step_by(2) {
        let mut scenario = scenarios::named(name);
        scenario.without.extend(*rules);
        match search(&scenario) {
            Err(path) => println!("{rules:?} is missed in {path}\n"),
            Ok(states) => unmissed.push(format!("{rules:?} in {states} states of {name:?}")),
        }
    }
    assert!(unmissed.is_empty(), "left out and not missed: {unmissed:#?}");
}

#[test]
fn every_rule_is_missed_when_it_is_left_out() {
    left_out(0);
}

#[test]
fn every_other_rule_is_missed_when_it_is_left_out() {
    left_out(1);
}
