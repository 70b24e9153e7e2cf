//! Clusters to measure: pods, their controllers, and the budgets that cover them.

use quorate_engine::basics::{GroupKind, Labels, ObjectKey, Quantity, Time, Version};
use quorate_engine::callers::Caller;
use quorate_engine::claims::{Ledger, Target};
use quorate_engine::facts::{
    Activity, Budget, BudgetKey, BudgetKind, Container, Controller, Counts, Covers, Input, Memory, Operation,
    Operations, Owner, Phase, Pod, Rules, Units,
};
use quorate_engine::request::Request;
use quorate_engine::selector::Selector;
use quorate_engine::{Engine, Gates};

const NOW: Time = Time(0);
const NAMESPACES: usize = 100;
const GROUP: usize = 8;
const LWS: &str = "leaderworkerset.sigs.k8s.io";

/// How pods are distributed over budgets.
#[derive(Clone, Copy)]
pub(crate) enum Layout {
    /// The pods spread evenly over budgets that count pods.
    Spread { pods: usize, budgets: usize },
    /// All pods under one budget.
    One { pods: usize },
    /// All pods under one budget with a `targetRef`.
    Target { pods: usize },
    /// All pods under one budget that counts the groups of a LeaderWorkerSet, each with a controller of its own.
    LeaderWorkers { pods: usize },
    /// One large budget first, then many small ones.
    Sizes { large: usize, small: usize, count: usize },
}

pub(crate) struct Cluster {
    pub(crate) engine: Engine,
    layout: Layout,
    version: u64,
}

impl Cluster {
    /// Creates the budgets and controllers; [`Cluster::fill`] adds the pods.
    pub(crate) fn new(layout: Layout) -> Self {
        let mut cluster = Self { engine: Engine::new(Gates::default()), layout, version: 0 };
        for budget in 0..cluster.budgets() {
            for controller in cluster.controllers(budget) {
                cluster.engine.apply(Input::Controller(controller), NOW);
            }
            let input = Input::Budget(cluster.budget(budget));
            cluster.engine.apply(input, NOW);
        }
        cluster
    }

