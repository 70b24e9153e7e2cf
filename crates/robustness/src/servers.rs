//! The servers of a simulated run: started, stopped, killed and cut off.
//!
//! A server runs in this process and is reached without a socket. It has a user of its own, so that a fault can hit it
//! alone. A kill cuts both of its connections for ever: what it does after that has no effect, as if it did nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use parking_lot::Mutex;
use quorate_devcluster::apiserver::{FaultGuard, Server};
use quorate_server::certificates::{CertificateSource, Rotation};
use quorate_server::webhooks::{Endpoint, ManagedBy};
use quorate_server::{Gates, InProcess, Options, ServePub};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::http::Http;
use crate::recorder::Recorder;

/// Quorate's own namespace.
pub const OWN: &str = "quorate-system";

/// The Service of the servers.
const SERVICE: &str = "quorate";

/// How often readiness is probed: as the chart sets it.
const READINESS_PERIOD: Duration = Duration::from_secs(1);

/// One place for a server. A server that ends is replaced by a new process with another user.
struct Slot {
    process: Option<Process>,
    lives: usize,
    /// Whether a server is being started.
    starting: bool,
}

struct Process {
    user: String,
    address: String,
    server: InProcess,
    stop: CancellationToken,
    /// Cut off for a while, since when.
    cut: Option<FaultGuard>,
}

/// Sends all reviews to one server while it lives.
#[must_use = "dropping it ends the route"]
pub struct Route {
    servers: Arc<Servers>,
}

impl Drop for Route {
    fn drop(&mut self) {
        self.servers.wanted_route.send_replace(None);
    }
}

/// All servers of a run.
pub struct Servers {
    api: Arc<Server>,
    recorder: Arc<Recorder>,
    admin: Http,
    options: Options,
    slots: Mutex<Vec<Slot>>,
    /// The only place that the API server shall send reviews to, and the one that it sends reviews to.
    wanted_route: watch::Sender<Option<usize>>,
    route: watch::Sender<Option<usize>>,
    /// The connections of killed servers, which stay cut.
    dead: Mutex<Vec<FaultGuard>>,
}

impl Servers {
    /// Places for `count` servers, none of which runs.
    pub fn new(api: Arc<Server>, recorder: Arc<Recorder>, admin: Http, count: usize) -> Self {
        let slots = (0..count).map(|_| Slot { process: None, lives: 0, starting: false }).collect();
        let options = Options {
            endpoint: Some(Endpoint::Service { name: SERVICE.to_owned(), port: 443 }),
            webhooks: ManagedBy::Server,
            certificates: CertificateSource::Own(Rotation::default()),
            gates: Gates::default(),
            serve_pub: ServePub::Always,
            ..Options::here(api.config_as("nobody", &[]), OWN)
        };
        Self {
            api,
            recorder,
            admin,
            options,
            slots: Mutex::new(slots),
            wanted_route: watch::Sender::new(None),
            route: watch::Sender::new(None),
            dead: Mutex::default(),
        }
    }

    /// Sets whether the servers serve OpenKruise's budgets. They do unless this says otherwise.
    #[must_use]
    pub fn with_serve_pub(self, serve_pub: ServePub) -> Self {
        Self { options: Options { serve_pub, ..self.options }, ..self }
    }

    /// The number of places.
    pub fn count(&self) -> usize {
        self.slots.lock().len()
    }

