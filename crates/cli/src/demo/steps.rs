//! The steps of the demo. Each step verifies its own result.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, EvictParams};
use serde_json::json;

use super::cluster::{DemoCluster, GROUP, GROUPS, NAMESPACE, SIZE};
use super::drain::{cordon, drain};
use super::screen::Screen;

/// Runs all steps.
pub(super) async fn run(cluster: &DemoCluster, screen: &Screen) -> Result<()> {
    screen.print(&format!(
        "Workloads: the model server llm with {GROUPS} groups of {SIZE} pods, the database db, the web frontend web. \
         A group of llm serves only while all of its pods are ready."
    ));
    screen.snapshot(&cluster.witness);
    drain_under_a_native_budget(cluster, screen).await.context("under a PodDisruptionBudget")?;
    drain_under_a_disruption_budget(cluster, screen).await.context("under a DisruptionBudget")?;
    a_probe_fails(cluster, screen).await.context("a probe")?;
    a_delete_is_denied(cluster, screen).await.context("a delete")
}

async fn drain_under_a_native_budget(cluster: &DemoCluster, screen: &Screen) -> Result<()> {
    screen.print_heading(
        "1. A drain under a PodDisruptionBudget: minAvailable: 12 pods, as many as in three groups",
    );
    let budget = json!({"metadata": {"name": "llm"}, "spec": {
        "minAvailable": (GROUPS - 1) * SIZE, "selector": {"matchLabels": {"app": "llm"}}}});
    cluster.create("policy/v1", "PodDisruptionBudget", Some(NAMESPACE), budget).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    cluster
        .until("the PodDisruptionBudget is counted", async || {
            let status = budgets.get("llm").await?.status;
            Ok(status.is_some_and(|status| status.disruptions_allowed as usize == SIZE))
        })
        .await?;
    let fewest = drain_and_recover(cluster, screen).await?.0;
    ensure!(fewest + 1 < GROUPS, "the drain left {fewest} groups whole, which is more than expected");
    screen.print(&format!(
        "✗ Only {fewest} of {GROUPS} groups were whole at the worst moment. The budget counts pods: enough were ready."
    ));
    budgets.delete("llm", &DeleteParams::default()).await?;
    Ok(())
}

async fn drain_under_a_disruption_budget(cluster: &DemoCluster, screen: &Screen) -> Result<()> {
    screen.print_heading("2. The same drain under a DisruptionBudget: maxUnavailable: 1 group");
    let spec = json!({"selector": {"matchLabels": {"app": "llm"}}, "maxUnavailable": 1,
        "podGroupPolicy": {"groupLabelKey": GROUP}});
    cluster.budget("llm", spec, 1).await?;
    let (fewest, refusals) = drain_and_recover(cluster, screen).await?;
    ensure!(fewest + 1 == GROUPS, "{fewest} of {GROUPS} groups were whole at the worst moment");
    ensure!(refusals > 0, "no eviction was denied");
    screen.print(&format!(
        "✓ Never fewer than {fewest} of {GROUPS} groups were whole; the drain retried {refusals} times and completed."
    ));
    Ok(())
}

/// Drains the node with pods of the most groups, waits until all pods are ready again, and uncordons the node. Returns
/// the smallest number of whole groups in that time, and the number of denied evictions.
async fn drain_and_recover(cluster: &DemoCluster, screen: &Screen) -> Result<(usize, usize)> {
    cluster.wait_until_ready().await?;
    let node = cluster.witness.busiest_node().context("no pod is on any node")?;
    cluster.witness.begin();
    let work = async {
        let drained = drain(cluster, screen, &node).await?;
        cluster.wait_until_ready().await?;
        anyhow::Ok(drained)
    };
    let drained = tokio::select! {
        outcome = work => outcome,
        never = count(cluster, screen) => match never {},
    }?;
    let fewest = cluster.witness.fewest();
    screen.snapshot(&cluster.witness);
    cordon(cluster, &node, false).await?;
    Ok((fewest, drained.refusals))
}

/// Prints every second how many groups are whole.
async fn count(cluster: &DemoCluster, screen: &Screen) -> Infallible {
    for second in 1.. {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let whole = cluster.witness.whole();
        let mark = if whole + 1 < GROUPS { "✗" } else { "✓" };
        screen.print(&format!("    {mark} {second:>2} s: {whole} of {GROUPS} groups are whole"));
    }
    std::future::pending().await
}

async fn a_probe_fails(cluster: &DemoCluster, screen: &Screen) -> Result<()> {
    screen.print_heading("3. A database that serves, but whose disruption probe fails");
    cluster.budget("db", json!({"selector": {"matchLabels": {"app": "db"}}, "maxUnavailable": 1}), 1).await?;
    cluster.green.store(false, Ordering::Relaxed);
    // One failed probe already exhausts the budget, but the demo shows the probe of db-0. So wait for all of them.
    cluster.none_healthy("db").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let before =
        cluster.witness.pods().into_iter().find(|pod| pod.name == "db-0").context("there is no db-0")?;
    ensure!(before.ready, "db-0 is not ready");
    screen.print("The database turns yellow: every pod is Ready, but its disruption probe fails.");
    screen.print("Evict db-0, as a drain does:");
    match pods.evict("db-0", &EvictParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 429 => {
            screen.print(&format!("Error from server ({}): {}", status.reason, status.message));
        }
        Err(error) => return Err(error.into()),
        Ok(_) => anyhow::bail!("the eviction was not denied"),
    }
    cluster.green.store(true, Ordering::Relaxed);
    cluster.allows("db", 1).await?;
    screen.print("The database turns green again, and the same eviction is allowed.");
    pods.evict("db-0", &EvictParams::default()).await?;
    cluster
        .until("db-0 is another pod", async || {
            let pods = cluster.witness.pods();
            Ok(pods.iter().any(|pod| pod.name == "db-0" && pod.uid != before.uid && pod.ready))
        })
        .await?;
    screen.print("✓ The pod was evicted only after its probe succeeded.");
    Ok(())
}

async fn a_delete_is_denied(cluster: &DemoCluster, screen: &Screen) -> Result<()> {
    screen.print_heading("4. A delete that a budget denies, with the reason");
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 3,
        "operations": ["Evict", "Delete"]});
    cluster.budget("web", spec, 0).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let web =
        cluster.witness.pods().into_iter().find(|pod| pod.app == "web").context("there is no web pod")?;
    screen.print(&format!("$ kubectl delete pod {} -n {NAMESPACE}", web.name));
    match pods.delete(&web.name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 429 => {
            screen.print(&format!("Error from server ({}): {}", status.reason, status.message));
        }
        Err(error) => return Err(error.into()),
        Ok(_) => anyhow::bail!("the delete was not denied"),
    }
    ensure!(cluster.witness.pods().iter().any(|pod| pod.uid == web.uid && pod.ready), "the pod is not ready");
    screen.print("✓ The pod keeps serving. A denial always says what it waits for.");
    Ok(())
}
