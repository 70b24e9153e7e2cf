//! The sources of the expected number of units, and the number that each of them states at present.

use std::collections::BTreeSet;

use quorate_engine::basics::{GroupKind, ObjectKey, Text};
use quorate_engine::facts::{
    Activity, Budget, Controller, Counts, Owner, Pod, PodGroup, Rules, Source, Units, WorkloadSource,
};

use super::group::{Group, Id, is_leader_worker_key};
use super::matching::Match;
use crate::oracle::Oracle;

/// The source of the expected number of groups.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ExpectedFrom {
    /// The budget, by `expectedReplicas`.
    Budget,
    /// An object.
    Of(Source),
    /// No object: the observed groups count.
    Seen,
}

/// The object behind a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    pub(crate) deleting: bool,
    /// Neither the object nor its owner is suspended, complete or failed.
    pub(crate) active: bool,
    /// The units that it wants now; none while it is inactive.
    pub(crate) wants: Option<u32>,
    /// The units that it states, active or not.
    pub(crate) states: Option<u32>,
}

impl Object {
    fn new(deleting: bool, active: bool, states: Option<u32>) -> Self {
        Self { deleting, active, wants: if active { states } else { Some(0) }, states }
    }

    /// The units that it wants from now on.
    pub(crate) fn wants_from_now_on(&self) -> u32 {
        if self.deleting { 0 } else { self.wants.unwrap_or(0) }
    }
}

/// A source that stays expected although it has no pod under the budget.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) source: Source,
    pub(crate) size: u32,
    /// No template shows that the budget covers its pods; only the memory does.
    pub(crate) by_memory: bool,
}

impl Oracle {
    /// The source of a pod for a budget that counts pods: the Deployment above a ReplicaSet, else its controller.
    pub(crate) fn source_of_pod(&self, pod: &Pod) -> Option<Source> {
        self.scaled(&pod.controller()?.uid).map(of_controller)
    }

    /// The source of the expected number of such groups, apart from the budget.
    pub(crate) fn expected_from(&self, ns: &Text, id: &Id) -> ExpectedFrom {
        let source = match id {
            Id::PodGroup(name) => {
                let key = ObjectKey::new(ns.clone(), name.clone());
                self.pod_groups.get(&key).map(|object| self.source_of_pod_group(name, object))
            }
            Id::Replica(api, workload, group, _) => self.source_of_replica(*api, ns, workload, group),
            Id::LeaderWorker(set, _) => {
                let set = self.leader_worker_set(ns, set);
                set.filter(|set| set.replicas.is_some()).map(of_controller)
            }
            Id::Label(_) | Id::Owner(_) => None,
        };
        source.map_or(ExpectedFrom::Seen, ExpectedFrom::Of)
    }

    /// The scale of its controller if that counts groups, else its template, else itself.
    fn source_of_pod_group(&self, name: &Text, object: &PodGroup) -> Source {
        let controller = object.controller.as_ref().and_then(|owner| self.controllers.get(&owner.uid));
        if let Some(scale) = controller.filter(|c| counts_groups(c) && c.replicas.is_some()) {
            return of_controller(scale);
        }
        match &object.template {
            Some((workload, template)) => of_template(workload, template),
            None => Source {
                kind: pod_group_kind(),
                name: name.clone(),
                part: "".into(),
                uid: object.uid.clone(),
            },
        }
    }

    fn source_of_replica(&self, api: WorkloadSource, ns: &Text, name: &Text, group: &Text) -> Option<Source> {
        self.workload_group(api, ns, name, group)?.replicas?;
        let workload = &self.workloads[&(api, ObjectKey::new(ns.clone(), name.clone()))];
        Some(Source {
            kind: workload_kind(api),
            name: name.clone(),
            part: group.clone(),
            uid: workload.uid.clone(),
        })
    }

