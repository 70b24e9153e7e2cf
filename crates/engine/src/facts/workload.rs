//! Controllers of pods, and the objects of the Workload API.

use super::Owner;
use crate::basics::{GroupKind, Labels, ObjectKey, Text, Uid, Version};
use crate::group_source::GroupSource;
use crate::names::{SCHEDULING_GROUP, UPSTREAM_SCHEDULING_GROUP};
use crate::workload_kind::WorkloadKind;

/// The API that a `Workload` belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkloadSource {
    /// `scheduling.k8s.io/v1alpha1`.
    Upstream,
    /// `scheduling.quorate.dev/v1alpha1`.
    Own,
}

impl WorkloadSource {
    /// The API group.
    pub(crate) fn api_group(self) -> &'static str {
        match self {
            Self::Upstream => UPSTREAM_SCHEDULING_GROUP,
            Self::Own => SCHEDULING_GROUP,
        }
    }
}

/// A `PodGroup` object: one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodGroup {
    /// The healthy pods that it needs; 1 under the basic policy.
    pub min_count: u32,
    /// Its pods go down together (`disruptionMode` PodGroup or all), so it has no surplus pods.
    pub falls_whole: bool,
    /// The Workload and template that it was created from.
    pub template: Option<(Text, Text)>,
    /// Its controller.
    pub controller: Option<Owner>,
    /// Its UID.
    pub uid: Uid,
    /// It has a deletion timestamp.
    pub deleting: bool,
}

/// A `Workload` object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its pod groups.
    pub groups: Box<[WorkloadGroup]>,
    /// Its UID.
    pub uid: Uid,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// Its controller, or its first owner if it has no controller.
    pub owner: Option<Owner>,
}

/// A pod group within a `Workload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadGroup {
    /// Its name.
    pub name: Text,
    /// The healthy pods that one replica needs.
    pub min_count: u32,
    /// The expected replicas, where the API has that number.
    pub replicas: Option<u32>,
}

/// A workload controller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Controller {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its UID.
    pub uid: Uid,
    /// The version of this state.
    pub version: Version,
    /// Its kind.
    pub kind: GroupKind,
    /// The desired replicas; `None` where the kind has no scale. For a Job: min(parallelism, completions −
    /// succeeded − failed indexes).
    pub replicas: Option<u32>,
    /// What `replicas` counts.
    pub counts: Counts,
    /// Its own controller.
    pub owner: Option<Owner>,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// Its controller may have all its pods down at once: a Deployment with the strategy Recreate deletes all old pods
    /// before it creates new ones, and the controller of Jobs deletes only pods that a Job does not want any more.
    pub recreate: bool,
    /// Whether it runs pods.
    pub activity: Activity,
    /// The labels of its pod templates, one set for each. `None` for kinds whose templates are not known. Labels that
    /// are added to each pod later are not included: see [`is_added_later`].
    pub templates: Option<Box<[Labels]>>,
}

/// Whether a controller runs pods. A controller that does not run pods wants none, regardless of its scale, and its
/// groups are not expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activity {
    /// It runs pods. The default, also for kinds without such a state.
    #[default]
    Active,
    /// It is suspended.
    Suspended,
    /// It has finished its work.
    Complete,
    /// It has failed and does not retry.
    Failed,
}

/// Whether a pod may have a label that its pod template does not have, because a controller or the API server adds it
/// to each pod. A template does not show whether its pods get such a label, or its value.
pub fn is_added_later(key: &str) -> bool {
    // The API server copies the topology of the node.
    key.starts_with("topology.kubernetes.io/")
        || WorkloadKind::ALL.iter().any(|kind| kind.adds_label(key))
        || GroupSource::ALL.iter().any(|source| key.starts_with(source.label_prefix))
}

/// What the scale of a controller counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counts {
    /// Pods.
    Pods,
    /// Groups of pods.
    Groups {
        /// The pods in one group, where known.
        size: Option<u32>,
        /// The controller rebuilds the whole group when one pod is lost.
        falls_whole: bool,
    },
}
