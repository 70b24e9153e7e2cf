//! Several servers, each in its own process, with the arguments of the chart. The Service has the ready ones as
//! endpoints.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use quorate_testbed::{Cluster, Process, eventually};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::endpoints::Endpoints;
use crate::quorate::{RENDERED, is_ready, server_args, service_account};

/// Period of the readiness checks.
const PROBED: Duration = Duration::from_millis(100);

/// Timeout of a readiness check, and of a write of an endpoint.
const PATIENCE: Duration = Duration::from_secs(1);

/// So many readiness checks in a row must time out until a server is not ready, as for a kubelet. Otherwise one moment in
/// which this machine is busy would take all servers away.
const TIMEOUTS: u32 = 3;

/// Servers by their slots; a slot may be empty.
pub(crate) struct Replicas {
    cluster: Cluster,
    more: Vec<String>,
    slots: Vec<Option<Replica>>,
    started: usize,
    service: Arc<Mutex<Service>>,
    folder: TempDir,
    _following: JoinSet<()>,
}

/// The servers that should be endpoints of the Service, and those that are.
#[derive(Clone, Debug, Default)]
struct Service {
    backends: Vec<Backend>,
    /// The names of the present endpoints.
    published: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Backend {
    name: String,
    slot: usize,
    /// The address of the webhooks, and the admin address.
    address: SocketAddr,
    admin: SocketAddr,
}

struct Replica {
    process: Process,
}

impl Replicas {
    /// Starts `count` servers with these arguments in slot of those of the chart, and waits until all are ready.
    pub(crate) async fn start(cluster: &Cluster, count: usize, more: &[&str]) -> Self {
        crate::quorate::install(cluster).await;
        let service = Arc::<Mutex<Service>>::default();
        let mut following = JoinSet::new();
        following.spawn(follow(service.clone(), Endpoints::of(cluster)));
        let kubeconfig = cluster.kubeconfig(&service_account()).expect("a kubeconfig");
        let more = more.iter().map(|arg| (*arg).to_owned());
        let mut replicas = Self {
            cluster: cluster.clone(),
            more: more.chain([format!("--kubeconfig={}", kubeconfig.display())]).collect(),
            slots: (0..count).map(|_| None).collect(),
            started: 0,
            service,
            folder: tempfile::tempdir().expect("a folder"),
            _following: following,
        };
        for slot in 0..count {
            replicas.fill(slot).await;
        }
        replicas.until_ready(count).await;
        replicas
    }

    /// Adds so many empty slots.
    #[allow(dead_code, reason = "the benchmarks do not use it")]
    pub(crate) fn add_slots(&mut self, count: usize) {
        self.slots.extend((0..count).map(|_| None));
    }

    /// Starts a server in an empty slot.
    pub(crate) async fn fill(&mut self, slot: usize) {
        self.fill_with(slot, &[]).await;
    }

    /// Starts a server with more arguments replaced in an empty slot.
    pub(crate) async fn fill_with(&mut self, slot: usize, more: &[&str]) {
        let more: Vec<String> =
            self.more.iter().cloned().chain(more.iter().map(|arg| (*arg).to_owned())).collect();
        let args = server_args(RENDERED, &self.cluster, &more);
        let name = format!("replica-{}", self.started);
        self.started += 1;
        let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
        let start = || Process::start(&name, binary, &args, self.folder.path()).expect("a process");
        let process = Mutex::new(start());
        let (address, admin) = eventually("the server listens", || async {
            let mut process = process.lock();
            let log = process.log();
            // A server that cannot reach the API server exits, and is restarted, as a container is.
            if process.ended().is_some() {
                *process = start();
                return Err(log);
            }
            addresses(&log).ok_or(log)
        })
        .await;
        let process = process.into_inner();
        self.service.lock().backends.push(Backend { name, slot, address, admin });
        self.slots[slot] = Some(Replica { process });
    }

    /// Waits until so many servers are ready, and exactly these are the endpoints of the Service.
    pub(crate) async fn until_ready(&self, count: usize) {
        eventually(&format!("{count} servers are ready"), || async {
            let service = self.service.lock().clone();
            let alive = service.backends.iter().map(|backend| &backend.name);
            let ready = alive.filter(|name| service.published.contains(*name)).count();
            if ready == count && service.published.len() == count { Ok(()) } else { Err(service) }
        })
        .await;
    }

    /// Writes the endpoints anew: etcd was restored, and may have others.
    #[allow(dead_code, reason = "the benchmarks do not use it")]
    pub(crate) fn publish_again(&self) {
        self.service.lock().published.clear();
    }

    /// The process ID of the server in a slot.
    #[allow(dead_code, reason = "only the benchmarks use it")]
    pub(crate) fn process_id(&self, slot: usize) -> u32 {
        self.slots[slot]
            .as_ref()
            .and_then(|replica| replica.process.id().ok())
            .expect("a server in that slot")
    }

