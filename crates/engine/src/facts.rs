//! The input of the engine: Kubernetes objects, reduced to the parts that matter to a decision.
//!
//! The engine compares every fact with the known one first, so an unchanged fact costs one lookup.

use std::sync::Arc;

use crate::basics::{GroupKind, Labels, ObjectKey, Quantity, Text, Time, Uid, Version};
use crate::claims::Ledger;
use crate::group_source::GroupSource;
use crate::selector::Selector;

/// One change in the cluster, as a watch reports it. `None` means that the object is gone.
#[derive(Clone, Debug)]
pub enum Input {
    /// A pod appeared or changed.
    Pod(Pod),
    /// A pod is gone; the version is that of the watch event.
    PodGone(Uid, Version),
    /// The pod watch has delivered every event up to this version.
    PodsAt(Version),
    /// A budget, or its ledger, appeared or changed.
    Budget(Budget),
    /// A budget is gone.
    BudgetGone(BudgetKey),
    /// A workload controller: an object that owns pods or has a scale.
    Controller(Controller),
    /// A workload controller is gone.
    ControllerGone(Uid),
    /// A `PodGroup` object of the scheduling API.
    PodGroup(ObjectKey, Option<PodGroup>),
    /// A `Workload` of either API.
    Workload(WorkloadSource, ObjectKey, Option<Workload>),
    /// A namespace.
    Namespace(Text, Option<Namespace>),
    /// A node.
    Node(Text, Option<Node>),
    /// The probe agent of a node.
    Agent(Text, Option<Agent>),
    /// A native PodDisruptionBudget.
    NativeBudget(ObjectKey, Option<NativeBudget>),
}

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
    /// What its containers run.
    pub containers: Box<[Container]>,
}

impl Pod {
    /// Its owner with `controller: true`.
    pub fn controller(&self) -> Option<&Owner> {
        self.owners.iter().find(|owner| owner.controller)
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
    /// Fingerprint of the resources in use.
    pub resources: u64,
    /// Fingerprint of the image in the spec.
    pub asked_image: u64,
    /// Fingerprint of the resources in the spec.
    pub asked_resources: u64,
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

/// The API that a `Workload` belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkloadSource {
    /// `scheduling.k8s.io/v1alpha1`.
    Upstream,
    /// `scheduling.quorate.dev/v1alpha1`.
    Own,
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
    /// The desired replicas; `None` where the kind has no scale. For a Job: min(parallelism, completions − succeeded).
    pub replicas: Option<u32>,
    /// What `replicas` counts.
    pub counts: Counts,
    /// Its own controller.
    pub owner: Option<Owner>,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// It is a Deployment with the strategy Recreate, which deletes all old pods before it creates new ones.
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
    const KEYS: [&str; 6] = [
        "pod-template-hash",
        "pod-template-generation",
        "controller-revision-hash",
        "job-name",
        "controller-uid",
        "apps.kubernetes.io/pod-index",
    ];
    const DOMAINS: [&str; 5] = [
        "statefulset.kubernetes.io/",
        "batch.kubernetes.io/",
        "topology.kubernetes.io/",
        "jobset.sigs.k8s.io/",
        "apps.kruise.io/",
    ];
    let mut domains = DOMAINS.into_iter().chain(GroupSource::ALL.iter().map(|source| source.label_prefix));
    KEYS.contains(&key) || domains.any(|domain| key.starts_with(domain))
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

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// The webhooks do not match it.
    pub excluded: bool,
    /// It has the label for which the API server calls the webhooks on every operation, and fails closed.
    pub guarded: bool,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its Ready condition is True.
    pub ready: bool,
}

/// The heartbeat of a node's probe agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// When it started, by its own clock.
    pub started: Time,
    /// When this replica saw the last renewal, by its own clock.
    pub renewed: Time,
    /// How long a renewal is valid.
    pub holds: std::time::Duration,
}

