//! `quorate demo`: a cluster in this process, and the story of a drain told in it.
//!
//! - [`stage`]: the cluster, the server, and what runs there.
//! - [`witness`]: what a watch of its own sees of the pods.
//! - [`picture`]: that as a picture of groups and nodes; [`screen`] shows it under what is told.
//! - [`drain`]: a drain, as kubectl does it.
//! - [`scenes`]: the story.

mod cluster;
mod drain;
mod picture;
mod scenes;
mod screen;
mod witness;

use std::process::ExitCode;

use anyhow::Result;

use cluster::DemoCluster;
use screen::Screen;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// End after the story; the exit code tells whether everything went as told
    #[arg(long)]
    once: bool,
}

/// Tells the story, and stays until it is interrupted.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let screen = Screen::new();
    screen.say("A cluster is starting in this process: 6 nodes, no set-up, nothing left behind.");
    let cluster = tokio::select! {
        cluster = DemoCluster::set(&screen) => cluster?,
        _ = tokio::signal::ctrl_c() => return Ok(ExitCode::FAILURE),
    };
    tokio::select! {
        told = scenes::tell(&cluster, &screen) => told?,
        _ = tokio::signal::ctrl_c() => return Ok(ExitCode::FAILURE),
    }
    if args.once {
        screen.say("That was the story; every step did what it said.");
        return Ok(ExitCode::SUCCESS);
    }
    let kubeconfig = cluster.kubeconfig()?;
    let kubeconfig = kubeconfig.display();
    screen.say("");
    screen.say("The cluster stays up until Ctrl-C. Worth trying, in another terminal:");
    screen.say(&format!("  export KUBECONFIG={kubeconfig}"));
    screen.say("  kubectl get dbu -A");
    screen.say("  kubectl drain node-3 --ignore-daemonsets");
    screen.say("  quorate explain node/node-3");
    tokio::signal::ctrl_c().await?;
    Ok(ExitCode::SUCCESS)
}
