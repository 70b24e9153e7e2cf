//! Several servers, each a process of its own, behind something like a Service: connections go to those that are ready.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quorate_testbed::{Cluster, Process, eventually};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::quorate::{ANYWHERE, NAMESPACE, service_account};

/// How often readiness is looked at.
const PROBED: Duration = Duration::from_millis(100);

/// Servers by their places; a place may be empty.
pub(crate) struct Replicas {
    kubeconfig: PathBuf,
    url: String,
    more: Vec<String>,
    places: Vec<Option<Replica>>,
    started: usize,
    /// Those that get connections: where they listen, and where they say whether they are ready.
    backends: Backends,
    folder: TempDir,
    _balancing: JoinSet<()>,
}

type Backends = Arc<Mutex<Vec<Backend>>>;

#[derive(Clone, Debug)]
struct Backend {
    place: usize,
    address: SocketAddr,
    admin: SocketAddr,
    ready: bool,
}

struct Replica {
    process: Process,
}

impl Replicas {
    /// Starts `count` servers with these arguments besides the usual, and waits until all are ready.
    pub(crate) async fn start(cluster: &Cluster, count: usize, more: &[&str]) -> Self {
        crate::quorate::install(cluster).await;
        let listener = TcpListener::bind(ANYWHERE).await.expect("a port");
        let url = format!("https://{}", listener.local_addr().expect("an address"));
        let backends = Backends::default();
        let mut balancing = JoinSet::new();
        balancing.spawn(balance(listener, backends.clone()));
        balancing.spawn(probe(backends.clone()));
        let mut replicas = Self {
            kubeconfig: cluster.kubeconfig(&service_account()).expect("a kubeconfig"),
            url,
            more: more.iter().map(|arg| (*arg).to_owned()).collect(),
            places: (0..count).map(|_| None).collect(),
            started: 0,
            backends,
            folder: tempfile::tempdir().expect("a folder"),
            _balancing: balancing,
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

    /// Starts a server with more arguments in a place that is empty.
    pub(crate) async fn fill_with(&mut self, place: usize, more: &[&str]) {
        let args = [
            "server",
            "--listen=127.0.0.1:0",
            "--admin-listen=127.0.0.1:0",
            &format!("--kubeconfig={}", self.kubeconfig.display()),
            &format!("--namespace={NAMESPACE}"),
            &format!("--webhook-url={}", self.url),
            "--register-webhooks",
        ]
        .map(str::to_owned);
        let args: Vec<String> = args
            .into_iter()
            .chain(self.more.iter().cloned())
            .chain(more.iter().map(|arg| (*arg).to_owned()))
            .collect();
        let name = format!("replica-{}", self.started);
        self.started += 1;
        let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
        let process = Process::start(&name, binary, &args, self.folder.path()).expect("a process");
        let (address, admin) = eventually("the server listens", || async {
            let log = process.log();
            addresses(&log).ok_or(log)
        })
        .await;
        self.backends.lock().push(Backend { place, address, admin, ready: false });
        self.places[place] = Some(Replica { process });
    }

    /// Waits until so many are ready.
    pub(crate) async fn until_ready(&self, count: usize) {
        eventually(&format!("{count} servers are ready"), || async {
            let backends = self.backends.lock().clone();
            let ready = backends.iter().filter(|backend| backend.ready).count();
            if ready == count { Ok(()) } else { Err(backends) }
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
        self.backends.lock().retain(|backend| backend.place != place);
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

/// Passes connections on to those that are ready, one after the other.
async fn balance(listener: TcpListener, backends: Backends) {
    let mut connections = JoinSet::new();
    let mut turn = 0_usize;
    loop {
        let Ok((mut client, _)) = listener.accept().await else { continue };
        let ready: Vec<SocketAddr> =
            backends.lock().iter().filter(|backend| backend.ready).map(|backend| backend.address).collect();
        turn = turn.wrapping_add(1);
        // Nobody is ready: the connection is closed, as a Service without endpoints would.
        let Some(address) = ready.get(turn % ready.len().max(1)).copied() else { continue };
        connections.spawn(async move {
            if let Ok(mut server) = TcpStream::connect(address).await {
                let _ = client.set_nodelay(true);
                let _ = server.set_nodelay(true);
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Asks every server again and again whether it is ready.
async fn probe(backends: Backends) {
    loop {
        let known = backends.lock().clone();
        for backend in known {
            let ready = tokio::time::timeout(Duration::from_secs(1), is_ready(backend.admin)).await;
            let ready = ready.unwrap_or(false);
            for known in backends.lock().iter_mut().filter(|known| known.admin == backend.admin) {
                known.ready = ready;
            }
        }
        tokio::time::sleep(PROBED).await;
    }
}

pub(crate) async fn is_ready(admin: SocketAddr) -> bool {
    get(admin, "/readyz").await.is_ok_and(|answer| answer.split_whitespace().nth(1) == Some("200"))
}

/// What a server counts.
pub(crate) async fn scrape(admin: SocketAddr) -> String {
    get(admin, "/metrics").await.expect("an answer")
}

/// What is answered where a process tells how it does.
pub(crate) async fn get(admin: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(admin).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
