//! Callers: those that are exempt from all budgets, and the controllers that act on their own pods.
//!
//! The match conditions of the webhooks are generated from the same table. So most requests of exempt callers never
//! reach a webhook, and none depends on one.

use crate::basics::{GroupKind, Labels, Text};
use crate::facts::Operation;
use crate::group_source::GroupSource;
use crate::workload_kind::WorkloadKind;

/// The sender of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The user name.
    pub user: Text,
    /// A delete has a UID precondition.
    pub names_uid: bool,
    /// A delete has a grace period of zero.
    pub no_grace: bool,
    /// A relabel changes owners and no labels.
    pub only_owners: bool,
}

impl Caller {
    /// A caller with this user name, without the properties of a delete or a relabel.
    pub fn named(user: impl Into<Text>) -> Self {
        Self { user: user.into(), names_uid: false, no_grace: false, only_owners: false }
    }
}

/// A caller that is exempt from all budgets.
#[derive(Debug)]
pub struct Exempt {
    /// A short name, for match conditions and metrics.
    pub name: &'static str,
    /// How the caller is recognised.
    pub who: Who,
    /// Which of its requests are exempt.
    pub when: When,
    /// Why they are exempt.
    pub why: &'static str,
}

/// How a caller is recognised.
#[derive(Debug, PartialEq, Eq)]
pub enum Who {
    /// By the whole user name.
    User(&'static str),
    /// By a prefix of the user name.
    Prefix(&'static str),
}

/// Which requests of a caller are exempt.
#[derive(Debug, PartialEq, Eq)]
pub enum When {
    /// All.
    Always,
    /// Deletes only.
    Deletes,
    /// Deletes with a UID precondition or a grace period of zero: garbage collection by a controller manager whose
    /// controllers share one user name.
    PreciseDeletes,
    /// Relabels that change owners and no labels.
    OwnerChanges,
}

/// All exempt callers: their requests are involuntary disruptions, or complete a disruption that was already allowed.
pub const EXEMPT: &[Exempt] = &[
    Exempt {
        name: "kubelet",
        who: Who::Prefix("system:node:"),
        when: When::Always,
        why: "the kubelet deletes pods that are already terminating, or that its node cannot run",
    },
    Exempt {
        name: "garbage-collector",
        who: Who::User("system:serviceaccount:kube-system:generic-garbage-collector"),
        when: When::Always,
        why: "the owner is gone",
    },
    Exempt {
        name: "namespace-controller",
        who: Who::User("system:serviceaccount:kube-system:namespace-controller"),
        when: When::Always,
        why: "the namespace is being deleted",
    },
    Exempt {
        name: "pod-garbage-collector",
        who: Who::User("system:serviceaccount:kube-system:pod-garbage-collector"),
        when: When::Always,
        why: "the pod has finished or its node is gone",
    },
    Exempt {
        name: "scheduler",
        who: Who::User("system:kube-scheduler"),
        when: When::Deletes,
        why: "preemption is an involuntary disruption",
    },
    Exempt {
        name: "taint-eviction",
        who: Who::User("system:serviceaccount:kube-system:taint-eviction-controller"),
        when: When::Deletes,
        why: "the node is unreachable or has a NoExecute taint",
    },
    Exempt {
        name: "device-taint-eviction",
        who: Who::User("system:serviceaccount:kube-system:device-taint-eviction-controller"),
        when: When::Deletes,
        why: "the device is unhealthy or has a NoExecute taint",
    },
    Exempt {
        name: "node-controller",
        who: Who::User("system:serviceaccount:kube-system:node-controller"),
        when: When::Deletes,
        why: "the node is unreachable (the taint manager's name before Kubernetes 1.29)",
    },
    Exempt {
        name: "controller-manager",
        who: Who::User("system:kube-controller-manager"),
        when: When::PreciseDeletes,
        why: "garbage collection by a controller manager without credentials per controller",
    },
    Exempt {
        name: "adoption",
        who: Who::Prefix("system:serviceaccount:kube-system:"),
        when: When::OwnerChanges,
        why: "a controller adopts a pod, or releases one whose labels its selector does not match any more",
    },
    Exempt {
        name: "adoption-by-controller-manager",
        who: Who::User("system:kube-controller-manager"),
        when: When::OwnerChanges,
        why: "adoption by a controller manager without credentials per controller",
    },
];

impl Exempt {
    /// The entry of the table that exempts this request.
    pub fn find(caller: &Caller, operation: Operation) -> Option<&'static Self> {
        EXEMPT.iter().find(|entry| {
            let who = match entry.who {
                Who::User(user) => &*caller.user == user,
                Who::Prefix(prefix) => caller.user.starts_with(prefix),
            };
            who && match entry.when {
                When::Always => true,
                When::Deletes => operation == Operation::Delete,
                When::PreciseDeletes => {
                    operation == Operation::Delete && (caller.names_uid || caller.no_grace)
                }
                When::OwnerChanges => operation == Operation::Relabel && caller.only_owners,
            }
        })
    }
}

/// The namespace and the name of a service account, from its user name; `None` for other users.
pub(crate) fn service_account(user: &str) -> Option<(&str, &str)> {
    user.strip_prefix("system:serviceaccount:")?.split_once(':')
}

impl Caller {
    /// Whether this caller is the controller of a pod: that of its owner, or of a group source that its labels name.
    pub fn is_controller_of(&self, owner: Option<&GroupKind>, labels: &Labels) -> bool {
        if GroupSource::of_pod(labels).any(|(source, _)| source.is_controller(&self.user)) {
            return true;
        }
        let Some(owner) = owner else { return false };
        // Without `--use-service-account-credentials`, all built-in controllers share one user name.
        &*self.user == "system:kube-controller-manager"
            || WorkloadKind::ALL.iter().any(|kind| kind.is_controller(&self.user, owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_listed_callers_are_exempt() {
        let precise = |user: &str| Caller { names_uid: true, ..Caller::named(user) };
        let adopts = |user: &str| Caller { only_owners: true, ..Caller::named(user) };
        let cases = [
            (Caller::named("system:node:worker-1"), Operation::Delete, Some("kubelet")),
            (Caller::named("system:node:worker-1"), Operation::Update, Some("kubelet")),
            (Caller::named("system:nodes"), Operation::Delete, None),
            (Caller::named("system:kube-scheduler"), Operation::Delete, Some("scheduler")),
            (Caller::named("system:kube-scheduler"), Operation::Evict, None),
            (Caller::named("system:kube-controller-manager"), Operation::Delete, None),
            (precise("system:kube-controller-manager"), Operation::Delete, Some("controller-manager")),
            (precise("system:kube-controller-manager"), Operation::Update, None),
            (precise("alice"), Operation::Delete, None),
            (
                Caller::named("system:serviceaccount:kube-system:replicaset-controller"),
                Operation::Delete,
                None,
            ),
            (
                adopts("system:serviceaccount:kube-system:replicaset-controller"),
                Operation::Relabel,
                Some("adoption"),
            ),
            (
                Caller::named("system:serviceaccount:kube-system:replicaset-controller"),
                Operation::Relabel,
                None,
            ),
            (
                adopts("system:kube-controller-manager"),
                Operation::Relabel,
                Some("adoption-by-controller-manager"),
            ),
            (adopts("system:kube-controller-manager"), Operation::Update, None),
            (adopts("alice"), Operation::Relabel, None),
        ];
        for (caller, operation, expected) in cases {
            let found = Exempt::find(&caller, operation).map(|entry| entry.name);
            assert_eq!(found, expected, "{caller:?} {operation:?}");
        }
    }

    #[test]
    fn a_controller_acts_for_its_own_kind_only() {
        let replica_set = GroupKind::new("apps", "ReplicaSet");
        let stateful_set = GroupKind::new("apps", "StatefulSet");
        let caller = Caller::named("system:serviceaccount:kube-system:replicaset-controller");
        let plain = Labels::new([("app", "web")]);
        assert!(caller.is_controller_of(Some(&replica_set), &plain));
        assert!(!caller.is_controller_of(Some(&stateful_set), &plain));
        assert!(!caller.is_controller_of(None, &plain));
        let lws = Caller::named("system:serviceaccount:lws-system:lws-controller-manager");
        let in_group = Labels::new([(GroupSource::ALL[0].name_label, "llm")]);
        assert!(lws.is_controller_of(Some(&stateful_set), &in_group));
        assert!(!lws.is_controller_of(Some(&stateful_set), &plain));
        assert!(!Caller::named("mallory:lws-controller-manager").is_controller_of(None, &in_group));
        let kruise = Caller::named("system:serviceaccount:kruise-system:kruise-manager");
        assert!(kruise.is_controller_of(Some(&GroupKind::new("apps.kruise.io", "CloneSet")), &plain));
        assert!(!kruise.is_controller_of(Some(&stateful_set), &plain));
    }
}
