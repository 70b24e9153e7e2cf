//! What the engine is told: objects reduced to the parts that matter to a decision.
//!
//! Every fact is compared with what is known before anything else happens; an unchanged one costs a lookup.

use std::sync::Arc;

use crate::basics::{GroupKind, Labels, ObjectKey, Quantity, Text, Time, Uid, Version};
use crate::claims::Ledger;
use crate::selector::Selector;

/// One change to the world, as a watch shows it. `None` means: it is gone.
#[derive(Clone, Debug)]
pub enum Input {
    /// A pod appeared or changed.
    Pod(Pod),
    /// A pod is gone; the version is that of the event which said so.
    PodGone(Uid, Version),
    /// The pod watch has come this far and has shown everything up to here.
    PodsAt(Version),
    /// A budget appeared or changed, its ledger with it.
    Budget(Budget),
    /// A budget is gone.
    BudgetGone(BudgetKey),
    /// A workload controller: whatever owns pods or has a scale.
    Controller(Controller),
    /// A workload controller is gone.
    ControllerGone(Uid),
    /// A `PodGroup` object of the scheduling API.
    PodGroup(ObjectKey, Option<PodGroup>),
    /// A `Workload`, upstream's or ours.
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
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
    /// The kubelet cannot be asked.
    Unknown,
}

impl Phase {
    /// Whether the pod has ended for good.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its UID: what everything else is keyed by, since names come back.
    pub uid: Uid,
    /// The version of this state of it.
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
    /// Since when the Ready condition is what it is.
    pub ready_since: Option<Time>,
    /// A readiness gate that announces updates is not True: an update of the pod is about to begin, or under way.
    pub announced: bool,
    /// No in-place update is under way and no label calls it unavailable. Only [`HealthRule::Strict`] asks.
    pub consistent: bool,
    /// It asks not to be protected. Only budgets that are [`Rules::waivable`] listen.
    pub waives: bool,
    /// Its disruption probes, if it declares any.
    pub probe: Option<Box<Probe>>,
    /// Its owners, in their order.
    pub owners: Arc<[Owner]>,
    /// How it is linked to a group of the Workload API. Few pods are, and all of them would have room for it.
    pub link: Option<Box<Link>>,
    /// The group size that LeaderWorkerSet wrote on it.
    pub group_size: Option<u32>,
    /// What its containers run.
    pub containers: Box<[Container]>,
}

impl Pod {
    /// The owner that controls it.
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
    /// Whether it is the managing controller.
    pub controller: bool,
}

/// What one container of a pod runs, as fingerprints: equal or not is all that is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Container {
    /// The container's name.
    pub name: Text,
    /// Fingerprint of the container ID.
    pub id: u64,
    /// Fingerprint of the image that runs.
    pub image: u64,
    /// Fingerprint of the resources that are in force.
    pub resources: u64,
    /// Fingerprint of the image that the spec asks for.
    pub asked_image: u64,
    /// Fingerprint of the resources that the spec asks for.
    pub asked_resources: u64,
}

/// The disruption probes of a pod, seen through its `Disruptable` condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    /// Why the declaration cannot be read; such a probe fails.
    pub malformed: Option<Text>,
    /// The condition: `None` where it was never written.
    pub disruptable: Option<bool>,
    /// The condition's message.
    pub message: Option<Text>,
    /// When the agent probed last before it wrote the condition, by the agent's clock.
    pub probed: Option<Time>,
    /// Since when the condition is what it is.
    pub since: Option<Time>,
    /// The latest start of a probed container, by the same node's clock.
    pub started: Option<Time>,
}

/// How a pod names its group of the Workload API.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// `spec.schedulingGroup.podGroupName`.
    PodGroup(Text),
    /// `spec.workloadRef`, or our labels.
    Replica {
        /// Which kind of Workload is meant.
        source: WorkloadSource,
        /// The Workload's name.
        workload: Text,
        /// The pod group in it.
        group: Text,
        /// Which replica of that pod group; empty where there is only one.
        replica: Text,
    },
}

