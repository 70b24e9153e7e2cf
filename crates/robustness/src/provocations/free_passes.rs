//! Pods that are down already, and recover.

use std::time::Duration;

use quorate_devcluster::apiserver::Fault;
use serde_json::json;
use tokio::time::sleep;

use super::tools::{Waiting, evict, is_ready, of_place, pod_path};
use super::{Provoker, seconds};
use crate::apps::App;

impl Provoker {
    /// A pod that is not ready may always be evicted.
    async fn allow_unready(&self, app: &App) {
        let Some(budget) = app.budgets.first() else { return };
        self.edit_budget(budget, &json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"})).await;
    }

    /// A pod has recovered behind the watch of one server. The leader has seen that, and admits another pod.
    pub(super) async fn recovered(&mut self, app: &App) {
        let Some((leader, behind)) = self.leader_and_other() else { return };
        self.allow_unready(app).await;
        let quota = self.use_up_quota(app);
        let mut pods = self.ready_pods(app);
        let (Some(down), Some(other)) = (pods.pop(), pods.pop()) else { return };
        self.set_ready(&down, false).await;
        let held = self.hold_in(behind, "pods");
        self.set_ready(&down, true).await;
        let slow = self.slow_hook.delay(&other.namespace, &other.name, seconds(8));
        let route = self.servers.route(leader).await;
        let mut waiting = Waiting::default();
        self.evict_later(&other, &mut waiting).await;
        drop((slow, route));
        let route = self.servers.route(behind).await;
        sleep(seconds(1)).await;
        evict(&self.client, &down, &json!({})).await;
        waiting.all().await;
        drop((route, held, quota));
    }

    /// Two pods are down for so long that no server may count them any more. Behind the watch of one server the others fail,
    /// and the two are replaced. Clients require the new pods, so that the server reads them.
    pub(super) async fn read_alone(&mut self, app: &App) {
        let Some((_, behind)) = self.leader_and_other() else { return };
        let pods = self.ready_pods(app);
        let (down, others) = pods.split_at(pods.len() / 2);
        for pod in down {
            self.set_ready(pod, false).await;
        }
        sleep(seconds(95)).await;
        let held = self.hold_in(behind, "pods");
        for pod in others {
            self.set_ready(pod, false).await;
        }
        for pod in down {
            self.collect(pod).await;
        }
        let mut new = Vec::new();
        for _ in 0..20 {
            sleep(seconds(1)).await;
            new = self.ready_pods(app);
            new.retain(|pod| down.iter().all(|old| old.uid != pod.uid));
            if new.len() == down.len() {
                break;
            }
        }
        let route = self.servers.route(behind).await;
        for pod in &new {
            evict(&self.client, pod, &json!({"preconditions": {"uid": pod.uid}})).await;
            sleep(seconds(1)).await;
        }
        drop((route, held));
    }

    /// Two pods are down. One server lists the pods and is about to let one of the two pass. Both recover, the leader admits
    /// another pod, and the write of the first server fails because of that.
    pub(super) async fn recovers_meanwhile(&mut self, app: &App) {
        let Some((leader, behind)) = self.leader_and_other() else { return };
        self.allow_unready(app).await;
        let quota = self.use_up_quota(app);
        let mut pods = self.ready_pods(app);
        let (Some(down), Some(second), Some(other)) = (pods.pop(), pods.pop(), pods.pop()) else { return };
        self.set_ready(&second, false).await;
        self.set_ready(&down, false).await;
        let held = self.hold_in(behind, "pods");
        let claims = of_place(behind).verb("patch").resource("disruptionbudgets").name(&app.name);
        let late = self.api.faults().requests(claims, Fault::Delay(seconds(6))).times(1);
        let route = self.servers.route(behind).await;
        let mut waiting = Waiting::default();
        self.evict_later(&down, &mut waiting).await;
        drop(route);
        for pod in [&down, &second] {
            let _ = self.actors.kubelets().set_ready(&pod.namespace, &pod.name, true);
        }
        sleep(seconds(2)).await;
        let slow = self.slow_hook.delay(&other.namespace, &other.name, seconds(10));
        let route = self.servers.route(leader).await;
        self.evict_later(&other, &mut waiting).await;
        waiting.all().await;
        drop((slow, late, route, held, quota));
    }

    /// A pod that is down passes, and that is refused elsewhere. It recovers, and is requested again.
    pub(super) async fn held_and_recovered(&mut self, app: &App) {
        let quota = self.use_up_quota(app);
        let mut pods = self.ready_pods(app);
        let (Some(first), Some(down)) = (pods.pop(), pods.pop()) else { return };
        evict(&self.client, &first, &json!({})).await;
        self.set_ready(&down, false).await;
        let refused = self.slow_hook.refuse(&down.namespace, &down.name);
        self.client.delete(&pod_path(&down), &json!({})).await;
        drop(refused);
        self.set_ready(&down, true).await;
        for _ in 0..3 {
            self.client.delete(&pod_path(&down), &json!({})).await;
            sleep(seconds(1)).await;
        }
        drop(quota);
    }

    /// A pod that has not started is evicted, and is ready when the eviction is carried out.
    pub(super) async fn pending(&mut self, app: &App) {
        let Some(pod) = self.ready_pods(app).pop() else { return };
        self.collect(&pod).await;
        for _ in 0..40 {
            sleep(Duration::from_millis(100)).await;
            let pods = self.pods(&app.namespace, &pod.name);
            let Some(next) = pods.into_iter().find(|next| next.uid != pod.uid) else { continue };
            if is_ready(&next) {
                return;
            }
            let slow = self.slow_hook.delay(&next.namespace, &next.name, seconds(8));
            let mut waiting = Waiting::default();
            self.evict_later(&next, &mut waiting).await;
            waiting.all().await;
            drop(slow);
            return;
        }
    }
}
