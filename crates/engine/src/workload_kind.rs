//! The table of workload kinds that Quorate knows by name: built-in kinds, and kinds of other projects.
//!
//! A kind whose objects form groups of pods is a row of [`crate::group_source`] instead. A kind that is in neither table
//! needs no row: its objects are read as far as they have a scale.

use crate::basics::GroupKind;
use crate::callers::service_account;

/// A kind of workload controllers.
#[derive(Debug)]
pub struct WorkloadKind {
    /// Its API group.
    pub api_group: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// The service account whose deletes of its pods are its own.
    pub account: Option<Account>,
    /// The labels that its controller adds to the pods: keys, and prefixes that end with a slash. No pod template shows
    /// them.
    pub labels: &'static [&'static str],
}

/// The service account of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// In `kube-system`, for this kind alone.
    BuiltIn(&'static str),
    /// In any namespace, for all kinds of the API group.
    OfGroup(&'static str),
}

/// Deployment: it has ReplicaSets, which have the pods.
pub const DEPLOYMENT: WorkloadKind =
    WorkloadKind { api_group: "apps", kind: "Deployment", account: None, labels: &["pod-template-hash"] };

/// ReplicaSet.
pub const REPLICA_SET: WorkloadKind = WorkloadKind {
    api_group: "apps",
    kind: "ReplicaSet",
    account: Some(Account::BuiltIn("replicaset-controller")),
    labels: &[],
};

/// StatefulSet.
pub const STATEFUL_SET: WorkloadKind = WorkloadKind {
    api_group: "apps",
    kind: "StatefulSet",
    account: Some(Account::BuiltIn("statefulset-controller")),
    labels: &["controller-revision-hash", "apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/"],
};

/// DaemonSet.
pub const DAEMON_SET: WorkloadKind = WorkloadKind {
    api_group: "apps",
    kind: "DaemonSet",
    account: Some(Account::BuiltIn("daemon-set-controller")),
    labels: &["controller-revision-hash", "pod-template-generation"],
};

/// Job.
pub const JOB: WorkloadKind = WorkloadKind {
    api_group: "batch",
    kind: "Job",
    account: Some(Account::BuiltIn("job-controller")),
    labels: &["job-name", "controller-uid", "batch.kubernetes.io/"],
};

/// ReplicationController.
pub const REPLICATION_CONTROLLER: WorkloadKind = WorkloadKind {
    api_group: "",
    kind: "ReplicationController",
    account: Some(Account::BuiltIn("replication-controller")),
    labels: &[],
};

/// JobSet: it has Jobs, which have the pods.
pub const JOB_SET: WorkloadKind = WorkloadKind {
    api_group: "jobset.x-k8s.io",
    kind: "JobSet",
    account: None,
    labels: &["jobset.sigs.k8s.io/"],
};

/// OpenKruise's CloneSet.
pub const CLONE_SET: WorkloadKind = WorkloadKind { kind: "CloneSet", ..OPENKRUISE };

/// OpenKruise's StatefulSet.
pub const KRUISE_STATEFUL_SET: WorkloadKind = WorkloadKind { kind: "StatefulSet", ..OPENKRUISE };

/// What the workloads of OpenKruise have in common.
const OPENKRUISE: WorkloadKind = WorkloadKind {
    api_group: "apps.kruise.io",
    kind: "",
    account: Some(Account::OfGroup("kruise-manager")),
    labels: &["apps.kruise.io/"],
};

impl WorkloadKind {
    /// All rows.
    pub const ALL: &'static [Self] = &[
        DEPLOYMENT,
        REPLICA_SET,
        STATEFUL_SET,
        DAEMON_SET,
        JOB,
        REPLICATION_CONTROLLER,
        JOB_SET,
        CLONE_SET,
        KRUISE_STATEFUL_SET,
    ];

    /// Its group and kind.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind::new(self.api_group, self.kind)
    }

    /// Whether this is its group and kind.
    pub fn is_kind(&self, kind: &GroupKind) -> bool {
        (&*kind.group, &*kind.kind) == (self.api_group, self.kind)
    }

    /// Whether a user is the controller of this kind, which deletes its pods. A controller of the whole API group also
    /// deletes pods of the kinds that have no row.
    pub(crate) fn is_controller(&self, user: &str, kind: &GroupKind) -> bool {
        let Some((namespace, name)) = service_account(user) else { return false };
        match self.account {
            Some(Account::BuiltIn(account)) => {
                self.is_kind(kind) && (namespace, name) == ("kube-system", account)
            }
            Some(Account::OfGroup(account)) => *kind.group == *self.api_group && name == account,
            None => false,
        }
    }

    /// Whether its controller adds a label with this key to its pods.
    pub(crate) fn adds_label(&self, key: &str) -> bool {
        self.labels
            .iter()
            .any(|label| if label.ends_with('/') { key.starts_with(label) } else { key == *label })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_can_be_told_from_the_others() {
        let all = WorkloadKind::ALL;
        let kinds: BTreeSet<_> = all.iter().map(WorkloadKind::group_kind).collect();
        assert_eq!(kinds.len(), all.len());
        for row in all {
            assert!(!row.kind.is_empty() && row.labels.iter().all(|label| !label.is_empty()), "{}", row.kind);
        }
    }

    #[test]
    fn a_controller_is_known_by_its_service_account() {
        let kruise = "system:serviceaccount:elsewhere:kruise-manager";
        for (row, user, kind, expected) in [
            (JOB, "system:serviceaccount:kube-system:job-controller", JOB.group_kind(), true),
            (JOB, "system:serviceaccount:kube-system:job-controller", REPLICA_SET.group_kind(), false),
            (JOB, "system:serviceaccount:default:job-controller", JOB.group_kind(), false),
            (JOB, "job-controller", JOB.group_kind(), false),
            (JOB_SET, "system:serviceaccount:kube-system:", JOB_SET.group_kind(), false),
            (CLONE_SET, kruise, CLONE_SET.group_kind(), true),
            (CLONE_SET, kruise, GroupKind::new(CLONE_SET.api_group, "DaemonSet"), true),
            (CLONE_SET, kruise, STATEFUL_SET.group_kind(), false),
            (CLONE_SET, "mallory:kruise-manager", CLONE_SET.group_kind(), false),
        ] {
            assert_eq!(row.is_controller(user, &kind), expected, "{user} of {kind}");
        }
    }

    #[test]
    fn a_label_is_added_by_its_key_or_by_its_prefix() {
        for (row, key, expected) in [
            (JOB, "job-name", true),
            (JOB, "job-name-2", false),
            (JOB, "batch.kubernetes.io/job-completion-index", true),
            (JOB, "batch.kubernetes.io", false),
            (STATEFUL_SET, "apps.kubernetes.io/pod-index", true),
            (STATEFUL_SET, "apps.kubernetes.io/other", false),
        ] {
            assert_eq!(row.adds_label(key), expected, "{key}");
        }
    }
}
