//! What provocations are made of.

use std::time::Duration;

use quorate_devcluster::apiserver::{Fault, FaultGuard, RequestFilter, RequestInfo, WatchFault};
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Provoker, dedicated_apps, seconds};
use crate::apps::{App, Manifest};
use crate::http::{Http, Response};
use crate::recorder::StoredPod;
use crate::servers::OWN;

/// Whether a request reads.
pub(super) fn reads(request: &RequestInfo<'_>) -> bool {
    matches!(request.verb, "list" | "watch" | "get")
}

/// The requests of all servers.
pub(super) fn of_servers() -> RequestFilter {
    let prefix = format!("system:serviceaccount:{OWN}:server-");
    RequestFilter::any().and(move |request| request.user.starts_with(&prefix))
}

/// The requests of the servers in this place, those that start later among them.
pub(super) fn of_place(place: usize) -> RequestFilter {
    let prefix = format!("system:serviceaccount:{OWN}:server-{place}-");
    RequestFilter::any().and(move |request| request.user.starts_with(&prefix))
}

/// The path of a pod.
pub(super) fn pod_path(pod: &StoredPod) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

/// Evicts a pod.
pub(crate) async fn evict(client: &Http, pod: &StoredPod, options: &Value) -> Response {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace}, "deleteOptions": options});
    client.post(&format!("{}/eviction", pod_path(pod)), &eviction).await
}

/// Whether a pod is ready, and is not being deleted.
pub(super) fn is_ready(pod: &StoredPod) -> bool {
    let conditions = pod.object["status"]["conditions"].as_array();
    let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    pod.object["metadata"]["deletionTimestamp"].is_null()
        && conditions.is_some_and(|conditions| conditions.iter().any(ready))
}

/// Whether a budget is enforced in its present generation.
fn is_enforced(budget: &Value) -> bool {
    let conditions = budget["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| {
        condition["type"] == "Enforced"
            && condition["status"] == "True"
            && condition["observedGeneration"] == budget["metadata"]["generation"]
    })
}

/// Requests that wait for their answers.
#[derive(Default)]
pub(super) struct Waiting {
    requests: JoinSet<()>,
}

impl Waiting {
    /// Waits for all answers.
    pub(super) async fn all(mut self) {
        while self.requests.join_next().await.is_some() {}
    }
}

impl Provoker {
    /// The requests of all servers, or seldom of one.
    pub(super) fn servers(&mut self) -> RequestFilter {
        let place = self.random.random_range(0..self.servers.count());
        if self.random.random_bool(0.2) { of_place(place) } else { of_servers() }
    }

    /// Holds the watches of a resource in all servers, or seldom in one.
    pub(super) fn hold(&mut self, resource: &str) -> FaultGuard {
        let which = self.servers().resource(resource);
        self.api.faults().watches(which, WatchFault::Hold)
    }

    /// Holds the watch of a resource in one server.
    pub(super) fn hold_in(&self, place: usize, resource: &str) -> FaultGuard {
        self.api.faults().watches(of_place(place).resource(resource), WatchFault::Hold)
    }

    /// The leader, and another server that serves.
    pub(super) fn leader_and_other(&mut self) -> Option<(usize, usize)> {
        let leader = self.servers.leader()?;
        let unready = self.servers.unready();
        let serves = |place: &usize| unready.get(*place).is_some_and(Option::is_none);
        let others: Vec<usize> =
            (0..self.servers.count()).filter(|place| *place != leader).filter(serves).collect();
        Some((leader, *others.choose(&mut self.random)?)).filter(|_| serves(&leader))
    }

    /// No pod can be created in the namespace of the application, as if its quota were used up: what goes stays away.
    pub(super) fn use_up_quota(&self, app: &App) -> FaultGuard {
        let creates = RequestFilter::any().verb("create").resource("pods").subresource("");
        self.api.faults().requests(creates.namespace(&app.namespace), Fault::Forbidden)
    }

    /// The pods whose names begin like this.
    pub(super) fn pods(&self, namespace: &str, prefix: &str) -> Vec<StoredPod> {
        let mut pods = self.recorder.pods();
        pods.retain(|pod| pod.namespace == namespace && pod.name.starts_with(prefix));
        pods
    }

    /// The pods of an application that are ready, in random order.
    pub(super) fn ready_pods(&mut self, app: &App) -> Vec<StoredPod> {
        let mut pods = self.pods(&app.namespace, &app.name);
        pods.retain(is_ready);
        pods.shuffle(&mut self.random);
        pods
    }

    /// Whether a dedicated application is as it was made: all pods are ready, and no budget has a claim.
    pub(super) async fn is_whole(&self, app: &App) -> bool {
        let pods = self.pods(&app.namespace, &app.name);
        if pods.len() as u64 != dedicated_apps::pods_of(app) || !pods.iter().all(is_ready) {
            return false;
        }
        for budget in &app.budgets {
            let shown = self.admin.get(&budget.own_path()).await.body;
            let claims = shown["status"]["claims"].as_object().map_or(0, serde_json::Map::len);
            let as_made = budget.object["spec"].as_object().into_iter().flatten();
            let is_as_made = as_made.into_iter().all(|(key, value)| shown["spec"][key] == *value);
            if claims > 0 || !is_as_made || !is_enforced(&shown) {
                return false;
            }
        }
        true
    }

