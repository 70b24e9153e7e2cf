//! The servers of a run in real time: processes of the shipped program, with the arguments of the chart.
//!
//! A kill is SIGKILL. A server that is cut off is stopped with SIGSTOP and continued later, or its API server does not
//! answer it for a while. A server that ends by itself is started again, as a container is.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use quorate_devcluster::apiserver::FaultGuard;
use quorate_testbed::Process;
use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::chart::Chart;
use super::site::Site;
use crate::fleet::Fleet;
use crate::http::Http;
use crate::recorder::Recorder;
use crate::servers::OWN;

/// Period of the readiness checks. Shorter than in the chart: what ends is replaced within seconds here.
const PROBED: Duration = Duration::from_millis(250);

/// Timeout of a readiness check.
const PATIENCE: Duration = Duration::from_secs(1);

/// Longest time that a server may take to end.
const LONGEST_END: Duration = Duration::from_secs(45);

/// What all servers of a run have in common.
pub(super) struct Settings {
    /// The shipped program.
    pub(super) program: PathBuf,
    /// Arguments in place of those of the chart.
    pub(super) args: Vec<String>,
    /// The number of places.
    pub(super) count: usize,
}

/// All servers of a run.
pub(super) struct Processes {
    site: Arc<Site>,
    recorder: Arc<Recorder>,
    admin: Http,
    chart: Arc<Chart>,
    settings: Settings,
    folder: TempDir,
    slots: Mutex<Vec<Slot>>,
    random: Mutex<ChaCha8Rng>,
}

#[derive(Default)]
struct Slot {
    running: Option<Running>,
    lives: usize,
}

struct Running {
    name: String,
    user: String,
    process: Process,
    /// The addresses of the webhooks and of the metrics, once it listens.
    addresses: Option<(SocketAddr, SocketAddr)>,
    cut: Option<Cut>,
}

enum Cut {
    /// SIGSTOP.
    Stopped,
    /// The API server does not answer it.
    Partitioned(#[expect(dead_code, reason = "its drop ends the partition")] FaultGuard),
}

/// A server that may be an endpoint.
struct Candidate {
    name: String,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Processes {
    /// Places for servers, none of which runs.
    pub(super) fn new(
        site: Arc<Site>,
        recorder: Arc<Recorder>,
        admin: Http,
        chart: Arc<Chart>,
        settings: Settings,
        random: ChaCha8Rng,
    ) -> Result<Self> {
        let slots = (0..settings.count).map(|_| Slot::default()).collect();
        let folder = tempfile::Builder::new().prefix("quorate-servers-").tempdir()?;
        let (slots, random) = (Mutex::new(slots), Mutex::new(random));
        Ok(Self { site, recorder, admin, chart, settings, folder, slots, random })
    }

    /// Keeps the endpoints of the Service up to date, as kubelets and the endpoints controller do, and starts servers
    /// again that have ended by themselves. For ever.
    pub(super) async fn publish(self: Arc<Self>) {
        let mut published: Vec<String> = Vec::new();
        loop {
            self.revive();
            let mut ready = Vec::new();
            for candidate in self.candidates() {
                let answer = tokio::time::timeout(PATIENCE, is_ready(candidate.admin)).await;
                if answer.unwrap_or(false) {
                    ready.push(candidate);
                }
            }
            let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{OWN}/endpointslices");
            for Candidate { name, address, .. } in &ready {
                if published.contains(name) {
                    continue;
                }
                // Each server has another port here, and hence its own EndpointSlice.
                let slice = json!({
                    "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                    "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "quorate"}},
                    "endpoints": [{"addresses": [address.ip()], "conditions": {"ready": true}}],
                    "ports": [{"name": "webhooks", "port": address.port(), "protocol": "TCP"}],
                });
                let response = self.admin.post(&slices, &slice).await;
                if response.is_success() || response.code == 409 {
                    published.push(name.clone());
                }
            }
            let gone: Vec<String> =
                published.iter().filter(|name| !ready.iter().any(|it| it.name == **name)).cloned().collect();
            for name in gone {
                let response = self.admin.delete(&format!("{slices}/{name}"), &json!({})).await;
                if response.is_success() || response.code == 404 {
                    published.retain(|other| *other != name);
                }
            }
            tokio::time::sleep(PROBED).await;
        }
    }

    /// Waits until all servers are ready.
    pub(super) async fn until_ready(&self, longest: Duration) -> Result<()> {
        let all = async {
            loop {
                let candidates = self.candidates();
                let mut ready = 0;
                for candidate in &candidates {
                    ready += usize::from(is_ready(candidate.admin).await);
                }
                if ready == self.settings.count {
                    return;
                }
                tokio::time::sleep(PROBED).await;
            }
        };
        tokio::time::timeout(longest, all)
            .await
            .with_context(|| format!("not all servers are ready: {}", self.tails()))
    }

    /// Starts servers again that have ended by themselves.
    fn revive(&self) {
        let mut ended = Vec::new();
        for (place, slot) in self.slots.lock().iter_mut().enumerate() {
            let Some(status) = slot.running.as_mut().and_then(|running| running.process.ended()) else {
                continue;
            };
            if let Some(running) = slot.running.take() {
                tracing::info!(name = running.name, %status, "a server ended: {}", running.process.log_tail());
                ended.push(place);
            }
        }
        for place in ended {
            if let Err(error) = self.launch(place) {
                tracing::warn!(%error, place, "the server does not start");
            }
        }
    }

