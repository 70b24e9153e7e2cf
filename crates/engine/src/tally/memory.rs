//! What a budget remembers: sources whose pods are gone, and groups that were complete when their last pod was removed.
//!
//! A source whose template does not show whether the budget covers its pods is remembered as soon as it has a pod under
//! the budget. If it were recorded only when its last pod goes, a process that ends at that time would lose it. A
//! forgotten source is remembered again only when it has a pod.
//!
//! A template shows the same to each process that reads the object. But most kinds are watched only while something
//! names them. So the status names one source of each such kind.

use std::collections::BTreeSet;

use super::Tally;
use crate::SafetyRule;
use crate::basics::{GroupKind, ObjectKey, Text, Uid};
use crate::cluster_state::ClusterState;
use crate::facts::{MAX_COMPLETE, MAX_SOURCES, Memory, Rules, Source, Units};
use crate::sources::{self, Covered, SourceState};
use crate::units::{self, ExpectedFrom, GroupKey};

/// Why a source is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The status names it, and its object is not known yet.
    Named,
    /// Only the memory keeps it expected.
    HadPods,
    /// Its template keeps it expected, and its kind is not watched unless something names it.
    Template,
}

/// A group that was complete when its last pod was removed.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// The source of the expected number of such groups; `None` after a restart, until it is known.
    pub(super) expected_from: Option<ExpectedFrom>,
    /// The UID of the object behind the group, once it is known. Another object with the same name has other groups.
    uid: Option<Uid>,
    /// Its controller is suspended or finished, so the group is not expected.
    idle: bool,
}

impl Done {
    fn new() -> Self {
        Self { expected_from: None, uid: None, idle: false }
    }

    /// Whether the source expects one group less because of this one.
    pub(super) fn counts_for(&self, expected_from: &ExpectedFrom) -> bool {
        !self.idle && self.expected_from.as_ref() == Some(expected_from)
    }
}

impl Tally {
    /// Restores the memory from the status. The objects may not be known yet: before the first list of its kind, an
    /// unknown object does not count as gone.
    pub(crate) fn recall(&mut self, memory: &Memory) {
        for source in &memory.sources {
            self.remembered.entry(Box::new(source.clone())).or_insert(Reason::Named);
        }
        for key in memory.complete.iter().flat_map(|text| GroupKey::read(text)) {
            if !self.by_key.contains_key(&key) {
                self.done.entry(key).or_insert(Done::new());
            }
        }
    }

    /// Adds what another process wrote in the meantime. Returns whether that changes anything.
    pub(crate) fn learn(
        &mut self,
        rules: &Rules,
        namespace: &Text,
        memory: &Memory,
        cluster: &ClusterState,
    ) -> bool {
        let mut changed = false;
        for source in &memory.sources {
            if !self.remembered.contains_key(source) && sources::is_known(source, namespace, cluster) {
                self.remembered.insert(Box::new(source.clone()), Reason::HadPods);
                changed |= match rules.units {
                    Units::Pods => self.consider(rules, namespace, &source.uid, cluster),
                    _ => self.consider_source(rules, namespace, &sources::expected_from_of(source), cluster),
                };
            }
        }
        changed
    }

    /// The memory for the status. If there are too many sources, those without pods come first.
    pub(crate) fn memory(&self, rules: &Rules) -> Memory {
        // The order of the map is that of the kinds.
        let mut last = None;
        let mut is_first = |source: &Source| last.replace(source.kind.clone()) != Some(source.kind.clone());
        let needed = self.remembered.iter().filter(|(source, reason)| match reason {
            Reason::Named | Reason::HadPods => true,
            Reason::Template => is_first(source),
        });
        let mut kept: Vec<&Source> = needed.map(|(source, _)| &**source).collect();
        if kept.len() > MAX_SOURCES {
            kept.sort_by_key(|source| (self.has_pods(rules, source), *source));
            kept.truncate(MAX_SOURCES);
            kept.sort();
        }
        let mut complete = units::write_all(self.done.keys());
        complete.truncate(MAX_COMPLETE);
        Memory {
            key: crate::memory_key(rules),
            sources: kept.into_iter().cloned().collect(),
            complete: complete.into(),
        }
    }

