//! Units, numbers and status, counted afresh.

use std::collections::{BTreeMap, BTreeSet};

use quorate_engine::basics::{ObjectKey, Quantity, Text, Uid};
use quorate_engine::claims::PROTOCOL;
use quorate_engine::facts::{
    Budget, BudgetKey, Controller, Counts, HealthRule, Link, Phase, Pod, Rules, Units, WorkloadGroup,
    WorkloadSource,
};
use quorate_engine::status::{Status, reason};
use quorate_engine::verdict::Numbers;

use super::{LWS, Oracle, Seen};

/// What names a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Id {
    PodGroup(Text),
    Replica(WorkloadSource, Text, Text, Text),
    Label(Text),
    LeaderWorker(Text, Text),
    Owner(Uid),
}

/// Who says how many there should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Budget,
    Workload(WorkloadSource, Text, Text),
    Scale(Uid),
    Template(Text, Text),
    Seen,
}

#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) id: Id,
    pub(crate) name: Text,
    pub(crate) pods: Vec<Uid>,
    pub(crate) healthy: u32,
    pub(crate) min: Option<u32>,
    pub(crate) complete: bool,
    /// Who says how many there should be, and who would if the budget did not.
    pub(crate) source: Source,
    pub(crate) beneath: Source,
    pub(crate) surge: bool,
    pub(crate) unreachable: bool,
}

impl Group {
    pub(crate) fn is_whole(&self) -> bool {
        !self.complete && self.min.is_some_and(|min| self.healthy >= min)
    }
}

/// Everything there is to count in a budget.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    pub(crate) rules: Rules,
    pub(crate) downgraded: bool,
    pub(crate) members: Vec<Uid>,
    pub(crate) healthy: BTreeSet<Uid>,
    pub(crate) groups: Vec<Group>,
    pub(crate) singles: Vec<Uid>,
    pub(crate) strays: Vec<Uid>,
    pub(crate) units: Numbers,
    /// Whole units, however many there should be.
    pub(crate) whole: u32,
    pub(crate) single_units: Numbers,
    pub(crate) unresolved: Option<&'static str>,
}

/// A status without its sentences.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StatusView {
    pub(crate) units: Numbers,
    pub(crate) pods: (u32, u32, u32),
    pub(crate) disrupted: BTreeSet<Text>,
    pub(crate) updating: BTreeSet<Text>,
    pub(crate) groups: Vec<(Text, u32, u32, u32, Option<i64>)>,
    pub(crate) conditions: Vec<(&'static str, bool)>,
}

impl StatusView {
    pub(crate) fn of(status: &Status) -> Self {
        let names = |pods: &[(Text, _)]| pods.iter().map(|(name, _)| name.clone()).collect();
        let mut groups: Vec<_> = status
            .groups
            .iter()
            .map(|g| (g.name.clone(), g.healthy, g.min_count, g.pods, g.gone_since.map(|at| at.0)))
            .collect();
        groups.sort();
        Self {
            units: status.units,
            pods: (status.pods_healthy, status.pods_desired, status.pods_expected),
            disrupted: names(&status.disrupted),
            updating: names(&status.updating),
            groups,
            conditions: status.conditions.iter().map(|c| (c.reason, c.status)).collect(),
        }
    }
}

impl Oracle {
    pub(crate) fn count(&self, budget: &Budget) -> Count {
        self.count_without(budget, None)
    }

