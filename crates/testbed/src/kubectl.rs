//! The real kubectl, as a child process.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// A kubectl that acts as one user.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

/// How a kubectl ended and what it printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// Whether it ended with 0.
    pub success: bool,
    /// What it wrote for other programs.
    pub stdout: String,
    /// What it wrote for people.
    pub stderr: String,
}

impl Kubectl {
    pub(crate) fn new(program: PathBuf, kubeconfig: PathBuf) -> Self {
        Self { program, kubeconfig }
    }

    /// Runs it with `args` to its end.
    pub async fn run(&self, args: &[&str]) -> Result<Printed> {
        let output =
            self.command(args).output().await.with_context(|| format!("cannot run kubectl {args:?}"))?;
        Ok(printed(&output))
    }

    /// Runs it with `args` and `input`, as in `kubectl apply -f -`.
    pub async fn run_with_input(&self, args: &[&str], input: &str) -> Result<Printed> {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run kubectl {args:?}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).await.context("kubectl does not read its input")?;
        }
        Ok(printed(&child.wait_with_output().await?))
    }

    /// The command to run it with `args`, for whoever wants to watch it at work. It is killed when dropped.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .env_clear()
            .env("KUBECONFIG", &self.kubeconfig)
            // Its discovery cache, which must not be shared between clusters, goes where the kubeconfig is.
            .env("HOME", self.kubeconfig.with_extension("home"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }
}

fn printed(output: &std::process::Output) -> Printed {
    Printed {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
