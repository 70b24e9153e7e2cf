//! Names that pass to other pods, and names of pods that do not exist.

use rand::Rng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::tools::{Waiting, evict, pod_path};
use super::{Provoker, seconds};
use crate::apps::App;
use crate::fleet::Fleet as _;

impl Provoker {
    pub(super) async fn successors(&mut self, app: &App) {
        let guard = self.hold("pods");
        for _ in 0..4 {
            let mut pods = self.pods(&app.namespace, &app.name);
            pods.shuffle(&mut self.random);
            for pod in pods.iter().take(3) {
                self.collect(pod).await;
            }
            sleep(seconds(9)).await;
            self.burst(app, 6, true).await;
        }
        drop(guard);
    }

    pub(super) async fn slow_requests(&mut self, app: &App) {
        let slow = self.slow_hook.slow(&app.namespace);
        let mut waiting = JoinSet::new();
        for _ in 0..12 {
            let mut one = self.fork();
            let of = app.clone();
            waiting.spawn(async move { one.burst(&of, 2, false).await });
            if self.random.random_bool(0.5)
                && let Some(pod) = self.pods(&app.namespace, &app.name).choose(&mut self.random).cloned()
            {
                let image = format!("{}:{}", app.name, self.random.random_range(0..1000));
                let patch = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
                let client = self.client.clone();
                waiting.spawn(async move { drop(client.strategic(&pod_path(&pod), &patch).await) });
            }
            if self.random.random_bool(0.3)
                && let Some(pod) = self.pods(&app.namespace, &app.name).choose(&mut self.random)
            {
                self.collect(pod).await;
            }
            let pause = self.random.random_range(1..6);
            sleep(seconds(pause)).await;
        }
        while waiting.join_next().await.is_some() {}
        drop(slow);
    }

    /// An attacker sends reviews of healthy pods that do not exist, after the room of the budget was used.
    pub(super) async fn forged(&mut self, app: &App) {
        let quota = self.use_up_quota(app);
        let mut pods = self.ready_pods(app);
        let Some(first) = pods.pop() else { return };
        evict(&self.client, &first, &json!({})).await;
        for (place, number) in (0..self.servers.count()).flat_map(|place| [(place, 0), (place, 1)]) {
            let mut object = serde_json::Value::clone(&first.object);
            let name = format!("{}-forged-{number}", app.name);
            let meta = &mut object["metadata"];
            meta["name"] = json!(name);
            meta["uid"] = json!(name);
            // As if it were newer than all that is stored.
            meta["resourceVersion"] = json!("999999999");
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
                "uid": "forged", "operation": "DELETE", "namespace": app.namespace, "name": name,
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "userInfo": {"username": "mallory"}, "oldObject": object}});
            self.servers.send_review(place, "/pods?timeout=5s", &review);
        }
        sleep(seconds(1)).await;
        self.evict_in_turn(&pods).await;
        drop(quota);
    }

    /// An eviction by name is admitted. Before it is carried out, the pod is collected, and the next pod of its name is ready.
    pub(super) async fn name_given_again(&mut self, app: &App) {
        let Some(pod) = self.ready_pods(app).pop() else { return };
        let delay = seconds(self.random.random_range(10..16));
        let slow = self.slow_hook.delay(&pod.namespace, &pod.name, delay);
        let mut waiting = Waiting::default();
        self.evict_later(&pod, &mut waiting).await;
        drop(slow);
        self.collect(&pod).await;
        waiting.all().await;
    }
}
