//! What the present facts do not show: groups that were observed and are gone, sources that had pods, and groups that
//! were complete when their last pod was removed.

use std::collections::{BTreeMap, BTreeSet};

use quorate_engine::basics::{GroupKind, ObjectKey, Text, Time, Uid};
use quorate_engine::facts::{Budget, BudgetKey, Memory, Rules, Source, Units, WorkloadSource};
use quorate_engine::{GONE_FOR, Snapshot, memory_key};

use super::count::{ExpectedFrom, Group, Id, Match, of_controller, pod_group_kind, workload_kind};
use super::{Event, Oracle};

/// A budget and its groups before an event.
pub(super) type Before = (Budget, Vec<Group>);

/// What a budget remembers in addition to the groups that are gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remembered {
    /// The `memory_key` of the rules that this memory belongs to.
    key: u64,
    /// Sources without a template, and whether the object of each was seen since the memory was read.
    pub(crate) sources: BTreeMap<Source, bool>,
    /// Of each kind that servers do not always watch: the first source that its template keeps.
    by_template: BTreeMap<GroupKind, Source>,
    /// Complete groups without pods, by their text in the status.
    pub(crate) complete: BTreeMap<Text, Complete>,
}

#[derive(Clone, Debug)]
pub(crate) struct Complete {
    pub(crate) id: Id,
    /// The UID of the object behind the group, once it is known.
    object: Option<Uid>,
}

impl Complete {
    /// A group that was read from the status does not count before its object is known.
    pub(crate) fn counts(&self) -> bool {
        self.object.is_some() || !has_object(&self.id)
    }
}

impl Remembered {
    fn read(memory: &Memory) -> Self {
        let complete = memory.complete.iter().flat_map(expand);
        Self {
            key: memory.key,
            sources: memory.sources.iter().map(|source| (source.clone(), false)).collect(),
            complete: complete
                .filter_map(|text| Some((text.clone(), Complete { id: read_id(&text)?, object: None })))
                .collect(),
            by_template: BTreeMap::new(),
        }
    }

    /// As the status stores it for the next process.
    pub(crate) fn as_written(&self) -> Memory {
        Memory {
            key: self.key,
            sources: self.sources.keys().chain(self.by_template.values()).cloned().collect(),
            complete: self.complete.keys().cloned().collect(),
        }
    }
}

/// The memory in the status, independent of the order and of ranges of numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MemoryView {
    key: Option<u64>,
    sources: BTreeSet<Source>,
    complete: BTreeSet<Text>,
}

impl MemoryView {
    pub(crate) fn of(memory: &Memory) -> Self {
        let sources: BTreeSet<Source> = memory.sources.iter().cloned().collect();
        let complete: BTreeSet<Text> = memory.complete.iter().flat_map(expand).collect();
        let key = (!sources.is_empty() || !complete.is_empty()).then_some(memory.key);
        Self { key, sources, complete }
    }
}

/// The kind of which an event lists all objects.
pub(super) fn listed(event: &Event) -> Option<GroupKind> {
    match event {
        Event::Sync(Snapshot::Controllers(kind, _)) => Some(kind.clone()),
        Event::Sync(Snapshot::PodGroups(_)) => Some(pod_group_kind()),
        Event::Sync(Snapshot::Workloads(api, _)) => Some(workload_kind(*api)),
        _ => None,
    }
}

impl Oracle {
    /// Updates the memory after an event.
    pub(super) fn remember(&mut self, before: &BTreeMap<BudgetKey, Before>, listed: Option<&GroupKind>) {
        let lost = self.budgets.iter().map(|(key, budget)| {
            let before = before.get(key).filter(|(old, _)| old.uid == budget.uid);
            (key.clone(), self.lost_pods(budget, before))
        });
        self.lost = lost.collect();
        let (mut gone, mut memory) = (BTreeMap::new(), BTreeMap::new());
        for (key, budget) in &self.budgets {
            let before = before.get(key).filter(|(old, _)| old.uid == budget.uid);
            let groups = self.count(budget).groups;
            gone.insert(key.clone(), self.remember_gone(budget, before, &groups));
            memory.insert(key.clone(), self.remember_rest(budget, before, &groups, listed));
        }
        (self.gone, self.memory) = (gone, memory);
    }

