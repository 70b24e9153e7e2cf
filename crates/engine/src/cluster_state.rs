//! The known objects other than pods and budgets: controllers, groups, nodes, agents, namespaces, native budgets.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::basics::{GroupKind, ObjectKey, Text, Time, Uid};
use crate::decision::ProbeDoubt;
use crate::facts::{
    Activity, Agent, Controller, Counts, Namespace, NativeBudget, Node, Owner, Pod, PodGroup, Probe,
    Workload, WorkloadGroup, WorkloadSource,
};
use crate::group_source::GroupSource;
use crate::probe_trust::{ProbeTrust, expiry, is_fresh};
use crate::workload_kind::{DEPLOYMENT, REPLICA_SET, WorkloadKind};

/// The longest owner chain from a pod to its workload: ReplicaSet, Deployment, and owners of the Deployment.
const MAX_OWNERS: usize = 5;

/// The largest number of missing controllers that are remembered.
const MAX_ABSENT: usize = 10_000;

/// All known objects other than pods and budgets.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterState {
    controllers: FxHashMap<Uid, Controller>,
    by_name: FxHashMap<(GroupKind, ObjectKey), Uid>,
    owned: FxHashMap<Uid, BTreeSet<Uid>>,
    /// The controllers of each namespace, by what their scale counts.
    within: FxHashMap<Text, Within>,
    /// The kinds of controllers that are watched.
    kinds: FxHashSet<GroupKind>,
    /// Controllers in `ownerReferences` of pods that a consistent read did not find. UIDs are never reused.
    absent: FxHashSet<Uid>,
    pod_groups: FxHashMap<ObjectKey, PodGroup>,
    /// The number of PodGroups of each controller.
    makers: FxHashMap<Uid, u32>,
    /// The PodGroups of each template. The key is namespace, workload, template.
    templates: FxHashMap<(Text, Text, Text), BTreeSet<Text>>,
    workloads: FxHashMap<(WorkloadSource, ObjectKey), Workload>,
    pub(crate) namespaces: FxHashMap<Text, Namespace>,
    nodes: FxHashMap<Text, Node>,
    agents: FxHashMap<Text, Agent>,
    /// By namespace, then by name.
    native: FxHashMap<Text, BTreeMap<Text, NativeBudget>>,
    /// The `DisruptionProbe` gate: if it is disabled, only Ready counts.
    pub(crate) probes: bool,
}

/// The controllers of one namespace.
#[derive(Clone, Debug, Default)]
struct Within {
    count_pods: BTreeSet<Uid>,
    count_groups: BTreeSet<Uid>,
}

impl ClusterState {
    pub(crate) fn new(probes: bool) -> Self {
        Self { probes, ..Self::default() }
    }

    pub(crate) fn controller(&self, uid: &str) -> Option<&Controller> {
        self.controllers.get(uid)
    }

    /// Stores a controller. Returns `None` if nothing changed, else the previous state.
    pub(crate) fn set_controller(&mut self, controller: Controller) -> Option<Option<Controller>> {
        self.watches(&controller.kind);
        if let Some(known) = self.controllers.get_mut(&controller.uid) {
            // A watch that lags behind a read must not restore an older state.
            if controller.version < known.version {
                return None;
            }
            known.version = controller.version;
            if *known == controller {
                return None;
            }
        }
        // A read may have shown the successor of that name before the watch shows the end of this one.
        let name = (controller.kind.clone(), controller.key.clone());
        let holder = self.by_name.get(&name).and_then(|uid| self.controllers.get(uid));
        if holder.is_none_or(|holder| holder.version <= controller.version) {
            self.by_name.insert(name, controller.uid.clone());
        }
        let old = self.controllers.insert(controller.uid.clone(), controller.clone());
        self.disown(old.as_ref());
        // The Deployment counts for its ReplicaSets, and there may be many of them.
        if !Self::is_part_of_deployment(&controller) {
            let within = self.within.entry(controller.key.namespace.clone()).or_default();
            within.of(controller.counts).insert(controller.uid.clone());
        }
        if let Some(owner) = controller.owner {
            self.owned.entry(owner.uid).or_default().insert(controller.uid);
        }
        Some(old)
    }

