//! A real node: a kubelet, containerd, and running containers.
//!
//! The node has its own namespaces for processes, mounts and the network. So all containers, mounts and the network of
//! the node end with one process, and two nodes on one machine do not affect each other. Control groups and a folder
//! outlive the namespaces; `residue` removes them.
//!
//! Needs root, and Debian's containerd, runc, containernetworking-plugins, busybox-static and iproute2.

mod files;
mod image;
mod network;
mod proxy;
mod residue;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1;
use kube::api::Api;

use self::proxy::ApiServerProxy;
use self::residue::Residue;
use crate::control_plane::Login;
use crate::process::{Process, tail};
use crate::{ControlPlane, User};

/// The image that every node has: busybox, with links for all its commands. Pods use it with `imagePullPolicy: Never`.
pub const BUSYBOX: &str = "busybox:testbed";

/// Another tag of the same image.
pub const ALIAS: &str = "busybox:alias";

/// Longest time until a node is ready. It usually takes 5 seconds; on a busy machine more.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The first process of a node.
const INIT: &str = include_str!("node/init.sh");

/// A running node. It ends when this is dropped, or with the test process. It belongs to the runtime it is started in.
#[derive(Debug)]
pub struct Node {
    name: String,
    /// Fields drop in this order: the process that owns the namespaces first, the residue last.
    process: Process,
    proxy: ApiServerProxy,
    residue: Residue,
}

impl Node {
    /// Starts a node for a control plane, and waits until it is ready. The control plane must run controllers.
    ///
    /// # Errors
    /// The node is not ready in time, or this machine cannot run nodes.
    pub async fn start(plane: &ControlPlane, name: &str) -> Result<Self> {
        let about = || format!("the node {name} does not start");
        Self::try_start(plane, name).await.with_context(about)
    }

    async fn try_start(plane: &ControlPlane, name: &str) -> Result<Self> {
        let kubelet = plane.program("kubelet")?;
        let residue = Residue::new()?;
        let folder = residue.folder();
        files::runtime(folder)?;
        image::write(folder)?;

        let mut process = init(name, &kubelet, folder)?;
        until("it has its own network", &mut process, folder, async |process| {
            Ok(process.id().is_ok_and(has_own_network).then_some(()))
        })
        .await?;
        let link = network::connect(residue.id(), process.id()?)?;
        let proxy = ApiServerProxy::open(link.outside, plane.port()).await?;
        let login = plane.kubeconfig_text(&Login::of(&User::kubelet(name)), Some(proxy.address()));
        fs::write(folder.join("kubeconfig"), login)?;
        files::kubelet(folder, residue.cgroup(), link.inside)?;
        files::address(folder, &link)?;

        let nodes: Api<v1::Node> = Api::all(kube::Client::try_from(plane.config(&User::admin()))?);
        until("it is ready", &mut process, folder, async |_| {
            Ok(nodes.get_opt(name).await?.filter(is_ready).map(drop))
        })
        .await?;
        Ok(Self { name: name.to_owned(), process, proxy, residue })
    }

    /// The name of the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The socket of its container runtime.
    pub fn runtime_socket(&self) -> PathBuf {
        self.residue.folder().join(files::SOCKET)
    }

    /// Starts a program of this machine in the network of the node.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run(&self, name: &str, program: &Path, args: &[String]) -> io::Result<Process> {
        let network = format!("--net=/proc/{}/ns/net", self.process.id()?);
        let args: Vec<String> =
            [network, program.display().to_string()].into_iter().chain(args.iter().cloned()).collect();
        Process::start(name, Path::new("nsenter"), &args, self.residue.folder())
    }

    /// A kubeconfig with a token, for a process on this node. It is removed with the node.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn kubeconfig(&self, plane: &ControlPlane, token: &str) -> Result<PathBuf> {
        let file = tempfile::Builder::new().prefix("kubeconfig-").tempfile_in(self.residue.folder())?;
        let path = file.into_temp_path().keep()?;
        fs::write(&path, plane.kubeconfig_text(&Login::token(token), Some(self.proxy.address())))?;
        Ok(path)
    }

    /// Sends the kubelet a signal by its name, such as `STOP` or `KILL`. Containers keep running.
    ///
    /// # Errors
    /// The kubelet does not run any more.
    pub fn signal_kubelet(&self, signal: &str) -> Result<()> {
        // The process ID is the one in the node's PID namespace.
        let id = fs::read_to_string(self.residue.folder().join("kubelet.pid"))?;
        let sent = Command::new("nsenter")
            .arg(format!("--pid=/proc/{}/ns/pid_for_children", self.process.id()?))
            .args(["sh", "-c", r#"kill -s "$0" "$1""#, signal, id.trim()])
            .output()?;
        if !sent.status.success() {
            bail!("cannot signal the kubelet: {}", String::from_utf8_lossy(&sent.stderr));
        }
        Ok(())
    }

    /// The folder of the node. It is removed with the node.
    pub fn folder(&self) -> &Path {
        self.residue.folder()
    }
}

/// Starts the first process of a node, in namespaces that end with it.
fn init(name: &str, kubelet: &Path, folder: &Path) -> Result<Process> {
    let mut args: Vec<String> =
        ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-ec", INIT, name]
            .map(str::to_owned)
            .to_vec();
    args.extend([folder, kubelet].map(|path| path.display().to_string()));
    Process::start("node", Path::new("unshare"), &args, folder).context("cannot run unshare")
}

/// Waits until `look` returns `Some`; fails if the node ends.
async fn until(
    what: &str,
    process: &mut Process,
    folder: &Path,
    look: impl AsyncFn(&Process) -> Result<Option<()>>,
) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let seen = look(process).await;
        if let Ok(Some(())) = seen {
            return Ok(());
        }
        let logs =
            || ["node.log", "containerd.log", "kubelet.log"].map(|log| tail(&folder.join(log))).join("\n");
        if let Some(status) = process.ended() {
            bail!("it ended with {status}:\n{}", logs());
        }
        if Instant::now() > deadline {
            let instead = seen.err().map(|error| format!(": {error:#}")).unwrap_or_default();
            bail!("waited {} s until {what}{instead}\n{}", TIMEOUT.as_secs(), logs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn has_own_network(process: u32) -> bool {
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let theirs = network(&process.to_string());
    theirs.is_some() && theirs != network("self")
}

fn is_ready(node: &v1::Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
