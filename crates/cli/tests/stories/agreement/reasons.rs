//! Every reason to deny a request: where the stories reach it, and how its sentence is recognized.

use std::collections::BTreeMap;

use quorate_engine::basics::{GroupKind, ObjectKey, Time};
use quorate_engine::decision::{Denial, DenialReason, Exhausted, Noun, Numbers, ProbeDoubt, Unresolved};
use quorate_engine::facts::{BudgetKey, BudgetKind};
use quorate_engine::sentence;

/// Where a reason is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// In random states: the cluster alone decides.
    States,
    /// With more workloads than a budget can remember.
    Sources,
    /// In an outage: it depends on what a server receives.
    Outages,
    /// By no request of a client: a server reads the owner before it decides, and a view has listed it.
    Never,
}

/// A reason: its name, a part of its sentence that no other reason has, and where it is reached. A reason that is new does
/// not compile until it has a row.
fn row(reason: &DenialReason) -> (&'static str, &'static str, Reached) {
    use Reached::{Never, Outages, Sources, States};
    match reason {
        DenialReason::NotSynced => ("NotSynced", "Quorate is still starting", Outages),
        DenialReason::NotServing => ("NotServing", "has not renewed its Lease", Outages),
        DenialReason::NotFresh { .. } => ("NotFresh", "has not heard from the API server", Outages),
        DenialReason::Stale { .. } => ("Stale", " is stale: Quorate has received nothing", Outages),
        DenialReason::Deadline => ("Deadline", "could not be written in time", Outages),
        DenialReason::OutdatedDefinition => ("OutdatedDefinition", "claims are not stored", Outages),
        DenialReason::Invalid(_) => ("Invalid", "the budget is invalid", States),
        DenialReason::NotOpen => ("NotOpen", "was just created, or its selector changed", States),
        DenialReason::Protocol(_) => ("Protocol", "another version of Quorate writes", States),
        DenialReason::TooManyClaims => ("TooManyClaims", "too many admitted disruptions", States),
        DenialReason::NoGroup { .. } => ("NoGroup", "names no workload", States),
        DenialReason::Native { .. } => ("Native", "allows nothing now (has", States),
        DenialReason::SeveralNative { .. } => {
            ("SeveralNative", "is covered by the PodDisruptionBudgets", States)
        }
        DenialReason::Exhausted(exhausted) if exhausted.numbers.expected == 0 => {
            ("Exhausted.NoneExpected", "so none may be disrupted", States)
        }
        DenialReason::Exhausted(exhausted) if exhausted.unit_is_down => {
            ("Exhausted.UnitIsDown", "is down, but may recover", States)
        }
        DenialReason::Exhausted(_) => ("Exhausted", " one down", States),
        DenialReason::Unresolved(unresolved) => match unresolved {
            Unresolved::Group { .. } => ("Unresolved.Group", "which does not exist", States),
            Unresolved::Controller { .. } => {
                ("Unresolved.Controller", ", is not known, so the expected", States)
            }
            Unresolved::Scale { .. } => ("Unresolved.Scale", "has no scale", States),
            Unresolved::Unread { .. } => ("Unresolved.Unread", "the expected number depends on", Outages),
            Unresolved::Sources { .. } => {
                ("Unresolved.Sources", "have no pods now, and it cannot remember", Sources)
            }
            Unresolved::Owner { .. } => ("Unresolved.Owner", "may or may not cover the pod", Never),
        },
        DenialReason::Probe { why, .. } => match why {
            ProbeDoubt::SaysNo(_) => ("Probe.SaysNo", "its disruption probe says no", States),
            ProbeDoubt::Silent => ("Probe.Silent", "has not answered yet", States),
            ProbeDoubt::Malformed(_) => ("Probe.Malformed", "its disruption probe is invalid", States),
            ProbeDoubt::NoAgent => ("Probe.NoAgent", "no agent runs its disruption probe", States),
            ProbeDoubt::AgentStale => ("Probe.AgentStale", "the agent on its node stopped reporting", States),
            ProbeDoubt::NodeNotReady => ("Probe.NodeNotReady", "its node is not ready", States),
            ProbeDoubt::Outdated => ("Probe.Outdated", "has not answered since", States),
        },
    }
}

