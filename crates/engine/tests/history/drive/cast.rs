//! The pods, controllers and budgets of the histories.

use std::collections::BTreeMap;

use quorate_engine::basics::{GroupKind, Labels, ObjectKey, Text, Time, Uid, Version};
use quorate_engine::facts::{
    Activity, BudgetKey, BudgetKind, Controller, Counts, Covers, HealthRule, Link, Operation, Operations,
    Owner, Phase, Pod, Probe, Rules, UnhealthyPolicy, Units, WorkloadSource,
};
use quorate_engine::selector::{Operator, Requirement, Selector};

use crate::history::step::{BUDGETS, BudgetSpec, ControllerEdit, NAMES, PodEdit};
use crate::oracle::LWS;
use crate::plain;

pub(super) fn pod_key(name: u8) -> ObjectKey {
    ObjectKey::new(if name + 1 == NAMES { "other" } else { "ns" }, format!("p{name}"))
}

pub(super) fn budget_key(slot: u8) -> BudgetKey {
    let (name, kind) = match slot + 1 == BUDGETS {
        true => (0, BudgetKind::PodUnavailableBudget),
        false => (slot, BudgetKind::DisruptionBudget),
    };
    BudgetKey { object: ObjectKey::new("ns", format!("b{name}")), kind }
}

pub(super) fn uid(key: &ObjectKey, version: Version) -> Uid {
    format!("{}-{}", key.name, version.0).into()
}

pub(super) fn new_pod(key: ObjectKey, version: Version) -> Pod {
    let uid = uid(&key, version);
    Pod {
        labels: Labels::new([("app", "a")]),
        node: Some("n0".into()),
        phase: Phase::Running,
        ready: true,
        ..plain::pod(key, uid, version)
    }
}