    /// The controllers of the pods of a budget.
    pub(crate) fn controllers(&self, budget: usize) -> Vec<Controller> {
        let Layout::LeaderWorkers { pods } = self.layout else { return vec![self.controller(budget, 0)] };
        let set = Controller {
            key: ObjectKey::new(namespace(budget), app(budget)),
            uid: "set".into(),
            version: Version(1),
            kind: GroupKind::new("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
            replicas: Some((pods / GROUP) as u32),
            counts: Counts::Groups { size: Some(GROUP as u32), falls_whole: true },
            owner: None,
            deleting: false,
            recreate: false,
            activity: Activity::Active,
            templates: None,
        };
        (0..pods / GROUP).map(|controller| self.controller(budget, controller)).chain([set]).collect()
    }

    pub(crate) fn fill(&mut self) {
        for at in 0..self.pods() {
            let pod = self.unchanged(at);
            self.engine.apply(Input::Pod(pod), NOW);
        }
    }

    pub(crate) fn pods(&self) -> usize {
        match self.layout {
            Layout::Spread { pods, .. }
            | Layout::One { pods }
            | Layout::Target { pods }
            | Layout::LeaderWorkers { pods } => pods,
            Layout::Sizes { large, small, count } => large + small * count,
        }
    }

    fn budgets(&self) -> usize {
        match self.layout {
            Layout::Spread { budgets, .. } => budgets,
            Layout::One { .. } | Layout::Target { .. } | Layout::LeaderWorkers { .. } => 1,
            Layout::Sizes { count, .. } => count + 1,
        }
    }

    /// The budget that covers a pod.
    fn budget_of(&self, at: usize) -> usize {
        match self.layout {
            Layout::Spread { budgets, .. } => at % budgets,
            Layout::One { .. } | Layout::Target { .. } | Layout::LeaderWorkers { .. } => 0,
            Layout::Sizes { large, .. } if at < large => 0,
            Layout::Sizes { large, small, count } => 1 + (at - large) / small % count,
        }
    }

    /// Positions spread over a range, the same in every run.
    pub(crate) fn sample(
        &self,
        range: std::ops::Range<usize>,
        count: usize,
    ) -> impl Iterator<Item = usize> + use<> {
        let length = range.len();
        (0..count).map(move |n| range.start + (n.wrapping_mul(7_919 * 104_729) + n / length) % length)
    }

    pub(crate) fn evict(&self, at: usize) -> Request {
        Request {
            operation: Operation::Evict,
            pod: self.unchanged(at).key,
            object: None,
            precondition: None,
            caller: Caller::named("kubernetes-admin"),
            dry_run: false,
            target: Target::default(),
            placement: None,
        }
    }

    /// Takes down the first pod of each budget.
    pub(crate) fn break_budgets(&mut self) {
        self.first_of_each(false);
    }

    pub(crate) fn mend_budgets(&mut self) {
        self.first_of_each(true);
    }

    fn first_of_each(&mut self, ready: bool) {
        let mut seen = vec![false; self.budgets()];
        for at in 0..self.pods() {
            let budget = self.budget_of(at);
            if !std::mem::replace(&mut seen[budget], true) {
                let pod = self.changed(at, ready);
                self.engine.apply(Input::Pod(pod), NOW);
            }
        }
    }

    /// A pod in its first state.
    pub(crate) fn unchanged(&self, at: usize) -> Pod {
        self.pod(at, self.budget_of(at))
    }

    /// The next state of a pod.
    pub(crate) fn changed(&mut self, at: usize, ready: bool) -> Pod {
        self.version += 1;
        let version = Version(10_000_000 + self.version);
        Pod { version, ready, ready_since: Some(NOW), ..self.unchanged(at) }
    }

    /// A pod that did not exist before.
    pub(crate) fn another(&self, n: usize) -> Pod {
        self.pod(self.pods() + n, self.budget_of(n % self.pods()))
    }

    fn pod(&self, at: usize, budget: usize) -> Pod {
        let group = at / GROUP;
        let labels = [
            ("app".to_owned(), app(budget)),
            ("app.kubernetes.io/managed-by".to_owned(), "Helm".to_owned()),
            ("pod-template-hash".to_owned(), format!("{budget:010x}")),
            ("topology.kubernetes.io/zone".to_owned(), format!("zone-{}", at % 3)),
        ];
        let lws = [(format!("{LWS}/name"), app(budget)), (format!("{LWS}/group-index"), group.to_string())];
        let grouped = matches!(self.layout, Layout::LeaderWorkers { .. });
        let controller = if grouped { group % (self.pods() / GROUP) } else { 0 };
        let owner = Owner { controller: true, ..self.owner(budget, controller) };
        Pod {
            key: ObjectKey::new(namespace(budget), format!("{}-5d4f8c7b9-{at:06x}", app(budget))),
            uid: format!("{at:08x}-85e9-4a1c-9f2b-{budget:012x}").into(),
            version: Version(at as u64 + 1),
            labels: Labels::new(labels.into_iter().chain(lws.into_iter().filter(|_| grouped))),
            node: Some(format!("node-{}", at % 5_000).into()),
            phase: Phase::Running,
            terminating: false,
            ready: true,
            ready_since: Some(NOW),
            announced: false,
            consistent: true,
            waives: false,
            probe: None,
            owners: [owner].into(),
            link: None,
            group_size: grouped.then_some(GROUP as u32),
            deadline: None,
            grace_seconds: 0,
            resize_infeasible: false,
            containers: [Container {
                name: "main".into(),
                id: at as u64,
                image: 1,
                resources: 2,
                spec_image: 1,
                spec_resources: 2,
            }]
            .into(),
        }
    }

    fn owner(&self, budget: usize, controller: usize) -> Owner {
        Owner {
            uid: format!("{controller:08x}-0000-4000-8000-{budget:012x}").into(),
            kind: GroupKind::new("apps", "StatefulSet"),
            name: format!("{}-{controller}", app(budget)).into(),
            controller: true,
        }
    }

    fn controller(&self, budget: usize, controller: usize) -> Controller {
        let Owner { uid, kind, name, .. } = self.owner(budget, controller);
        let replicas = match self.layout {
            Layout::Spread { pods, budgets } => (pods / budgets).max(1),
            Layout::One { pods } | Layout::Target { pods } => pods,
            Layout::LeaderWorkers { .. } => GROUP,
            Layout::Sizes { large, small, .. } => {
                if budget == 0 {
                    large
                } else {
                    small
                }
            }
        };
        Controller {
            key: ObjectKey::new(namespace(budget), name),
            uid,
            version: Version(1),
            kind,
            replicas: Some(replicas as u32),
            counts: Counts::Pods,
            owner: None,
            deleting: false,
            recreate: false,
            activity: Activity::Active,
            templates: None,
        }
    }

    pub(crate) fn budget(&self, budget: usize) -> Budget {
        let units = match self.layout {
            Layout::LeaderWorkers { .. } => {
                Units::Label { key: format!("{LWS}/group-index").into(), min_ready: None }
            }
            _ => Units::Pods,
        };
        let covers = match self.layout {
            Layout::Target { .. } => {
                let Owner { kind, name, .. } = self.owner(budget, 0);
                Covers::Target(kind, name)
            }
            _ => Covers::Selector(Selector::labels([("app", app(budget))])),
        };
        let rules = Rules {
            max_unavailable: Some(Quantity::Count(1)),
            units,
            operations: Operations::of(&[Operation::Evict, Operation::Delete]),
            ..Rules::new(covers)
        };
        let uid = format!("{budget:08x}-dbdb-4000-8000-000000000000");
        let enforced = Some(quorate_engine::Coverage::of(&uid, &rules));
        Budget {
            key: BudgetKey {
                object: ObjectKey::new(namespace(budget), app(budget)),
                kind: BudgetKind::DisruptionBudget,
            },
            uid: uid.into(),
            generation: 1,
            version: Version(1),
            spec: Ok(rules),
            ledger: Ledger { enforced, ..Ledger::default() },
            gone: Box::default(),
            annotations: Default::default(),
            is_twin: false,
            memory: Memory::default(),
        }
    }
}

fn namespace(budget: usize) -> String {
    format!("team-{}", budget % NAMESPACES)
}

fn app(budget: usize) -> String {
    format!("service-{budget}")
}