    /// Creates the Service, and keeps its endpoints up to date for ever.
    pub async fn publish(self: Arc<Self>) {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": OWN},
            "spec": {"ports": [{"name": "webhooks", "port": 443, "targetPort": 9443}]},
        });
        self.admin.post(&format!("/api/v1/namespaces/{OWN}/services"), &service).await;
        let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{OWN}/endpointslices");
        let mut published = None;
        let mut wanted = self.wanted_route.subscribe();
        loop {
            self.restart_ended().await;
            let route = *wanted.borrow_and_update();
            let ready = self.ready(route);
            if published.as_ref() != Some(&ready) {
                let endpoints: Vec<_> = ready
                    .iter()
                    .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}))
                    .collect();
                let slice = json!({
                    "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                    "metadata": {"name": SERVICE, "labels": {"kubernetes.io/service-name": SERVICE}},
                    "ports": [{"name": "webhooks", "port": 9443, "protocol": "TCP"}], "endpoints": endpoints,
                });
                let path = format!("{slices}/{SERVICE}");
                let written = match self.admin.put(&path, &slice).await {
                    answer if answer.code == 404 => self.admin.post(&slices, &slice).await,
                    answer => answer,
                };
                if written.is_success() {
                    published = Some(ready);
                }
            }
            self.route.send_replace(route);
            // At the next probe, or when the route changes.
            let _ = tokio::time::timeout(READINESS_PERIOD, wanted.changed()).await;
        }
    }

    /// Starts servers again that ended by themselves, as a kubelet does.
    async fn restart_ended(&self) {
        for place in 0..self.count() {
            let ended = {
                let mut slots = self.slots.lock();
                let Some(slot) = slots.get_mut(place) else { continue };
                slot.process.take_if(|process| process.server.has_ended())
            };
            let Some(process) = ended else { continue };
            self.api.detach_webhook(&process.address);
            if let Err(error) = self.start(place).await {
                tracing::warn!(%error, place, "the server does not start");
            }
        }
    }

    /// Sends all reviews to the server in this place for a while, as a Service does whose other endpoints are not ready.
    pub async fn route(self: &Arc<Self>, place: usize) -> Route {
        self.wanted_route.send_replace(Some(place));
        let route = Route { servers: self.clone() };
        // This cannot fail: `self` keeps the sender alive.
        let _ = self.route.subscribe().wait_for(|now| *now == Some(place)).await;
        route
    }

    /// The place of the server that leads.
    pub fn leader(&self) -> Option<usize> {
        let leader = self.recorder.leader();
        (0..self.count()).find(|place| self.user(*place).is_some_and(|user| user == leader))
    }

    /// The hosts of the servers that are ready and can be reached: all of them, or the one in the only place.
    fn ready(&self, only: Option<usize>) -> Vec<String> {
        let slots = self.slots.lock();
        let places = slots.iter().enumerate().filter(|(place, _)| only.is_none_or(|only| *place == only));
        let processes = places.filter_map(|(_, slot)| slot.process.as_ref());
        let ready = processes.filter(|process| process.cut.is_none() && process.server.unready().is_none());
        ready.filter_map(|process| Some(process.address.split_once(':')?.0.to_owned())).collect()
    }

    /// Starts a server in this place, unless one runs there.
    ///
    /// # Errors
    /// The server does not start.
    pub async fn start(&self, place: usize) -> Result<()> {
        let life = {
            let mut slots = self.slots.lock();
            let vacant = |slot: &&mut Slot| slot.process.is_none() && !slot.starting;
            let Some(slot) = slots.get_mut(place).filter(vacant) else { return Ok(()) };
            slot.starting = true;
            slot.lives += 1;
            slot.lives
        };
        let started = self.start_life(place, life).await;
        if let Some(slot) = self.slots.lock().get_mut(place) {
            slot.starting = false;
            slot.process = started?.into();
        }
        Ok(())
    }

    async fn start_life(&self, place: usize, life: usize) -> Result<Process> {
        let user = format!("system:serviceaccount:{OWN}:server-{place}-{life}");
        // An address of this machine that is never connected to.
        let address = format!("127.{}.{}.{}:9443", place + 1, life / 250, life % 250 + 1);
        let client = self.api.local_client_as(&user, &["system:serviceaccounts", "system:authenticated"]);
        let stop = CancellationToken::new();
        let server = quorate_server::start_in_process(client, self.options.clone(), stop.clone()).await?;
        self.api.attach_webhook(&address, server.router.clone());
        Ok(Process { user, address, server, stop, cut: None })
    }

    /// Ends a server at once.
    pub fn kill(&self, place: usize) {
        let Some(process) = self.take(place) else { return };
        self.api.detach_webhook(&process.address);
        self.dead.lock().push(self.api.faults().partition(&process.user));
        process.stop.cancel();
    }

    /// Ends a server as a rollout does, and waits until it has ended.
    pub async fn stop(&self, place: usize) {
        let Some(process) = self.take(place) else { return };
        process.stop.cancel();
        // The router answers until the process has ended.
        let _ = process.server.ended().await;
        self.api.detach_webhook(&process.address);
    }

    /// Cuts a server off from the API server, in both directions, or connects it again.
    pub fn set_cut(&self, place: usize, cut: bool) {
        let mut slots = self.slots.lock();
        let Some(process) = slots.get_mut(place).and_then(|slot| slot.process.as_mut()) else { return };
        if cut && process.cut.is_none() {
            process.cut = Some(self.api.faults().partition(&process.user));
            self.api.detach_webhook(&process.address);
        } else if !cut && process.cut.take().is_some() {
            self.api.attach_webhook(&process.address, process.server.router.clone());
        }
    }

    /// The user of the server in this place.
    pub fn user(&self, place: usize) -> Option<String> {
        let slots = self.slots.lock();
        Some(slots.get(place)?.process.as_ref()?.user.clone())
    }

    /// The router of the server in this place, as an attacker on the network reaches it.
    pub fn router(&self, place: usize) -> Option<Router> {
        let slots = self.slots.lock();
        Some(slots.get(place)?.process.as_ref()?.server.router.clone())
    }

    /// Why each server is not ready.
    pub fn unready(&self) -> Vec<Option<String>> {
        let slots = self.slots.lock();
        let why = |slot: &Slot| match &slot.process {
            None => Some("not running".to_owned()),
            Some(process) => process.server.unready(),
        };
        slots.iter().map(why).collect()
    }

    fn take(&self, place: usize) -> Option<Process> {
        self.slots.lock().get_mut(place)?.process.take()
    }

    /// The recorder of the run.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }
}
