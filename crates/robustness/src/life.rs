//! The life of a simulated cluster: applications scale, roll out, crash, move, are edited, deleted and created again.

use std::sync::Arc;
use std::time::Duration;

use quorate_devcluster::actors::Actors;
use rand::Rng;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::apps::{App, Kind, Manifest};
use crate::http::Http;
use crate::provocations::Reserved;
use crate::recorder::{Recorder, StoredPod};

/// Changes the applications at random.
pub struct Life {
    /// The applications.
    pub apps: Vec<App>,
    /// An administrator.
    pub admin: Http,
    /// The garbage collector, whose deletes always pass.
    pub collector: Http,
    /// The nodes and what runs on them.
    pub actors: Arc<Actors>,
    /// Where it finds pods.
    pub recorder: Arc<Recorder>,
    /// What happens is drawn from here.
    pub random: ChaCha8Rng,
    /// The names of the nodes.
    pub nodes: Vec<String>,
    /// The applications that a provocation is about: they only fail.
    pub reserved: Reserved,
}

/// Creates all objects of an application.
pub async fn create(admin: &Http, manifests: &[Manifest]) {
    for manifest in manifests {
        admin.post(&manifest.path, &manifest.object).await;
    }
}

impl Life {
    /// Lives until it is dropped. `calm`: nothing but what a quiet day brings.
    pub async fn run(mut self, calm: bool) {
        loop {
            let pause = self.random.random_range(500..if calm { 20_000 } else { 5_000 });
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let Some(app) = self.apps.choose(&mut self.random).cloned() else { return };
            let is_reserved = self.reserved.lock().contains(&app.name);
            if !is_reserved && self.random.random_range(0..100) < app.kind.share_of_work() {
                self.work(&app).await;
                continue;
            }
            let what = self.random.random_range(0..if calm { 40 } else { 100 });
            if (20..84).contains(&what) && is_reserved {
                continue;
            }
            match what {
                0..20 => self.unready(&app).await,
                20..30 => self.scale(&app).await,
                30..40 => self.roll_out(&app).await,
                40..48 => self.relabel(&app).await,
                48..58 => self.edit(&app).await,
                58..64 => self.recreate_budget(&app).await,
                64..70 => self.flip_selector(&app).await,
                70..76 => self.recreate(&app).await,
                76..84 => self.scale_away(&app).await,
                84..90 => self.silence_node().await,
                _ => self.crash(&app),
            }
        }
    }

    fn pod_of(&mut self, app: &App) -> Option<StoredPod> {
        let mut pods = self.recorder.pods();
        pods.retain(|pod| pod.namespace == app.namespace && pod.name.starts_with(&app.name));
        pods.choose(&mut self.random).cloned()
    }