    /// Counts as if this pod had no claim.
    pub(crate) fn count_without(&self, budget: &Budget, claim_of: Option<&Uid>) -> Count {
        let (rules, downgraded) = self.rules(budget);
        let namespace = &budget.key.object.namespace;
        let members = self.covered(budget);
        let mut groups: BTreeMap<Id, Vec<Uid>> = BTreeMap::new();
        let (mut singles, mut strays) = (Vec::new(), Vec::new());
        for uid in &members {
            match (&rules.units, place(&rules, &self.pods[uid].pod)) {
                (Units::Pods, _) => {}
                (_, Some(id)) => groups.entry(id).or_default().push(uid.clone()),
                (Units::Workload, None) => strays.push(uid.clone()),
                (_, None) => singles.push(uid.clone()),
            }
        }
        let held = |uid: &Uid| budget.ledger.holds(uid) && claim_of != Some(uid);
        let healthy: BTreeSet<Uid> = members
            .iter()
            .filter(|uid| {
                !strays.contains(uid) && !held(uid) && self.is_available(&self.pods[*uid], rules.health)
            })
            .cloned()
            .collect();
        let groups: Vec<Group> =
            groups.into_iter().map(|(id, pods)| self.group(&rules, namespace, id, pods, &healthy)).collect();
        let (current, whole, expected) = match rules.units {
            Units::Pods => {
                let healthy = healthy.len() as u32;
                (healthy, healthy, self.pods_expected(&rules, &members))
            }
            _ => self.groups_expected(&rules, &budget.key, &groups),
        };
        let singles_healthy = singles.iter().filter(|uid| healthy.contains(*uid)).count() as u32;
        let singles_expected = match needs_scale(&rules) {
            false => singles.len() as u32,
            true => self.singles_expected(&members, &singles),
        };
        let unresolved = self.unresolved(&rules, &members, &singles, &groups);
        Count {
            units: numbers(&rules, current, expected),
            whole,
            single_units: numbers(&rules, singles_healthy, singles_expected),
            rules,
            downgraded,
            members,
            healthy,
            groups,
            singles,
            strays,
            unresolved,
        }
    }

    /// Available: claims apart.
    pub(crate) fn is_available(&self, seen: &Seen, rule: HealthRule) -> bool {
        let pod = &seen.pod;
        let strict = rule == HealthRule::Ready || (pod.phase == Phase::Running && pod.consistent);
        let says_yes = match &pod.probe {
            Some(_) if self.gates.disruption_probe => self.doubt(pod).is_none(),
            _ => pod.ready,
        };
        seen.absent.is_none() && !pod.terminating && !pod.phase.is_terminal() && strict && says_yes
    }