/// Whose `Workload` a name refers to.
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
    /// How many pods make it whole; 1 under the basic policy.
    pub min_count: u32,
    /// Its pods go down together (`disruptionMode` PodGroup or all), so there is no surplus.
    pub falls_whole: bool,
    /// The Workload and template it was made from.
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
    /// Its controller, or the first of its owners where it has no controller.
    pub owner: Option<Owner>,
}

/// A pod group within a `Workload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadGroup {
    /// Its name.
    pub name: Text,
    /// How many pods make one replica of it whole.
    pub min_count: u32,
    /// How many replicas there should be, where the API has that number.
    pub replicas: Option<u32>,
}

/// A workload controller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Controller {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its UID.
    pub uid: Uid,
    /// The version of this state of it.
    pub version: Version,
    /// Its kind.
    pub kind: GroupKind,
    /// How many it wants; `None` where the kind has no scale. A Job wants min(parallelism, completions − succeeded).
    pub replicas: Option<u32>,
    /// What `replicas` counts.
    pub counts: Counts,
    /// Its own controller.
    pub owner: Option<Owner>,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// A Deployment whose strategy is Recreate: its owner asked for the gap.
    pub recreate: bool,
    /// Whether it runs pods at all.
    pub activity: Activity,
    /// The labels of the pods that it makes, one set for each of its pod templates. `None` for kinds of which that is
    /// not known. Labels that are added to each pod later are not in it: see [`is_added_later`].
    pub templates: Option<Box<[Labels]>>,
}

/// Whether a controller runs pods. One that does not wants none, whatever its scale says, and the groups that it owns are
/// not expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activity {
    /// It does; also where nothing is said.
    #[default]
    Active,
    /// It is suspended.
    Suspended,
    /// It has done its work.
    Complete,
    /// It has given up.
    Failed,
}

/// Whether a label may be on a pod although the pod template does not have it, because a controller or the API server
/// adds it to each pod. Whether the pods of a template have such a label, and with which value, cannot be told from the
/// template.
pub fn is_added_later(key: &str) -> bool {
    const KEYS: [&str; 6] = [
        "pod-template-hash",
        "pod-template-generation",
        "controller-revision-hash",
        "job-name",
        "controller-uid",
        "apps.kubernetes.io/pod-index",
    ];
    const DOMAINS: [&str; 6] = [
        "statefulset.kubernetes.io/",
        "batch.kubernetes.io/",
        "topology.kubernetes.io/",
        "leaderworkerset.sigs.k8s.io/",
        "jobset.sigs.k8s.io/",
        "apps.kruise.io/",
    ];
    KEYS.contains(&key) || DOMAINS.iter().any(|domain| key.starts_with(domain))
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
        /// The loss of one pod makes the controller rebuild the group.
        falls_whole: bool,
    },
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// It has a deletion timestamp.
    pub terminating: bool,
    /// The webhooks do not look at it.
    pub excluded: bool,
    /// It has the label that makes the API server ask about every operation, and take no answer for a no.
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
    /// When the last renewal was seen, by our clock.
    pub renewed: Time,
    /// How long a renewal holds.
    pub holds: std::time::Duration,
}

/// A native PodDisruptionBudget, as far as it can refuse what we would admit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeBudget {
    /// Which pods it covers.
    pub selector: Selector,
    /// How many disruptions it allows now.
    pub allowed: i64,
    /// Its status tells of the present spec.
    pub current: bool,
    /// It lets unready pods go whatever the numbers.
    pub always_allow_unready: bool,
    /// Healthy pods seen and wanted.
    pub healthy: (i64, i64),
    /// Pods that there should be.
    pub expected: i64,
}

impl NativeBudget {
    /// How many pods it lets go while all are healthy.
    pub fn lets_go(&self) -> i64 {
        self.expected - self.healthy.1
    }
}

/// Which kind of object a budget was written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BudgetKind {
    /// `policy.quorate.dev` DisruptionBudget.
    DisruptionBudget,
    /// `policy.kruise.io` PodUnavailableBudget.
    PodUnavailableBudget,
}

