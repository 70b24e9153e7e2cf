//! A drain, as kubectl does it and with its output: cordon, evict all pods at once, retry every 5 s.

use std::time::Duration;

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, EvictParams, Patch, PatchParams};
use serde_json::json;

use super::cluster::{DemoCluster, NAMESPACE};
use super::screen::Screen;
use super::witness::ObservedPod;

/// The retry interval of kubectl.
const AGAIN: Duration = Duration::from_secs(5);

/// Time limit of a drain.
const LONGEST: Duration = Duration::from_secs(120);

/// The result of a drain.
pub(super) struct Drained {
    /// Number of denied evictions.
    pub(super) refusals: usize,
}

/// Drains a node.
pub(super) async fn drain(cluster: &DemoCluster, screen: &Screen, node: &str) -> Result<Drained> {
    screen.print(&format!("$ kubectl drain {node} --ignore-daemonsets"));
    cordon(cluster, node, true).await?;
    screen.print(&format!("node/{node} cordoned"));
    let pods: Vec<ObservedPod> =
        cluster.witness.pods().into_iter().filter(|pod| pod.node.as_deref() == Some(node)).collect();
    let evictions = pods.iter().map(|pod| evict(cluster, screen, pod));
    let all = futures::future::try_join_all(evictions);
    let Ok(counts) = tokio::time::timeout(LONGEST, all).await else {
        bail!("the drain of {node} did not end within {} s", LONGEST.as_secs())
    };
    let refusals = counts?.iter().sum();
    screen.print(&format!("node/{node} drained"));
    Ok(Drained { refusals })
}

/// Cordons or uncordons a node.
pub(super) async fn cordon(cluster: &DemoCluster, node: &str, unschedulable: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let patch = json!({"spec": {"unschedulable": unschedulable}});
    nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Evicts a pod and waits until it is gone. Returns the number of denied evictions.
async fn evict(cluster: &DemoCluster, screen: &Screen, pod: &ObservedPod) -> Result<usize> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let name = &pod.name;
    let mut refusals = 0;
    loop {
        // Compare UIDs: a StatefulSet creates a new pod with the same name.
        if !cluster.witness.pods().iter().any(|there| there.uid == pod.uid) {
            break;
        }
        screen.print(&format!("evicting pod {NAMESPACE}/{name}"));
        match pods.evict(name, &EvictParams::default()).await {
            Ok(_) => break,
            Err(kube::Error::Api(status)) if status.code == 404 => break,
            Err(kube::Error::Api(status)) if status.code == 429 => {
                refusals += 1;
                screen.print(&format!(
                    "error when evicting pods/\"{name}\" -n \"{NAMESPACE}\" (will retry after 5s): {}",
                    status.message
                ));
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let mut changes = cluster.witness.changes();
    while cluster.witness.pods().iter().any(|there| there.uid == pod.uid) {
        changes.changed().await?;
    }
    screen.print(&format!("pod/{name} evicted"));
    Ok(refusals)
}
