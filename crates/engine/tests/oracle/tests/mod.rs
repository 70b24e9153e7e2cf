//! Tests of the oracle itself: when a source stays expected after its pods are gone, and when it is forgotten.
//!
//! | module | content |
//! |---|---|
//! | `pods` | budgets that count pods |
//! | `groups` | budgets that count groups |
//! | `complete` | groups that have finished their work |

mod complete;
mod groups;
mod pods;

use quorate_engine::basics::{GroupKind, Labels, ObjectKey, Quantity, Text, Time, Uid, Version};
use quorate_engine::claims::Ledger;
use quorate_engine::facts::{
    Activity, Budget, BudgetKey, BudgetKind, Controller, Counts, Covers, Input, Link, Memory, Operation,
    Operations, Owner, Phase, Pod, PodGroup, Rules, Units, Workload, WorkloadGroup, WorkloadSource,
};
use quorate_engine::selector::Selector;
use quorate_engine::{Gates, Snapshot};

use super::{Event, LWS, Oracle, StatusView};
use crate::plain;

/// An oracle with one budget, `b`, which allows one unit to be down.
struct Fixture {
    oracle: Oracle,
    version: u64,
}

/// A short name, an event, and how many units the budget expects afterwards.
type Case = (&'static str, fn(&mut Fixture), u32);

/// Runs each case in a new fixture.
fn check(start: fn() -> Fixture, cases: &[Case]) {
    for (what, happen, expected) in cases {
        let mut fixture = start();
        happen(&mut fixture);
        assert_eq!(fixture.status().units.expected, *expected, "{what}");
        // A restarted process knows only the objects and the status.
        assert_eq!(fixture.restarted().status(), fixture.status(), "{what}, after a restart");
    }
}

impl Fixture {
    fn new(rules: Rules) -> Self {
        let mut fixture =
            Self { oracle: Oracle::new(Gates { multi_pod_pdbs: true, disruption_probe: true }), version: 0 };
        fixture.budget(rules, Memory::default());
        fixture
    }

    fn step(&mut self, event: Event) {
        self.oracle.step(event, Time(10_000_000));
    }

    fn apply(&mut self, input: Input) {
        self.step(Event::Apply(input));
    }

    fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
    }

    fn budget(&mut self, rules: Rules, memory: Memory) {
        let uid: Uid = "uid-b".into();
        let enforced = Some(quorate_engine::Coverage::of(&uid, &rules));
        let budget = Budget {
            annotations: Default::default(),
            is_twin: false,
            key: key(),
            uid,
            generation: 1,
            version: self.next_version(),
            spec: Ok(rules),
            ledger: Ledger { enforced, ..Ledger::default() },
            gone: Box::default(),
            memory,
        };
        self.apply(Input::Budget(budget));
    }

    fn change_budget(&mut self, change: impl FnOnce(&mut Rules)) {
        let mut rules = self.oracle.budgets[&key()].spec.clone().unwrap();
        change(&mut rules);
        self.budget(rules, Memory::default());
    }

    /// A ready pod with the label `app=a`.
    fn pod(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        let version = self.next_version();
        let mut pod = plain::pod(object(name), name.into(), version);
        (pod.phase, pod.ready, pod.labels) = (Phase::Running, true, Labels::new([("app", "a")]));
        change(&mut pod);
        self.apply(Input::Pod(pod));
    }

    fn gone(&mut self, pod: &str) {
        let version = self.next_version();
        self.apply(Input::PodGone(pod.into(), version));
    }

    fn controller(&mut self, controller: Controller) {
        self.apply(Input::Controller(controller));
    }

    fn change_controller(&mut self, name: &str, change: impl FnOnce(&mut Controller)) {
        let mut controller = self.oracle.controllers[&Uid::from(format!("uid-{name}"))].clone();
        change(&mut controller);
        self.controller(controller);
    }

    fn workload(&mut self, name: &str, groups: &[(&str, u32)], change: impl FnOnce(&mut Workload)) {
        let mut workload = Workload {
            groups: groups
                .iter()
                .map(|(name, replicas)| WorkloadGroup {
                    name: (*name).into(),
                    min_count: 1,
                    replicas: Some(*replicas),
                })
                .collect(),
            uid: format!("uid-{name}").into(),
            deleting: false,
            owner: None,
        };
        change(&mut workload);
        self.apply(Input::Workload(WorkloadSource::Own, object(name), Some(workload)));
    }

    fn change_workload(&mut self, name: &str, change: impl FnOnce(&mut Workload)) {
        let mut workload = self.oracle.workloads[&(WorkloadSource::Own, object(name))].clone();
        change(&mut workload);
        self.apply(Input::Workload(WorkloadSource::Own, object(name), Some(workload)));
    }

    fn pod_group(&mut self, name: &str, change: impl FnOnce(&mut PodGroup)) {
        let mut group = PodGroup {
            min_count: 1,
            falls_whole: false,
            template: None,
            controller: None,
            uid: format!("uid-{name}").into(),
            deleting: false,
        };
        change(&mut group);
        self.apply(Input::PodGroup(object(name), Some(group)));
    }

    fn status(&self) -> StatusView {
        self.oracle.status(&key())
    }

    /// Expected and allowed.
    fn numbers(&self) -> (u32, u32) {
        let units = self.status().units;
        (units.expected, units.allowed)
    }

    fn memory(&self) -> Memory {
        self.oracle.memory[&key()].as_written()
    }

    /// Another oracle with the same objects, the budget last, and with the memory from its status.
    fn restarted(&self) -> Self {
        let old = &self.oracle;
        let mut new = Self { oracle: Oracle::new(old.gates), version: self.version };
        let pods = old.pods.values().map(|seen| seen.pod.clone()).collect();
        new.step(Event::Sync(Snapshot::Pods(pods, old.pods_version)));
        old.controllers.values().for_each(|controller| new.controller(controller.clone()));
        for (key, group) in &old.pod_groups {
            new.apply(Input::PodGroup(key.clone(), Some(group.clone())));
        }
        for ((api, key), workload) in &old.workloads {
            new.apply(Input::Workload(*api, key.clone(), Some(workload.clone())));
        }
        for budget in old.budgets.values() {
            let gone = old.gone[&budget.key].clone().into_iter().collect();
            let memory = old.memory[&budget.key].as_written();
            new.apply(Input::Budget(Budget { gone, memory, ..budget.clone() }));
        }
        new
    }
}