/// A native PodDisruptionBudget, reduced to the parts that decide whether the API server denies an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeBudget {
    /// Which pods it covers.
    pub selector: Selector,
    /// How many disruptions it allows now.
    pub allowed: i64,
    /// Its status is up to date with its spec.
    pub current: bool,
    /// Its `unhealthyPodEvictionPolicy` is AlwaysAllow.
    pub always_allow_unready: bool,
    /// `currentHealthy` and `desiredHealthy`.
    pub healthy: (i64, i64),
    /// `expectedPods`.
    pub expected: i64,
}

impl NativeBudget {
    /// How many disruptions it allows while all pods are healthy.
    pub fn lets_go(&self) -> i64 {
        self.expected - self.healthy.1
    }
}

/// The kind of object that defines a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BudgetKind {
    /// `policy.quorate.dev` DisruptionBudget.
    DisruptionBudget,
    /// `policy.kruise.io` PodUnavailableBudget.
    PodUnavailableBudget,
}

impl BudgetKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::DisruptionBudget, Self::PodUnavailableBudget];

    /// The field or annotation in which such a budget states the expected number of units.
    pub(crate) fn says_expected(self) -> &'static str {
        match self {
            Self::DisruptionBudget => "expectedReplicas",
            Self::PodUnavailableBudget => "the annotation pub.kruise.io/protect-total-replicas",
        }
    }
}

/// Identifies a budget. Budgets are checked and claimed in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BudgetKey {
    /// Namespace and name.
    pub object: ObjectKey,
    /// The kind of object.
    pub kind: BudgetKind,
}

impl std::fmt::Display for BudgetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            BudgetKind::DisruptionBudget => self.object.fmt(f),
            // With its kind: there may be a DisruptionBudget with the same name.
            BudgetKind::PodUnavailableBudget => write!(f, "PodUnavailableBudget {}", self.object),
        }
    }
}

/// A budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Its name.
    pub key: BudgetKey,
    /// Its UID.
    pub uid: Uid,
    /// The generation of its spec.
    pub generation: i64,
    /// The version of this state.
    pub version: Version,
    /// Its rules, or why they are invalid.
    pub spec: Result<Rules, Broken>,
    /// What was admitted and is not visible in the pods yet.
    pub ledger: Ledger,
    /// Groups that vanished, and when. The status keeps them across restarts.
    pub gone: Box<[(Text, Time)]>,
    /// What else its status keeps.
    pub memory: Memory,
}

/// What a budget remembers about its sources. A source, which states the expected number of pods or groups, stays
/// expected when its last pod is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// [`crate::memory_key`] of the rules that this memory was written for. It does not apply to other rules.
    pub key: u64,
    /// Sources that had a pod under the budget and whose templates do not show whether they will have one again.
    pub sources: Box<[Source]>,
    /// Groups that were complete when their last pod was removed: `PodGroup/name`,
    /// `Workload.scheduling.quorate.dev/name/group/replica`, `Workload.scheduling.k8s.io/name/group/replica`,
    /// `LeaderWorkerSet/name/value`, `Label/value`, `Owner/uid`. A range of numbers may be one entry: `Label/0~7`.
    pub complete: Box<[Text]>,
}

/// An object that states the expected number of pods or groups.
///
/// | what | kind | name | part | UID |
/// |---|---|---|---|---|
/// | a controller | its own | its own | | its own |
/// | a pod group of a `Workload` | `Workload` of either API group | that of the Workload | the pod group | that of the Workload |
/// | a `PodGroup` without a template | `PodGroup.scheduling.k8s.io` | its own | | its own |
/// | the `PodGroup`s of one template | `PodGroup.scheduling.k8s.io` | that of the Workload | the template | empty |
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// The kind of the object.
    pub kind: GroupKind,
    /// Its name.
    pub name: Text,
    /// The part of the object; empty where the whole object is the source.
    pub part: Text,
    /// Its UID.
    pub uid: Uid,
}

/// The largest number of sources without pods that a budget remembers. With more, it denies every request.
pub const MAX_SOURCES: usize = 256;
/// The largest number of complete groups without pods that the status remembers; a range of numbers counts as one.
/// Groups beyond that count as expected again after a restart.
pub const MAX_COMPLETE: usize = 256;

