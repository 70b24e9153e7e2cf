//! What holds for every history, tried on random ones.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_robustness::checker::{Violation, check};
use quorate_robustness::history::{History, Request};
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::run::{DBU, RS_CONTROLLER, Run};

/// A careless server: everything is admitted. Pods crash, recover, are evicted, deleted, updated and replaced.
fn history(seed: u64, steps: u32) -> History {
    let random = &mut ChaCha8Rng::seed_from_u64(seed);
    let mut run = Run::default();
    run.deployment("web", 4);
    let mut pods: Vec<String> = Vec::new();
    let mut leaving: Vec<String> = Vec::new();
    let mut next = 0;
    let add = |run: &mut Run, pods: &mut Vec<String>, next: &mut u32| {
        let name = format!("web-{next}");
        let shard = (*next % 3).to_string();
        run.owned(&name, json!({"app": "web", "shard": shard}), ("replicasets.apps", "ReplicaSet", "web-rs"));
        pods.push(name);
        *next += 1;
    };
    for _ in 0..4 {
        add(&mut run, &mut pods, &mut next);
    }
    let mut spec = json!({"selector": {"matchLabels": {"app": "web"}}, "operations": ["Evict", "Update"]});
    spec[["minAvailable", "maxUnavailable"][usize::from(seed.is_multiple_of(2))]] =
        json!(random.random_range(1..=3));
    if seed.is_multiple_of(3) {
        spec["podGroupPolicy"] = json!({"groupLabelKey": "shard"});
    }
    run.budget(spec);
    let mut time = 0.0;
    for _ in 0..steps {
        time += f64::from(random.random_range(1..=400)) / 10.0;
        run.at(time);
        let pod = pods.choose(random).cloned();
        match (random.random_range(0..10), pod) {
            (0..=1, Some(pod)) => drop(run.ready(&pod, false)),
            (2..=3, Some(pod)) => drop(run.ready(&pod, true)),
            (4..=5, Some(pod)) => {
                run.evict(&pod);
                pods.retain(|other| *other != pod);
                leaving.push(pod);
            }
            (6, Some(pod)) => {
                run.delete(if random.random() { RS_CONTROLLER } else { "bob" }, &pod);
                pods.retain(|other| *other != pod);
                leaving.push(pod);
            }
            (7, Some(pod)) => {
                let open = run.receive("bob", "patch", "", &pod);
                let image = format!("app:{}", random.random_range(0..3));
                run.edit("pods", &pod, |pod| pod["spec"]["containers"][0]["image"] = json!(image)).done(open);
                if random.random() {
                    run.edit("pods", &pod, |pod| {
                        pod["status"]["containerStatuses"][0]["image"] =
                            pod["spec"]["containers"][0]["image"].clone();
                    });
                }
            }
            (8, _) => drop(run.scale("deployments.apps", "web", random.random_range(2..6))),
            _ => {
                for gone in leaving.drain(..) {
                    run.remove("pods", &gone);
                }
                if pods.len() < 5 {
                    add(&mut run, &mut pods, &mut next);
                }
            }
        }
    }
    run.history.length = Duration::from_secs_f64(time);
    run.history
}

/// The unit of the pod of a violation, which the end of the request identifies.
fn unit(history: &History, violation: &Violation, units: u64) -> u64 {
    let request = history.requests.iter().find(|request| request.ended == violation.at).unwrap();
    unit_of(request, units)
}

fn unit_of(request: &Request, units: u64) -> u64 {
    let number: u64 = request.name.rsplit('-').next().unwrap().parse().unwrap();
    number % units
}

#[test]
fn without_one_admission_the_others_are_no_worse() {
    let mut found = 0;
    for seed in 0..12 {
        let history = history(seed, 50);
        // A unit that is down already costs nothing more: the same unit may become worse.
        let units = if seed.is_multiple_of(3) { 3 } else { u64::MAX };
        let before: BTreeSet<Duration> = check(&history).violations.iter().map(|it| it.at).collect();
        found += before.len();
        for (index, request) in history.requests.iter().enumerate() {
            let mut less = history.clone();
            less.requests.remove(index);
            for violation in check(&less).violations {
                let same = unit(&less, &violation, units) == unit_of(request, units);
                assert!(
                    same || before.contains(&violation.at),
                    "seed {seed}, without request {index}: {violation}"
                );
            }
        }
    }
    assert!(found > 20, "the histories are too tame: {found}");
}

#[test]
fn what_happens_elsewhere_changes_nothing() {
    for seed in 0..30 {
        let history = history(seed, 60);
        let mut more = history.clone();
        // Revisions leave room for one change before the others, and one among them.
        for change in &mut more.changes {
            change.revision *= 2;
        }
        for request in &mut more.requests {
            request.received_at *= 2;
            request.ended_at *= 2;
        }
        let middle = more.changes.len() / 2;
        for (at, name, namespace) in [(middle, "elsewhere", "other"), (0, "unrelated", "shop")] {
            let mut change = more.changes[at].clone();
            change.revision -= 1;
            change.resource = "pods".into();
            change.deleted = false;
            change.object = std::sync::Arc::new(json!({
                "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": {"app": "other"}},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}));
            more.changes.insert(at, change);
        }
        let words = |history: &History| check(history).to_string();
        assert_eq!(words(&more), words(&history), "seed {seed}");
    }
}

#[test]
fn a_history_is_judged_only_by_what_is_in_it() {
    let empty = check(&History::default());
    assert!(empty.violations.is_empty() && empty.stuck.is_empty());
    let strange = [json!(null), json!({}), json!({"metadata": {"name": 3}}), json!({"metadata": []})];
    let mut history = history(1, 20);
    for (number, object) in strange.into_iter().enumerate() {
        for resource in ["pods", DBU, "deployments.apps", "namespaces", "leases.coordination.k8s.io"] {
            let mut change = history.changes[0].clone();
            change.revision = u64::try_from(number).unwrap();
            change.resource = resource.into();
            change.object = std::sync::Arc::new(object.clone());
            history.changes.insert(0, change);
        }
    }
    let report = check(&history);
    assert!(report.summary.admissions > 0);
}