/// One of each.
fn all() -> Vec<DenialReason> {
    let exhausted = |expected, unit_is_down| {
        DenialReason::Exhausted(Box::new(Exhausted {
            noun: Noun::Pod,
            unit: "web-0".into(),
            unit_is_down,
            numbers: Numbers { allowed: 0, current: 1, desired: 1, expected },
            down: Vec::new(),
            down_total: 0,
        }))
    };
    let owner = || ("web-0".into(), "ReplicaSet".into(), "web".into());
    let probe = |why| DenialReason::Probe { pod: "web-0".into(), why, since: None };
    let ((pod, kind, name), (scaled, scale)) = (owner(), ("Fleet".into(), "red".into()));
    let (undecided, of, above) = owner();
    let mut all = vec![
        DenialReason::NotSynced,
        DenialReason::NotServing,
        DenialReason::NotFresh { seconds: 91 },
        DenialReason::Stale { kind: GroupKind::new("apps", "Deployment"), seconds: 91 },
        DenialReason::Deadline,
        DenialReason::OutdatedDefinition,
        DenialReason::Invalid("spec: is empty".into()),
        DenialReason::NotOpen,
        DenialReason::Protocol(9),
        DenialReason::TooManyClaims,
        DenialReason::NoGroup { pod: "web-0".into() },
        DenialReason::Native { name: "web".into(), healthy: (1, 2) },
        DenialReason::SeveralNative { pod: "web-0".into(), names: vec!["a".into(), "b".into()] },
        exhausted(0, false),
        exhausted(2, true),
        exhausted(2, false),
        DenialReason::Unresolved(Unresolved::Group { pod: "web-0".into(), name: "train".into() }),
        DenialReason::Unresolved(Unresolved::Controller { pod, kind, name }),
        DenialReason::Unresolved(Unresolved::Scale { kind: scaled, name: scale }),
        DenialReason::Unresolved(Unresolved::Unread {
            kind: GroupKind::new("batch", "Job"),
            name: "night".into(),
        }),
        DenialReason::Unresolved(Unresolved::Sources { count: 300 }),
        DenialReason::Unresolved(Unresolved::Owner { pod: undecided, kind: of, name: above }),
    ];
    let doubts = [
        ProbeDoubt::SaysNo(None),
        ProbeDoubt::Silent,
        ProbeDoubt::Malformed("no handler".into()),
        ProbeDoubt::NoAgent,
        ProbeDoubt::AgentStale,
        ProbeDoubt::NodeNotReady,
        ProbeDoubt::Outdated,
    ];
    all.extend(doubts.into_iter().map(probe));
    all
}

/// The name of the reason that a sentence gives.
pub(super) fn of(sentence: &str) -> &'static str {
    let all = all();
    let rows: Vec<_> = all.iter().map(row).filter(|(_, part, _)| sentence.contains(part)).collect();
    match rows.first() {
        Some((name, ..)) => name,
        None => panic!("no reason has this sentence: {sentence}"),
    }
}

/// Prints how often each reason was given, and fails if one of those that are reached `here` was not.
pub(super) fn assert_all_reached(here: Reached, given: &BTreeMap<&'static str, usize>) {
    let all = all();
    let rows = all.iter().map(row).filter(|(.., reached)| *reached == here);
    let counts: Vec<(&str, usize)> =
        rows.map(|(name, ..)| (name, given.get(name).copied().unwrap_or_default())).collect();
    for (name, count) in &counts {
        println!("{name:24} {count}");
    }
    let missing: Vec<&str> = counts.iter().filter(|(_, count)| *count == 0).map(|(name, _)| *name).collect();
    assert!(missing.is_empty(), "never reached: {missing:?}");
}

#[test]
fn each_sentence_is_recognized() {
    let budget = BudgetKey { object: ObjectKey::new("shop", "web"), kind: BudgetKind::DisruptionBudget };
    for reason in all() {
        let (name, ..) = row(&reason);
        let text = sentence::denial(&Denial { budget: Some(budget.clone()), reason }, Time(0));
        assert_eq!(of(&text), name, "{text}");
    }
}