    /// Notes that this kind is watched: an unknown controller of it does not exist, or the watch has not shown it yet.
    pub(crate) fn watches(&mut self, kind: &GroupKind) {
        if !self.kinds.contains(kind) {
            self.kinds.insert(kind.clone());
        }
    }

    pub(crate) fn set_absent_owner(&mut self, uid: Uid) {
        // `ownerReferences` can name invented controllers. Forget all of them at once; a new reference is read again.
        if self.absent.len() >= MAX_ABSENT {
            self.absent.clear();
        }
        self.absent.insert(uid);
    }

    pub(crate) fn remove_controller(&mut self, uid: &str) -> Option<Controller> {
        let old = self.controllers.remove(uid)?;
        let name = (old.kind.clone(), old.key.clone());
        if self.by_name.get(&name).is_some_and(|known| **known == *uid) {
            self.by_name.remove(&name);
        }
        self.disown(Some(&old));
        Some(old)
    }

    fn disown(&mut self, controller: Option<&Controller>) {
        if let Some(controller) = controller
            && let Some(within) = self.within.get_mut(&controller.key.namespace)
        {
            within.of(controller.counts).remove(&controller.uid);
            if within.count_pods.is_empty() && within.count_groups.is_empty() {
                self.within.remove(&controller.key.namespace);
            }
        }
        let Some((uid, owner)) = controller.and_then(|c| Some((&c.uid, c.owner.as_ref()?))) else { return };
        if let Some(owned) = self.owned.get_mut(&owner.uid) {
            owned.remove(uid);
            if owned.is_empty() {
                self.owned.remove(&owner.uid);
            }
        }
    }

    /// The controllers that this one owns.
    pub(crate) fn owned_by(&self, uid: &str) -> Vec<Uid> {
        self.owned.get(uid).into_iter().flatten().cloned().collect()
    }

    pub(crate) fn controllers_of(&self, kind: &GroupKind) -> impl Iterator<Item = &Controller> {
        self.controllers.values().filter(move |controller| controller.kind == *kind)
    }

    /// All controllers, in a fixed order.
    pub(crate) fn sorted_controllers(&self) -> Vec<&Controller> {
        let mut all: Vec<&Controller> = self.controllers.values().collect();
        all.sort_by(|a, b| a.uid.cmp(&b.uid));
        all
    }

    pub(crate) fn pod_group(&self, key: &ObjectKey) -> Option<&PodGroup> {
        self.pod_groups.get(key)
    }

