//! Holds a real control plane for somebody who wants to look at one: prints where it is, runs until interrupted.
//!
//! `cargo run -p quorate-testbed --bin control-plane -- controllers scheduler workload-api audit 1.36`; each word is
//! optional.

use std::io::Write;

use anyhow::{Context, Result, bail};
use quorate_testbed::{ControlPlane, Options, User};

#[tokio::main]
async fn main() -> Result<()> {
    let plane = ControlPlane::start(options(std::env::args().skip(1))?).await?;
    let kubeconfig = plane.kubeconfig(&User::admin())?;
    // By hand, and not `println!`: whoever reads may have gone, which is no reason to panic.
    let mut out = std::io::stdout();
    writeln!(out, "export KUBECONFIG={}", kubeconfig.display())?;
    writeln!(out, "alias kubectl={}", plane.program("kubectl")?.display())?;
    if let Some(log) = plane.audit_log() {
        writeln!(out, "# audit log: {}", log.display())?;
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
                Err(error) => bail!("{error}, or any of controllers, scheduler, workload-api, audit"),
            },
        }
    }
    Ok(options)
}