    /// The number of sources that stay expected by memory alone, if the status may not hold all of them. A full status may
    /// have lost some: a server that reads it must deny as the one that wrote it.
    pub(crate) fn too_many_sources(&self, rules: &Rules) -> Option<usize> {
        if self.remembered.len() < MAX_SOURCES {
            return None;
        }
        let all = self.remembered.iter();
        let alone = all
            .filter(|(source, reason)| **reason == Reason::HadPods && !self.has_pods(rules, source))
            .count();
        Some(alone).filter(|count| *count >= MAX_SOURCES)
    }

    /// A source that the status names and whose object is not known, because its kind was never read.
    pub(crate) fn unread_source(&self, is_read: impl Fn(&GroupKind) -> bool) -> Option<&Source> {
        let named = self.remembered.iter().filter(|(_, reason)| **reason == Reason::Named);
        named.map(|(source, _)| &**source).find(|source| !is_read(&source.kind))
    }

    /// Updates a controller as a source of pods. Returns whether that changes anything.
    pub(crate) fn consider(
        &mut self,
        rules: &Rules,
        namespace: &Text,
        uid: &Uid,
        cluster: &ClusterState,
    ) -> bool {
        let before = self.remembered.len();
        let controller = cluster.controller(uid).filter(|controller| controller.key.namespace == *namespace);
        let requirement = controller.and_then(|controller| sources::of_pods(rules, controller, cluster));
        let has_pods = self.scales.has_pods(uid);
        if let (Some(controller), None) = (controller, &requirement) {
            self.remembered.remove(&sources::of_controller(controller));
        }
        let stays = requirement.is_some_and(|requirement| self.stays(requirement, has_pods));
        self.scales.keep(uid, stays, cluster) || before != self.remembered.len()
    }

    /// Updates a source of groups. Returns whether that changes anything.
    pub(super) fn consider_source(
        &mut self,
        rules: &Rules,
        namespace: &Text,
        expected_from: &ExpectedFrom,
        cluster: &ClusterState,
    ) -> bool {
        if rules.expected.is_some() && !self.source_tallies.contains_key(expected_from) {
            // The budget states the expected number. Other sources are remembered nevertheless.
            let requirement = sources::of_groups(rules, namespace, expected_from, cluster);
            if let Some(requirement) = requirement {
                let has_pods = self.sources.contains_key(expected_from);
                self.stays(requirement, has_pods);
            }
            return false;
        }
        let requirement = sources::of_groups(rules, namespace, expected_from, cluster);
        let has_pods =
            self.source_tallies.get(expected_from).is_some_and(|expected_from| expected_from.units > 0);
        let stays = requirement.is_some_and(|requirement| self.stays(requirement, has_pods));
        if stays {
            self.open_source_tally(rules, namespace, expected_from, cluster);
        }
        let Some(entry) = self.source_tallies.get_mut(expected_from) else { return false };
        let before = entry.adds;
        entry.considered = true;
        entry.kept = stays;
        self.refresh_sums(expected_from);
        let changed = self.source_tallies.get(expected_from).is_some_and(|entry| entry.adds != before);
        self.drop_unused(expected_from);
        changed
    }

    /// If the budget states the expected number: the sources without pods here that would be expected otherwise.
    pub(super) fn kept_beneath(
        &self,
        rules: &Rules,
        namespace: &Text,
        cluster: &ClusterState,
    ) -> BTreeSet<ExpectedFrom> {
        let mut all: BTreeSet<ExpectedFrom> =
            self.remembered.keys().map(|source| sources::expected_from_of(source)).collect();
        all.extend(sources::certain(rules, namespace, cluster));
        all.retain(|expected_from| {
            let requirement = sources::of_groups(rules, namespace, expected_from, cluster);
            let stays = |s: SourceState| {
                s.lives && (s.covered == Covered::Yes || self.remembered.contains_key(&s.source))
            };
            !self.sources.contains_key(expected_from) && requirement.is_some_and(stays)
        });
        all
    }

