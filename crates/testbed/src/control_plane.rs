//! A real Kubernetes control plane on free loopback ports, in its own folder.

mod audit;
mod backup;
mod binaries;
mod command_line;
pub(crate) mod credentials;
mod login;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use quorate_devcluster::apiserver::WorkloadApi;
use tempfile::TempDir;

pub(crate) use self::backup::Backup;
pub use self::binaries::Kubernetes;
pub(crate) use self::binaries::find;
use self::credentials::Credentials;
pub(crate) use self::login::Login;
use crate::process::Process;

/// Longest time until a control plane is ready. It usually takes 4 seconds; on a busy machine more.
const TIMEOUT: Duration = Duration::from_secs(120);

const ETCD: &str = "etcd";
/// The name of the process that stores pods, if that is another one.
const ETCD_OF_PODS: &str = "etcd-pods";
const API_SERVER: &str = "kube-apiserver";

/// The order in which the programs start.
const ORDER: [&str; 5] = [ETCD, ETCD_OF_PODS, API_SERVER, "kube-controller-manager", "kube-scheduler"];

/// Attempts in all, if another process takes a port that was free a moment ago.
const ATTEMPTS: usize = 5;

/// Options of a control plane.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Options {
    /// The Kubernetes release.
    pub kubernetes: Kubernetes,
    /// Run kube-controller-manager, each controller under its own service account.
    pub controllers: bool,
    /// Run kube-scheduler.
    pub scheduler: bool,
    /// Serve the Workload API of this release.
    pub workload_api: bool,
    /// Additional feature gates for all programs, such as `GangScheduling=true`.
    pub feature_gates: Vec<String>,
    /// Additional API versions, such as `scheduling.k8s.io/v1alpha2=true`.
    pub runtime_config: Vec<String>,
    /// Admission plugins that are off by default, for a real API server.
    pub admission_plugins: Vec<String>,
    /// Write an audit log with the metadata of every request, except those of Kubernetes itself.
    pub audit: bool,
    /// Let a test read everything that happens: etcd stores objects as JSON, and the audit log has every request that
    /// may disrupt a pod, with its body, when it arrives and when it ends.
    pub recorded: bool,
    /// Time after which a silent node counts as lost. `None` is the Kubernetes default, 50 seconds.
    pub lost_nodes_after: Option<Duration>,
    /// Store pods in an etcd of their own, for a real API server.
    pub pods_in_own_etcd: bool,
}

impl Options {
    /// The version of the Workload API to serve.
    pub(crate) fn workload_api(&self) -> WorkloadApi {
        let named =
            |version: &str| self.runtime_config.contains(&format!("scheduling.k8s.io/{version}=true"));
        match self.workload_api {
            true => self.kubernetes.workload_api(),
            // No present release serves it, but the embedded cluster does.
            false if named("v1beta1") => WorkloadApi::V1Beta1,
            false => WorkloadApi::Off,
        }
    }
}

/// A running control plane. It ends when this is dropped, or with the test process.
#[derive(Debug)]
pub struct ControlPlane {
    options: Options,
    port: u16,
    etcd_port: u16,
    /// The port of the etcd that stores pods, if that is another one.
    pods_port: Option<u16>,
    credentials: Credentials,
    /// In the order of their start. They end in reverse order: an API server without etcd does not shut down.
    processes: Mutex<Vec<Process>>,
    folder: TempDir,
}

impl ControlPlane {
    /// Starts a control plane, and waits until it is ready.
    pub async fn start(options: Options) -> Result<Self> {
        let mut attempt = 1;
        loop {
            match Self::try_start(options.clone()).await {
                Err(error) if attempt < ATTEMPTS && is_port_taken(&error) => attempt += 1,
                outcome => return outcome.context("the control plane does not start"),
            }
        }
    }

    async fn try_start(options: Options) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("quorate-control-plane-").tempdir()?;
        let credentials = Credentials::write(folder.path())?;
        let [etcd_port, port, pods_port] = free_ports()?;
        let pods_port = options.pods_in_own_etcd.then_some(pods_port);
        let processes = Mutex::default();
        let plane = Self { options, port, etcd_port, pods_port, credentials, processes, folder };

