//! Pods that end by themselves, Jobs that are suspended or begin again, and pods without a controller that come back.

use std::time::Duration;

use quorate_devcluster::actors::Actors;
use rand::Rng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::apps::{App, Kind, Manifest};
use crate::http::Http;
use crate::life::{Life, create};
use crate::recorder::{Recorder, StoredPod};

/// The phase of a pod.
fn phase(pod: &StoredPod) -> &str {
    pod.object["status"]["phase"].as_str().unwrap_or_default()
}

fn is_job(manifest: &&Manifest) -> bool {
    manifest.object["kind"] == "Job"
}

impl Life {
    /// Something that only pods that end and Jobs do.
    pub(crate) async fn work(&mut self, app: &App) {
        if app.kind == Kind::WithBarePods && self.random.random_bool(0.5) {
            return self.shrink_beside(app);
        }
        match self.random.random_range(0..100) {
            0..70 => self.end_pod(app),
            70..80 => self.collect_ended(app).await,
            80..90 => self.suspend(app).await,
            _ => self.renew(app).await,
        }
    }

    /// The containers of a pod end. It succeeds if it is there to end; else it has failed, as on a node under pressure.
    fn end_pod(&mut self, app: &App) {
        let mut pods = self.recorder.pods();
        pods.retain(|pod| {
            pod.namespace == app.namespace && pod.name.starts_with(&app.name) && phase(pod) == "Running"
        });
        let Some(pod) = pods.choose(&mut self.random) else { return };
        let succeeds = pod.object["spec"]["restartPolicy"] == "Never" && self.random.random_bool(0.8);
        let _ = self.actors.kubelets().finish(&pod.namespace, &pod.name, i32::from(!succeeds));
    }

    /// The garbage collector deletes pods that have ended: one, or all.
    async fn collect_ended(&mut self, app: &App) {
        let mut pods = self.recorder.pods();
        pods.retain(|pod| {
            pod.namespace == app.namespace
                && pod.name.starts_with(&app.name)
                && matches!(phase(pod), "Succeeded" | "Failed")
        });
        pods.shuffle(&mut self.random);
        let most = if self.random.random_bool(0.5) { 1 } else { usize::MAX };
        for pod in pods.iter().take(most) {
            let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
            let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}});
            self.collector.delete(&path, &options).await;
        }
    }

    /// A Job is suspended, and resumed later.
    async fn suspend(&mut self, app: &App) {
        let jobs: Vec<&Manifest> = app.workloads.iter().filter(is_job).collect();
        let Some(path) = jobs.choose(&mut self.random).map(|job| job.own_path()) else { return };
        self.admin.merge(&path, &json!({"spec": {"suspend": true}})).await;
        let admin = self.admin.clone();
        self.later(2..150, async move {
            admin.merge(&path, &json!({"spec": {"suspend": false}})).await;
        });
    }

    /// Pods without a controller are down, and after a while the workload beside them wants only one pod.
    fn shrink_beside(&mut self, app: &App) {
        let mut pods = self.recorder.pods();
        pods.retain(|pod| {
            pod.namespace == app.namespace && pod.name.starts_with(&format!("{}-bare-", app.name))
        });
        let Some(workload) = app.workloads.first().cloned() else { return };
        for pod in &pods {
            let _ = self.actors.kubelets().set_ready(&pod.namespace, &pod.name, false);
        }
        let (admin, actors) = (self.admin.clone(), self.actors.clone());
        // Servers may see the pods 90 s late.
        self.later(95..120, async move {
            let scale = |replicas: Value| json!({"spec": {"replicas": replicas}});
            admin.merge(&workload.own_path(), &scale(json!(1))).await;
            tokio::time::sleep(Duration::from_secs(15)).await;
            for pod in pods {
                let _ = actors.kubelets().set_ready(&pod.namespace, &pod.name, true);
            }
            admin.merge(&workload.own_path(), &scale(workload.object["spec"]["replicas"].clone())).await;
        });
    }

    /// A Job is deleted with its pods, and created again.
    pub(crate) async fn renew(&mut self, app: &App) {
        let jobs: Vec<&Manifest> = app.workloads.iter().filter(is_job).collect();
        let Some(job) = jobs.choose(&mut self.random).map(|job| Manifest::clone(job)) else { return };
        self.admin.delete(&job.own_path(), &json!({"propagationPolicy": "Background"})).await;
        let admin = self.admin.clone();
        self.later(1..60, async move { create(&admin, &[job]).await });
    }
}

/// Lets the pods without a group fail, where others have groups. They stay, and must not be in the way of those that replace
/// them.
pub fn fail_singles(apps: &[App], actors: &Actors, recorder: &Recorder) {
    for app in apps.iter().filter(|app| app.kind == Kind::Singles) {
        let alone = format!("{}-alone-", app.name);
        let mut pods = recorder.pods();
        pods.retain(|pod| pod.namespace == app.namespace && pod.name.starts_with(&alone));
        for pod in pods.iter().filter(|pod| phase(pod) == "Running") {
            let _ = actors.kubelets().finish(&pod.namespace, &pod.name, 1);
        }
    }
}

/// Creates pods without a controller again, some time after they are gone. For ever.
pub async fn keep_bare_pods(
    apps: Vec<App>,
    admin: Http,
    recorder: std::sync::Arc<Recorder>,
    mut random: ChaCha8Rng,
) {
    let bare: Vec<Manifest> = apps
        .into_iter()
        .flat_map(|app| app.workloads)
        .filter(|manifest| manifest.object["kind"] == "Pod")
        .collect();
    if bare.is_empty() {
        return;
    }
    loop {
        tokio::time::sleep(Duration::from_millis(random.random_range(5_000..40_000))).await;
        let pods = recorder.pods();
        let is_there = |manifest: &Manifest| {
            let meta = &manifest.object["metadata"];
            pods.iter()
                .any(|pod| meta["name"] == pod.name.as_str() && meta["namespace"] == pod.namespace.as_str())
        };
        for manifest in bare.iter().filter(|manifest| !is_there(manifest)) {
            if random.random_bool(0.6) {
                admin.post(&manifest.path, &manifest.object).await;
            }
        }
    }
}
