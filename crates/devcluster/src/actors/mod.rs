//! Actors: a simulated scheduler, kubelets and controllers.
//!
//! They use an ordinary client, so they run on the in-memory API server as well as on a real control plane. All actors
//! are driven by watches. An actor takes the result of its own writes from the response (`cache`). Each actor writes
//! with the user name of the real component ([`Identities`]).
//!
//! - [`Nodes`], [`Kubelets`]: hollow nodes, and the pods on them.
//! - `scheduler`: binds pods to nodes.
//! - `replicaset`, `deployment`, `statefulset`, `job`: the workload controllers.
//! - `gc`: garbage collection by owner references. `namespaces`: deletion of namespaces.
//! - `lost_nodes`: NoExecute taints, and pods whose node no longer exists.
//! - `disruption`: the status of PodDisruptionBudgets.
//! - `custom_sets`: CloneSets, and a custom kind with a scale.
//! - `lws`: LeaderWorkerSets. [`Gang`]: groups with the objects of the Workload API.
//!
//! # Deliberate differences from the real components
//!
//! - **Kubelets** run no containers: a pod is Running and Ready after the time in [`Timing`], and tests control its
//!   containers through [`Kubelets`]. Probes are ignored; there are no logs and no volumes.
//! - **The scheduler** considers readiness, cordons, taints, node selectors, required node affinity and the number of
//!   pods. It ignores CPU, memory, pod affinity and topology spread, and never preempts pods. It binds gangs pod by
//!   pod.
//! - **Deployments** do not distribute a change of replicas during a rollout proportionally among the ReplicaSets. The
//!   rules of the rollout lead to the same result.
//! - **StatefulSets** with `volumeClaimTemplates` get an Event `FailedCreate` that says so, and no pods.
//! - **Jobs** support parallelism, completions, indexes and a backoff limit, but no tracking finalizers, deadlines,
//!   TTLs or policies.
//! - **DaemonSets, ReplicationControllers** and the endpoints of Services have no controller here.
//! - **LeaderWorkerSets** have no subgroups, environment variables, network policies or headless Service. An update
//!   adds the labels that depend on a pod's name before the pod is scheduled; the real controller uses a webhook.
//! - **Retries** come after at most 5 s; the real controllers wait up to 1000 s.

mod cache;
mod controller;
mod custom_sets;
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

pub use custom_sets::custom_set_definitions;
pub use gangs::Gang;
pub use identities::{
    CONTROLLER_MANAGER, Identities, LEADER_WORKER_SETS, SCHEDULER, controller, groups_of, kubelet,
};
pub use kubelet::{Kubelets, NodeTemplate, Nodes, Timing, UnknownPod};
pub use lws::{install_leader_worker_sets, leader_worker_set_definition};
use view::{TaskGroup, View};

/// The dependencies of every actor.
pub(crate) struct ActorContext {
    pub(crate) view: Arc<View>,
    pub(crate) identities: Identities,
    pub(crate) tasks: TaskGroup,
}

/// Selects the actors to run.
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
    /// Removal of pods from nodes with NoExecute taints and from nodes that no longer exist.
    pub lost_nodes: bool,
    /// Deletion of namespaces.
    pub namespaces: bool,
    /// LeaderWorkerSets. [`install_leader_worker_sets`] must create their CustomResourceDefinition first.
    pub leader_worker_sets: bool,
    /// CloneSets, and a custom kind with a scale. The kinds of [`custom_set_definitions`] must exist first.
    pub custom_sets: bool,
    /// How long pods take to start and to terminate on the hollow nodes.
    pub timing: Timing,
}

impl ActorOptions {
    /// All actors for the kinds that every cluster has, and LeaderWorkerSets: for an API server without other components.
    #[must_use]
    pub fn all() -> Self {
        Self {
            scheduler: true,
            workloads: true,
            disruption: true,
            garbage_collection: true,
            lost_nodes: true,
            namespaces: true,
            leader_worker_sets: true,
            custom_sets: false,
            timing: Timing::default(),
        }
    }

    /// Nodes and a scheduler, for a cluster with a real controller manager.
    #[must_use]
    pub fn beside_controller_manager() -> Self {
        Self {
            workloads: false,
            disruption: false,
            garbage_collection: false,
            lost_nodes: false,
            namespaces: false,
            ..Self::all()
        }
    }
}

/// The running actors. Dropping this stops them; the objects that they created stay.
pub struct Actors {
    tasks: TaskGroup,
    nodes: Nodes,
    kubelets: Kubelets,
}

impl Actors {
    /// Starts the actors. Must be called inside a tokio runtime.
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
        if options.custom_sets {
            custom_sets::start(&context);
        }
        Self { tasks, nodes, kubelets }
    }

    /// The hollow nodes.
    #[must_use]
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The pods on the hollow nodes.
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
