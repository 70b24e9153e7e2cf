//! Several servers, each a process of its own, with the arguments of the chart's: its Service leads to those that are
//! ready.

use std::collections::BTreeSet;
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

/// How often readiness is looked at.
const PROBED: Duration = Duration::from_millis(100);

/// Whoever does not answer for so long is not ready; the same for writing where the Service leads.
const PATIENCE: Duration = Duration::from_secs(1);

/// Servers by their places; a place may be empty.
pub(crate) struct Replicas {
    cluster: Cluster,
    more: Vec<String>,
    places: Vec<Option<Replica>>,
    started: usize,
    service: Arc<Mutex<Service>>,
    folder: TempDir,
    _following: JoinSet<()>,
}

/// Where the Service should lead, and where it does.
#[derive(Clone, Debug, Default)]
struct Service {
    backends: Vec<Backend>,
    /// The names of those it leads to.
    leads_to: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Backend {
    name: String,
    place: usize,
    /// Where it listens, and where it says whether it is ready.
    address: SocketAddr,
    admin: SocketAddr,
}

struct Replica {
    process: Process,
}

impl Replicas {
    /// Starts `count` servers, some arguments exchanged by these, and waits until all are ready.
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
            places: (0..count).map(|_| None).collect(),
            started: 0,
            service,
            folder: tempfile::tempdir().expect("a folder"),
            _following: following,
        };
        for place in 0..count {
            replicas.fill(place).await;
        }
        replicas.until_ready(count).await;
        replicas
    }

    /// Makes room for so many more.
    #[allow(dead_code, reason = "not by those who measure")]
    pub(crate) fn add_places(&mut self, count: usize) {
        self.places.extend((0..count).map(|_| None));
    }

    /// Starts a server in a place that is empty.
    pub(crate) async fn fill(&mut self, place: usize) {
        self.fill_with(place, &[]).await;
    }

    /// Starts a server with more arguments exchanged in a place that is empty.
    pub(crate) async fn fill_with(&mut self, place: usize, more: &[&str]) {
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
            // Who cannot reach the API server ends, and is started again, as a container is.
            if process.ended().is_some() {
                *process = start();
                return Err(log);
            }
            addresses(&log).ok_or(log)
        })
        .await;
        let process = process.into_inner();
        self.service.lock().backends.push(Backend { name, place, address, admin });
        self.places[place] = Some(Replica { process });
    }

    /// Waits until so many are ready, and the Service leads to them and nowhere else.
    pub(crate) async fn until_ready(&self, count: usize) {
        eventually(&format!("{count} servers are ready"), || async {
            let service = self.service.lock().clone();
            let alive = service.backends.iter().map(|backend| &backend.name);
            let leads = alive.filter(|name| service.leads_to.contains(*name)).count();
            if leads == count && service.leads_to.len() == count { Ok(()) } else { Err(service) }
        })
        .await;
    }

    /// The process id of the server of a place.
    #[allow(dead_code, reason = "for those who measure it")]
    pub(crate) fn process_id(&self, place: usize) -> u32 {
        self.places[place]
            .as_ref()
            .and_then(|replica| replica.process.id().ok())
            .expect("a server in that place")
    }

    /// What all servers took of the processors so far.
    #[allow(dead_code, reason = "for those who measure it")]
    pub(crate) fn processor_time(&self) -> Duration {
        let of_task = |task: std::io::Result<std::fs::DirEntry>| -> u64 {
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("schedstat")));
            stat.unwrap_or_default().split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        // schedstat is in nanoseconds, but counts one thread only.
        let of_process = |place: usize| -> u64 {
            let tasks =
                std::fs::read_dir(format!("/proc/{}/task", self.process_id(place))).expect("a process");
            tasks.map(of_task).sum()
        };
        let filled = (0..self.places.len()).filter(|place| self.places[*place].is_some());
        Duration::from_nanos(filled.map(of_process).sum())
    }

    /// Kills the server of a place, as a machine that dies does.
    pub(crate) fn kill(&mut self, place: usize) {
        self.places[place] = None;
        self.service.lock().backends.retain(|backend| backend.place != place);
    }

    /// Sends a signal to the server of a place.
    pub(crate) fn signal(&self, place: usize, signal: &str) {
        let replica = self.places[place].as_ref().expect("a server in that place");
        replica.process.signal(signal).expect("a signal");
    }

    /// What the servers that run wrote last, for a story that failed.
    pub(crate) fn logs(&self) -> String {
        let logs = self.places.iter().flatten().map(|replica| replica.process.log_tail());
        logs.collect::<Vec<_>>().join("\n---\n")
    }

    /// Whether the server of a place has ended by itself; then the place is empty.
    pub(crate) fn has_ended(&mut self, place: usize) -> Option<std::process::ExitStatus> {
        let status = self.places[place].as_mut()?.process.ended()?;
        self.kill(place);
        Some(status)
    }
}

/// Where a server listens, from its log.
pub(crate) fn addresses(log: &str) -> Option<(SocketAddr, SocketAddr)> {
    let line = log.lines().find(|line| line.contains(" serving "))?;
    let field = |name: &str| {
        let (_, rest) = line.split_once(&format!("{name}="))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Some((field("address")?, field("admin")?))
}

/// Asks every server again and again whether it is ready, and has the Service lead to those that are: what kubelets and
/// the endpoint controller do. Who was killed is led to until this is noticed, as it is there.
async fn follow(service: Arc<Mutex<Service>>, endpoints: Endpoints) {
    loop {
        let Service { backends, leads_to } = service.lock().clone();
        let ready = join_all(backends.iter().map(async |backend| {
            tokio::time::timeout(PATIENCE, is_ready(backend.admin)).await.unwrap_or(false)
        }))
        .await;
        let ready = backends.iter().zip(ready).filter(|(_, ready)| *ready).map(|(backend, _)| backend);
        let (mut gone, mut new) = (leads_to.clone(), Vec::new());
        for backend in ready {
            if !gone.remove(&backend.name) {
                new.push(backend);
            }
        }
        // What could not be written, because the API server is being restarted, is tried again.
        for name in gone {
            if let Ok(Ok(())) = tokio::time::timeout(PATIENCE, endpoints.remove(&name)).await {
                service.lock().leads_to.remove(&name);
            }
        }
        for Backend { name, address, .. } in new {
            if let Ok(Ok(())) = tokio::time::timeout(PATIENCE, endpoints.add(name, *address)).await {
                service.lock().leads_to.insert(name.clone());
            }
        }
        tokio::time::sleep(PROBED).await;
    }
}
