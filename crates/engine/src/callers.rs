//! Who asks: the callers that are never held up, and the controllers that act for their own pods.
//!
//! One table. The webhooks' match conditions are made from it, so that most of these never reach a webhook and none
//! depends on one.

use crate::basics::{GroupKind, Text};
use crate::facts::Operation;

/// Whoever sent a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The user name.
    pub user: Text,
    /// A delete names the UID it means.
    pub names_uid: bool,
    /// A delete asks for no grace.
    pub no_grace: bool,
}

impl Caller {
    /// A caller of whom only the name matters.
    pub fn named(user: impl Into<Text>) -> Self {
        Self { user: user.into(), names_uid: false, no_grace: false }
    }
}

/// A caller that is never held up.
#[derive(Debug)]
pub struct Exempt {
    /// A short name, for match conditions and metrics.
    pub name: &'static str,
    /// Who it is.
    pub who: Who,
    /// When it is.
    pub when: When,
    /// Why it is.
    pub why: &'static str,
}

/// How a caller is recognised.
#[derive(Debug, PartialEq, Eq)]
pub enum Who {
    /// By the whole user name.
    User(&'static str),
    /// By the beginning of the user name.
    Prefix(&'static str),
}

/// Which of a caller's requests are meant.
#[derive(Debug, PartialEq, Eq)]
pub enum When {
    /// All.
    Always,
    /// Deletes only.
    Deletes,
    /// Deletes that name a UID or ask for no grace: garbage collection by a controller manager whose controllers
    /// share one name.
    PreciseDeletes,
}

/// Everyone who is never held up: the involuntary, and the end of what was already allowed.
pub const EXEMPT: &[Exempt] = &[
    Exempt {
        name: "kubelet",
        who: Who::Prefix("system:node:"),
        when: When::Always,
        why: "the kubelet ends pods that are terminating already, or that its node cannot carry",
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
        why: "the pod has ended or its node is gone",
    },
    Exempt {
        name: "scheduler",
        who: Who::User("system:kube-scheduler"),
        when: When::Deletes,
        why: "preemption is not voluntary",
    },
    Exempt {
        name: "taint-eviction",
        who: Who::User("system:serviceaccount:kube-system:taint-eviction-controller"),
        when: When::Deletes,
        why: "the node is unreachable or says so by a taint",
    },
    Exempt {
        name: "device-taint-eviction",
        who: Who::User("system:serviceaccount:kube-system:device-taint-eviction-controller"),
        when: When::Deletes,
        why: "the device is unhealthy or says so by a taint",
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
];

impl Exempt {
    /// The entry of the table that lets this request pass.
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
            }
        })
    }
}

/// Which built-in controller deletes the pods of which kind.
const CONTROLLERS: &[(&str, &str, &str)] = &[
    ("system:serviceaccount:kube-system:replicaset-controller", "apps", "ReplicaSet"),
    ("system:serviceaccount:kube-system:statefulset-controller", "apps", "StatefulSet"),
    ("system:serviceaccount:kube-system:daemon-set-controller", "apps", "DaemonSet"),
    ("system:serviceaccount:kube-system:job-controller", "batch", "Job"),
    ("system:serviceaccount:kube-system:replication-controller", "", "ReplicationController"),
];

/// The service account of LeaderWorkerSet's controller, in whatever namespace it was installed.
const LEADER_WORKER_SET: &str = ":lws-controller-manager";

/// The service account of OpenKruise's controllers, in whatever namespace they were installed, and the API group of
/// their workloads.
const OPENKRUISE: (&str, &str) = (":kruise-manager", "apps.kruise.io");

impl Caller {
    /// Whether this is the controller that owns a pod, acting on its own.
    pub fn is_controller_of(&self, owner: Option<&GroupKind>, in_leader_worker_set: bool) -> bool {
        if in_leader_worker_set
            && self.user.starts_with("system:serviceaccount:")
            && self.user.ends_with(LEADER_WORKER_SET)
        {
            return true;
        }
        let Some(owner) = owner else { return false };
        let is_kruise = self.user.starts_with("system:serviceaccount:") && self.user.ends_with(OPENKRUISE.0);
        if is_kruise && &*owner.group == OPENKRUISE.1 {
            return true;
        }
        // Without credentials per controller all of them share one name.
        &*self.user == "system:kube-controller-manager"
            || CONTROLLERS.iter().any(|(user, group, kind)| {
                &*self.user == *user && &*owner.group == *group && &*owner.kind == *kind
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_never_held_up() {
        let precise = |user: &str| Caller { names_uid: true, ..Caller::named(user) };
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
        assert!(caller.is_controller_of(Some(&replica_set), false));
        assert!(!caller.is_controller_of(Some(&stateful_set), false));
        assert!(!caller.is_controller_of(None, false));
        let lws = Caller::named("system:serviceaccount:lws-system:lws-controller-manager");
        assert!(lws.is_controller_of(Some(&stateful_set), true));
        assert!(!lws.is_controller_of(Some(&stateful_set), false));
        assert!(!Caller::named("mallory:lws-controller-manager").is_controller_of(None, true));
        let kruise = Caller::named("system:serviceaccount:kruise-system:kruise-manager");
        assert!(kruise.is_controller_of(Some(&GroupKind::new("apps.kruise.io", "CloneSet")), false));
        assert!(!kruise.is_controller_of(Some(&stateful_set), false));
    }
}
