//! Provocations: sequences of events that chance alone seldom brings together.
//!
//! Each provocation prepares what some rules of the servers are there for, and names these rules. There are two kinds:
//!
//! - Provocations about the applications of the run: a kind is unreadable for longer than a view may be old, something
//!   changes behind that, and clients disrupt the application all the while (`kinds`, `names`).
//! - Provocations about [`dedicated_apps`], which nothing else changes, so that each step happens as planned. Most of
//!   them need a server that lags behind another one (`opening`, `settling`, `free_passes`, `updates`, `probes`).
//!
//! [`crate::life`] does not change the application of a provocation. All numbers in a provocation, and its application,
//! are drawn from the seed.

pub mod dedicated_apps;
mod free_passes;
mod kinds;
mod names;
mod opening;
mod probes;
mod provocation;
mod settling;
mod tools;
mod updates;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quorate_devcluster::actors::Actors;
use quorate_devcluster::apiserver::Server;
use rand::Rng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::agents::SharedOrders;
use crate::apps::App;
use crate::http::Http;
use crate::recorder::Recorder;
use crate::servers::Servers;
use crate::slow_hook::SlowHook;
pub use provocation::{Provocation, of_seed};
pub(crate) use tools::evict;

/// The names of the applications that a provocation is about.
pub type Reserved = Arc<Mutex<BTreeSet<String>>>;

/// How many faults [`crate::chaos`] may have at a time. A provocation that needs calm servers takes all of them.
pub const FAULTS_AT_ONCE: u32 = 2;

/// Runs provocations.
#[derive(Clone)]
pub struct Provoker {
    /// The API server.
    pub api: Arc<Server>,
    /// The servers.
    pub servers: Arc<Servers>,
    /// The nodes and what runs on them.
    pub actors: Arc<Actors>,
    /// An administrator.
    pub admin: Http,
    /// The garbage collector, whose deletes always pass.
    pub collector: Http,
    /// A client.
    pub client: Http,
    /// Where it finds pods.
    pub recorder: Arc<Recorder>,
    /// Another webhook.
    pub slow_hook: SlowHook,
    /// The applications that it provokes.
    pub apps: Vec<App>,
    /// The applications that a provocation is about.
    pub reserved: Reserved,
    /// The applications that no client disrupts for now.
    pub quiet: Reserved,
    /// The faults at random that may happen at the same time.
    pub faults: Arc<Semaphore>,
    /// What the agents shall do.
    pub orders: SharedOrders,
    /// What happens is drawn from here.
    pub random: ChaCha8Rng,
}

/// Marks the time as disturbed while it lives.
struct Disturbance {
    recorder: Arc<Recorder>,
    from: Duration,
}

impl Drop for Disturbance {
    fn drop(&mut self) {
        self.recorder.fault(self.from);
    }
}

/// Marks an application as reserved while it lives.
struct Reservation {
    reserved: Reserved,
    quiet: Reserved,
    app: String,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.reserved.lock().remove(&self.app);
        self.quiet.lock().remove(&self.app);
    }
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

impl Provoker {
    /// Runs these provocations one after another, again and again, until it is dropped.
    pub async fn repeat(mut self, mut provocations: Vec<Provocation>) {
        loop {
            provocations.shuffle(&mut self.random);
            // After these, other provocations must wait.
            provocations.sort_by_key(|provocation| provocation.closes_budgets());
            for provocation in &provocations {
                let pause = self.random.random_range(500..5_000);
                sleep(Duration::from_millis(pause)).await;
                if provocation.needs_dedicated_apps() {
                    self.run_in_dedicated_app(*provocation).await;
                } else {
                    self.run(*provocation).await;
                }
            }
        }
    }

    /// Runs a provocation about an application that is not reserved.
    async fn run(&mut self, provocation: Provocation) {
        let free: Vec<App> = {
            let reserved = self.reserved.lock();
            let suits = |app: &&App| {
                !dedicated_apps::has(app)
                    && provocation.kinds().contains(&app.kind)
                    && !reserved.contains(&app.name)
            };
            self.apps.iter().filter(suits).cloned().collect()
        };
        let Some(app) = free.choose(&mut self.random).cloned() else { return };
        self.reserved.lock().insert(app.name.clone());
        let _reservation =
            Reservation { reserved: self.reserved.clone(), quiet: self.quiet.clone(), app: app.name.clone() };
        self.prepare(&app).await;
        self.provoke(provocation, &app).await;
    }

