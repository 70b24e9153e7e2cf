//! `quorate server`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use quorate_server::Options;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How to reach the API server; without it, as kubectl would, or as a pod does
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Where to listen for the API server
    #[arg(long, default_value = "0.0.0.0:9443")]
    listen: SocketAddr,
    /// Where the API server reaches this process, as https://host:port; without it, where it listens
    #[arg(long)]
    webhook_url: Option<String>,
    /// The namespace for Quorate's own objects
    #[arg(long, default_value = "quorate-system")]
    namespace: String,
    /// Write the webhook configurations that make the API server ask this process
    #[arg(long)]
    register_webhooks: bool,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let options = Options {
        kubernetes: kubernetes(args.kubeconfig).await?,
        listen: args.listen,
        webhook_url: args.webhook_url,
        namespace: args.namespace,
        register_webhooks: args.register_webhooks,
    };
    let stop = CancellationToken::new();
    let server = quorate_server::start(options, stop.clone()).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    server.ended().await
}

async fn kubernetes(file: Option<PathBuf>) -> Result<kube::Config> {
    let Some(file) = file else {
        return kube::Config::infer().await.context("cannot find out how to reach the API server");
    };
    let kubeconfig =
        Kubeconfig::read_from(&file).with_context(|| format!("cannot read {}", file.display()))?;
    kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("cannot use {}", file.display()))
}