    /// Why a pod's probe counts as a no.
    pub(crate) fn doubt(&self, pod: &Pod) -> Option<&'static str> {
        let probe = pod.probe.as_ref()?;
        let node = pod.node.as_ref();
        let agent = node.and_then(|node| self.agents.get(node));
        let Some(agent) = agent.filter(|_| probe.malformed.is_none()) else {
            return Some(if probe.malformed.is_some() { "Malformed" } else { "NoAgent" });
        };
        let fresh = self.now.0 < agent.renewed.0 + agent.holds.as_millis() as i64;
        let node_ready = node.and_then(|node| self.nodes.get(node)).is_some_and(|node| node.ready);
        let probed = probe.probed.map(|at| at.0);
        let young = probed.is_some_and(|at| at >= agent.started.0)
            && probe.started.is_none_or(|start| probed.is_some_and(|at| at >= start.0));
        match probe.disruptable {
            _ if !fresh => Some("AgentStale"),
            _ if !node_ready => Some("NodeNotReady"),
            None => Some("Silent"),
            Some(false) => Some("SaysNo"),
            Some(true) if !young => Some("Outdated"),
            Some(true) => None,
        }
    }

    fn group(&self, rules: &Rules, ns: &Text, id: Id, pods: Vec<Uid>, healthy: &BTreeSet<Uid>) -> Group {
        let facts: Vec<&Pod> = pods.iter().map(|uid| &self.pods[uid].pod).collect();
        let alive = facts.iter().filter(|pod| !pod.phase.is_terminal()).count() as u32;
        let told = facts.iter().filter_map(|pod| pod.group_size).max();
        let asked = asked(rules);
        let (mut surge, mut unreachable) = (false, false);
        let (min, beneath) = match &id {
            Id::PodGroup(name) => match self.pod_groups.get(&ObjectKey::new(ns.clone(), name.clone())) {
                None => (None, Source::Seen),
                Some(group) if group.falls_whole => (Some(group.min_count.max(alive)), self.source(ns, &id)),
                Some(group) => (Some(group.min_count), self.source(ns, &id)),
            },
            Id::Replica(source, workload, group, _) => {
                let found = self.workload_group(*source, ns, workload, group);
                (found.map(|found| found.min_count), self.source(ns, &id))
            }
            Id::Label(_) | Id::Owner(_) => (Some(asked.unwrap_or(1)), Source::Seen),
            Id::LeaderWorker(set, index) => {
                let set = self.leader_worker_set(ns, set);
                let (size, falls_whole) = match set.map(|set| set.counts) {
                    Some(Counts::Groups { size, falls_whole }) => (size.or(told), falls_whole),
                    _ => (told, true),
                };
                let by_index =
                    matches!(&rules.units, Units::Label { key, .. } if key.ends_with("/group-index"));
                let replicas = set.and_then(|set| set.replicas);
                surge = by_index
                    && rules.expected.is_none()
                    && replicas.is_some_and(|n| index.parse::<u32>().is_ok_and(|at| at >= n));
                unreachable = size.is_some_and(|size| asked.is_some_and(|asked| asked > size));
                let min = match size {
                    Some(size) if falls_whole => size,
                    Some(size) => asked.unwrap_or(size).min(size),
                    None => asked.unwrap_or(1),
                };
                (Some(min), self.source(ns, &id))
            }
        };
        Group {
            name: display(rules, &id, &facts),
            healthy: pods.iter().filter(|uid| healthy.contains(*uid)).count() as u32,
            min: min.map(|min| min.max(1)),
            complete: facts.iter().all(|pod| pod.phase == Phase::Succeeded),
            source: if rules.expected.is_some() { Source::Budget } else { beneath.clone() },
            beneath,
            surge,
            unreachable,
            id,
            pods,
        }
    }

    /// Who but the budget says how many groups like this there should be.
    pub(crate) fn source(&self, ns: &Text, id: &Id) -> Source {
        match id {
            Id::PodGroup(name) => {
                let Some(group) = self.pod_groups.get(&ObjectKey::new(ns.clone(), name.clone())) else {
                    return Source::Seen;
                };
                let owner = group.controller.as_ref().and_then(|owner| self.controllers.get(&owner.uid));
                let counts_groups =
                    owner.filter(|c| matches!(c.counts, Counts::Groups { .. }) && c.replicas.is_some());
                match (counts_groups, &group.template) {
                    (Some(controller), _) => Source::Scale(controller.uid.clone()),
                    (None, Some((workload, template))) => {
                        Source::Template(workload.clone(), template.clone())
                    }
                    (None, None) => Source::Seen,
                }
            }
            Id::Replica(source, workload, group, _) => {
                let found = self.workload_group(*source, ns, workload, group);
                match found.and_then(|found| found.replicas) {
                    Some(_) => Source::Workload(*source, workload.clone(), group.clone()),
                    None => Source::Seen,
                }
            }
            Id::LeaderWorker(set, _) => {
                match self.leader_worker_set(ns, set).filter(|set| set.replicas.is_some()) {
                    Some(set) => Source::Scale(set.uid.clone()),
                    None => Source::Seen,
                }
            }
            Id::Label(_) | Id::Owner(_) => Source::Seen,
        }
    }

    pub(crate) fn size(&self, rules: &Rules, ns: &Text, source: &Source) -> Option<u32> {
        match source {
            Source::Budget => rules.expected,
            Source::Workload(source, workload, group) => {
                self.workload_group(*source, ns, workload, group).and_then(|found| found.replicas)
            }
            Source::Scale(uid) => self.controllers.get(uid).and_then(|controller| controller.replicas),
            Source::Template(workload, template) => {
                let made_from = Some((workload.clone(), template.clone()));
                let alike =
                    self.pod_groups.iter().filter(|(key, g)| key.namespace == *ns && g.template == made_from);
                Some(alike.count() as u32)
            }
            Source::Seen => None,
        }
    }

    /// Groups that are whole as far as they count, all that are whole, and those that there should be.
    fn groups_expected(&self, rules: &Rules, key: &BudgetKey, groups: &[Group]) -> (u32, u32, u32) {
        let gone = self.gone.get(key).map_or(0, |gone| gone.len() as u32);
        let mut sources: BTreeSet<&Source> = groups.iter().map(|group| &group.source).collect();
        if gone > 0 && rules.expected.is_none() {
            sources.insert(&Source::Seen);
        }
        let (mut current, mut all, mut expected) = (0, 0, 0);
        for source in sources {
            let of_it: Vec<&Group> =
                groups.iter().filter(|group| group.source == *source && !group.surge).collect();
            let whole = of_it.iter().filter(|group| group.is_whole()).count() as u32;
            let complete = of_it.iter().filter(|group| group.complete).count() as u32;
            let stated = self.size(rules, &key.object.namespace, source);
            let size = stated.unwrap_or(of_it.len() as u32 + gone).saturating_sub(complete);
            current += whole.min(size);
            all += whole;
            expected += size;
        }
        (current, all, expected)
    }

    fn pods_expected(&self, rules: &Rules, members: &[Uid]) -> u32 {
        match rules.expected {
            Some(expected) => expected,
            None if needs_scale(rules) => {
                let workloads: BTreeMap<&Uid, u32> = members
                    .iter()
                    .filter_map(|uid| self.scaled(&self.pods[uid].pod.controller()?.uid))
                    .map(|scaled| (&scaled.uid, scaled.replicas.unwrap_or(0)))
                    .collect();
                workloads.values().sum()
            }
            None => members.len() as u32,
        }
    }

    /// For each workload, in the pods of a budget: what it wants (none: not known), whether it is being deleted, its
    /// pods in groups and its single pods.
    pub(crate) fn workloads(&self, members: &[Uid], singles: &[Uid]) -> Vec<(Option<u32>, bool, u32, u32)> {
        let mut workloads: BTreeMap<Uid, (Option<u32>, bool, u32, u32)> = BTreeMap::new();
        for uid in members {
            let Some(owner) = self.pods[uid].pod.controller() else { continue };
            let scaled = self.scaled(&owner.uid);
            let id = scaled.map_or(&owner.uid, |scaled| &scaled.uid).clone();
            let entry = workloads.entry(id).or_insert((
                scaled.and_then(|scaled| scaled.replicas),
                scaled.is_some_and(|scaled| scaled.deleting),
                0,
                0,
            ));
            *(if singles.contains(uid) { &mut entry.3 } else { &mut entry.2 }) += 1;
        }
        workloads.into_values().collect()
    }

    fn singles_expected(&self, members: &[Uid], singles: &[Uid]) -> u32 {
        let wants = self.workloads(members, singles).into_iter().filter(|(.., single)| *single > 0);
        wants.map(|(wants, _, seated, single)| single.max(wants.unwrap_or(0).saturating_sub(seated))).sum()
    }

    /// The controller whose scale counts for the pods of this one.
    pub(crate) fn scaled(&self, uid: &Uid) -> Option<&Controller> {
        let controller = self.controllers.get(uid)?;
        let apps = |group: &str| group == "apps" || group == "extensions";
        let owner = controller.owner.as_ref().filter(|owner| {
            &*controller.kind.kind == "ReplicaSet"
                && apps(&controller.kind.group)
                && &*owner.kind.kind == "Deployment"
                && apps(&owner.kind.group)
        });
        Some(owner.and_then(|owner| self.controllers.get(&owner.uid)).unwrap_or(controller))
    }

    fn unresolved(
        &self,
        rules: &Rules,
        members: &[Uid],
        singles: &[Uid],
        groups: &[Group],
    ) -> Option<&'static str> {
        if groups.iter().any(|group| group.min.is_none() && !group.complete) {
            return Some("Group");
        }
        let asked = match rules.units {
            Units::Pods if rules.expected.is_none() => members,
            Units::Pods | Units::Workload => &[],
            _ => singles,
        };
        let scales: Vec<Option<&Controller>> = asked
            .iter()
            .filter(|_| needs_scale(rules))
            .filter_map(|uid| Some(self.scaled(&self.pods[uid].pod.controller()?.uid)))
            .collect();
        if scales.iter().any(Option::is_none) {
            return Some("Controller");
        }
        scales.iter().flatten().any(|scaled| scaled.replicas.is_none()).then_some("Scale")
    }

    /// Whether nobody says how many there should be of the groups with a name like this.
    pub(crate) fn is_observed(&self, rules: &Rules, ns: &Text, name: &Text) -> bool {
        let parts: Vec<Text> = name.split('/').map(Text::from).collect();
        let seen = |id: &Id| self.source(ns, id) == Source::Seen;
        rules.expected.is_none()
            && match (&rules.units, parts.as_slice()) {
                (Units::Pods, _) => false,
                (Units::Workload, [name]) => seen(&Id::PodGroup(name.clone())),
                (Units::Workload, [workload, group, ..]) => [WorkloadSource::Own, WorkloadSource::Upstream]
                    .into_iter()
                    .all(|source| seen(&Id::Replica(source, workload.clone(), group.clone(), "".into()))),
                (Units::Label { key, .. }, [set, index]) if key.starts_with(LWS) => {
                    seen(&Id::LeaderWorker(set.clone(), index.clone()))
                }
                _ => true,
            }
    }

    fn workload_group(
        &self,
        source: WorkloadSource,
        ns: &Text,
        name: &Text,
        group: &Text,
    ) -> Option<&WorkloadGroup> {
        let workload = self.workloads.get(&(source, ObjectKey::new(ns.clone(), name.clone())))?;
        workload.groups.iter().find(|found| found.name == *group)
    }

    fn leader_worker_set(&self, ns: &Text, name: &Text) -> Option<&Controller> {
        self.controllers.values().find(|controller| {
            &*controller.kind.kind == "LeaderWorkerSet"
                && controller.key.namespace == *ns
                && controller.key.name == *name
        })
    }

    pub(crate) fn status(&self, key: &BudgetKey) -> StatusView {
        let budget = &self.budgets[key];
        let count = self.count(budget);
        let by_pods = count.rules.units == Units::Pods;
        let valid = budget.spec.is_ok();
        let open = enforced(budget, &count).1;
        let allowed = if count.unresolved.is_some() || !open { 0 } else { count.units.allowed };
        let units = if valid { Numbers { allowed, ..count.units } } else { Numbers::default() };
        let pods = match (valid, by_pods) {
            (false, _) => (0, 0, 0),
            (true, true) => (units.current, units.desired, units.expected),
            (true, false) => {
                (count.healthy.len() as u32, needed(&count, units.desired), count.members.len() as u32)
            }
        };
        let claimed = |removes: bool| {
            let claims = budget.ledger.claims.values();
            let alike =
                claims.filter(|claim| claim.tokens.values().any(|t| t.operation.removes() == removes));
            alike.map(|claim| claim.pod.clone()).collect()
        };
        let mut groups: Vec<_> = count
            .groups
            .iter()
            .map(|g| (g.name.clone(), g.healthy, g.min.unwrap_or(0), g.pods.len() as u32, None))
            .collect();
        if valid && !by_pods {
            let gone = self.gone.get(key).into_iter().flatten();
            groups.extend(gone.map(|(name, since)| (name.clone(), 0, 0, 0, Some(since.0))));
        }
        groups.sort();
        StatusView {
            units,
            pods,
            disrupted: claimed(true),
            updating: claimed(false),
            groups,
            conditions: vec![
                self.allowed(budget, &count, units),
                self.configured(budget, &count),
                enforced(budget, &count),
            ],
        }
    }

    fn allowed(&self, budget: &Budget, count: &Count, units: Numbers) -> (&'static str, bool) {
        match (&budget.spec, count.unresolved, &count.rules.units, units.allowed > 0) {
            (Err(_), ..) => (reason::SYNC_FAILED, false),
            (_, Some("Group"), ..) => (reason::WORKLOAD_RESOLUTION_FAILED, false),
            (_, Some(_), ..) => (reason::SYNC_FAILED, false),
            _ if !enforced(budget, count).1 => (reason::SYNC_FAILED, false),
            (_, _, Units::Pods, true) => (reason::SUFFICIENT_PODS, true),
            (_, _, Units::Pods, false) => (reason::INSUFFICIENT_PODS, false),
            (_, _, _, true) => (reason::SUFFICIENT_REPLICAS, true),
            (_, _, _, false) => (reason::INSUFFICIENT_REPLICAS, false),
        }
    }

    fn configured(&self, budget: &Budget, count: &Count) -> (&'static str, bool) {
        let ns = &budget.key.object.namespace;
        let rules = &count.rules;
        let by_pods = rules.units == Units::Pods;
        let asks = rules.expected.is_none()
            && (rules.max_unavailable.is_some() || matches!(rules.min_available, Some(Quantity::Percent(_))));
        let unmanaged = count.members.iter().any(|uid| self.pods[uid].pod.controller().is_none());
        let seen = count.groups.iter().any(|group| group.source == Source::Seen)
            || self.gone.get(&budget.key).is_some_and(|gone| !gone.is_empty());
        let troubles = [
            (budget.spec.is_err(), reason::INVALID),
            (count.downgraded, reason::FEATURE_DISABLED),
            (self.namespaces.get(ns).is_some_and(|ns| ns.excluded), reason::NAMESPACE_EXCLUDED),
            (!count.strays.is_empty(), reason::MISSING_WORKLOAD_REFERENCE),
            (count.groups.iter().any(|group| group.unreachable), reason::UNREACHABLE_MINIMUM),
            (self.never_allows(count), reason::NEVER_ALLOWS),
            (!count.singles.is_empty(), reason::MISSING_GROUP_LABEL),
            (by_pods && asks && unmanaged, reason::UNMANAGED_PODS),
            (self.workload_names(ns, count).len() > 1, reason::MULTIPLE_WORKLOADS_DETECTED),
            (!by_pods && asks && seen, reason::EXPECTED_FROM_OBSERVATION),
        ];
        let worst = troubles.into_iter().find(|(is, _)| *is);
        worst.map_or((reason::VALID_CONFIG, true), |(_, reason)| (reason, false))
    }

    /// Even with everything there and healthy nothing would be allowed.
    fn never_allows(&self, count: &Count) -> bool {
        let rules = &count.rules;
        let scale: u32 =
            self.workloads(&count.members, &[]).iter().map(|(replicas, ..)| replicas.unwrap_or(0)).sum();
        let all = match rules.units {
            Units::Pods if rules.expected.is_none() => count.units.expected.max(scale),
            _ => count.units.expected,
        };
        all > 0 && numbers(rules, all, all).allowed == 0
    }

    fn workload_names(&self, ns: &Text, count: &Count) -> BTreeSet<Text> {
        let name = |group: &Group| match &group.id {
            Id::Replica(_, workload, ..) => Some(workload.clone()),
            Id::PodGroup(name) => {
                let object = self.pod_groups.get(&ObjectKey::new(ns.clone(), name.clone()))?;
                object.template.as_ref().map(|(workload, _)| workload.clone())
            }
            _ => None,
        };
        count.groups.iter().filter_map(name).collect()
    }
}

