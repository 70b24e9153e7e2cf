//! What the engine and the oracle must agree on: every status, the budgets of every pod, and the decision on every
//! request.

use std::collections::BTreeSet;

use quorate_engine::Engine;
use quorate_engine::basics::{Labels, ObjectKey, Time};
use quorate_engine::callers::Caller;
use quorate_engine::claims::Target;
use quorate_engine::decision::{Allow, AllowReason, Decision, DenialReason};
use quorate_engine::facts::{BudgetKey, Operation, Pod};
use quorate_engine::request::{Placement, Request};

use super::cast::pod_key;
use crate::history::step::NAMES;
use crate::oracle::{ExpectedDecision, Oracle, StatusView};

/// Compares all results of the engine and the oracle.
pub(super) fn check(engine: &mut Engine, oracle: &Oracle, now: Time) -> Result<(), String> {
    for key in oracle.budgets.keys() {
        let status = engine.status(key, now).ok_or(format!("{key} is not known"))?;
        if status.conditions.iter().any(|condition| condition.message.is_empty()) {
            return Err(format!("{key} has an empty message"));
        }
        let (said, expected) = (StatusView::of(&status), oracle.status(key));
        if said != expected {
            return Err(format!(
                "status of {key:?}\n  engine {said:?}\n  oracle {expected:?}\n{:?}",
                oracle.budgets[key].spec
            ));
        }
    }
    for uid in oracle.pods.keys() {
        let expected: Vec<BudgetKey> = oracle.covering(uid).iter().map(|budget| budget.key.clone()).collect();
        if engine.covering(uid) != expected {
            return Err(format!("covering {uid}: {:?}, expected {expected:?}", engine.covering(uid)));
        }
    }
    let before: Vec<_> = oracle.budgets.keys().map(|key| engine.status(key, now)).collect();
    for request in requests(oracle) {
        let said = engine.decide(&request, now);
        let by_age = oracle.denying_by_age(&request, &stale_by(oracle, &said));
        let by_age = by_age.map_err(|what| format!("{request:?}\n  engine {said:?}\n  oracle: {what}"))?;
        let expected = oracle.decide_by_age(&request, &by_age);
        if ExpectedDecision::of(&said) != expected {
            return Err(format!("{request:?}\n  engine {said:?}\n  oracle {expected:?}"));
        }
        if let Decision::Deny(denials) = &said {
            let text = quorate_engine::sentence::refusal(denials, now);
            if text.is_empty() || text.chars().count() > quorate_engine::sentence::MAX_LENGTH {
                return Err(format!("a denial of {} characters: {text}", text.len()));
            }
        }
    }
    let after: Vec<_> = oracle.budgets.keys().map(|key| engine.status(key, now)).collect();
    if before == after { Ok(()) } else { Err("deciding changed a status".to_owned()) }
}

/// The budgets that an engine takes for stale. One that only observes does not say why it would deny.
fn stale_by(oracle: &Oracle, decision: &Decision) -> BTreeSet<BudgetKey> {
    match decision {
        Decision::Deny(denials) => {
            let stale = denials.iter().filter(|denial| matches!(denial.reason, DenialReason::Stale { .. }));
            // What those say that observe is not in the denial, and does not change it.
            stale.filter_map(|denial| denial.budget.clone()).collect()
        }
        Decision::Allow(Allow::Agreed { reasons, .. }) => {
            let observed = reasons.iter().filter(|(_, reason)| *reason == AllowReason::Observed);
            observed.map(|(key, _)| key.clone()).filter(|key| oracle.budgets.contains_key(key)).collect()
        }
        Decision::Allow(_) => BTreeSet::new(),
    }
}

/// Every pod, every operation, a few callers.
fn requests(oracle: &Oracle) -> Vec<Request> {
    const SYSTEM: &str = "system:serviceaccount:kube-system:";
    let mut requests = Vec::new();
    let mut moves = Vec::new();
    let mut ask = |pod: &ObjectKey, operation, user: &str, object: Option<&Pod>, names_uid, precondition| {
        requests.push(Request {
            operation,
            pod: pod.clone(),
            object: object.map(Into::into),
            precondition,
            caller: Caller { names_uid, ..Caller::named(user) },
            dry_run: false,
            target: Target::default(),
            placement: None,
        });
    };
    for name in 0..NAMES {
        ask(&pod_key(name), Operation::Evict, "alice", None, false, None);
        ask(&pod_key(name), Operation::Evict, "alice", None, false, Some("another".into()));
        ask(&pod_key(name), Operation::Evict, "system:kube-scheduler", None, false, None);
    }
    for seen in oracle.pods.values() {
        let pod = &seen.pod;
        for operation in [Operation::Delete, Operation::Update, Operation::Resize] {
            ask(&pod.key, operation, "alice", Some(pod), false, None);
        }
        let controllers = ["replicaset-controller", "statefulset-controller", "generic-garbage-collector"];
        for user in controllers {
            ask(&pod.key, Operation::Delete, &format!("{SYSTEM}{user}"), Some(pod), false, None);
        }
        let lws = "system:serviceaccount:lws-system:lws-controller-manager";
        ask(&pod.key, Operation::Delete, lws, Some(pod), false, None);
        for names_uid in [false, true] {
            ask(&pod.key, Operation::Delete, "system:kube-controller-manager", Some(pod), names_uid, None);
        }
        moves.extend(relabels(oracle, pod));
    }
    requests.append(&mut moves);
    requests
}

/// Relabels of a pod: away from everything, to where another pod is, without labels, and without owners.
fn relabels(oracle: &Oracle, pod: &Pod) -> Vec<Request> {
    let here = Placement::from(pod);
    let other = oracle.pods.values().map(|seen| &seen.pod).find(|other| other.uid > pod.uid);
    let bare = Placement { labels: Labels::default(), link: None, ..here.clone() };
    let orphan = Placement { owners: [].into(), ..here.clone() };
    let places = [None, other.map(Placement::from), Some(bare), Some(orphan.clone())];
    let relabel = |placement: Option<Placement>, user: &str| Request {
        operation: Operation::Relabel,
        pod: pod.key.clone(),
        object: Some(pod.into()),
        precondition: None,
        caller: Caller {
            only_owners: placement.as_ref().is_some_and(|place| place.labels == here.labels),
            ..Caller::named(user)
        },
        dry_run: false,
        target: Target { base: Some(pod.version), ..Target::default() },
        placement: placement.map(Box::new),
    };
    let by_controllers = [
        "system:serviceaccount:kube-system:replicaset-controller",
        "system:serviceaccount:lws-system:lws-controller-manager",
        "system:kube-controller-manager",
    ];
    let bare = |user: &&str| relabel(places[2].clone(), user);
    let orphan = |user: &&str| relabel(Some(orphan.clone()), user);
    places
        .iter()
        .map(|place| relabel(place.clone(), "alice"))
        .chain(by_controllers.iter().map(bare))
        .chain(by_controllers.iter().map(orphan))
        .collect()
}
