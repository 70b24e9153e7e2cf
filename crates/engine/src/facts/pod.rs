//! Pods.

use std::sync::Arc;

use super::WorkloadSource;
use crate::basics::{GroupKind, Labels, ObjectKey, Text, Time, Uid, Version};

/// The phase of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not running yet.
    #[default]
    Pending,
    /// Running.
    Running,
    /// All containers ended successfully.
    Succeeded,
    /// All containers ended, at least one with a failure.
    Failed,
    /// The state of the pod is unknown, usually because its node does not respond.
    Unknown,
}

impl Phase {
    /// Whether the pod has finished and will not run again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its UID. Everything else is keyed by UID, since a new pod may reuse a name.
    pub uid: Uid,
    /// The version of this state.
    pub version: Version,
    /// Its labels.
    pub labels: Labels,
    /// The node it runs on.
    pub node: Option<Text>,
    /// Its phase.
    pub phase: Phase,
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// Its Ready condition is True.
    pub ready: bool,
    /// When the Ready condition last changed.
    pub ready_since: Option<Time>,
    /// A readiness gate that announces updates is not True: an update of the pod is about to start, or in progress.
    pub announced: bool,
    /// No in-place update is in progress and no label marks the pod as unavailable. Only for [`HealthRule::Strict`].
    pub consistent: bool,
    /// The pod waives its protection. Only budgets that are [`Rules::waivable`] honor this.
    pub waives: bool,
    /// Its disruption probes, if it declares any.
    pub probe: Option<Box<Probe>>,
    /// Its owners, in the order of `ownerReferences`.
    pub owners: Arc<[Owner]>,
    /// Its link to a group of the Workload API. Boxed, because few pods have one and every pod would need the space.
    pub link: Option<Box<Link>>,
    /// The size of its group, as its group source wrote it on the pod.
    pub group_size: Option<u32>,
    /// Its activeDeadlineSeconds.
    pub deadline: Option<u32>,
    /// Its terminationGracePeriodSeconds: the longest time that a container may take to stop.
    pub grace_seconds: u32,
    /// Its node can never carry out the resize that its spec requests.
    pub resize_infeasible: bool,
    /// What its containers run.
    pub containers: Box<[Container]>,
}

impl Pod {
    /// Its owner with `controller: true`.
    pub fn controller(&self) -> Option<&Owner> {
        self.owners.iter().find(|owner| owner.controller)
    }
}

#[cfg(test)]
impl Pod {
    /// A ready pod without labels, owners and containers, for unit tests.
    pub(crate) fn ready(key: ObjectKey, uid: &str, version: u64) -> Self {
        Self {
            key,
            uid: uid.into(),
            version: Version(version),
            labels: Labels::default(),
            node: None,
            phase: Phase::Running,
            terminating: false,
            ready: true,
            ready_since: None,
            announced: false,
            consistent: true,
            waives: false,
            probe: None,
            owners: Arc::default(),
            link: None,
            group_size: None,
            deadline: None,
            grace_seconds: 0,
            resize_infeasible: false,
            containers: Box::default(),
        }
    }
}

/// An owner reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Its UID.
    pub uid: Uid,
    /// Its kind.
    pub kind: GroupKind,
    /// Its name.
    pub name: Text,
    /// The `controller` field of the reference.
    pub controller: bool,
}

/// What one container of a pod runs, as fingerprints. They are only compared for equality.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Container {
    /// The container's name.
    pub name: Text,
    /// Fingerprint of the container ID.
    pub id: u64,
    /// Fingerprint of the running image.
    pub image: u64,
    /// Fingerprint of the resources in use, including the limits that the container takes from its pod.
    pub resources: u64,
    /// Fingerprint of the image in the spec.
    pub spec_image: u64,
    /// Fingerprint of the resources in the spec, likewise.
    pub spec_resources: u64,
}

/// The disruption probes of a pod, as its `Disruptable` condition reports them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    /// Why the declaration is invalid; such a probe does not allow disruptions.
    pub malformed: Option<Text>,
    /// The status of the condition; `None` where it was never written.
    pub disruptable: Option<bool>,
    /// The condition's message.
    pub message: Option<Text>,
    /// When the agent last ran the probe before it wrote the condition, by the agent's clock.
    pub probed: Option<Time>,
    /// When the condition last changed.
    pub since: Option<Time>,
    /// The latest start time of a probed container, by the clock of the same node.
    pub started: Option<Time>,
}

/// How a pod refers to its group of the Workload API.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// `spec.schedulingGroup.podGroupName`.
    PodGroup(Text),
    /// `spec.workloadRef`, or the `quorate.dev` labels.
    Replica {
        /// The API of the Workload.
        source: WorkloadSource,
        /// The Workload's name.
        workload: Text,
        /// The pod group in it.
        group: Text,
        /// The replica of that pod group; empty where there is only one.
        replica: Text,
    },
}