fn enforced(budget: &Budget, count: &Count) -> (&'static str, bool) {
    let spec = budget.spec.as_ref().unwrap_or(&count.rules);
    let open = budget.ledger.enforced == Some(quorate_engine::coverage(&budget.uid, spec));
    match budget.ledger.protocol {
        Some(other) if other != PROTOCOL => (reason::WAITING_FOR_REPLICA, false),
        _ if open => (reason::ALL_REPLICAS, true),
        _ => (reason::JUST_CREATED, false),
    }
}

/// The pods that so many units need, if the smallest are taken and those not seen are no larger.
fn needed(count: &Count, desired: u32) -> u32 {
    let mut minimums: Vec<u32> = count
        .groups
        .iter()
        .filter(|group| !group.complete && !group.surge)
        .filter_map(|group| group.min)
        .collect();
    minimums.sort_unstable();
    let smallest = minimums.first().copied().unwrap_or(1);
    (0..desired as usize).map(|at| minimums.get(at).copied().unwrap_or(smallest)).sum()
}

fn place(rules: &Rules, pod: &Pod) -> Option<Id> {
    match &rules.units {
        Units::Pods => None,
        Units::Workload => Some(match pod.link.clone()? {
            Link::PodGroup(name) => Id::PodGroup(name),
            Link::Replica { source, workload, group, replica } => {
                Id::Replica(source, workload, group, replica)
            }
        }),
        Units::Label { key, .. } => {
            let value = pod.labels.get(key)?.clone();
            let set = pod.labels.get(&format!("{LWS}/name"));
            let by_set =
                [format!("{LWS}/group-index"), format!("{LWS}/group-key")].contains(&key.to_string());
            Some(match set {
                Some(set) if by_set => Id::LeaderWorker(set.clone(), value),
                _ => Id::Label(value),
            })
        }
        Units::Owner { kind, .. } => {
            pod.owners.iter().find(|owner| owner.kind == *kind).map(|owner| Id::Owner(owner.uid.clone()))
        }
    }
}