    /// The CPU time of all servers so far.
    #[allow(dead_code, reason = "only the benchmarks use it")]
    pub(crate) fn processor_time(&self) -> Duration {
        let of_task = |task: std::io::Result<std::fs::DirEntry>| -> u64 {
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("schedstat")));
            stat.unwrap_or_default().split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        // schedstat is in nanoseconds, but counts one thread only.
        let of_process = |slot: usize| -> u64 {
            let tasks =
                std::fs::read_dir(format!("/proc/{}/task", self.process_id(slot))).expect("a process");
            tasks.map(of_task).sum()
        };
        let filled = (0..self.slots.len()).filter(|slot| self.slots[*slot].is_some());
        Duration::from_nanos(filled.map(of_process).sum())
    }

    /// Kills the server in a slot, as when its machine dies.
    pub(crate) fn kill(&mut self, slot: usize) {
        self.slots[slot] = None;
        self.service.lock().backends.retain(|backend| backend.slot != slot);
    }

    /// Sends a signal to the server in a slot.
    pub(crate) fn signal(&self, slot: usize, signal: &str) {
        let replica = self.slots[slot].as_ref().expect("a server in that slot");
        replica.process.signal(signal).expect("a signal");
    }

    /// The last log lines of the running servers, for a story that failed.
    pub(crate) fn logs(&self) -> String {
        let logs = self.slots.iter().flatten().map(|replica| replica.process.log_tail());
        logs.collect::<Vec<_>>().join("\n---\n")
    }

    /// What all servers so far have logged about something, in the order of time.
    #[allow(dead_code, reason = "the benchmarks do not use it")]
    pub(crate) fn log_lines_about(&self, text: &str) -> Vec<String> {
        let logs = std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten();
        let logs = logs.filter(|file| file.path().extension().is_some_and(|ending| ending == "log"));
        let mut lines = Vec::new();
        for file in logs {
            let log = std::fs::read_to_string(file.path()).unwrap_or_default();
            let name = file.file_name().to_string_lossy().into_owned();
            let about = log.lines().filter(|line| line.contains(text) || !line.contains("admission:"));
            lines.extend(about.map(|line| format!("{line} ({name})")));
        }
        lines.sort();
        lines
    }

    /// The log of the server in a slot.
    #[allow(dead_code, reason = "the benchmarks do not use it")]
    pub(crate) fn log(&self, slot: usize) -> String {
        self.slots[slot].as_ref().map(|replica| replica.process.log()).unwrap_or_default()
    }

    /// The exit status of the server in a slot, if it has ended by itself. Then the slot is empty.
    pub(crate) fn has_ended(&mut self, slot: usize) -> Option<std::process::ExitStatus> {
        let status = self.slots[slot].as_mut()?.process.ended()?;
        self.kill(slot);
        Some(status)
    }
}

/// The addresses of a server, from its log.
pub(crate) fn addresses(log: &str) -> Option<(SocketAddr, SocketAddr)> {
    let line = log.lines().find(|line| line.contains(" serving "))?;
    let field = |name: &str| {
        let (_, rest) = line.split_once(&format!("{name}="))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Some((field("address")?, field("admin")?))
}

/// Checks the readiness of every server, and makes the ready ones endpoints of the Service, as kubelets and the
/// endpoints controller do. As there, a killed server stays an endpoint until the next check.
async fn follow(service: Arc<Mutex<Service>>, endpoints: Endpoints) {
    let mut timeouts: HashMap<String, u32> = HashMap::new();
    loop {
        let Service { backends, published } = service.lock().clone();
        let checks =
            join_all(backends.iter().map(|backend| tokio::time::timeout(PATIENCE, is_ready(backend.admin))))
                .await;
        let mut ready = Vec::new();
        for (backend, check) in backends.iter().zip(checks) {
            let late = timeouts.entry(backend.name.clone()).or_default();
            *late = if check.is_err() { *late + 1 } else { 0 };
            if check.unwrap_or(*late < TIMEOUTS && published.contains(&backend.name)) {
                ready.push(backend);
            }
        }
        let (mut gone, mut new) = (published.clone(), Vec::new());
        for backend in ready {
            if !gone.remove(&backend.name) {
                new.push(backend);
            }
        }
        // A write that fails while the API server restarts is retried.
        for name in gone {
            if let Ok(Ok(())) = tokio::time::timeout(PATIENCE, endpoints.remove(&name)).await {
                service.lock().published.remove(&name);
            }
        }
        for Backend { name, address, .. } in new {
            if let Ok(Ok(())) = tokio::time::timeout(PATIENCE, endpoints.add(name, *address)).await {
                service.lock().published.insert(name.clone());
            }
        }
        tokio::time::sleep(PROBED).await;
    }
}