    /// Runs a provocation about a dedicated application. Waits until one of them is as it should be.
    async fn run_in_dedicated_app(&mut self, provocation: Provocation) {
        let mut apps: Vec<App> = self
            .apps
            .iter()
            .filter(|app| dedicated_apps::has(app) && provocation.kinds().contains(&app.kind))
            .cloned()
            .collect();
        apps.shuffle(&mut self.random);
        for _ in 0..60 {
            for app in &apps {
                if self.is_whole(app).await {
                    self.provoke(provocation, app).await;
                    self.tidy(app).await;
                    return;
                }
            }
            sleep(seconds(1)).await;
        }
        tracing::debug!(?provocation, "no dedicated application is whole");
    }

    async fn provoke(&mut self, provocation: Provocation, app: &App) {
        let count = if provocation.needs_calm() { FAULTS_AT_ONCE } else { 0 };
        let Ok(_calm) = self.faults.clone().acquire_many_owned(count).await else { return };
        let _disturbance = Disturbance { recorder: self.recorder.clone(), from: self.recorder.now() };
        tracing::debug!(?provocation, app = app.name, "a provocation begins");
        match provocation {
            Provocation::StaleScale => self.stale_scale(app).await,
            Provocation::VanishedSource => self.vanished_source(app).await,
            Provocation::ForbiddenKind => self.forbidden_kind(app).await,
            Provocation::HiddenKind => self.hidden_kind(app).await,
            Provocation::UnknownOwner => self.unknown_owner(app).await,
            Provocation::SurgeGroup => self.surge_group(app).await,
            Provocation::Forged => self.forged(app).await,
            Provocation::Successors => self.successors(app).await,
            Provocation::SlowRequests => self.slow_requests(app).await,
            Provocation::NameGivenAgain => self.name_given_again(app).await,
            Provocation::Unacknowledged => self.unacknowledged(app).await,
            Provocation::Newcomer => self.newcomer(app).await,
            Provocation::Flip => self.flip(app).await,
            Provocation::AdmittedBefore => self.admitted_before(app, opening::End::Lives).await,
            Provocation::HandedOver => self.admitted_before(app, opening::End::Stops).await,
            Provocation::Killed => self.admitted_before(app, opening::End::Dies).await,
            Provocation::LateBudget => self.late_budget(app).await,
            Provocation::SameRoom => self.same_room(app).await,
            Provocation::LaggingPods => self.lagging_pods(app).await,
            Provocation::UnseenPod => self.unseen_pod(app).await,
            Provocation::SecondRequest => self.second_request(app).await,
            Provocation::Withdrawn => self.withdrawn(app).await,
            Provocation::Recovered => self.recovered(app).await,
            Provocation::ReadAlone => self.read_alone(app).await,
            Provocation::RecoversMeanwhile => self.recovers_meanwhile(app).await,
            Provocation::HeldAndRecovered => self.held_and_recovered(app).await,
            Provocation::Pending => self.pending(app).await,
            Provocation::SlowKubelet => self.slow_kubelet(app).await,
            Provocation::RefusedUpdate => self.refused_update(app).await,
            Provocation::UnbelievedProbes => self.unbelieved_probes(app).await,
        }
        tracing::debug!(?provocation, app = app.name, "a provocation ends");
    }

    /// Makes the application what it was meant to be, and waits for what life had begun with it.
    async fn prepare(&mut self, app: &App) {
        for manifest in app.workloads.iter().chain(&app.budgets) {
            let created = self.admin.post(&manifest.path, &manifest.object).await;
            if !created.is_success() {
                let spec = &manifest.object["spec"];
                self.admin.merge(&manifest.own_path(), &json!({"spec": spec})).await;
            }
        }
        sleep(seconds(22)).await;
        for manifest in app.budgets.iter().chain(&app.workloads) {
            let spec = &manifest.object["spec"];
            self.admin.merge(&manifest.own_path(), &json!({"spec": spec})).await;
        }
        sleep(seconds(3)).await;
    }
}