/// An invalid budget: it denies the operations that it protects against, on the pods that it covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Broken {
    /// What is wrong.
    pub why: Text,
    /// The pods that it covers; all pods of the namespace where this part is invalid.
    pub covers: Covers,
    /// The operations that it protects against.
    pub operations: Operations,
}

/// The rules of a budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// The pods that it covers.
    pub covers: Covers,
    /// The smallest number of units that stay healthy.
    pub min_available: Option<Quantity>,
    /// The largest number of units that are down.
    pub max_unavailable: Option<Quantity>,
    /// What a unit is.
    pub units: Units,
    /// The expected number of units, if the budget states it.
    pub expected: Option<u32>,
    /// Whether pods that are already unhealthy may be evicted.
    pub unhealthy: UnhealthyPolicy,
    /// The operations that it protects against.
    pub operations: Operations,
    /// Only observe: decide, count and report, but never deny.
    pub observe: bool,
    /// When a pod counts as available.
    pub health: HealthRule,
    /// A pod may waive its protection.
    pub waivable: bool,
}

impl Rules {
    /// The rules of a budget over these pods that sets nothing else. It protects pods against evictions.
    pub fn new(covers: Covers) -> Self {
        Self {
            covers,
            min_available: None,
            max_unavailable: None,
            units: Units::Pods,
            expected: None,
            unhealthy: UnhealthyPolicy::default(),
            operations: Operations::of(&[Operation::Evict]),
            observe: false,
            health: HealthRule::default(),
            waivable: false,
        }
    }
}

/// Which pods a budget covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Covers {
    /// Pods that match this selector.
    Selector(Selector),
    /// Pods of this workload.
    Target(GroupKind, Text),
}

/// What a budget counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Units {
    /// Pods.
    Pods,
    /// Groups of the Workload API.
    Workload,
    /// Pods that share the value of a label.
    Label {
        /// The label.
        key: Text,
        /// The healthy pods that a group needs; the default is the group's size where it is known.
        min_ready: Option<u32>,
    },
    /// Pods that share an owner of a kind.
    Owner {
        /// The owner's kind.
        kind: GroupKind,
        /// The healthy pods that a group needs.
        min_ready: Option<u32>,
    },
}

/// Whether pods that are already unhealthy may be evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnhealthyPolicy {
    /// They may be evicted while the budget is met.
    #[default]
    IfHealthyBudget,
    /// They may always be evicted.
    AlwaysAllow,
}

/// When a pod counts as available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HealthRule {
    /// Its disruption probe allows a disruption, or, if it has none, it is Ready.
    #[default]
    Ready,
    /// As [`Self::Ready`], and it is Running and [`Pod::consistent`].
    Strict,
}

/// An operation that disrupts a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// The eviction API.
    Evict,
    /// A plain delete.
    Delete,
    /// A change of the spec that replaces or restarts containers.
    Update,
    /// A change of resources in place.
    Resize,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 4] = [Self::Evict, Self::Delete, Self::Update, Self::Resize];

    /// Its name, as in the spec of a budget, in metrics and in Events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Evict => "Evict",
            Self::Delete => "Delete",
            Self::Update => "Update",
            Self::Resize => "Resize",
        }
    }

    /// Its verb, as in a command.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Evict => "evict",
            Self::Delete => "delete",
            Self::Update => "update",
            Self::Resize => "resize",
        }
    }

    /// Whether it ends the pod.
    pub fn removes(self) -> bool {
        matches!(self, Self::Evict | Self::Delete)
    }
}

/// A set of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operations(u8);

impl Operations {
    /// The set of these.
    pub fn of(operations: &[Operation]) -> Self {
        Self(operations.iter().fold(0, |bits, &op| bits | 1 << op as u8))
    }

    /// Whether an operation is in it.
    pub fn contains(self, operation: Operation) -> bool {
        self.0 & (1 << operation as u8) != 0
    }
}