    /// Later, in the background.
    pub(crate) fn later(
        &mut self,
        seconds: std::ops::Range<u64>,
        what: impl Future<Output = ()> + Send + 'static,
    ) {
        let after = Duration::from_secs(self.random.random_range(seconds));
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            what.await;
        });
    }

    /// A pod fails its readiness probe for a while.
    async fn unready(&mut self, app: &App) {
        let Some(pod) = self.pod_of(app) else { return };
        let _ = self.actors.kubelets().set_ready(&pod.namespace, &pod.name, false);
        let actors = self.actors.clone();
        self.later(2..200, async move {
            let _ = actors.kubelets().set_ready(&pod.namespace, &pod.name, true);
        });
    }

    fn crash(&mut self, app: &App) {
        if let Some(pod) = self.pod_of(app) {
            let _ = self.actors.kubelets().restart(&pod.namespace, &pod.name, None);
        }
    }

    fn workload_of(&mut self, app: &App) -> Option<Manifest> {
        app.workloads.choose(&mut self.random).cloned()
    }

    async fn scale(&mut self, app: &App) {
        let Some(workload) = self.workload_of(app) else { return };
        let spec = &workload.object["spec"];
        let patch = match workload.object["kind"].as_str() {
            Some("Workload") => {
                let mut groups = spec["podGroups"].clone();
                if let Some(group) = groups.get_mut(0) {
                    group["replicas"] = json!(self.random.random_range(0..3));
                }
                json!({"spec": {"podGroups": groups}})
            }
            // Not every version of the API allows that.
            Some("PodGroup") => {
                let needs = spec["schedulingPolicy"]["gang"]["minCount"].as_u64().unwrap_or(1);
                let needs = self.random.random_range(1..=needs);
                json!({"spec": {"schedulingPolicy": {"gang": {"minCount": needs}}}})
            }
            // Groups of another size replace the old ones.
            Some("LeaderWorkerSet") if self.random.random_bool(0.4) => {
                json!({"spec": {"leaderWorkerTemplate": {"size": self.random.random_range(1..=4)}}})
            }
            Some("Job") => json!({"spec": {"parallelism": self.random.random_range(0..6)}}),
            Some("Pod") => return,
            _ => json!({"spec": {"replicas": self.random.random_range(1..9)}}),
        };
        self.admin.merge(&workload.own_path(), &patch).await;
    }

    /// All pods of a workload go at once, and come back later. A PodGroup goes itself.
    async fn scale_away(&mut self, app: &App) {
        let Some(workload) = self.workload_of(app) else { return };
        let admin = self.admin.clone();
        match workload.object["kind"].as_str() {
            Some("Workload" | "Pod") => return,
            Some("Job") => return self.renew(app).await,
            Some("PodGroup") => {
                self.admin.delete(&workload.own_path(), &json!({})).await;
                return self.later(5..100, async move { create(&admin, &[workload]).await });
            }
            _ => {}
        }
        let before = workload.object["spec"]["replicas"].clone();
        self.admin.merge(&workload.own_path(), &json!({"spec": {"replicas": 0}})).await;
        self.later(5..240, async move {
            admin.merge(&workload.own_path(), &json!({"spec": {"replicas": before}})).await;
        });
    }

    async fn roll_out(&mut self, app: &App) {
        let Some(workload) = self.workload_of(app) else { return };
        let image = format!("{}:{}", app.name, self.random.random_range(0..1000));
        let template = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
        let patch = match workload.object["kind"].as_str() {
            Some("LeaderWorkerSet") => {
                json!({"spec": {"leaderWorkerTemplate": {"workerTemplate": template}}})
            }
            Some("Workload" | "PodGroup" | "Job" | "Pod") => return,
            _ => json!({"spec": {"template": template}}),
        };
        self.admin.merge(&workload.own_path(), &patch).await;
    }

    /// A pod leaves its application, and may come back.
    async fn relabel(&mut self, app: &App) {
        let Some(pod) = self.pod_of(app) else { return };
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
        self.admin.merge(&path, &json!({"metadata": {"labels": {"app": "elsewhere"}}})).await;
        if self.random.random_bool(0.5) {
            let (admin, name) = (self.admin.clone(), app.name.clone());
            self.later(1..30, async move {
                admin.merge(&path, &json!({"metadata": {"labels": {"app": name}}})).await;
            });
        }
    }

    fn budget_of(&mut self, app: &App) -> Option<Manifest> {
        app.budgets.choose(&mut self.random).cloned()
    }

    /// Another number in the budget.
    async fn edit(&mut self, app: &App) {
        let Some(budget) = self.budget_of(app) else { return };
        if app.kind == Kind::Native {
            // What its twin keeps.
            let most = self.random.random_range(0..3).to_string();
            let patch = json!({"metadata": {"annotations": {"quorate.dev/max-unavailable": most}}});
            self.admin.merge(&budget.own_path(), &patch).await;
            return;
        }
        let rule =
            if budget.object["spec"]["minAvailable"].is_null() { "maxUnavailable" } else { "minAvailable" };
        let value: Value = match rule {
            "minAvailable" => json!(self.random.random_range(1..4)),
            _ => json!(self.random.random_range(0..3)),
        };
        self.admin.merge(&budget.own_path(), &json!({"spec": {rule: value}})).await;
    }

    async fn recreate_budget(&mut self, app: &App) {
        let Some(budget) = self.budget_of(app) else { return };
        self.admin.delete(&budget.own_path(), &json!({})).await;
        let admin = self.admin.clone();
        self.later(0..20, async move {
            admin.post(&budget.path, &budget.object).await;
        });
    }

    /// The budget covers other pods for a moment, and then the same as before.
    async fn flip_selector(&mut self, app: &App) {
        let Some(budget) = self.budget_of(app) else { return };
        let selector = &budget.object["spec"]["selector"];
        if budget.object["kind"] != "DisruptionBudget" || selector.is_null() {
            return;
        }
        let other = json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}});
        self.admin.merge(&budget.own_path(), &other).await;
        let back = json!({"spec": {"selector": selector}});
        let admin = self.admin.clone();
        self.later(0..5, async move {
            admin.merge(&budget.own_path(), &back).await;
        });
    }

    async fn recreate(&mut self, app: &App) {
        // Pods without a controller are left to the clients.
        for workload in app.workloads.iter().filter(|workload| workload.object["kind"] != "Pod") {
            let options = json!({"propagationPolicy": "Background"});
            self.admin.delete(&workload.own_path(), &options).await;
        }
        let (admin, workloads) = (self.admin.clone(), app.workloads.clone());
        self.later(0..40, async move { create(&admin, &workloads).await });
    }

    /// A node does not answer for a while.
    async fn silence_node(&mut self) {
        let Some(node) = self.nodes.choose(&mut self.random).cloned() else { return };
        let _ = self.actors.nodes().silence(&node).await;
        let actors = self.actors.clone();
        self.later(5..200, async move {
            let _ = actors.nodes().revive(&node).await;
        });
    }
}