/// The controllers: two ReplicaSets of one Deployment, a StatefulSet, a ReplicaSet without an owner, a kind without a
/// scale, the Deployment, a possible owner of it, two LeaderWorkerSets, a kind without known templates, and a Job.
pub(super) fn owner(at: u8) -> Owner {
    let (group, kind, name) = match at {
        0 => ("apps", "ReplicaSet", "rs0"),
        1 => ("apps", "ReplicaSet", "rs1"),
        2 => ("apps", "StatefulSet", "sts"),
        3 => ("apps", "ReplicaSet", "lone"),
        4 => ("example.com", "Thing", "thing"),
        5 => ("apps", "Deployment", "dep"),
        6 => ("example.com", "App", "app"),
        7 => ("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "x"),
        8 => ("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "y"),
        9 => ("example.com", "Game", "game"),
        _ => ("batch", "Job", "job"),
    };
    Owner {
        uid: format!("uid-{name}").into(),
        kind: GroupKind::new(group, kind),
        name: name.into(),
        controller: true,
    }
}

/// The kinds that have an age.
pub(super) fn aged_kind(at: u8) -> GroupKind {
    let (group, kind) = match at {
        0 => ("apps", "ReplicaSet"),
        1 => ("apps", "StatefulSet"),
        2 => ("apps", "Deployment"),
        3 => ("example.com", "Thing"),
        4 => ("example.com", "App"),
        5 => ("example.com", "Game"),
        6 => ("batch", "Job"),
        7 => ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
        8 => ("scheduling.k8s.io", "PodGroup"),
        9 => ("scheduling.k8s.io", "Workload"),
        10 => ("scheduling.quorate.dev", "Workload"),
        11 => ("coordination.k8s.io", "Lease"),
        12 => ("", "Node"),
        13 => ("policy", "PodDisruptionBudget"),
        _ => ("", "Namespace"),
    };
    GroupKind::new(group, kind)
}

pub(super) fn controller(at: u8, replicas: Option<u32>, edit: &ControllerEdit) -> Controller {
    let Owner { uid, kind, name, .. } = owner(at);
    let above = match at {
        0 | 1 => Some(5),
        2 => Some(7),
        5 | 10 => Some(6),
        _ => None,
    };
    let counts = match at {
        7 | 8 => Counts::Groups { size: edit.size, falls_whole: edit.falls_whole },
        6 => Counts::Groups { size: None, falls_whole: false },
        _ => Counts::Pods,
    };
    Controller {
        key: ObjectKey::new("ns", name),
        uid,
        version: Version(0),
        kind,
        replicas: replicas.filter(|_| at != 4),
        counts,
        owner: above.filter(|_| edit.owned).map(owner),
        deleting: edit.deleting,
        recreate: edit.recreate && at == 5,
        activity: match edit.activity {
            0 => Activity::Active,
            1 => Activity::Suspended,
            2 => Activity::Complete,
            _ => Activity::Failed,
        },
        templates: templates(at, edit.template),
    }
}

/// The pod templates of a controller. For some kinds they are never known.
fn templates(at: u8, template: u8) -> Option<Box<[Labels]>> {
    let set = if at == 7 { "x" } else { "y" };
    let named = format!("{LWS}/name");
    let one = |pairs: &[(&str, &str)]| {
        let lws = Some((&*named, set)).filter(|_| matches!(at, 2 | 7 | 8));
        Labels::new(pairs.iter().copied().chain(lws).collect::<Vec<_>>())
    };
    match (at, template) {
        (4 | 6 | 9, _) | (_, 0) => None,
        (_, 1 | 2) => Some([one(&[("app", "a")])].into()),
        (_, 3) => Some([one(&[("app", "b")])].into()),
        (_, 4) => Some([one(&[("app", "a"), ("shard", "0")])].into()),
        (_, 5) => Some([one(&[("app", "b")]), one(&[("app", "a")])].into()),
        _ => Some([Labels::new([("app", "a")])].into()),
    }
}

/// The owner of a pod, by its number.
pub(super) fn pod_owner(at: u8) -> Option<Owner> {
    match at {
        0..5 => Some(owner(at)),
        5 => Some(owner(9)),
        6 => Some(owner(10)),
        _ => None,
    }
}

pub(super) fn edit_pod(pod: &mut Pod, edit: &PodEdit, now: Time) {
    let mut labels: BTreeMap<Text, Text> =
        pod.labels.iter().map(|(key, value)| (key.into(), value.into())).collect();
    let mut owners: Vec<Owner> = pod.owners.to_vec();
    match edit {
        PodEdit::App(app) => drop(labels.insert("app".into(), ["a", "b"][*app as usize].into())),
        PodEdit::Shard(shard) => match shard {
            Some(shard) => drop(labels.insert("shard".into(), format!("{shard}").into())),
            None => drop(labels.remove("shard")),
        },
        PodEdit::Lws(group, size) => {
            labels.retain(|key, _| !key.starts_with(LWS));
            pod.group_size = *size;
            if let Some((set, index)) = group {
                let set = ["x", "y"][*set as usize];
                labels.insert(format!("{LWS}/name").into(), set.into());
                labels.insert(format!("{LWS}/group-index").into(), format!("{index}").into());
                labels.insert(format!("{LWS}/group-key").into(), format!("{set}{index}").into());
            }
        }
        PodEdit::Owner(at) => {
            owners.retain(|owner| !owner.controller);
            if let Some(owner) = pod_owner(*at) {
                owners.insert(0, owner);
            }
        }
        PodEdit::GroupOwner(group) => {
            owners.retain(|owner| owner.controller);
            if let Some((name, again)) = group {
                let uid = format!("job-{name}-{again}").into();
                let kind = GroupKind::new("batch.example.com", "JobGroup");
                owners.push(Owner { uid, kind, name: format!("job-{name}").into(), controller: false });
            }
        }
        PodEdit::Link(kind, a, b) => {
            let replica = |source| Link::Replica {
                source,
                workload: format!("w{}", a % 2).into(),
                group: format!("g{}", a / 2).into(),
                replica: if *b == 2 { "".into() } else { format!("{b}").into() },
            };
            pod.link = match kind {
                0 => None,
                1 => Some(Box::new(Link::PodGroup(format!("pg{a}").into()))),
                2 => Some(Box::new(replica(WorkloadSource::Own))),
                _ => Some(Box::new(replica(WorkloadSource::Upstream))),
            };
        }
        PodEdit::Phase(phase, ready) => (pod.phase, pod.ready) = (*phase, *ready),
        PodEdit::Terminating => pod.terminating = true,
        PodEdit::Consistent(consistent) => pod.consistent = *consistent,
        PodEdit::Waives(waives) => pod.waives = *waives,
        PodEdit::Node(node) => pod.node = node.map(|node| format!("n{node}").into()),
        PodEdit::Probe(kind) => {
            let probe = |disruptable, probed: Option<i64>, started: Option<i64>| Probe {
                malformed: None,
                disruptable,
                message: None,
                probed: probed.map(|at| Time(now.0 + at)),
                since: Some(now),
                started: started.map(|at| Time(now.0 + at)),
            };
            let probe = match kind {
                0 => None,
                1 => Some(probe(Some(true), Some(0), None)),
                2 => Some(probe(Some(true), Some(0), Some(0))),
                3 => Some(probe(Some(true), Some(-1), Some(0))),
                4 => Some(probe(Some(false), Some(0), None)),
                5 => Some(probe(None, None, None)),
                _ => Some(Probe { malformed: Some("no sense".into()), ..probe(Some(true), Some(0), None) }),
            };
            pod.probe = probe.map(Box::new);
        }
    }
    pod.labels = Labels::new(labels);
    pod.owners = owners.into();
}

pub(super) fn rules(spec: &BudgetSpec, kind: BudgetKind) -> Rules {
    let one = |key: &str, operator: Operator| {
        Covers::Selector(Selector([Requirement { key: key.into(), operator }].into()))
    };
    let target = |at: u8| Covers::Target(owner(at).kind, owner(at).name);
    let covers = match spec.covers {
        0 | 1 => Covers::Selector(Selector::labels([("app", "a")])),
        2 => one("app", Operator::In(["a".into(), "b".into()].into())),
        3 => one("shard", Operator::Exists),
        4 => one("app", Operator::NotIn(["b".into()].into())),
        5 => one("shard", Operator::Absent),
        6 => target(5),
        7 => target(7),
        8 => target(6),
        9 => target(2),
        10 => target(9),
        11 => one(&format!("{LWS}/name"), Operator::In(["x".into(), "y".into()].into())),
        12 => one(&format!("{LWS}/name"), Operator::Absent),
        _ => Covers::Selector(Selector::default()),
    };
    let label = |key: String| Units::Label { key: key.into(), min_ready: spec.min_ready };
    let units = match spec.units {
        0 | 1 => Units::Pods,
        2 => Units::Workload,
        3 => label("shard".to_owned()),
        4 => label(format!("{LWS}/group-index")),
        5 => label(format!("{LWS}/group-key")),
        _ => {
            Units::Owner { kind: GroupKind::new("batch.example.com", "JobGroup"), min_ready: spec.min_ready }
        }
    };
    let operations: &[Operation] = match spec.operations {
        0 => &[Operation::Evict],
        1 => &[Operation::Evict, Operation::Delete],
        2 => &[Operation::Evict, Operation::Delete, Operation::Update],
        3 => &[Operation::Evict, Operation::Delete, Operation::Update, Operation::Resize],
        _ => &Operation::ALL,
    };
    Rules {
        min_available: spec.min,
        max_unavailable: spec.max,
        units,
        expected: spec.expected,
        unhealthy: match spec.always_allow {
            true => UnhealthyPolicy::AlwaysAllow,
            false => UnhealthyPolicy::IfHealthyBudget,
        },
        operations: Operations::of(operations),
        observe: spec.observe,
        health: match spec.strict || kind == BudgetKind::PodUnavailableBudget {
            true => HealthRule::Strict,
            false => HealthRule::Ready,
        },
        waivable: kind == BudgetKind::PodUnavailableBudget,
        ..Rules::new(covers)
    }
}
