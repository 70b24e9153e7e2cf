//! Each rule of the protocol left out once: the search must find what it is there for.
//!
//! See `docs/ledger.md#rules`.

use quorate_engine::ledger::ProtocolRule;

use super::scenarios;
use super::search::search;

/// The case in which the search finds a break without a rule. The test of the UID in a write is needed only if the last
/// check of the covering budgets is left out as well.
const MISSED: &[(&[ProtocolRule], &str)] = &[
    (&[ProtocolRule::TestUid, ProtocolRule::RecheckCovering], "a budget is deleted and a stricter one made"),
    (&[ProtocolRule::TestGeneration], "a budget is tightened"),
    (&[ProtocolRule::TestNumber], "two evictions at two replicas"),
    (&[ProtocolRule::TestSettled], "two leaders settle two pods"),
    (&[ProtocolRule::SecondRequestWrites], "refused elsewhere, asked again"),
    (&[ProtocolRule::WithdrawOnlyOwn], "the second budget is tightened"),
    (&[ProtocolRule::Pin], "a successor of the same name"),
    (&[ProtocolRule::WaitForSettled], "two evictions at two replicas"),
    (&[ProtocolRule::RaiseSettled], "two evictions at two replicas"),
    (&[ProtocolRule::SettleOnlySeen], "a pod that is not yet seen"),
    (&[ProtocolRule::ExpiryReads], "two leaders, expiry"),
    (&[ProtocolRule::ClockPerToken], "refused elsewhere, asked again"),
    (&[ProtocolRule::Expiry], "refused elsewhere, asked again"),
    (&[ProtocolRule::FreshList], "an unready pod heals"),
    (&[ProtocolRule::FreshListAfterNumber], "two unready pods heal"),
    (&[ProtocolRule::PendingClaimed], "a pending pod starts"),
    (&[ProtocolRule::ReadOther], "a successor that the caller insists on"),
    (&[ProtocolRule::ReadsCountOnceShown], "a pod is lost, and another one is replaced"),
    (&[ProtocolRule::DecideAfresh], "a free pass is not inherited"),
    (&[ProtocolRule::DecideGroupAfresh], "a group heals under a free claim"),
    (&[ProtocolRule::BackfillOnOpening], "a new budget"),
    (&[ProtocolRule::WaitForAcknowledgement], "a new budget"),
    (&[ProtocolRule::WaitForVanished], "a replica is lost while a budget opens"),
    (&[ProtocolRule::ListReplicas], "a replica starts while a budget opens"),
    (&[ProtocolRule::ListOnceServing], "a replica joins before a budget opens, and serves after it"),
    (&[ProtocolRule::TakeHandedOver], "a replica ends while a budget opens"),
    (&[ProtocolRule::ListAfterAcknowledgement], "a new budget, a pod that went before"),
    (&[ProtocolRule::RecheckCovering], "a second budget appears"),
    (&[ProtocolRule::BudgetByUid], "a budget is deleted and a wider one made"),
    (&[ProtocolRule::AgreementByPod], "a budget is deleted while a successor comes"),
    (&[ProtocolRule::ClosedDenies], "a new budget, its leader elsewhere"),
    (&[ProtocolRule::ReopenOnCoverage], "a budget covers more"),
    (&[ProtocolRule::SteadyCoverage], "a budget covers less, and more again"),
    (&[ProtocolRule::ListOfCoverage], "a budget covers more while its pods are listed"),
    (&[ProtocolRule::UpdateSeenRunning], "an update"),
    (&[ProtocolRule::UpdateSettlesUpdates], "an update and an eviction of one pod"),
    (&[ProtocolRule::AnnouncementsDecided], "two announced updates"),
    (&[ProtocolRule::AnnouncedHolds], "an announced update"),
    (&[ProtocolRule::UpdateSeenStored], "an announcement that nothing follows"),
    (&[ProtocolRule::ReplacedUpdatesEnd], "an update takes the place of another"),
    (&[ProtocolRule::ReplacedOnceSeen], "an update takes the place of another"),
    (&[ProtocolRule::TakenBackExpires], "an update is taken back"),
    (&[ProtocolRule::RenamedImageExpires], "an image is shown by another name"),
    (&[ProtocolRule::StaleKindsDeny], "a set is scaled up behind a silent watch"),
    (&[ProtocolRule::TestAnnotations], "an annotation keeps more"),
    (&[ProtocolRule::ReopensForAll], "an annotation takes an operation out, and puts it back"),
    (&[ProtocolRule::OpeningRaisesNumber], "an annotation takes an operation out, and puts it back"),
    (&[ProtocolRule::RelabelsDecided], "a relabel and an eviction"),
    (&[ProtocolRule::RelabelSeenStored], "a relabel and an eviction"),
    (&[ProtocolRule::LowerSettled], "a settled version from another time"),
    (&[ProtocolRule::LowerAsRead], "a settled version from another time, two leaders"),
    (&[ProtocolRule::ReadBeforeLowering], "a settled version from another time, two leaders"),
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
fn every_rule_is_in_the_table() {
    let listed = |rule: &ProtocolRule| MISSED.iter().any(|(rules, _)| rules.contains(rule));
    let unlisted: Vec<_> = ProtocolRule::ALL.iter().filter(|rule| !listed(rule)).collect();
    assert!(unlisted.is_empty(), "{unlisted:?}");
}

#[test]
fn the_search_finds_a_break_without_each_rule() {
    left_out(0);
}

#[test]
fn the_search_finds_a_break_without_each_other_rule() {
    left_out(1);
}
