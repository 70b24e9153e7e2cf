//! Scheduler, kubelets and controllers.
//!
//! They work through an ordinary client, so they play on the in-memory API server and on a real control plane alike. All
//! of them are driven by watches; what an actor wrote itself it knows from the answer (`shelf`). Each writes under the
//! user name that the real one has ([`Identities`]).
//!
//! - [`Nodes`], [`Kubelets`]: hollow nodes, and what the pods on them do.
//! - `scheduler`: binds pods to nodes.
//! - `replicaset`, `deployment`, `statefulset`, `job`: the workload controllers.
//! - `gc`: owner references; `namespaces`: the end of a namespace.
//! - `lost_nodes`: NoExecute taints, and pods whose node is gone.
//! - `disruption`: the numbers in a PodDisruptionBudget's status.
//! - `lws`: LeaderWorkerSets. [`Gang`]: groups with the objects of the Workload API.
//!
//! # Where they differ from the real ones, on purpose
//!
//! - **Kubelets** run no containers: a pod is Running and Ready after the time that [`Timing`] says, and what its containers
//!   do is said from outside ([`Kubelets`]). Probes and readiness gates are not looked at; there are no logs and no volumes.
//! - **The scheduler** looks at readiness, cordons, taints, node selectors, required node affinity and the number of pods;
//!   not at CPU and memory, pod affinity or topology spread, and it preempts nobody. Gangs are bound pod by pod.
//! - **Deployments**: a change of replicas in the middle of a rollout is not shared out among the ReplicaSets in
//!   proportion; the rollout's own rules lead to the same end.
//! - **StatefulSets** with `volumeClaimTemplates` get an Event `FailedCreate` that says so, and no pods.
//! - **Jobs** know parallelism, completions, indexes and a backoff limit; no tracking finalizers, deadlines, TTLs or policies.
//! - **DaemonSets, ReplicationControllers** and the endpoints of Services have no controller here.
//! - **LeaderWorkerSets** come without subgroups, environment variables, network policies and the headless Service. The
//!   labels that follow from a pod's name are put on by an update before it is scheduled, not by a webhook.
//! - **What failed** is tried again after at most 5 s, where the real controllers wait up to 1000 s.

mod cache;
mod controller;
mod deployment;
mod disruption;
mod gangs;
mod gc;
mod identities;
mod job;
mod kinds;
mod kubelet;
mod loads;
mod lost_nodes;
mod lws;
mod namespaces;
mod pod_control;
mod pods;
mod queue;
mod recorder;
mod replicaset;
mod request;
mod revisions;
mod scheduler;
mod statefulset;
mod view;

use std::sync::Arc;

pub use gangs::Gang;
pub use identities::{
    CONTROLLER_MANAGER, Identities, LEADER_WORKER_SETS, SCHEDULER, controller, groups_of, kubelet,
};
pub use kubelet::{Kubelets, NodeTemplate, Nodes, Timing, UnknownPod};
pub use lws::{install_leader_worker_sets, leader_worker_set_definition};
use view::{TaskGroup, View};

/// What every actor needs to start.
pub(crate) struct ActorContext {
    pub(crate) view: Arc<View>,
    pub(crate) identities: Identities,
    pub(crate) tasks: TaskGroup,
}

/// Which actors play.
#[derive(Clone, Debug)]
pub struct ActorOptions {
    /// The scheduler.
    pub scheduler: bool,
    /// Deployments, ReplicaSets, StatefulSets and Jobs.
    pub workloads: bool,
    /// The status of native PodDisruptionBudgets.
    pub disruption: bool,
    /// Garbage collection by owner references.
    pub garbage_collection: bool,
    /// The pods of nodes that repel them or are gone.
    pub lost_nodes: bool,
    /// The end of namespaces.
    pub namespaces: bool,
    /// LeaderWorkerSets. Their definition has to be brought in by [`install_leader_worker_sets`].
    pub leader_worker_sets: bool,
    /// How long starts and ends of pods take on the hollow nodes.
    pub timing: Timing,
}

impl ActorOptions {
    /// The whole cast, for an API server that comes alone.
    #[must_use]
    pub fn everyone() -> Self {
        Self {
            scheduler: true,
            workloads: true,
            disruption: true,
            garbage_collection: true,
            lost_nodes: true,
            namespaces: true,
            leader_worker_sets: true,
            timing: Timing::default(),
        }
    }

    /// Nodes and a scheduler, beside a real controller manager.
    #[must_use]
    pub fn beside_controller_manager() -> Self {
        Self {
            workloads: false,
            disruption: false,
            garbage_collection: false,
            lost_nodes: false,
            namespaces: false,
            ..Self::everyone()
        }
    }
}

/// The actors at work. They stop when this is dropped; what they made stays.
pub struct Actors {
    tasks: TaskGroup,
    nodes: Nodes,
    kubelets: Kubelets,
}

impl Actors {
    /// Starts them. Has to be called inside a tokio runtime.
    #[must_use]
    pub fn start(identities: &Identities, options: &ActorOptions) -> Self {
        let tasks = TaskGroup::default();
        let identities = identities.within(tokio::runtime::Handle::current());
        let view = View::new(identities.client(CONTROLLER_MANAGER), tasks.clone());
        let context = ActorContext { view, identities, tasks: tasks.clone() };
        let kubelets = Kubelets::start(&context, options.timing.clone());
        let nodes = Nodes::start(&context, kubelets.clone());
        if options.scheduler {
            scheduler::start(&context);
        }
        if options.workloads {
            deployment::start(&context);
            replicaset::start(&context);
            statefulset::start(&context);
            job::start(&context);
        }
        if options.disruption {
            disruption::start(&context);
        }
        if options.garbage_collection {
            gc::start(&context);
        }
        if options.lost_nodes {
            lost_nodes::start(&context);
        }
        if options.namespaces {
            namespaces::start(&context);
        }
        if options.leader_worker_sets {
            lws::start(&context);
        }
        Self { tasks, nodes, kubelets }
    }

    /// The hollow nodes.
    #[must_use]
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The pods on them.
    #[must_use]
    pub fn kubelets(&self) -> &Kubelets {
        &self.kubelets
    }
}

impl Drop for Actors {
    fn drop(&mut self) {
        self.tasks.end();
    }
}
