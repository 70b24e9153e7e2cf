//! `quorate cleanup`: removes the webhooks and labels that would block requests after Quorate is uninstalled.

mod servers;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::core::Resource;
use kube::{Client, Error, ResourceExt};
use quorate_api::DisruptionBudget;
use quorate_api::names::{ENFORCED, LEADER_LEASE};
use quorate_kit::Plain;
use quorate_kit::election::Election;
use quorate_server::webhooks;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;

/// Time limit for the servers to stop: a little longer than a shutdown delay of one minute.
const TIMEOUT: Duration = Duration::from_secs(90);

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Remove all DisruptionBudgets too, in all namespaces; without Quorate they deny nothing
    #[arg(long)]
    budgets: bool,
}

/// Removes the webhooks first: from then on no request is blocked, even if a later step fails.
pub(crate) async fn run(args: Args) -> Result<()> {
    let client = args.cluster.connect().await?.client;
    let own = args.cluster.quorate_namespace;
    remove_webhooks(&client).await?;
    servers::stop(&client, &own).await?;
    // A server that is started meanwhile would write the labels again, so this process must be the leader.
    let release = hold(&client, &own).await?;
    let outcome = remove_rest(&client, args.budgets).await;
    if let Some((stop, holding)) = release {
        stop.cancel();
        holding.await.context("the Lease was not released")?;
    }
    outcome
}

async fn remove_rest(client: &Client, budgets: bool) -> Result<()> {
    // Servers that register webhooks may have registered them again before they stopped.
    remove_webhooks(client).await?;
    remove_labels(client).await?;
    if budgets {
        remove_budgets(client).await?;
    }
    Ok(())
}

async fn remove_webhooks(client: &Client) -> Result<()> {
    remove::<MutatingWebhookConfiguration>(client).await?;
    remove::<ValidatingWebhookConfiguration>(client).await
}

async fn remove<K>(client: &Client) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let (name, kind) = (webhooks::NAME, K::kind(&()));
    match Api::<K>::all(client.clone()).delete(name, &DeleteParams::default()).await {
        Ok(_) => println!("removed the {kind} {name}"),
        Err(Error::Api(status)) if status.code == 404 => {}
        Err(error) => bail!("cannot remove the {kind} {name}: {}", Plain(&error)),
    }
    Ok(())
}

/// Acquires the leader Lease and holds it until `stop` is cancelled; `None` if there is no such Lease, because then no
/// server has ever run.
async fn hold(
    client: &Client,
    own: &str,
) -> Result<Option<(CancellationToken, tokio::task::JoinHandle<()>)>> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), own);
    match leases.get_opt(LEADER_LEASE).await {
        Ok(Some(_)) => {}
        Ok(None) => return Ok(None),
        Err(error) => bail!("cannot read the Lease {own}/{LEADER_LEASE}: {}", Plain(&error)),
    }
    let election =
        Election::new(client.clone(), own, LEADER_LEASE, &format!("cleanup-{}", std::process::id()));
    let (held, mut is_held) = tokio::sync::watch::channel(false);
    let stop = CancellationToken::new();
    let holding = Arc::new(election).spawn(held, stop.clone());
    let won = tokio::time::timeout(TIMEOUT, is_held.wait_for(|held| *held)).await;
    if !matches!(won, Ok(Ok(_))) {
        stop.cancel();
        bail!("a server still holds the Lease {own}/{LEADER_LEASE}: stop it, then run this command again");
    }
    Ok(Some((stop, holding)))
}

async fn remove_labels(client: &Client) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let labelled = namespaces.list(&ListParams::default().labels(ENFORCED)).await;
    let labelled = labelled.map_err(|error| anyhow::anyhow!("cannot list namespaces: {}", Plain(&error)))?;
    let unlabelled = Patch::Merge(json!({"metadata": {"labels": {ENFORCED: null}}}));
    for namespace in labelled {
        let name = namespace.name_any();
        match namespaces.patch(&name, &PatchParams::default(), &unlabelled).await {
            Ok(_) => println!("removed the label {ENFORCED} of the namespace {name}"),
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(error) => bail!("cannot remove the label of the namespace {name}: {}", Plain(&error)),
        }
    }
    Ok(())
}

async fn remove_budgets(client: &Client) -> Result<()> {
    let all: Api<DisruptionBudget> = Api::all(client.clone());
    let budgets = match all.list_metadata(&ListParams::default()).await {
        Ok(budgets) => budgets,
        Err(Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => bail!("cannot list DisruptionBudgets: {}", Plain(&error)),
    };
    for budget in budgets {
        let (namespace, name) = (budget.namespace().unwrap_or_default(), budget.name_any());
        let budgets: Api<DisruptionBudget> = Api::namespaced(client.clone(), &namespace);
        match budgets.delete(&name, &DeleteParams::default()).await {
            Ok(_) => println!("removed the DisruptionBudget {namespace}/{name}"),
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(error) => bail!("cannot remove the DisruptionBudget {namespace}/{name}: {}", Plain(&error)),
        }
    }
    Ok(())
}