    /// How many pods each group has lost and not got back. Pods that come in the same event replace those that go.
    fn lost_pods(&self, budget: &Budget, before: Option<&Before>) -> BTreeMap<Id, usize> {
        let Some((old, groups_before)) = before else { return BTreeMap::new() };
        let known = self.lost.get(&budget.key);
        let mut lost = BTreeMap::new();
        for group in self.count(budget).groups {
            let so_far = known.and_then(|lost| lost.get(&group.id)).copied().unwrap_or(0);
            let same_rules = old.spec == budget.spec;
            let now = match groups_before.iter().find(|other| other.id == group.id) {
                Some(before) if same_rules => {
                    let gone = before.working.difference(&group.working);
                    let gone = gone.filter(|uid| !group.succeeded.contains(*uid)).count();
                    let back = group.succeeded.intersection(&before.absent).count();
                    let new = group.working.difference(&before.working).count() + back;
                    (so_far + gone).saturating_sub(new)
                }
                _ if !same_rules && grouping(old) == grouping(budget) => so_far,
                _ => 0,
            };
            lost.insert(group.id, now);
        }
        lost
    }

    /// A group whose last pod is gone stays expected for a while if no object states the expected number.
    fn remember_gone(
        &self,
        budget: &Budget,
        before: Option<&Before>,
        groups: &[Group],
    ) -> BTreeMap<Text, Time> {
        let ns = &budget.key.object.namespace;
        let there: BTreeSet<&Text> = groups.iter().map(|group| &group.name).collect();
        let kept = || self.gone.get(&budget.key).cloned().unwrap_or_default();
        let mut gone: BTreeMap<Text, Time> = match before {
            Some((old, groups)) if old.spec == budget.spec => {
                let undone = groups.iter().filter(|group| !group.complete);
                let vanished = undone
                    .filter(|group| !there.contains(&group.name))
                    .filter(|group| self.expected_from(ns, &group.id) == ExpectedFrom::Seen);
                let own = kept().into_iter().chain(vanished.map(|group| (group.name.clone(), self.now)));
                // Another process may have seen groups vanish.
                let said = budget.gone.iter().filter(|_| old.gone != budget.gone).cloned();
                said.chain(own).collect()
            }
            Some((old, _)) if old.spec.is_ok() && grouping(old) == grouping(budget) => kept(),
            Some((old, _)) if old.spec.is_ok() => BTreeMap::new(),
            _ => budget.gone.iter().cloned().collect(),
        };
        let rules = self.rules(budget).0;
        gone.retain(|name, since| {
            !there.contains(name) && self.now < since.after(GONE_FOR) && self.is_observed(&rules, ns, name)
        });
        gone
    }

    fn remember_rest(
        &self,
        budget: &Budget,
        before: Option<&Before>,
        groups: &[Group],
        listed: Option<&GroupKind>,
    ) -> Remembered {
        if budget.spec.is_err() {
            return Remembered::read(&budget.memory);
        }
        let rules = self.rules(budget).0;
        let key = memory_key(&rules);
        let said = Some(Remembered::read(&budget.memory)).filter(|said| said.key == key);
        let mut now = match before {
            None => said.clone(),
            Some(_) => self.memory.get(&budget.key).filter(|old| old.key == key).cloned(),
        }
        .unwrap_or(Remembered { key, ..Remembered::default() });
        if self.heard.contains(&budget.key) {
            for source in said.into_iter().flat_map(|said| said.sources.into_keys()) {
                now.sources.entry(source).or_insert(false);
            }
        }
        let with_pods = self.sources_with_pods(budget, groups);
        now.sources.extend(with_pods.into_iter().map(|source| (source, true)));
        self.forget_sources(budget, &rules, listed, &mut now.sources);
        now.by_template = self.by_template(budget, &rules);

        let same_rules = |old: &Budget| old.spec.is_ok() && memory_key(&self.rules(old).0) == key;
        let before = before.filter(|(old, _)| same_rules(old)).map_or(&[][..], |(_, groups)| groups);
        now.complete.extend(self.collected(&budget.key.object.namespace, before));
        self.forget_complete(budget, &rules, groups, listed, &mut now.complete);
        now
    }

