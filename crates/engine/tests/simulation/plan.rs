//! The workloads of one cluster, and the budgets that may be written over them.

use quorate_engine::basics::{GroupKind, Labels, ObjectKey, Quantity, Text, Uid, Version};
use quorate_engine::facts::{
    Activity, Controller, Counts, Covers, Link, Operation, Operations, Owner, Pod, Rules, UnhealthyPolicy,
    Units, Workload, WorkloadGroup, WorkloadSource,
};
use quorate_engine::selector::Selector;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::cluster::NAMESPACE;
use crate::plain;

/// The label that makes groups.
pub(crate) const GROUP: &str = "group";

/// The workloads of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) apps: Vec<App>,
    /// How many budgets there may be at once.
    pub(crate) slots: usize,
    pub(crate) replicas: usize,
}

/// A workload: its size never changes, its pods do all the time.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) name: Text,
    pub(crate) tier: &'static str,
    pub(crate) pods: u32,
    pub(crate) kind: Kind,
    /// A pod that takes another's place has its name.
    pub(crate) keeps_names: bool,
    /// Its pods come to an end by themselves.
    pub(crate) finishes: bool,
}

/// How the pods of a workload form groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not at all.
    Plain,
    /// By a label; so many in each, and one pod in so many has none.
    Labelled { size: u32, every_single: Option<u32> },
    /// By the Workload API; so many in each, and so many needed.
    Linked { size: u32, min_count: u32 },
}

impl Plan {
    pub(crate) fn make(rng: &mut ChaCha8Rng) -> Self {
        let replicas = [3, 3, 3, 4, 5, 7][rng.random_range(0..6)];
        let apps = (0..rng.random_range(4..8)).map(|at| App::make(at, rng)).collect::<Vec<_>>();
        let slots = apps.len() * 2;
        Self { apps, slots, replicas }
    }
}

impl App {
    fn make(at: usize, rng: &mut ChaCha8Rng) -> Self {
        let size = rng.random_range(2..5);
        let groups = rng.random_range(3..12);
        let kind = match at {
            0 => Kind::Labelled { size, every_single: None },
            1 => Kind::Plain,
            2 => Kind::Linked { size, min_count: rng.random_range(1..=size) },
            3 => Kind::Labelled { size, every_single: Some(5) },
            _ if rng.random_bool(0.5) => Kind::Plain,
            _ => Kind::Labelled { size, every_single: None },
        };
        let finishes = matches!(at, 1 | 3);
        let pods = match kind {
            Kind::Plain => rng.random_range(6..60),
            _ => size * groups,
        };
        Self {
            name: format!("a{at}").into(),
            tier: if rng.random_bool(0.5) { "front" } else { "back" },
            pods,
            kind,
            keeps_names: rng.random_bool(0.5),
            finishes,
        }
    }

    fn uid(&self) -> Uid {
        format!("uid-{}", self.name).into()
    }

    /// A pod of it that is to run in a place of its own.
    pub(crate) fn pod(&self, place: u32, name: &str, version: Version) -> Pod {
        let mut labels = vec![("app", self.name.to_string()), ("tier", self.tier.to_owned())];
        let mut link = None;
        match self.kind {
            Kind::Plain => {}
            Kind::Labelled { size, every_single } => {
                if every_single.is_none_or(|every| !place.is_multiple_of(every)) {
                    labels.push((GROUP, format!("g{}", place / size)));
                }
            }
            Kind::Linked { size, .. } => {
                link = Some(Link::Replica {
                    source: WorkloadSource::Own,
                    workload: self.name.clone(),
                    group: "main".into(),
                    replica: format!("{}", place / size).into(),
                });
            }
        }
        Pod {
            labels: Labels::new(labels),
            owners: [Owner {
                uid: self.uid(),
                kind: GroupKind::new("apps", "StatefulSet"),
                name: self.name.clone(),
                controller: true,
            }]
            .into(),
            link: link.map(Box::new),
            containers: [plain::container(version)].into(),
            ..plain::pod(ObjectKey::new(NAMESPACE, name), format!("{name}@{}", version.0).into(), version)
        }
    }

    pub(crate) fn controller(&self) -> Controller {
        Controller {
            key: ObjectKey::new(NAMESPACE, self.name.clone()),
            uid: self.uid(),
            version: Version(0),
            kind: GroupKind::new("apps", "StatefulSet"),
            replicas: Some(self.pods),
            counts: Counts::Pods,
            owner: None,
            deleting: false,
            recreate: false,
            activity: Activity::Active,
            templates: None,
        }
    }

    pub(crate) fn workload(&self) -> Option<Workload> {
        let Kind::Linked { min_count, .. } = self.kind else { return None };
        let group = WorkloadGroup { name: "main".into(), min_count, replicas: Some(self.groups()) };
        Some(Workload { groups: [group].into(), uid: self.uid(), deleting: false, owner: None })
    }

