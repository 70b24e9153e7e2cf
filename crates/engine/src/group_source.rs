//! The table of group sources: controllers that create groups of pods and name them with labels. Other kinds are in
//! [`crate::workload_kind`].
//!
//! To add a source, add a row here, and a file that reads the object in `quorate-intake`, next to
//! `objects/leader_worker_set.rs`.

use crate::basics::{GroupKind, Labels};
use crate::callers::service_account;

/// A controller that creates groups of pods and names them with labels.
#[derive(Debug)]
pub struct GroupSource {
    /// The API group of its object, which states the number and the size of the groups.
    pub api_group: &'static str,
    /// The kind of its object.
    pub kind: &'static str,
    /// The plural name of the resource.
    pub resource: &'static str,
    /// The API versions that Quorate reads, the best one first.
    pub versions: &'static [&'static str],
    /// The label on each pod with the name of its object. A `targetRef` to the object covers the pods with this label.
    pub name_label: &'static str,
    /// The labels that name the group of a pod. A value need not be unique beyond one object.
    pub group_labels: &'static [&'static str],
    /// The group label that counts from 0. A group whose index is not below the number of replicas is a surge group.
    pub index_label: Option<&'static str>,
    /// The annotation on each pod with the size of its group.
    pub size_annotation: Option<&'static str>,
    /// The prefix of the labels that the controller adds to its pods. No pod template shows them.
    pub label_prefix: &'static str,
    /// The service account of the controller, in any namespace. Its deletes of pods rebuild a group or scale it down.
    pub service_account: &'static str,
}

/// LeaderWorkerSet: a group is a leader and its workers.
pub const LEADER_WORKER_SET: GroupSource = GroupSource {
    api_group: "leaderworkerset.x-k8s.io",
    kind: "LeaderWorkerSet",
    resource: "leaderworkersets",
    versions: &["v1"],
    name_label: "leaderworkerset.sigs.k8s.io/name",
    group_labels: &["leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/group-key"],
    index_label: Some("leaderworkerset.sigs.k8s.io/group-index"),
    size_annotation: Some("leaderworkerset.sigs.k8s.io/size"),
    label_prefix: "leaderworkerset.sigs.k8s.io/",
    service_account: "lws-controller-manager",
};

impl GroupSource {
    /// All sources.
    pub const ALL: &'static [Self] = &[LEADER_WORKER_SET];

    /// The source with this kind of object.
    pub fn of_kind(kind: &GroupKind) -> Option<&'static Self> {
        Self::ALL.iter().find(|source| source.is_kind(kind))
    }

    /// The source that names its groups with this label.
    pub fn of_group_label(key: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|source| source.group_labels.contains(&key))
    }

    /// The sources whose objects the labels of a pod name, with the names.
    pub fn of_pod(labels: &Labels) -> impl Iterator<Item = (&'static Self, &str)> {
        Self::ALL.iter().filter_map(|source| Some((source, labels.get(source.name_label)?)))
    }

    /// The group and kind of its object.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind::new(self.api_group, self.kind)
    }

    /// Whether this is the kind of its object.
    pub fn is_kind(&self, kind: &GroupKind) -> bool {
        (&*kind.group, &*kind.kind) == (self.api_group, self.kind)
    }

    /// Whether a user name is that of its controller.
    pub fn is_controller(&self, user: &str) -> bool {
        service_account(user).is_some_and(|(_, name)| name == self.service_account)
    }
}

// Each kind has one row.
impl PartialEq for GroupSource {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

impl Eq for GroupSource {}

impl PartialOrd for GroupSource {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for GroupSource {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.kind.cmp(other.kind)
    }
}

impl std::hash::Hash for GroupSource {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_can_be_told_from_the_others() {
        let all = GroupSource::ALL;
        let kinds: BTreeSet<_> = all.iter().map(|source| source.kind).collect();
        let names: BTreeSet<_> = all.iter().map(|source| source.name_label).collect();
        let labels: BTreeSet<_> = all.iter().flat_map(|source| source.group_labels).collect();
        let accounts: BTreeSet<_> = all.iter().map(|source| source.service_account).collect();
        assert_eq!((kinds.len(), names.len(), accounts.len()), (all.len(), all.len(), all.len()));
        assert_eq!(labels.len(), all.iter().map(|source| source.group_labels.len()).sum::<usize>());
        for source in all {
            assert!(source.index_label.is_none_or(|label| source.group_labels.contains(&label)));
            assert!(!source.versions.is_empty(), "{}", source.kind);
            // The status stores groups under the kind.
            assert!(!source.kind.contains(['/', '~']), "{}", source.kind);
        }
    }

    #[test]
    fn a_controller_is_known_by_its_service_account_in_any_namespace() {
        let lws = &GroupSource::ALL[0];
        let cases = [
            ("system:serviceaccount:lws-system:lws-controller-manager", true),
            ("system:serviceaccount:elsewhere:lws-controller-manager", true),
            ("mallory:lws-controller-manager", false),
            ("system:serviceaccount:lws-system:not-lws-controller-manager", false),
            ("system:serviceaccount:lws-controller-manager", false),
            ("system:serviceaccount:a:b:lws-controller-manager", false),
        ];
        for (user, expected) in cases {
            assert_eq!(lws.is_controller(user), expected, "{user}");
        }
    }
}