    fn launch(&self, place: usize) -> Result<()> {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.get_mut(place).filter(|slot| slot.running.is_none()) else { return Ok(()) };
        slot.lives += 1;
        let name = format!("server-{place}-{}", slot.lives);
        let user = self.site.user_of_server(&name);
        let kubeconfig = self.site.kubeconfig(&user, self.folder.path(), &name)?;
        let mut args = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--listen={}", SocketAddr::new(self.site.address()?, 0)),
            "--admin-listen=127.0.0.1:0".to_owned(),
        ];
        args.extend(self.settings.args.iter().cloned());
        // The log shows the addresses, so it does not depend on the variable with which this program is called.
        let mut command = vec!["RUST_LOG=info".to_owned(), self.settings.program.display().to_string()];
        command.extend(self.chart.server_args(&args)?);
        let process = Process::start(&name, Path::new("env"), &command, self.folder.path())
            .with_context(|| format!("cannot start {}", self.settings.program.display()))?;
        slot.running =
            Some(Running { name, user: user.name().to_owned(), process, addresses: None, cut: None });
        Ok(())
    }

    /// The servers that listen.
    fn candidates(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        for running in self.slots.lock().iter_mut().filter_map(|slot| slot.running.as_mut()) {
            if running.addresses.is_none() {
                running.addresses = addresses(&running.process.log());
            }
            if let Some((address, admin)) = running.addresses {
                found.push(Candidate { name: running.name.clone(), address, admin });
            }
        }
        found
    }

    fn take(&self, place: usize) -> Option<Running> {
        self.slots.lock().get_mut(place)?.running.take()
    }

    /// The last lines of each log.
    fn tails(&self) -> String {
        let slots = self.slots.lock();
        let running = slots.iter().filter_map(|slot| slot.running.as_ref());
        running.map(|it| format!("\n{}:\n{}", it.name, it.process.log_tail())).collect()
    }

    /// Ends all servers, and returns what each of them wrote about a panic: no input may cause one.
    pub(super) fn end(&self) -> Vec<String> {
        for slot in self.slots.lock().iter_mut() {
            slot.running = None;
        }
        let mut panics = Vec::new();
        for entry in std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let name = entry.file_name().to_string_lossy().into_owned();
            let lines = text.lines().filter(|line| line.contains("panicked at"));
            panics.extend(lines.map(|line| format!("{name}: {line}")));
        }
        panics
    }

    /// Keeps the logs of the servers in a folder.
    pub(super) fn keep_logs(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        for entry in std::fs::read_dir(self.folder.path())? {
            let entry = entry?;
            if entry.path().extension().is_some_and(|extension| extension == "log") {
                std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
            }
        }
        Ok(())
    }
}

impl Fleet for Processes {
    fn count(&self) -> usize {
        self.settings.count
    }

    fn user(&self, place: usize) -> Option<String> {
        Some(self.slots.lock().get(place)?.running.as_ref()?.user.clone())
    }

    fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    async fn start(&self, place: usize) -> Result<()> {
        self.launch(place)
    }

    fn kill(&self, place: usize) {
        drop(self.take(place));
    }

    async fn stop(&self, place: usize) {
        let Some(mut running) = self.take(place) else { return };
        if let Err(error) = running.process.signal("TERM") {
            tracing::warn!(%error, place, "no signal");
        }
        let ended = async {
            while running.process.ended().is_none() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        if tokio::time::timeout(LONGEST_END, ended).await.is_err() {
            tracing::warn!(place, "the server does not end");
        }
    }

    fn set_cut(&self, place: usize, cut: bool) {
        let stops = self.site.embedded().is_none() || self.random.lock().random_bool(0.7);
        let mut slots = self.slots.lock();
        let Some(running) = slots.get_mut(place).and_then(|slot| slot.running.as_mut()) else { return };
        if cut && running.cut.is_none() {
            running.cut = match self.site.embedded().filter(|_| !stops) {
                Some(api) => Some(Cut::Partitioned(api.faults().partition(&running.user))),
                None => running.process.signal("STOP").ok().map(|()| Cut::Stopped),
            };
        } else if !cut && let Some(Cut::Stopped) = running.cut.take() {
            let _ = running.process.signal("CONT");
        }
    }

    fn send_review(&self, place: usize, path: &str, review: &Value) {
        let address = self.slots.lock().get(place).and_then(|slot| slot.running.as_ref()?.addresses);
        let Some((address, _)) = address else { return };
        let Ok(url) = format!("https://{address}").parse() else { return };
        let mut config = kube::Config::new(url);
        // An attacker does not check the certificate of the server.
        config.accept_invalid_certs = true;
        config.default_retry = false;
        let Ok(client) = kube::Client::try_from(config) else { return };
        let (http, path, review) = (Http::new(client), path.to_owned(), review.clone());
        tokio::spawn(async move {
            let answer = tokio::time::timeout(Duration::from_secs(10), http.post(&path, &review)).await;
            tracing::debug!(?answer, "a forged review");
        });
    }

    /// The clock of a process cannot be moved: nothing happens.
    fn step_time_of_day(&self, _: i64) {}
}

/// The addresses of a server, from its log.
fn addresses(log: &str) -> Option<(SocketAddr, SocketAddr)> {
    let line = log.lines().find(|line| line.contains(" serving "))?;
    let field = |name: &str| {
        let (_, rest) = line.split_once(&format!("{name}="))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Some((field("address")?, field("admin")?))
}

/// Whether a process is ready by its `/readyz`.
async fn is_ready(admin: SocketAddr) -> bool {
    let get = async {
        let mut stream = TcpStream::connect(admin).await?;
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    get.await.is_ok_and(|answer| answer.split_whitespace().nth(1) == Some("200"))
}
