//! The faults of a real control plane: processes that are killed, stopped or restarted, and rights that are gone.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::sync::Semaphore;

use super::chart::{self, Chart};
use super::servers::Processes;
use super::site::Site;
use crate::apps::App;
use crate::chaos::overwrite_claims;
use crate::fleet::Fleet as _;
use crate::http::Http;

/// The binding that gives servers their rights in the whole cluster.
const BINDING: &str = "quorate-server";

/// Injects faults at random.
pub(super) struct Outages {
    pub(super) site: Arc<Site>,
    pub(super) servers: Arc<Processes>,
    pub(super) admin: Http,
    pub(super) chart: Arc<Chart>,
    pub(super) apps: Vec<App>,
    pub(super) random: ChaCha8Rng,
    /// No fault lasts longer.
    pub(super) longest: Duration,
    /// Two faults at a time at the most.
    pub(super) active: Arc<Semaphore>,
}

impl Outages {
    /// Injects faults until it is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let pause = Duration::from_millis(self.random.random_range(1_000..20_000));
            tokio::time::sleep(pause).await;
            let Ok(permit) = self.active.clone().acquire_owned().await else { return };
            let from = self.servers.recorder().now();
            let lasts = Duration::from_millis(match self.random.random_range(0..3) {
                0 => self.random.random_range(100..2_000),
                1 => self.random.random_range(2_000..30_000),
                _ => self.random.random_range(30_000..120_000),
            });
            let lasts = lasts.min(self.longest);
            let place = self.random.random_range(0..self.servers.count());
            let unbound = self.inject(place).await;
            let (servers, admin, chart) = (self.servers.clone(), self.admin.clone(), self.chart.clone());
            tokio::spawn(async move {
                tokio::time::sleep(lasts).await;
                if unbound {
                    bind(&admin, &chart).await;
                }
                servers.set_cut(place, false);
                if let Err(error) = servers.start(place).await {
                    tracing::warn!(%error, place, "the server does not start");
                }
                servers.recorder().fault(from);
                drop(permit);
            });
        }
    }

    /// Returns whether the servers have lost their rights.
    async fn inject(&mut self, place: usize) -> bool {
        match self.random.random_range(0..100) {
            0..28 => self.servers.kill(place),
            28..56 => self.servers.set_cut(place, true),
            56..68 => self.servers.stop(place).await,
            68..82 => {
                if let Some(plane) = self.site.real()
                    && let Err(error) = plane.restart_api_server().await
                {
                    tracing::warn!(%error, "the API server does not start");
                }
            }
            82..95 => {
                let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{BINDING}");
                self.admin.delete(&path, &json!({})).await;
                return true;
            }
            _ => {
                if let Some(app) = self.apps.choose(&mut self.random) {
                    overwrite_claims(&self.admin, self.servers.recorder(), app).await;
                }
            }
        }
        false
    }
}

/// Gives the servers their rights back, as soon as the API server accepts that.
pub(super) async fn bind(admin: &Http, chart: &Chart) {
    let Ok(binding) = chart.object("ClusterRoleBinding", BINDING) else { return };
    while chart::create(admin, binding).await.is_err() {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