    /// A source is forgotten when its object is gone or no longer wants pods, or when a template decides.
    fn forget_sources(
        &self,
        budget: &Budget,
        rules: &Rules,
        listed: Option<&GroupKind>,
        sources: &mut BTreeMap<Source, bool>,
    ) {
        let ns = &budget.key.object.namespace;
        sources.retain(|source, was_known| match self.object(ns, source) {
            Some(_) => {
                *was_known = true;
                self.matching(rules, ns, source) == Match::CannotTell && self.lasts(rules, ns, source)
            }
            // Its object may still arrive.
            None => !*was_known && listed != Some(&source.kind),
        });
    }

    /// The kinds that a server which starts must watch, with the first source of each.
    fn by_template(&self, budget: &Budget, rules: &Rules) -> BTreeMap<GroupKind, Source> {
        let ns = &budget.key.object.namespace;
        let always = |kind: &GroupKind| {
            &*kind.group == "apps" && ["Deployment", "ReplicaSet", "StatefulSet"].contains(&&*kind.kind)
        };
        let here = self.controllers.values().filter(|controller| controller.key.namespace == *ns);
        let mut found = BTreeMap::new();
        for source in here.map(of_controller).filter(|source| !always(&source.kind)) {
            if self.matching(rules, ns, &source) == Match::Yes && self.lasts(rules, ns, &source) {
                let first: &mut Source = found.entry(source.kind.clone()).or_insert_with(|| source.clone());
                *first = first.clone().min(source);
            }
        }
        found
    }

    /// The groups that were complete before, if later groups with the same name can be distinguished from them.
    fn collected<'a>(
        &'a self,
        ns: &'a Text,
        before: &'a [Group],
    ) -> impl Iterator<Item = (Text, Complete)> + 'a {
        let complete = before.iter().filter(|group| group.complete);
        complete
            .map(|group| Complete { id: group.id.clone(), object: self.uid_behind(ns, &group.id) })
            .filter(Complete::counts)
            .map(|complete| (write_id(&complete.id), complete))
    }

    /// A complete group stays complete until it has a pod again, or the object behind it is another one. There are
    /// never more than the source states.
    fn forget_complete(
        &self,
        budget: &Budget,
        rules: &Rules,
        groups: &[Group],
        listed: Option<&GroupKind>,
        complete: &mut BTreeMap<Text, Complete>,
    ) {
        let ns = &budget.key.object.namespace;
        complete.retain(|_, complete| {
            let stays = self.stays_complete(rules, ns, complete, listed);
            complete.object = complete.object.take().or_else(|| self.uid_behind(ns, &complete.id));
            stays && groups.iter().all(|group| group.id != complete.id)
        });
        let expected_from = |complete: &Complete| self.family_under(rules, ns, &complete.id);
        let sources: BTreeSet<ExpectedFrom> = complete.values().map(expected_from).collect();
        for of in sources {
            let room = match &of {
                ExpectedFrom::Budget => rules.expected,
                ExpectedFrom::Of(source) => self.object(ns, source).and_then(|object| object.states),
                ExpectedFrom::Seen => None,
            };
            let taken = groups.iter().filter(|group| group.expected_from == of && !group.surge).count();
            let left = room.map_or(usize::MAX, |room| (room as usize).saturating_sub(taken));
            let alike =
                complete.iter().filter(|(_, complete)| complete.counts() && expected_from(complete) == of);
            let too_many: Vec<Text> = alike.map(|(text, _)| text.clone()).skip(left).collect();
            complete.retain(|text, _| !too_many.contains(text));
        }
    }

    fn stays_complete(
        &self,
        rules: &Rules,
        ns: &Text,
        complete: &Complete,
        listed: Option<&GroupKind>,
    ) -> bool {
        let id = &complete.id;
        if !has_object(id) {
            return rules.expected.is_some();
        }
        let Some(uid) = self.uid_behind(ns, id) else {
            // Its object may still arrive.
            return complete.object.is_none() && !listed.is_some_and(|kind| is_kind_behind(kind, id));
        };
        let is_part = match id {
            Id::Replica(api, workload, group, _) => self.workload_group(*api, ns, workload, group).is_some(),
            _ => true,
        };
        is_part
            && complete.object.as_ref().is_none_or(|known| *known == uid)
            && self.family_under(rules, ns, id) != ExpectedFrom::Seen
            && !self.is_past_the_scale(rules, ns, id)
    }

    /// The UID of the object behind a group.
    fn uid_behind(&self, ns: &Text, id: &Id) -> Option<Uid> {
        let key = |name: &Text| ObjectKey::new(ns.clone(), name.clone());
        match id {
            Id::PodGroup(name) => self.pod_groups.get(&key(name)).map(|group| group.uid.clone()),
            Id::Replica(api, name, ..) => {
                self.workloads.get(&(*api, key(name))).map(|workload| workload.uid.clone())
            }
            Id::LeaderWorker(name, _) => self.leader_worker_set(ns, name).map(|set| set.uid.clone()),
            Id::Label(_) | Id::Owner(_) => None,
        }
    }
}