fn object(name: &str) -> ObjectKey {
    ObjectKey::new("ns", name)
}

fn key() -> BudgetKey {
    BudgetKey { object: object("b"), kind: BudgetKind::DisruptionBudget }
}

fn app(value: &str) -> Covers {
    Covers::Selector(Selector::labels([("app", value)]))
}

fn counting(units: Units) -> Rules {
    Rules {
        max_unavailable: Some(Quantity::Count(1)),
        units,
        operations: Operations::of(&[Operation::Evict, Operation::Delete]),
        ..Rules::new(app("a"))
    }
}

fn kind(name: &str) -> GroupKind {
    let group = match name {
        "LeaderWorkerSet" => "leaderworkerset.x-k8s.io",
        "Job" => "batch",
        "Deployment" | "ReplicaSet" | "StatefulSet" => "apps",
        _ => "example.com",
    };
    GroupKind::new(group, name)
}

fn controller(of: &str, name: &str, replicas: u32) -> Controller {
    let counts = match of {
        "LeaderWorkerSet" | "GangSet" => Counts::Groups { size: Some(1), falls_whole: true },
        _ => Counts::Pods,
    };
    Controller {
        key: object(name),
        uid: format!("uid-{name}").into(),
        version: quorate_engine::basics::Version(0),
        kind: kind(of),
        replicas: Some(replicas),
        counts,
        owner: None,
        deleting: false,
        recreate: false,
        activity: Activity::Active,
        templates: None,
    }
}

fn owner(of: &str, name: &str) -> Owner {
    Owner { uid: format!("uid-{name}").into(), kind: kind(of), name: name.into(), controller: true }
}

fn owned_by(of: &'static str, name: &'static str) -> impl Fn(&mut Pod) {
    move |pod| pod.owners = [owner(of, name)].into()
}

fn templates(sets: &[&[(&str, &str)]]) -> Option<Box<[Labels]>> {
    Some(sets.iter().map(|set| Labels::new(set.iter().copied())).collect())
}

fn replica(workload: &str, group: &str, replica: &str) -> Option<Box<Link>> {
    let (workload, group, replica): (Text, Text, Text) = (workload.into(), group.into(), replica.into());
    Some(Box::new(Link::Replica { source: WorkloadSource::Own, workload, group, replica }))
}

fn in_pod_group(name: &str) -> Option<Box<Link>> {
    Some(Box::new(Link::PodGroup(name.into())))
}

fn in_set(name: &str, index: &str) -> Labels {
    let (set, at) = (format!("{LWS}/name"), format!("{LWS}/group-index"));
    Labels::new([("app", "a"), (&set, name), (&at, index)])
}

fn by_index() -> Units {
    Units::Label { key: format!("{LWS}/group-index").into(), min_ready: None }
}

fn template_source() -> quorate_engine::facts::Source {
    crate::oracle::count::of_template(&"train".into(), &"worker".into())
}
