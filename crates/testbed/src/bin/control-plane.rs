//! Runs a real control plane for manual tests until it is interrupted. Prints how to reach it.
//!
//! `cargo run -p quorate-testbed --bin control-plane -- controllers scheduler workload-api audit node 1.36`; each word
//! is optional. `node` adds a real node; it needs the controllers, and root.

use std::io::Write;

use anyhow::{Context, Result, bail};
use quorate_testbed::{ControlPlane, Node, Options, User};

#[tokio::main]
async fn main() -> Result<()> {
    let (with_node, words): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word == "node");
    let plane = ControlPlane::start(options(words.into_iter())?).await?;
    let kubeconfig = plane.kubeconfig(&User::admin())?;
    // Not `println!`: that panics if the reader has closed the pipe.
    let mut out = std::io::stdout();
    writeln!(out, "export KUBECONFIG={}", kubeconfig.display())?;
    writeln!(out, "alias kubectl={}", plane.program("kubectl")?.display())?;
    if let Some(log) = plane.audit_log() {
        writeln!(out, "# audit log: {}", log.display())?;
    }
    // Dropped before the control plane.
    let mut nodes = Vec::new();
    for _ in &with_node {
        let node = Node::start(&plane, &format!("node-{}", nodes.len() + 1)).await?;
        writeln!(out, "# {}: {}", node.name(), node.folder().display())?;
        nodes.push(node);
    }
    out.flush()?;
    tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")
}

fn options(words: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options::default();
    for word in words {
        match word.as_str() {
            "controllers" => options.controllers = true,
            "scheduler" => options.scheduler = true,
            "workload-api" => options.workload_api = true,
            "audit" => options.audit = true,
            other => match other.parse() {
                Ok(release) => options.kubernetes = release,
                Err(error) => bail!("{error}, or any of controllers, scheduler, workload-api, audit, node"),
            },
        }
    }
    Ok(options)
}