/// What forms the groups of a budget, without the number of pods that a group needs; `None` if the budget is invalid.
fn grouping(budget: &Budget) -> Option<Units> {
    match &budget.spec.as_ref().ok()?.units {
        Units::Label { key, .. } => Some(Units::Label { key: key.clone(), min_ready: None }),
        Units::Owner { kind, .. } => Some(Units::Owner { kind: kind.clone(), min_ready: None }),
        units => Some(units.clone()),
    }
}

fn has_object(id: &Id) -> bool {
    !matches!(id, Id::Label(_) | Id::Owner(_))
}

fn is_kind_behind(kind: &GroupKind, id: &Id) -> bool {
    match id {
        Id::PodGroup(_) => *kind == pod_group_kind(),
        Id::Replica(api, ..) => *kind == workload_kind(*api),
        Id::LeaderWorker(..) => &*kind.kind == "LeaderWorkerSet",
        Id::Label(_) | Id::Owner(_) => false,
    }
}

fn write_id(id: &Id) -> Text {
    match id {
        Id::PodGroup(name) => format!("PodGroup/{name}"),
        Id::Replica(api, workload, group, replica) => {
            format!("Workload.{}/{workload}/{group}/{replica}", workload_kind(*api).group)
        }
        Id::LeaderWorker(set, value) => format!("LeaderWorkerSet/{set}/{value}"),
        Id::Label(value) => format!("Label/{value}"),
        Id::Owner(uid) => format!("Owner/{uid}"),
    }
    .into()
}

fn read_id(text: &str) -> Option<Id> {
    let parts: Vec<&str> = text.split('/').collect();
    Some(match parts.as_slice() {
        ["PodGroup", name] => Id::PodGroup((*name).into()),
        ["LeaderWorkerSet", set, value] => Id::LeaderWorker((*set).into(), (*value).into()),
        ["Label", value] => Id::Label((*value).into()),
        ["Owner", uid] => Id::Owner((*uid).into()),
        [kind, workload, group, replica] => {
            let named = |api: &WorkloadSource| *kind == format!("Workload.{}", workload_kind(*api).group);
            let api = [WorkloadSource::Own, WorkloadSource::Upstream].into_iter().find(named)?;
            Id::Replica(api, (*workload).into(), (*group).into(), (*replica).into())
        }
        _ => return None,
    })
}

/// Expands a range of numbers.
fn expand(text: &Text) -> Vec<Text> {
    let run = text.rsplit_once('/').and_then(|(head, last)| {
        let (from, to) = last.split_once('~')?;
        Some((head, from.parse::<u32>().ok()?, to.parse::<u32>().ok()?))
    });
    match run {
        Some((head, from, to)) => (from..=to).map(|number| format!("{head}/{number}").into()).collect(),
        None => vec![text.clone()],
    }
}