        plane.run(ETCD, &command_line::etcd(&plane.etcd_folder(), etcd_port))?;
        plane.until("etcd listens", || async move { listens(etcd_port) }).await?;
        if let Some(port) = pods_port {
            let args = command_line::etcd(&plane.folder.path().join(ETCD_OF_PODS), port);
            plane.run_program(ETCD_OF_PODS, ETCD, &args)?;
            plane.until("the etcd of pods listens", || async move { listens(port) }).await?;
        }
        plane.run(API_SERVER, &command_line::api_server(&plane, etcd_port)?)?;
        // Wait for the port before the first request: a new client for each attempt would cost more than the wait.
        plane.until("the API server listens", || async move { listens(port) }).await?;
        let admin = kube::Client::try_from(plane.config(&crate::User::admin()))?;
        plane.until("the API server is ready", || is_ready(admin.clone())).await?;
        if plane.options.controllers {
            plane.run("kube-controller-manager", &command_line::controller_manager(&plane)?)?;
        }
        if plane.options.scheduler {
            plane.run("kube-scheduler", &command_line::scheduler(&plane)?)?;
        }
        Ok(plane)
    }

    /// The options of this control plane.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The URL of the API server.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The URL of etcd.
    pub fn etcd_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.etcd_port)
    }

    /// The port of the API server on the loopback.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The audit log, one JSON object per line, if it is enabled.
    pub fn audit_log(&self) -> Option<PathBuf> {
        let enabled = self.options.audit || self.options.recorded || audit::wanted().is_some();
        enabled.then(|| self.folder.path().join(command_line::AUDIT_LOG))
    }

    /// The path of a program, such as kubectl.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        find(self.options.kubernetes, name)
    }

    /// Kills the API server and starts it again, on the same port and with the same stored objects.
    pub async fn restart_api_server(&self) -> Result<()> {
        self.kill(API_SERVER);
        self.start_api_server().await
    }

    async fn start_api_server(&self) -> Result<()> {
        self.run(API_SERVER, &command_line::api_server(self, self.etcd_port)?)?;
        let admin = kube::Client::try_from(self.config(&crate::User::admin()))?;
        self.until("the API server is ready again", || is_ready(admin.clone())).await
    }

    /// Kills a process, if it runs.
    fn kill(&self, name: &str) {
        let mut processes = self.processes.lock();
        let index = processes.iter().position(|process| process.name() == name);
        let killed = index.map(|index| processes.remove(index));
        drop(processes);
        drop(killed);
    }

    fn run(&self, name: &'static str, args: &[String]) -> Result<()> {
        self.run_program(name, name, args)
    }

    fn run_program(&self, name: &'static str, program: &str, args: &[String]) -> Result<()> {
        let process = Process::start(name, &self.program(program)?, args, self.folder.path())
            .with_context(|| format!("cannot start {name}"))?;
        // The order of their start matters at their end.
        let place = |name: &str| ORDER.iter().position(|known| *known == name);
        let mut processes = self.processes.lock();
        let index = processes.partition_point(|process| place(process.name()) < place(name));
        processes.insert(index, process);
        Ok(())
    }

    /// Waits until `condition` holds; fails if a process ends.
    async fn until<F: Future<Output = bool>>(&self, what: &str, condition: impl Fn() -> F) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !condition().await {
            for process in self.processes.lock().iter_mut() {
                if let Some(status) = process.ended() {
                    bail!("{} ended with {status}:\n{}", process.name(), process.log_tail());
                }
            }
            if Instant::now() > deadline {
                let logs: Vec<String> = self
                    .processes
                    .lock()
                    .iter()
                    .map(|process| format!("{}:\n{}", process.name(), process.log_tail()))
                    .collect();
                bail!("waited {} s until {what}:\n{}", TIMEOUT.as_secs(), logs.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let mut processes = self.processes.lock();
        while let Some(process) = processes.pop() {
            drop(process);
        }
        // A log of disruptions says nothing about the rights of others.
        let wanted = audit::wanted().filter(|_| !self.options.recorded);
        if let (Some(log), Some(folder)) = (self.audit_log(), wanted) {
            audit::keep(&log, &folder);
        }
    }
}

async fn is_ready(client: kube::Client) -> bool {
    let request = http::Request::get("/readyz").body(Vec::new());
    match request {
        Ok(request) => client.request_text(request).await.is_ok(),
        Err(_) => false,
    }
}

fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// The ports of control planes. The kernel gives none of these to a client, or to a listener on port 0. So a program that is
/// restarted finds its port free.
const PORTS: Range<u16> = 10_000..30_000;

/// Free ports. This process does not take one twice.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that run at the same time begin at different places.
    let first = std::process::id().wrapping_mul(97);
    let mut ports = [0; N];
    for port in &mut ports {
        let mut candidates = PORTS.map(|_| {
            let place = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            PORTS.start + (place % PORTS.len() as u32) as u16
        });
        let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        *port = candidates.find(is_free).context("no free port on 127.0.0.1")?;
    }
    Ok(ports)
}

fn is_port_taken(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains("address already in use")
}