    /// Makes a dedicated application what it was. Unused claims end when their pods are evicted.
    pub(super) async fn tidy(&mut self, app: &App) {
        for pod in self.pods(&app.namespace, &app.name) {
            let _ = self.actors.kubelets().set_ready(&pod.namespace, &pod.name, true);
        }
        self.create_budgets(app).await;
        for budget in &app.budgets {
            let spec = &budget.object["spec"];
            self.admin.merge(&budget.own_path(), &json!({"spec": spec})).await;
        }
        for _ in 0..8 {
            sleep(seconds(3)).await;
            if self.is_whole(app).await {
                return;
            }
            let mut claimed = Vec::new();
            for budget in &app.budgets {
                let shown = self.admin.get(&budget.own_path()).await.body;
                let claims = shown["status"]["claims"].as_object();
                claimed.extend(claims.into_iter().flatten().map(|(uid, _)| uid.clone()));
            }
            for pod in self.ready_pods(app) {
                if claimed.contains(&pod.uid) {
                    evict(&self.client, &pod, &json!({})).await;
                }
            }
        }
    }

    /// Deletes the budgets of an application, and waits until the servers know that.
    pub(super) async fn delete_budgets(&self, app: &App) {
        for budget in &app.budgets {
            self.admin.delete(&budget.own_path(), &json!({})).await;
        }
        sleep(Duration::from_millis(1_500)).await;
    }

    /// Creates the budgets of an application.
    pub(super) async fn create_budgets(&self, app: &App) {
        for budget in &app.budgets {
            self.admin.post(&budget.path, &budget.object).await;
        }
    }

    /// Changes the first budget of an application, and waits until the servers know that.
    pub(super) async fn edit_budget(&self, budget: &Manifest, spec: &Value) {
        self.admin.merge(&budget.own_path(), &json!({"spec": spec})).await;
        sleep(seconds(1)).await;
    }

    /// Evicts a pod, and does not wait for the answer. The request has reached the servers when this returns.
    pub(super) async fn evict_later(&self, pod: &StoredPod, waiting: &mut Waiting) {
        let (client, pod) = (self.client.clone(), pod.clone());
        waiting.requests.spawn(async move { drop(evict(&client, &pod, &json!({})).await) });
        sleep(Duration::from_millis(500)).await;
    }

    /// Evicts these pods one after the other, with pauses.
    pub(super) async fn evict_in_turn(&mut self, pods: &[StoredPod]) {
        for pod in pods {
            evict(&self.client, pod, &json!({})).await;
            let pause = self.random.random_range(400..1_200);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Makes the readiness probe of a pod fail or pass, and waits until it is known.
    pub(super) async fn set_ready(&self, pod: &StoredPod, ready: bool) {
        let _ = self.actors.kubelets().set_ready(&pod.namespace, &pod.name, ready);
        sleep(seconds(2)).await;
    }

    /// Changes the image of a pod.
    pub(super) async fn update(&mut self, pod: &StoredPod) -> Response {
        let image = format!("updated:{}", self.random.random_range(0..1_000_000));
        let patch = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
        self.client.strategic(&pod_path(pod), &patch).await
    }

    /// Evicts some pods of the application at once, by name or by UID, and waits for the answers.
    pub(super) async fn burst(&mut self, app: &App, most: usize, by_uid: bool) {
        let mut pods = self.pods(&app.namespace, &app.name);
        pods.shuffle(&mut self.random);
        let mut requests = JoinSet::new();
        for pod in pods.into_iter().take(most) {
            let client = self.client.clone();
            let options = if by_uid { json!({"preconditions": {"uid": pod.uid}}) } else { json!({}) };
            requests.spawn(async move { drop(evict(&client, &pod, &options).await) });
        }
        while requests.join_next().await.is_some() {}
    }

    /// Bursts for this long.
    pub(super) async fn bursts(&mut self, app: &App, lasts: Duration, by_uid: bool) {
        let end = tokio::time::Instant::now() + lasts;
        while tokio::time::Instant::now() < end {
            self.burst(app, 5, by_uid).await;
            let pause = self.random.random_range(1_000..6_000);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Scales a workload.
    pub(super) async fn scale(&self, workload: &Manifest, replicas: u64) {
        self.admin.merge(&workload.own_path(), &json!({"spec": {"replicas": replicas}})).await;
    }

    /// The same, with randomness of its own.
    pub(super) fn fork(&mut self) -> Self {
        let mut fork = self.clone();
        fork.random = ChaCha8Rng::seed_from_u64(self.random.random());
        fork
    }

    /// The garbage collector deletes a pod at once.
    pub(super) async fn collect(&self, pod: &StoredPod) {
        let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}});
        self.collector.delete(&pod_path(pod), &options).await;
    }
}