    /// Whether a source stays expected without pods. Remembers or forgets it accordingly.
    fn stays(&mut self, SourceState { source, lives, covered }: SourceState, has_pods: bool) -> bool {
        let reason = match covered {
            _ if !lives => None,
            Covered::Yes => (!sources::is_always_watched(&source.kind)).then_some(Reason::Template),
            Covered::CannotTell => {
                let known = self.remembered.get(&source);
                let is_kept = matches!(known, Some(Reason::Named | Reason::HadPods));
                (has_pods || is_kept).then_some(Reason::HadPods)
            }
            Covered::No => None,
        };
        match reason {
            Some(reason) => drop(self.remembered.insert(Box::new(source), reason)),
            None => drop(self.remembered.remove(&source)),
        }
        if SafetyRule::SourcesStay.is_left_out() {
            return false;
        }
        lives && (covered == Covered::Yes || reason.is_some())
    }

    fn has_pods(&self, rules: &Rules, source: &Source) -> bool {
        match rules.units {
            Units::Pods => self.scales.has_pods(&source.uid),
            _ => {
                let expected_from = sources::expected_from_of(source);
                self.sources.contains_key(&expected_from)
                    || self
                        .source_tallies
                        .get(&expected_from)
                        .is_some_and(|expected_from| expected_from.units > 0)
            }
        }
    }

    /// Forgets sources whose objects are gone, and those that a complete list of their kind does not contain.
    pub(crate) fn forget_unknown(
        &mut self,
        namespace: &Text,
        listed: Option<&GroupKind>,
        cluster: &ClusterState,
    ) -> bool {
        let before = self.remembered.len();
        self.remembered.retain(|source, reason| {
            let is_known = sources::is_known(source, namespace, cluster);
            let was_known = *reason != Reason::Named;
            if is_known && !was_known {
                *reason = Reason::HadPods;
            }
            is_known || !(was_known || listed == Some(&source.kind))
        });
        let complete = self.done.len();
        if let Some(listed) = listed {
            self.done.retain(|key, done| done.uid.is_some() || kind_behind(key).as_ref() != Some(listed));
        }
        before != self.remembered.len() || complete != self.done.len()
    }

    /// Updates all sources of a budget that counts groups.
    pub(super) fn consider_sources(&mut self, rules: &Rules, namespace: &Text, cluster: &ClusterState) {
        self.forget_unknown(namespace, None, cluster);
        let mut all: Vec<ExpectedFrom> =
            self.remembered.keys().map(|source| sources::expected_from_of(source)).collect();
        all.extend(self.source_tallies.keys().chain(self.sources.keys()).cloned());
        all.extend(sources::certain(rules, namespace, cluster));
        all.sort_unstable();
        all.dedup();
        for expected_from in all {
            self.consider_source(rules, namespace, &expected_from, cluster);
        }
    }

    /// Updates all sources of a budget that counts pods.
    pub(super) fn consider_controllers(
        &mut self,
        rules: &Rules,
        namespace: &Text,
        before: Vec<Uid>,
        cluster: &ClusterState,
    ) {
        self.forget_unknown(namespace, None, cluster);
        let mut all = before;
        all.extend(self.remembered.keys().map(|source| source.uid.clone()));
        all.extend(self.scales.workloads().cloned());
        all.sort_unstable();
        all.dedup();
        for uid in all {
            self.consider(rules, namespace, &uid, cluster);
        }
    }

    /// Remembers a complete group whose last pod was removed.
    pub(super) fn finish(&mut self, rules: &Rules, namespace: &Text, key: GroupKey, cluster: &ClusterState) {
        let mut done = Done::new();
        let stays = refresh_source(&mut done, rules, namespace, &key, cluster);
        if let (true, Some(expected_from)) = (stays, done.expected_from.clone()) {
            self.done.insert(key, done);
            self.count_done(&expected_from);
            self.done_may_exceed = true;
        }
    }

    /// Forgets a complete group when a new pod of it appears.
    pub(super) fn begin_again(&mut self, key: &GroupKey) {
        if let Some(Done { expected_from: Some(expected_from), .. }) = self.done.remove(key) {
            self.count_done(&expected_from);
        }
    }

    /// Forgets complete groups that have been replaced, after all pods of an event or a list are counted: the result must
    /// not depend on the order in which a list adds and removes pods.
    pub(crate) fn trim_done(&mut self, rules: &Rules, namespace: &Text, cluster: &ClusterState) {
        if std::mem::take(&mut self.done_may_exceed) {
            let of_done = self.done.values().filter_map(|done| done.expected_from.clone());
            let all: BTreeSet<ExpectedFrom> = of_done.collect();
            for expected_from in all {
                self.recount_done(rules, namespace, &expected_from, cluster);
                self.drop_unused(&expected_from);
            }
        }
    }

