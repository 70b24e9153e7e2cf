//! The caches that the actors share. Each cache starts its watch on first use.

use std::sync::{Arc, OnceLock};

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::cache::{Cached, ObjectCache, fill};
use super::kinds::{self, ControllerRevision, Deployment, Job, ReplicaSet, StatefulSet};
use super::pods;

/// Runs the tasks of the actors until the group is ended.
#[derive(Clone, Default)]
pub(crate) struct TaskGroup {
    ended: CancellationToken,
}

impl TaskGroup {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let ended = self.ended.clone();
        tokio::spawn(async move {
            ended.run_until_cancelled(task).await;
        });
    }

    /// A group that ends with this one, or earlier.
    pub(crate) fn child(&self) -> Self {
        Self { ended: self.ended.child_token() }
    }

    pub(crate) fn end(&self) {
        self.ended.cancel();
    }
}

pub(crate) struct View {
    client: Client,
    tasks: TaskGroup,
    pods: OnceLock<Arc<ObjectCache<Pod>>>,
    nodes: OnceLock<Arc<ObjectCache<Node>>>,
    namespaces: OnceLock<Arc<ObjectCache<Namespace>>>,
    replica_sets: OnceLock<Arc<ObjectCache<ReplicaSet>>>,
    deployments: OnceLock<Arc<ObjectCache<Deployment>>>,
    stateful_sets: OnceLock<Arc<ObjectCache<StatefulSet>>>,
    revisions: OnceLock<Arc<ObjectCache<ControllerRevision>>>,
    jobs: OnceLock<Arc<ObjectCache<Job>>>,
    budgets: OnceLock<Arc<ObjectCache<PodDisruptionBudget>>>,
}

impl View {
    pub(crate) fn new(client: Client, tasks: TaskGroup) -> Arc<Self> {
        Arc::new(Self {
            client,
            tasks,
            pods: OnceLock::new(),
            nodes: OnceLock::new(),
            namespaces: OnceLock::new(),
            replica_sets: OnceLock::new(),
            deployments: OnceLock::new(),
            stateful_sets: OnceLock::new(),
            revisions: OnceLock::new(),
            jobs: OnceLock::new(),
            budgets: OnceLock::new(),
        })
    }

    /// Pods, indexed by node. The index key `""` has the pods without a node.
    pub(crate) fn pods(&self) -> &Arc<ObjectCache<Pod>> {
        self.pods.get_or_init(|| {
            self.start(Api::all(self.client.clone()), |pod| {
                Some(pods::node_of(pod).unwrap_or_default().to_owned())
            })
        })
    }

    pub(crate) fn nodes(&self) -> &Arc<ObjectCache<Node>> {
        self.nodes.get_or_init(|| self.start(Api::all(self.client.clone()), |_| None))
    }

    pub(crate) fn namespaces(&self) -> &Arc<ObjectCache<Namespace>> {
        self.namespaces.get_or_init(|| self.start(Api::all(self.client.clone()), |_| None))
    }

    pub(crate) fn budgets(&self) -> &Arc<ObjectCache<PodDisruptionBudget>> {
        self.budgets.get_or_init(|| self.start(Api::all(self.client.clone()), |_| None))
    }

    pub(crate) fn replica_sets(&self) -> &Arc<ObjectCache<ReplicaSet>> {
        self.replica_sets.get_or_init(|| self.start_kind(&kinds::replica_sets()))
    }

    pub(crate) fn deployments(&self) -> &Arc<ObjectCache<Deployment>> {
        self.deployments.get_or_init(|| self.start_kind(&kinds::deployments()))
    }

    pub(crate) fn stateful_sets(&self) -> &Arc<ObjectCache<StatefulSet>> {
        self.stateful_sets.get_or_init(|| self.start_kind(&kinds::stateful_sets()))
    }

    pub(crate) fn revisions(&self) -> &Arc<ObjectCache<ControllerRevision>> {
        self.revisions.get_or_init(|| self.start_kind(&kinds::controller_revisions()))
    }

    pub(crate) fn jobs(&self) -> &Arc<ObjectCache<Job>> {
        self.jobs.get_or_init(|| self.start_kind(&kinds::jobs()))
    }

    fn start_kind<K>(&self, kind: &kube::core::ApiResource) -> Arc<ObjectCache<K>>
    where
        K: Cached + kube::Resource<DynamicType = kube::core::ApiResource>,
    {
        self.start(Api::all_with(self.client.clone(), kind), |_| None)
    }

    /// Starts a cache that is not shared: for a kind that only one actor reads.
    pub(crate) fn start<K: Cached>(&self, api: Api<K>, index: fn(&K) -> Option<String>) -> Arc<ObjectCache<K>>
    where
        K::DynamicType: Clone + Send + Sync,
    {
        let cache = Arc::new(ObjectCache::new(index));
        self.tasks.spawn(fill(cache.clone(), api));
        cache
    }
}