    pub(crate) fn groups(&self) -> u32 {
        match self.kind {
            Kind::Plain => 0,
            Kind::Labelled { size, .. } | Kind::Linked { size, .. } => self.pods / size,
        }
    }

    fn size(&self) -> u32 {
        match self.kind {
            Kind::Plain => 1,
            Kind::Labelled { size, .. } | Kind::Linked { size, .. } => size,
        }
    }
}

impl Plan {
    /// Rules that a user could write. Numbers of groups are given where they would otherwise depend on what was seen,
    /// which differs between replicas.
    pub(crate) fn rules(&self, rng: &mut ChaCha8Rng) -> Rules {
        let app = &self.apps[rng.random_range(0..self.apps.len())];
        let grouped = app.kind != Kind::Plain && rng.random_bool(0.7);
        let by_tier = !grouped && rng.random_bool(0.3);
        let label = if by_tier { ("tier", app.tier) } else { ("app", &*app.name) };
        let covered =
            self.apps.iter().filter(|other| other.name == app.name || (by_tier && other.tier == app.tier));
        let units = match app.kind {
            Kind::Labelled { size, .. } if grouped => {
                Units::Label { key: GROUP.into(), min_ready: Some(rng.random_range(1..=size)) }
            }
            Kind::Linked { .. } if grouped => Units::Workload,
            _ => Units::Pods,
        };
        let counts: u32 = if grouped { app.groups() } else { covered.map(|app| app.pods).sum() };
        let labelled = matches!(units, Units::Label { .. });
        let mixed = matches!(app.kind, Kind::Labelled { every_single: Some(_), .. }) && grouped;
        let min = if mixed || rng.random_bool(0.5) {
            Some(Quantity::Count(counts.saturating_sub(rng.random_range(1..=(counts / 3).max(1)))))
        } else {
            None
        };
        let max = match (min.is_some(), rng.random_range(0..4)) {
            (true, _) if mixed => None,
            (true, 1..) => None,
            (_, 0) => Some(Quantity::Percent(rng.random_range(5..50))),
            _ => Some(Quantity::Count(rng.random_range(1..=(counts / 3).max(1)))),
        };
        Rules {
            min_available: min,
            max_unavailable: max,
            expected: (labelled && !mixed).then_some(counts),
            units,
            unhealthy: match rng.random_bool(0.5) {
                true => UnhealthyPolicy::IfHealthyBudget,
                false => UnhealthyPolicy::AlwaysAllow,
            },
            operations: operations(rng),
            observe: rng.random_bool(0.05),
            ..Rules::new(Covers::Selector(Selector::labels([label])))
        }
    }

    /// The same rules, tightened or widened by one.
    pub(crate) fn nudge(rules: &Rules, tighter: bool) -> Rules {
        let step = |n: u32, up: bool| if up { n + 1 } else { n.saturating_sub(1).max(1) };
        let mut rules = rules.clone();
        if let Some(Quantity::Count(n)) = rules.min_available {
            rules.min_available = Some(Quantity::Count(step(n, tighter)));
        }
        rules.max_unavailable = rules.max_unavailable.map(|max| match max {
            Quantity::Count(n) => Quantity::Count(step(n, !tighter)),
            Quantity::Percent(n) => Quantity::Percent(step(n, !tighter)),
        });
        rules
    }

    /// The number of units that a budget expects.
    pub(crate) fn expected(&self, rules: &Rules) -> u32 {
        let covered = |app: &&App| match &rules.covers {
            Covers::Selector(selector) => selector.matches(&app.pod(0, "any", Version(0)).labels),
            Covers::Target(..) => false,
        };
        let covered = self.apps.iter().filter(covered);
        match (&rules.units, rules.expected) {
            (_, Some(expected)) => expected,
            (Units::Pods, None) => covered.map(|app| app.pods).sum(),
            (_, None) => covered.map(App::groups).sum(),
        }
    }

    /// How many healthy pods a group needs.
    pub(crate) fn min_count(&self, rules: &Rules) -> u32 {
        match &rules.units {
            Units::Pods => 1,
            Units::Label { min_ready, .. } | Units::Owner { min_ready, .. } => min_ready.unwrap_or(1),
            Units::Workload => {
                let covers = |app: &&App| match (&rules.covers, app.kind) {
                    (Covers::Selector(selector), Kind::Linked { .. }) => {
                        selector.matches(&app.pod(0, "any", Version(0)).labels)
                    }
                    _ => false,
                };
                self.apps.iter().find(covers).map_or(1, |app| match app.kind {
                    Kind::Linked { min_count, .. } => min_count,
                    _ => app.size(),
                })
            }
        }
    }
}

fn operations(rng: &mut ChaCha8Rng) -> Operations {
    use Operation::{Delete, Evict, Update};
    let sets: [&[Operation]; 3] = [&[Evict], &[Evict, Delete], &[Evict, Delete, Update]];
    Operations::of(sets[[0, 1, 2, 2][rng.random_range(0..4)]])
}