fn display(rules: &Rules, id: &Id, pods: &[&Pod]) -> Text {
    match id {
        Id::PodGroup(name) | Id::Label(name) => name.clone(),
        Id::Replica(_, workload, group, replica) if replica.is_empty() => {
            format!("{workload}/{group}").into()
        }
        Id::Replica(_, workload, group, replica) => format!("{workload}/{group}/{replica}").into(),
        Id::LeaderWorker(set, value) => match &rules.units {
            Units::Label { key, .. } if key.ends_with("/group-index") => format!("{set}/{value}").into(),
            _ => value.clone(),
        },
        Id::Owner(uid) => {
            let owners = pods.iter().flat_map(|pod| pod.owners.iter());
            owners.filter(|owner| owner.uid == *uid).map(|owner| owner.name.clone()).next().unwrap()
        }
    }
}

pub(crate) fn asked(rules: &Rules) -> Option<u32> {
    match rules.units {
        Units::Label { min_ready, .. } | Units::Owner { min_ready, .. } => min_ready,
        Units::Pods | Units::Workload => None,
    }
}

fn needs_scale(rules: &Rules) -> bool {
    !(rules.max_unavailable.is_none() && matches!(rules.min_available, Some(Quantity::Count(_))))
}

pub(crate) fn numbers(rules: &Rules, current: u32, expected: u32) -> Numbers {
    let share = |quantity: Quantity| match quantity {
        Quantity::Count(n) => n,
        Quantity::Percent(p) => (f64::from(expected) * f64::from(p) / 100.0 - 1e-9).ceil().max(0.0) as u32,
    };
    let by_min = rules.min_available.map_or(0, share);
    let by_max = rules.max_unavailable.map_or(0, |max| expected.saturating_sub(share(max)));
    let desired = by_min.max(by_max);
    let allowed = if expected == 0 { 0 } else { current.saturating_sub(desired) };
    Numbers { allowed, current, desired, expected }
}