impl BudgetKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::DisruptionBudget, Self::PodUnavailableBudget];

    /// How the owner of such a budget says how many units there should be.
    pub(crate) fn says_expected(self) -> &'static str {
        match self {
            Self::DisruptionBudget => "expectedReplicas",
            Self::PodUnavailableBudget => "the annotation pub.kruise.io/protect-total-replicas",
        }
    }
}

/// Names a budget. Budgets are asked and claimed in this order.
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
            // By a word that its owner uses: there may be a budget of the other kind with the same name.
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
    /// The version of this state of it.
    pub version: Version,
    /// What it asks for, or why that cannot be read.
    pub spec: Result<Rules, Broken>,
    /// What was admitted and is not yet seen in the pods.
    pub ledger: Ledger,
    /// Groups that vanished, and when, as its status remembers them across restarts.
    pub gone: Box<[(Text, Time)]>,
    /// What else its status remembers.
    pub memory: Memory,
}

/// What a budget remembers of its sources: what says how many pods or groups there should be stays expected when the last
/// of its pods is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// [`crate::memory_key`] of the rules in force that it was written for. Under other rules it says nothing.
    pub key: u64,
    /// Sources that had a pod under the budget, where no template says whether they will have one again.
    pub sources: Box<[Source]>,
    /// Groups that were complete when the last of their pods was collected: `PodGroup/name`,
    /// `Workload.scheduling.quorate.dev/name/group/replica`, `Workload.scheduling.k8s.io/name/group/replica`,
    /// `LeaderWorkerSet/name/value`, `Label/value`, `Owner/uid`. A run of numbers may stand as one: `Label/0~7`.
    pub complete: Box<[Text]>,
}

/// What says how many pods or groups there should be.
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
    /// The part of it that is meant; empty where the whole is.
    pub part: Text,
    /// Its UID.
    pub uid: Uid,
}

/// How many sources without pods a budget remembers. Past that it admits nothing.
pub const MAX_SOURCES: usize = 256;
/// How many complete groups without pods the status remembers, runs of numbers as one. What is left out counts as expected
/// again after a restart.
pub const MAX_COMPLETE: usize = 256;

/// A budget that cannot be read: it denies what it protects against, on the pods it covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Broken {
    /// What is wrong.
    pub why: Text,
    /// Which pods; all of the namespace where that is what cannot be read.
    pub covers: Covers,
    /// Which operations.
    pub operations: Operations,
}

/// What a budget asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Which pods.
    pub covers: Covers,
    /// At least so many units stay healthy.
    pub min_available: Option<Quantity>,
    /// At most so many units are down.
    pub max_unavailable: Option<Quantity>,
    /// What a unit is.
    pub units: Units,
    /// How many units there should be, if the owner of the budget says so.
    pub expected: Option<u32>,
    /// What happens to pods that are unhealthy already.
    pub unhealthy: UnhealthyPolicy,
    /// Which operations it protects against.
    pub operations: Operations,
    /// Decide, count, report, never deny.
    pub observe: bool,
    /// When a pod counts as available.
    pub health: HealthRule,
    /// A pod may waive its protection.
    pub waivable: bool,
}

/// Which pods a budget covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Covers {
    /// Those with these labels.
    Selector(Selector),
    /// Those of this workload.
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
        /// How many healthy pods make a group whole; the default is the group's size where known.
        min_ready: Option<u32>,
    },
    /// Pods that share an owner of a kind.
    Owner {
        /// The owner's kind.
        kind: GroupKind,
        /// How many healthy pods make a group whole.
        min_ready: Option<u32>,
    },
}

/// What happens to pods that are unhealthy already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnhealthyPolicy {
    /// They may be evicted while the budget is met.
    #[default]
    IfHealthyBudget,
    /// They may always go.
    AlwaysAllow,
}

/// When a pod counts as available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HealthRule {
    /// Its probe says so, or it is Ready where it has none.
    #[default]
    Ready,
    /// As above, and it is Running and no in-place update is under way.
    Strict,
}

/// What somebody wants to do to a pod.
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