    pub(crate) fn pod_group_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.pod_groups.keys()
    }

    /// Returns whether anything changed.
    pub(crate) fn set_pod_group(&mut self, key: &ObjectKey, group: Option<PodGroup>) -> bool {
        if self.pod_groups.get(key) == group.as_ref() {
            return false;
        }
        let made_from = |group: &PodGroup| {
            group.template.clone().map(|(workload, template)| (key.namespace.clone(), workload, template))
        };
        if let Some(maker) = group.as_ref().and_then(|group| group.controller.as_ref()) {
            *self.makers.entry(maker.uid.clone()).or_default() += 1;
        }
        let maker = self.pod_groups.get(key).and_then(|group| group.controller.as_ref());
        if let Some(maker) = maker
            && let Some(count) = self.makers.get_mut(&maker.uid)
        {
            *count -= 1;
            if *count == 0 {
                self.makers.remove(&maker.uid);
            }
        }
        if let Some(template) = self.pod_groups.get(key).and_then(made_from)
            && let Some(groups) = self.templates.get_mut(&template)
        {
            groups.remove(&key.name);
            if groups.is_empty() {
                self.templates.remove(&template);
            }
        }
        if let Some(template) = group.as_ref().and_then(made_from) {
            self.templates.entry(template).or_default().insert(key.name.clone());
        }
        match group {
            Some(group) => self.pod_groups.insert(key.clone(), group),
            None => self.pod_groups.remove(key),
        };
        true
    }

    /// The PodGroups of a template.
    pub(crate) fn of_template(
        &self,
        namespace: &Text,
        workload: &Text,
        template: &Text,
    ) -> impl Iterator<Item = &PodGroup> {
        let key = (namespace.clone(), workload.clone(), template.clone());
        let names = self.templates.get(&key).into_iter().flatten();
        let namespace = key.0;
        names.filter_map(move |name| {
            self.pod_groups.get(&ObjectKey { namespace: namespace.clone(), name: name.clone() })
        })
    }

    pub(crate) fn workload_group(
        &self,
        source: WorkloadSource,
        key: ObjectKey,
        group: &str,
    ) -> Option<&WorkloadGroup> {
        self.workloads.get(&(source, key))?.groups.iter().find(|g| *g.name == *group)
    }

    pub(crate) fn workload(&self, source: WorkloadSource, key: ObjectKey) -> Option<&Workload> {
        self.workloads.get(&(source, key))
    }

    /// Whether the dependents of this owner are wanted. An owner that is suspended or finished wants nothing.
    pub(crate) fn is_wanted(&self, owner: Option<&Owner>) -> bool {
        let owner = owner.and_then(|owner| self.controllers.get(&owner.uid));
        owner.is_none_or(|owner| owner.activity == Activity::Active)
    }

    /// Whether a controller runs pods.
    pub(crate) fn is_active(&self, controller: &Controller) -> bool {
        controller.activity == Activity::Active && self.is_wanted(controller.owner.as_ref())
    }

    /// The number of pods or groups that a controller wants, if it is known.
    pub(crate) fn wanted_by(&self, controller: &Controller) -> Option<u32> {
        if self.is_active(controller) { controller.replicas } else { Some(0) }
    }

    /// The controllers of a namespace whose scale counts pods.
    pub(crate) fn counting_pods(&self, namespace: &Text) -> impl Iterator<Item = &Uid> {
        self.within.get(namespace).into_iter().flat_map(|within| &within.count_pods)
    }

    /// The controllers of a namespace whose scale counts groups.
    pub(crate) fn counting_groups(&self, namespace: &Text) -> impl Iterator<Item = &Controller> {
        let within = self.within.get(namespace).into_iter().flat_map(|within| &within.count_groups);
        within.filter_map(|uid| self.controllers.get(uid))
    }

    /// The newest controller of that kind and name.
    pub(crate) fn named(&self, kind: &GroupKind, key: ObjectKey) -> Option<&Controller> {
        self.by_name.get(&(kind.clone(), key)).and_then(|uid| self.controllers.get(uid))
    }

    /// Whether the owner of a controller, or an owner above that, has this kind and name. `None` if the owner chain
    /// contains an unknown controller.
    pub(crate) fn is_owned_by(&self, controller: &Controller, kind: &GroupKind, name: &Text) -> Option<bool> {
        let mut below = controller;
        for last in [false, false, false, true] {
            let Some(owner) = &below.owner else { return Some(false) };
            if owner.kind == *kind && owner.name == *name {
                return Some(true);
            }
            match self.controllers.get(&owner.uid) {
                Some(above) => below = above,
                None => return last.then_some(false),
            }
        }
        Some(false)
    }

    /// Whether a controller, or an owner above it, has this kind.
    pub(crate) fn has_in_chain(&self, uid: &str, kind: &GroupKind) -> bool {
        let mut next = self.controllers.get(uid);
        for _ in 0..MAX_OWNERS {
            let Some(controller) = next else { return false };
            let owner = controller.owner.as_ref();
            if controller.kind == *kind || owner.is_some_and(|owner| owner.kind == *kind) {
                return true;
            }
            next = owner.and_then(|owner| self.controllers.get(&owner.uid));
        }
        false
    }

    /// Whether a controller has PodGroups.
    pub(crate) fn makes_pod_groups(&self, uid: &Uid) -> bool {
        self.makers.contains_key(uid)
    }

    /// Whether a controller is a ReplicaSet of a Deployment: then the scale of the Deployment counts.
    pub(crate) fn is_part_of_deployment(controller: &Controller) -> bool {
        let is = |kind: &GroupKind, of: &WorkloadKind| &*kind.kind == of.kind && is_apps(&kind.group);
        is(&controller.kind, &REPLICA_SET)
            && controller.owner.as_ref().is_some_and(|owner| is(&owner.kind, &DEPLOYMENT))
    }

    pub(crate) fn workload_keys(&self, source: WorkloadSource) -> impl Iterator<Item = &ObjectKey> {
        self.workloads.keys().filter(move |(s, _)| *s == source).map(|(_, key)| key)
    }

    /// Returns whether anything changed.
    pub(crate) fn set_workload(
        &mut self,
        source: WorkloadSource,
        key: ObjectKey,
        workload: Option<Workload>,
    ) -> bool {
        replace(&mut self.workloads, (source, key), workload)
    }

    /// Returns whether anything changed.
    pub(crate) fn set_node(&mut self, name: Text, node: Option<Node>) -> bool {
        replace(&mut self.nodes, name, node)
    }

    pub(crate) fn node_names(&self) -> impl Iterator<Item = &Text> {
        self.nodes.keys()
    }

    /// Returns whether anything changed that affects the health of pods. A renewal alone does not.
    pub(crate) fn set_agent(&mut self, node: Text, agent: Option<Agent>, now: Time) -> bool {
        let before = self.agents.get(&node).map(|a| (a.started, is_fresh(a, now)));
        let after = agent.as_ref().map(|a| (a.started, is_fresh(a, now)));
        replace(&mut self.agents, node, agent);
        before != after
    }

    pub(crate) fn agent_names(&self) -> impl Iterator<Item = &Text> {
        self.agents.keys()
    }

    /// When the agent of a node becomes stale.
    pub(crate) fn agent_expiry(&self, node: &str) -> Option<Time> {
        self.agents.get(node).map(expiry)
    }

    /// Stores a native budget. Returns whether its selector, its expected number of pods, the number of disruptions
    /// that it allows while all are healthy, or the freshness of its status changed. Its other numbers change with
    /// every pod and are read only in a decision.
    pub(crate) fn set_native(&mut self, key: &ObjectKey, budget: Option<NativeBudget>) -> bool {
        let rule = |budget: &NativeBudget| {
            (budget.selector.clone(), budget.current, budget.allowed_when_healthy(), budget.expected)
        };
        let new = budget.as_ref().map(rule);
        let within = self.native.entry(key.namespace.clone()).or_default();
        let old = match budget {
            Some(budget) => within.insert(key.name.clone(), budget),
            None => within.remove(&key.name),
        };
        if within.is_empty() {
            self.native.remove(&key.namespace);
        }
        old.as_ref().map(rule) != new
    }

    pub(crate) fn native_keys(&self) -> impl Iterator<Item = ObjectKey> {
        self.native.iter().flat_map(|(namespace, within)| {
            within.keys().map(|name| ObjectKey { namespace: namespace.clone(), name: name.clone() })
        })
    }

    /// The native budgets of a namespace.
    pub(crate) fn native_budgets_in(&self, namespace: &Text) -> impl Iterator<Item = (&Text, &NativeBudget)> {
        self.native.get(namespace).into_iter().flatten()
    }

    /// The native budgets that cover a pod.
    pub(crate) fn native_budgets_of(&self, pod: &Pod) -> impl Iterator<Item = (&Text, &NativeBudget)> {
        let within = self.native_budgets_in(&pod.key.namespace);
        within.filter(|(_, budget)| budget.selector.matches(&pod.labels))
    }

    /// The object of a group source.
    pub(crate) fn of_source(
        &self,
        source: &GroupSource,
        namespace: &Text,
        name: &Text,
    ) -> Option<&Controller> {
        let key = ObjectKey { namespace: namespace.clone(), name: name.clone() };
        self.named(&source.group_kind(), key)
    }

    pub(crate) fn controller_named(&self, kind: &GroupKind, key: &ObjectKey) -> Option<&Controller> {
        self.named(kind, key.clone())
    }

    /// The first unknown controller in the owner chain of a pod, if its kind is watched and no read has shown that it
    /// does not exist.
    pub(crate) fn unknown_owner<'a>(&'a self, pod: &'a Pod) -> Option<&'a Owner> {
        let mut next = pod.controller()?;
        for _ in 1..MAX_OWNERS {
            match self.controllers.get(&next.uid) {
                Some(controller) => next = controller.owner.as_ref()?,
                None => {
                    let may_be_there = self.kinds.contains(&next.kind) && !self.absent.contains(&next.uid);
                    return may_be_there.then_some(next);
                }
            }
        }
        None
    }

    /// Kind and name of the workloads that a pod belongs to, from its controller upwards.
    pub(crate) fn workloads_of(&self, pod: &Pod) -> Vec<(GroupKind, Text)> {
        let mut found = Vec::new();
        let mut next = pod.controller();
        while let Some(owner) = next {
            found.push((owner.kind.clone(), owner.name.clone()));
            if found.len() == MAX_OWNERS {
                break;
            }
            next = self.controllers.get(&owner.uid).and_then(|controller| controller.owner.as_ref());
        }
        found.extend(
            GroupSource::of_pod(&pod.labels).map(|(source, name)| (source.group_kind(), name.into())),
        );
        found
    }

    /// The controller whose scale counts for a pod's controller: the Deployment of a ReplicaSet, else the controller
    /// itself. No other owners are followed; upstream does the same.
    pub(crate) fn scaled(&self, uid: &str) -> Option<&Controller> {
        let controller = self.controllers.get(uid)?;
        let deployment = controller
            .owner
            .as_ref()
            .filter(|_| Self::is_part_of_deployment(controller))
            .and_then(|owner| self.controllers.get(&owner.uid));
        Some(deployment.unwrap_or(controller))
    }

    /// Why the probes of a pod do not allow a disruption; `None` if they do and their result can be trusted.
    pub(crate) fn doubt(&self, pod: &Pod, probe: &Probe, now: Time) -> Option<ProbeDoubt> {
        self.trust(pod, probe, now).doubt()
    }

    /// What decides whether the result of a pod's probes is believed.
    pub(crate) fn trust<'a>(&'a self, pod: &Pod, probe: &'a Probe, now: Time) -> ProbeTrust<'a> {
        let (agent, node) = match &pod.node {
            Some(node) => (self.agents.get(node), self.nodes.get(node)),
            None => (None, None),
        };
        ProbeTrust { probe, agent, node, now }
    }
}

impl Within {
    fn of(&mut self, counts: Counts) -> &mut BTreeSet<Uid> {
        match counts {
            Counts::Pods => &mut self.count_pods,
            Counts::Groups { .. } => &mut self.count_groups,
        }
    }
}

fn is_apps(group: &str) -> bool {
    matches!(group, "apps" | "extensions")
}

fn replace<K: std::hash::Hash + Eq, V: PartialEq>(
    map: &mut FxHashMap<K, V>,
    key: K,
    value: Option<V>,
) -> bool {
    if map.get(&key) == value.as_ref() {
        return false;
    }
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
    true
}
