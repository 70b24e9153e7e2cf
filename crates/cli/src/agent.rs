//! `quorate agent`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use quorate_agent::{Options, WallClock};
use tokio_util::sync::CancellationToken;

use crate::gates::Features;
use crate::{cluster, process};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Node whose pods are probed
    #[arg(long, env = "NODE_NAME", hide_env_values = true)]
    node_name: String,
    /// Path to the kubeconfig file; defaults to the kubeconfig that kubectl uses, then to the pod's service account
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Namespace of Quorate's own objects
    #[arg(long, default_value = "quorate-system")]
    namespace: String,
    /// Socket of the container runtime; exec probes fail without it
    #[arg(long)]
    cri_socket: Option<PathBuf>,
    /// Copy the condition Ready into Disruptable on pods without a disruption probe
    #[arg(long)]
    mirror_ready: bool,
    /// Address to serve /healthz, /readyz and /metrics on
    #[arg(long, default_value = "127.0.0.1:9091")]
    admin_listen: SocketAddr,
    /// Feature gates to set, as Name=true,Other=false
    #[arg(long, value_parser = crate::gates::parse, default_value = "")]
    feature_gates: Features,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    process::log();
    let options = Options {
        kubernetes: cluster::config(args.kubeconfig, None).await?,
        node: args.node_name,
        namespace: args.namespace,
        cri_socket: args.cri_socket,
        mirror_ready: args.mirror_ready,
        admin: args.admin_listen,
        enabled: args.feature_gates.gates.disruption_probe,
        time_of_day: WallClock::default(),
    };
    let stop = CancellationToken::new();
    let agent = quorate_agent::start(options, stop.clone()).await?;
    process::stop_on_signal(stop)?;
    agent.ended().await
}
