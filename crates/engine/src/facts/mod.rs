//! The input of the engine: Kubernetes objects, reduced to the parts that matter to a decision.
//!
//! The engine compares every fact with the known one first, so an unchanged fact costs one lookup.

mod budget;
mod cluster;
mod operation;
mod pod;
mod workload;

pub use budget::{
    Broken, Budget, BudgetKey, BudgetKind, Covers, HealthRule, MAX_COMPLETE, MAX_SOURCES, Memory,
    RuleAnnotations, Rules, Source, UnhealthyPolicy, Units,
};
pub use cluster::{Agent, Namespace, NativeBudget, Node};
pub use operation::{Operation, Operations};
pub use pod::{Container, Link, Owner, Phase, Pod, Probe};
pub use workload::{
    Activity, Controller, Counts, PodGroup, Workload, WorkloadGroup, WorkloadSource, is_added_later,
};

use crate::basics::{ObjectKey, Text, Uid, Version};

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