    /// The object behind a source, if one with its UID is known.
    pub(crate) fn object(&self, ns: &Text, source: &Source) -> Option<Object> {
        let key = ObjectKey::new(ns.clone(), source.name.clone());
        if let Some(api) = workload_api(&source.kind) {
            let workload = self.workloads.get(&(api, key)).filter(|workload| workload.uid == source.uid)?;
            let group = workload.groups.iter().find(|group| group.name == source.part);
            let states = group.and_then(|group| group.replicas);
            let active = !self.is_inactive(workload.owner.as_ref());
            return Some(Object::new(workload.deleting, active, states));
        }
        if source.kind != pod_group_kind() {
            let controller = self.controller(ns, source)?;
            return Some(Object::new(controller.deleting, self.is_active(controller), controller.replicas));
        }
        if !source.part.is_empty() {
            return self.template_object(ns, source);
        }
        let group = self.pod_groups.get(&key).filter(|group| group.uid == source.uid)?;
        // A PodGroup that a template or a scale counts now is not a source.
        let states = (self.source_of_pod_group(&source.name, group) == *source).then_some(1);
        let active = !self.is_inactive(group.controller.as_ref());
        Some(Object::new(group.deleting, active, states))
    }

    /// The PodGroups of one template. Its size is the number of active ones. It lives while one of those that it is the
    /// source of is not being deleted.
    fn template_object(&self, ns: &Text, source: &Source) -> Option<Object> {
        let alike: Vec<(&Text, &PodGroup)> = self
            .pod_groups
            .iter()
            .filter(|(key, group)| key.namespace == *ns && made_from(group, source))
            .map(|(key, group)| (&key.name, group))
            .collect();
        let is_active = |group: &PodGroup| !self.is_inactive(group.controller.as_ref());
        let active: Vec<_> = alike.iter().filter(|(_, group)| is_active(group)).collect();
        let deleting = !active
            .iter()
            .any(|(name, group)| !group.deleting && self.source_of_pod_group(name, group) == *source);
        (!alike.is_empty()).then_some(Object {
            deleting,
            active: !active.is_empty(),
            wants: Some(active.len() as u32),
            states: Some(alike.len() as u32),
        })
    }

    pub(super) fn controller(&self, ns: &Text, source: &Source) -> Option<&Controller> {
        let named =
            |c: &&Controller| c.kind == source.kind && c.key.namespace == *ns && c.key.name == source.name;
        self.controllers.get(&source.uid).filter(named)
    }

    /// The units that a controller wants.
    pub(crate) fn wants(&self, controller: &Controller) -> Option<u32> {
        Object::new(controller.deleting, self.is_active(controller), controller.replicas).wants
    }

    fn is_active(&self, controller: &Controller) -> bool {
        controller.activity == Activity::Active && !self.is_inactive(controller.owner.as_ref())
    }

    /// Whether an owner is known to be suspended, complete or failed.
    fn is_inactive(&self, owner: Option<&Owner>) -> bool {
        let known = owner.and_then(|owner| self.controllers.get(&owner.uid));
        known.is_some_and(|controller| controller.activity != Activity::Active)
    }

    /// Whether a group belongs to an inactive object: it is not expected, and its loss costs nothing.
    pub(crate) fn is_idle(&self, ns: &Text, id: &Id) -> bool {
        let own = match id {
            Id::PodGroup(name) => self.pod_groups.get(&ObjectKey::new(ns.clone(), name.clone())),
            _ => None,
        };
        // For PodGroups of a template, the controller of each one counts.
        self.is_inactive(own.and_then(|group| group.controller.as_ref()))
            || match self.expected_from(ns, id) {
                ExpectedFrom::Of(source) => self.object(ns, &source).is_some_and(|object| !object.active),
                ExpectedFrom::Budget | ExpectedFrom::Seen => false,
            }
    }

    /// The sources that have a pod under the budget.
    pub(crate) fn sources_with_pods(&self, budget: &Budget, groups: &[Group]) -> BTreeSet<Source> {
        if self.rules(budget).0.units == Units::Pods {
            let members = self.covered(budget);
            return members.iter().filter_map(|uid| self.source_of_pod(&self.pods[uid].pod)).collect();
        }
        let of = |group: &Group| match &group.beneath {
            ExpectedFrom::Of(source) => Some(source.clone()),
            ExpectedFrom::Budget | ExpectedFrom::Seen => None,
        };
        groups.iter().filter_map(of).collect()
    }

