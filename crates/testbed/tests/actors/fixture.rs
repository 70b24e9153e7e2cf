//! One set of actors per cluster, for all stories on it.

use std::sync::{Arc, OnceLock};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::{Client, ResourceExt};
use quorate_devcluster::actors::{ActorOptions, Actors, Identities, Kubelets, install_leader_worker_sets};
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// A namespace in a cluster with three nodes and running actors.
pub(crate) struct Fixture {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) kubelets: Kubelets,
    pub(crate) actors: Arc<Actors>,
}

/// The runtime of the actors. The actors and their runtime outlive the story that started them.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
    })
}

impl Fixture {
    pub(crate) async fn new(cluster: Cluster, stem: &str) -> Self {
        let actors = match cluster.control_plane() {
            Some(plane) if plane.options().controllers => {
                static BESIDE: OnceCell<Arc<Actors>> = OnceCell::const_new();
                BESIDE
                    .get_or_init(|| start(cluster.clone(), ActorOptions::beside_controller_manager()))
                    .await
                    .clone()
            }
            Some(_) => {
                static ALONE: OnceCell<Arc<Actors>> = OnceCell::const_new();
                ALONE.get_or_init(|| start(cluster.clone(), ActorOptions::all())).await.clone()
            }
            // An embedded cluster is not shared between stories.
            None => start(cluster.clone(), ActorOptions::all()).await,
        };
        Self::with(cluster, stem, actors).await
    }

    /// Uses a cluster that no other story uses.
    pub(crate) async fn private(cluster: Cluster, stem: &str) -> Self {
        let actors = start(cluster.clone(), ActorOptions::all()).await;
        Self::with(cluster, stem, actors).await
    }

    async fn with(cluster: Cluster, stem: &str, actors: Arc<Actors>) -> Self {
        let namespace = cluster.namespace(stem).await.expect("a namespace");
        Self { client: cluster.admin(), kubelets: actors.kubelets().clone(), cluster, namespace, actors }
    }

    pub(crate) async fn create(&self, object: Value) -> DynamicObject {
        let api = self.api(&object);
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        api.create(&PostParams::default(), &object).await.expect("created")
    }

    pub(crate) fn api(&self, object: &Value) -> Api<DynamicObject> {
        let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = kube::core::ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn list(&self, selector: &str) -> Vec<Pod> {
        self.pods().list(&ListParams::default().labels(selector)).await.expect("a list").items
    }

    /// Waits until exactly `count` pods match and all are ready. Returns them ordered by name.
    pub(crate) async fn ready(&self, selector: &str, count: usize) -> Vec<Pod> {
        eventually(&format!("{count} pods {selector} are ready"), || async {
            let pods = self.list(selector).await;
            let whole = pods.len() == count && pods.iter().all(is_ready);
            if whole { Ok(pods) } else { Err(describe(&pods)) }
        })
        .await
    }
}

async fn start(cluster: Cluster, options: ActorOptions) -> Arc<Actors> {
    runtime()
        .spawn(async move {
            let admin = cluster.admin();
            install_leader_worker_sets(&admin).await.expect("the LeaderWorkerSet kind");
            let actors = Actors::start(&Identities::impersonating(admin), &options);
            for node in ["node-1", "node-2", "node-3"] {
                actors.nodes().add(node).await.expect("a node");
            }
            Arc::new(actors)
        })
        .await
        .expect("the actors start")
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

pub(crate) fn describe(pods: &[Pod]) -> Vec<String> {
    let show = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let ending = if pod.metadata.deletion_timestamp.is_some() { " ending" } else { "" };
        format!("{} {phase} on {node} ready={}{ending} {:?}", pod.name_any(), is_ready(pod), pod.finalizers())
    };
    pods.iter().map(show).collect()
}

/// A pod template with these labels.
pub(crate) fn template(labels: Value, image: &str) -> Value {
    json!({"metadata": {"labels": labels}, "spec": {
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "app", "image": image}]}})
}
