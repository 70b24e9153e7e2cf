//! A server cannot read a kind, or reads it late.

use quorate_devcluster::apiserver::Fault;
use rand::Rng;
use rand::seq::IndexedRandom as _;
use serde_json::json;
use tokio::time::sleep;

use super::tools::reads;
use super::{Provoker, seconds};
use crate::apps::{App, Kind};

impl Provoker {
    pub(super) async fn stale_scale(&mut self, app: &App) {
        let Some(workload) = app.workloads.first() else { return };
        let kind = workload.path.rsplit('/').next().unwrap_or_default().to_owned();
        let which = self.servers().resource(&kind);
        let fault = if self.random.random_bool(0.5) { Fault::Hang } else { Fault::Forbidden };
        let guard = self.api.faults().requests(which.clone().and(reads), fault);
        self.api.faults().cut_watches(which);
        sleep(seconds(2)).await;
        let replicas = workload.object["spec"]["replicas"].as_u64().unwrap_or(3);
        let more = replicas + self.random.random_range(3..6);
        for _ in 0..10 {
            self.scale(workload, more).await;
            sleep(seconds(10)).await;
        }
        self.bursts(app, seconds(60), false).await;
        drop(guard);
        self.scale(workload, replicas).await;
    }

    pub(super) async fn vanished_source(&mut self, app: &App) {
        let part = match app.kind {
            Kind::Workload => ["ps", "worker", "eval"].as_slice(),
            Kind::PodGroups => &["0", "1", "2"],
            _ => &["a", "b"],
        };
        let part = part.choose(&mut self.random).copied().unwrap_or_default();
        let prefix = format!("{}-{part}-", app.name);
        let guard = self.use_up_quota(app);
        for _ in 0..20 {
            for pod in self.pods(&app.namespace, &prefix) {
                self.collect(&pod).await;
            }
            sleep(seconds(5)).await;
        }
        let pods = self.ready_pods(app);
        self.evict_in_turn(&pods).await;
        drop(guard);
    }

    pub(super) async fn forbidden_kind(&mut self, app: &App) {
        let which = self.servers().resource("podunavailablebudgets");
        let guard = self.api.faults().requests(which.clone().and(reads), Fault::Forbidden);
        self.api.faults().cut_watches(which);
        let lasts = self.random.random_range(50..120);
        self.bursts(app, seconds(lasts), false).await;
        drop(guard);
    }

    pub(super) async fn hidden_kind(&mut self, app: &App) {
        let guard = self.api.faults().partial_discovery("policy.kruise.io", None);
        let lasts = self.random.random_range(50..120);
        self.bursts(app, seconds(lasts), false).await;
        drop(guard);
    }

    pub(super) async fn unknown_owner(&mut self, app: &App) {
        let Some(workload) = app.workloads.first() else { return };
        let guard = self.hold("replicasets");
        let image = format!("{}:{}", app.name, self.random.random_range(0..1000));
        let template = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
        self.admin.merge(&workload.own_path(), &json!({"spec": {"template": template}})).await;
        sleep(seconds(8)).await;
        self.bursts(app, seconds(40), false).await;
        drop(guard);
    }

    pub(super) async fn surge_group(&mut self, app: &App) {
        let Some(workload) = app.workloads.first() else { return };
        let guard = self.hold("leaderworkersets");
        let replicas = workload.object["spec"]["replicas"].as_u64().unwrap_or(3);
        self.scale(workload, replicas + 2).await;
        sleep(seconds(12)).await;
        self.bursts(app, seconds(60), false).await;
        drop(guard);
        self.scale(workload, replicas).await;
    }
}