    /// The sources that stay expected without a pod: their template matches, or no template decides and the budget
    /// remembers them.
    pub(super) fn kept(&self, budget: &Budget, with_pods: &BTreeSet<Source>) -> Vec<Kept> {
        if budget.spec.is_err() {
            return Vec::new();
        }
        let (rules, ns) = (self.rules(budget).0, &budget.key.object.namespace);
        let here = self.controllers.values().filter(|controller| controller.key.namespace == *ns);
        let by_match = here.map(of_controller).filter(|s| self.matching(&rules, ns, s) == Match::Yes);
        let memory = self.memory.get(&budget.key);
        let remembered = memory.into_iter().flat_map(|memory| memory.sources.keys().cloned());
        let by_memory = remembered.filter(|s| self.matching(&rules, ns, s) == Match::CannotTell);
        by_match
            .map(|source| (source, false))
            .chain(by_memory.map(|source| (source, true)))
            .filter(|(source, _)| !with_pods.contains(source) && self.lasts(&rules, ns, source))
            .map(|(source, by_memory)| {
                let size = self.object(ns, &source).and_then(|object| object.wants).unwrap();
                Kept { source, size, by_memory }
            })
            .collect()
    }

    /// Whether the object of a source allows it to be expected without pods: it exists, is not being deleted, is
    /// active, and wants at least one unit.
    pub(crate) fn lasts(&self, rules: &Rules, ns: &Text, source: &Source) -> bool {
        let object = self.object(ns, source);
        let wants_some = |object: Object| !object.deleting && object.wants.is_some_and(|wants| wants > 0);
        object.is_some_and(wants_some)
            && self.controller(ns, source).is_none_or(|controller| is_source(rules, controller))
    }
}

/// Whether a controller without pods can be a source for a budget.
fn is_source(rules: &Rules, controller: &Controller) -> bool {
    match &rules.units {
        // The scale of a Deployment counts, never that of its ReplicaSets.
        Units::Pods => above(controller).is_none(),
        Units::Workload => counts_groups(controller),
        Units::Label { key, .. } => is_leader_worker_key(key) && is_leader_worker_set(&controller.kind),
        Units::Owner { .. } => false,
    }
}

/// The Deployment that a ReplicaSet belongs to.
pub(super) fn above(controller: &Controller) -> Option<&Owner> {
    let is =
        |kind: &GroupKind, name: &str| &*kind.kind == name && ["apps", "extensions"].contains(&&*kind.group);
    let owner = controller.owner.as_ref().filter(|owner| is(&owner.kind, "Deployment"));
    owner.filter(|_| is(&controller.kind, "ReplicaSet"))
}

pub(super) fn counts_groups(controller: &Controller) -> bool {
    matches!(controller.counts, Counts::Groups { .. })
}

pub(super) fn is_leader_worker_set(kind: &GroupKind) -> bool {
    &*kind.kind == "LeaderWorkerSet"
}

pub(crate) fn of_controller(controller: &Controller) -> Source {
    let Controller { kind, key, uid, .. } = controller;
    Source { kind: kind.clone(), name: key.name.clone(), part: "".into(), uid: uid.clone() }
}

pub(crate) fn of_template(workload: &Text, template: &Text) -> Source {
    Source { kind: pod_group_kind(), name: workload.clone(), part: template.clone(), uid: "".into() }
}

fn made_from(group: &PodGroup, source: &Source) -> bool {
    let template = group.template.as_ref();
    template.is_some_and(|(workload, template)| *workload == source.name && *template == source.part)
}

/// Whether a source is a PodGroup that neither a template nor a scale counts.
pub(crate) fn is_lone(source: &Source) -> bool {
    source.kind == pod_group_kind() && source.part.is_empty()
}

pub(crate) fn pod_group_kind() -> GroupKind {
    GroupKind::new("scheduling.k8s.io", "PodGroup")
}

pub(crate) fn workload_kind(api: WorkloadSource) -> GroupKind {
    let group = match api {
        WorkloadSource::Upstream => "scheduling.k8s.io",
        WorkloadSource::Own => "scheduling.quorate.dev",
    };
    GroupKind::new(group, "Workload")
}

fn workload_api(kind: &GroupKind) -> Option<WorkloadSource> {
    [WorkloadSource::Own, WorkloadSource::Upstream].into_iter().find(|api| workload_kind(*api) == *kind)
}
