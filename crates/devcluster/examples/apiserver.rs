//! Runs the in-memory API server alone, until it is interrupted: `cargo run -p quorate-devcluster --example apiserver`.

use quorate_devcluster::apiserver::{Options, Server};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(0);
    let server = Server::start(Options { port, ..Options::default() }).await?;
    println!("{}", server.kubeconfig("kubernetes-admin", &["system:masters"]));
    tokio::signal::ctrl_c().await?;
    Ok(())
}