    /// Updates the sources of the complete groups.
    pub(super) fn refresh_done(&mut self, rules: &Rules, namespace: &Text, cluster: &ClusterState) {
        if self.done.is_empty() {
            return;
        }
        self.done.retain(|key, done| refresh_source(done, rules, namespace, key, cluster));
        let of_done = self.done.values().filter_map(|done| done.expected_from.as_ref());
        let source_tallies: BTreeSet<ExpectedFrom> =
            self.source_tallies.keys().chain(of_done).cloned().collect();
        for expected_from in source_tallies {
            self.recount_done(rules, namespace, &expected_from, cluster);
        }
    }

    /// Counts the complete groups of a source. Together with the existing groups they are never more than the source
    /// states: the others have been replaced by new groups and are forgotten.
    fn recount_done(
        &mut self,
        rules: &Rules,
        namespace: &Text,
        expected_from: &ExpectedFrom,
        cluster: &ClusterState,
    ) {
        let regular = self.source_tallies.get(expected_from).map_or(0, |entry| entry.regular);
        let room = units::room_for(rules, namespace, expected_from, cluster);
        let room = room.map_or(u32::MAX, |room| room.saturating_sub(regular)) as usize;
        let mut keys: Vec<&GroupKey> = self
            .done
            .iter()
            .filter(|(_, done)| done.expected_from.as_ref() == Some(expected_from))
            .map(|(key, _)| key)
            .collect();
        if keys.len() > room {
            keys.sort_by_cached_key(|key| key.write());
            let excess: Vec<GroupKey> = keys.split_off(room).into_iter().cloned().collect();
            excess.iter().for_each(|key| drop(self.done.remove(key)));
        }
        self.count_done(expected_from);
    }

    fn count_done(&mut self, expected_from: &ExpectedFrom) {
        let count = self.done.values().filter(|done| done.counts_for(expected_from)).count() as u32;
        if let Some(entry) = self.source_tallies.get_mut(expected_from) {
            entry.done = count;
        }
        self.refresh_sums(expected_from);
    }
}

/// Updates the source of a complete group. Returns whether the group must still be remembered.
fn refresh_source(
    done: &mut Done,
    rules: &Rules,
    namespace: &Text,
    key: &GroupKey,
    cluster: &ClusterState,
) -> bool {
    let object = |name: &Text| ObjectKey { namespace: namespace.clone(), name: name.clone() };
    let uid = match key {
        GroupKey::PodGroup(name) => cluster.pod_group(&object(name)).map(|group| group.uid.clone()),
        GroupKey::Replica(source, name, group, _) => cluster
            .workload(*source, object(name))
            .filter(|workload| workload.groups.iter().any(|other| other.name == *group))
            .map(|workload| workload.uid.clone()),
        GroupKey::OfSource(source, name, _) => {
            cluster.of_source(source, namespace, name).map(|object| object.uid.clone())
        }
        GroupKey::Label(_) | GroupKey::Owner(_) => Some(Uid::default()),
    };
    done.expected_from = None;
    let Some(uid) = uid else { return done.uid.is_none() };
    let is_another = done.uid.as_ref().is_some_and(|known| *known != uid);
    let requirement = units::requirement(rules, namespace, key, None, 0, cluster);
    let expected_from =
        if rules.expected.is_some() { ExpectedFrom::Declared } else { requirement.expected_from };
    if is_another || requirement.beyond || expected_from == ExpectedFrom::Observed {
        return false;
    }
    done.idle = requirement.surge;
    done.uid = Some(uid);
    done.expected_from = Some(expected_from);
    true
}

/// The kind of the object behind a group.
fn kind_behind(key: &GroupKey) -> Option<GroupKind> {
    match key {
        GroupKey::PodGroup(_) => Some(sources::pod_group_kind()),
        GroupKey::Replica(source, ..) => Some(sources::workload_kind(*source)),
        GroupKey::OfSource(source, ..) => Some(source.group_kind()),
        GroupKey::Label(_) | GroupKey::Owner(_) => None,
    }
}
