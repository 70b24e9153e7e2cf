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

/// The exit status and the output of a kubectl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// Whether it exited with 0.
    pub success: bool,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Kubectl {
    pub(crate) fn new(program: PathBuf, kubeconfig: PathBuf) -> Self {
        Self { program, kubeconfig }
    }

    /// Runs it with `args` and waits for its exit.
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

    /// The command to run it with `args`, for tests that control the process. The process is killed when dropped.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .env_clear()
            .env("KUBECONFIG", &self.kubeconfig)
            // Clusters must not share a discovery cache, so it is placed beside the kubeconfig.
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
