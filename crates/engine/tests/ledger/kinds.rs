//! Budgets of two kinds: how far one watch has come says nothing of the other.
//!
//! The rules behind it: `docs/ledger.md#opening`.

use quorate_engine::basics::{Time, Version};
use quorate_engine::facts::{Budget, BudgetKey, BudgetKind, Input};
use quorate_engine::ledger::{
    Acknowledged, Call, Event, Output, Replica, ReplicaLease, Reply, Settings, WriteOutcome,
};
use quorate_engine::{Gates, Snapshot};

use super::scenarios::{ALL, keeps};
use super::world::budget_key;

fn key(kind: BudgetKind) -> BudgetKey {
    BudgetKey { kind, ..budget_key("a") }
}

fn budget(kind: BudgetKind, version: u64) -> Budget {
    Budget {
        key: key(kind),
        uid: format!("{kind:?}").as_str().into(),
        generation: 1,
        version: Version(version),
        spec: Ok(keeps(1, ALL)),
        ledger: Default::default(),
        gone: Box::default(),
        annotations: Default::default(),
        is_twin: false,
        memory: quorate_engine::facts::Memory::default(),
    }
}

fn replica() -> Replica {
    let mut replica =
        Replica::new(Settings { opens_unguarded: true, ..Settings::new("r0") }, Gates::default());
    let pods = Event::List(Snapshot::Pods(Vec::new(), Version(1)));
    for event in [pods, Event::Synced, Event::Serving(true), Event::Leader(true)] {
        replica.step(event, Time(0));
    }
    replica
}

fn acknowledged(outputs: &[Output]) -> Option<Acknowledged> {
    outputs.iter().rev().find_map(|output| match output {
        Output::Acknowledge(known) => Some(*known),
        _ => None,
    })
}

#[test]
fn each_kind_is_acknowledged_by_itself() {
    let mut replica = replica();
    let outputs = replica.step(Event::BudgetsAt(BudgetKind::DisruptionBudget, Version(9)), Time(0));
    let known = acknowledged(&outputs).expect("it says how far it has come");
    assert_eq!((known.budgets, known.unavailable_budgets), (Version(9), Version(0)));
    let outputs = replica.step(Event::BudgetsAt(BudgetKind::PodUnavailableBudget, Version(5)), Time(0));
    let known = acknowledged(&outputs).expect("it says how far it has come");
    assert_eq!((known.budgets, known.unavailable_budgets), (Version(9), Version(5)));
}

#[test]
fn a_budget_stays_closed_while_a_replica_knows_only_those_of_the_other_kind() {
    let knows = |kind| Acknowledged::default().with(kind, Version(9));
    for (known, opens) in
        [(knows(BudgetKind::DisruptionBudget), false), (knows(BudgetKind::PodUnavailableBudget), true)]
    {
        let mut replica = replica();
        let fact = Event::Fact(Box::new(Input::Budget(budget(BudgetKind::PodUnavailableBudget, 5))));
        let outputs = replica.step(fact, Time(0));
        let lists = outputs.iter().find_map(|output| match output {
            Output::Call(id, Call::ListReplicas) => Some(*id),
            _ => None,
        });
        let member =
            ReplicaLease { name: "r1".into(), acknowledged: known, serves: true, admitted: Vec::new() };
        let reply = Event::Reply(lists.expect("the replicas are listed"), Reply::Replicas(vec![member]));
        let goes_on = replica.step(reply, Time(0)).iter().any(|output| {
            matches!(output, Output::Call(_, Call::ListPods(of)) if *of == key(BudgetKind::PodUnavailableBudget))
        });
        assert_eq!(goes_on, opens, "{known:?}");
    }
}

#[test]
fn a_list_of_one_kind_leaves_the_other_alone() {
    let mut replica = replica();
    for kind in BudgetKind::ALL {
        replica.step(Event::List(Snapshot::Budgets(kind, vec![budget(kind, 2)])), Time(0));
    }
    assert_eq!(replica.engine().budgets().count(), 2);
    replica.step(Event::List(Snapshot::Budgets(BudgetKind::DisruptionBudget, Vec::new())), Time(0));
    let left: Vec<BudgetKind> = replica.engine().budgets().map(|budget| budget.key.kind).collect();
    assert_eq!(left, [BudgetKind::PodUnavailableBudget]);
}

#[test]
fn a_kind_that_is_no_longer_watched_is_no_longer_acknowledged() {
    let mut replica = replica();
    let kind = BudgetKind::PodUnavailableBudget;
    replica.step(Event::List(Snapshot::Budgets(kind, vec![budget(kind, 2)])), Time(0));
    replica.step(Event::BudgetsAt(kind, Version(5)), Time(0));
    let outputs = replica.step(Event::Unwatched(kind), Time(0));
    assert_eq!(acknowledged(&outputs), Some(Acknowledged::default()));
    assert_eq!(replica.engine().budgets().count(), 0);
}

#[test]
fn the_reply_to_an_earlier_write_does_not_bring_back_a_kind_that_is_no_longer_watched() {
    let kind = BudgetKind::PodUnavailableBudget;
    let mut replica = replica();
    let call = |outputs: &[Output], wanted: fn(&Call) -> bool| {
        outputs.iter().find_map(|output| match output {
            Output::Call(id, call) if wanted(call) => Some(*id),
            _ => None,
        })
    };
    let fact = Event::Fact(Box::new(Input::Budget(budget(kind, 5))));
    let outputs = replica.step(fact, Time(0));
    let lists = call(&outputs, |call| matches!(call, Call::ListReplicas)).expect("the replicas are listed");
    let acknowledged = Acknowledged::default().with(kind, Version(9));
    let member = ReplicaLease { name: "r1".into(), acknowledged, serves: true, admitted: Vec::new() };
    let outputs = replica.step(Event::Reply(lists, Reply::Replicas(vec![member])), Time(0));
    let pods = call(&outputs, |call| matches!(call, Call::ListPods(_))).expect("the pods are listed");
    let outputs = replica.step(Event::Reply(pods, Reply::Pods(Vec::new(), Version(9))), Time(0));
    let opens = call(&outputs, |call| matches!(call, Call::Patch(_))).expect("the budget is opened");
    replica.step(Event::Unwatched(kind), Time(0));
    let written = || {
        let mut opened = budget(kind, 10);
        opened.ledger.enforced = Some(quorate_engine::Coverage::of(&opened.uid, &keeps(1, ALL)));
        Box::new(opened)
    };
    replica.step(Event::Reply(opens, Reply::Written(WriteOutcome::Done(written()))), Time(0));
    assert_eq!(replica.engine().budgets().count(), 0, "it would be enforced by this replica alone");
    // Until the kind is watched again.
    replica.step(Event::List(Snapshot::Budgets(kind, vec![*written()])), Time(0));
    assert_eq!(replica.engine().budgets().count(), 1);
}
