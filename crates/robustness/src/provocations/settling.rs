//! Claims: which are written, which count, and when they end.

use std::time::Duration;

use quorate_devcluster::apiserver::Fault;
use serde_json::json;
use tokio::time::sleep;

use super::tools::{Waiting, evict, of_servers};
use super::{Provoker, seconds};
use crate::apps::App;

impl Provoker {
    /// All pods are evicted at once. The servers decide at the same time, and their writes arrive late.
    pub(super) async fn same_room(&mut self, app: &App) {
        let quota = self.use_up_quota(app);
        let claims = of_servers().verb("patch").resource("disruptionbudgets");
        let slow = self.api.faults().requests(claims, Fault::Delay(Duration::from_millis(700)));
        self.burst(app, usize::MAX, false).await;
        sleep(seconds(3)).await;
        drop((slow, quota));
    }

    /// A pod goes, and the leader removes its claim. Another server has not seen the pod go, and knows that the claim is gone.
    pub(super) async fn lagging_pods(&mut self, app: &App) {
        let Some((leader, behind)) = self.leader_and_other() else { return };
        let quota = self.use_up_quota(app);
        let held = self.hold_in(behind, "pods");
        let mut pods = self.ready_pods(app);
        let Some(first) = pods.pop() else { return };
        let route = self.servers.route(leader).await;
        evict(&self.client, &first, &json!({})).await;
        sleep(seconds(3)).await;
        drop(route);
        let route = self.servers.route(behind).await;
        self.evict_in_turn(&pods).await;
        drop((route, held, quota));
    }

    /// A pod gets a claim that the leader has never seen: its watch is older than the pod.
    pub(super) async fn unseen_pod(&mut self, app: &App) {
        let Some((leader, other)) = self.leader_and_other() else { return };
        let quota = self.use_up_quota(app);
        let before = self.pods(&app.namespace, &app.name);
        let Some(first) = self.ready_pods(app).pop() else { return };
        evict(&self.client, &first, &json!({})).await;
        sleep(seconds(3)).await;
        let held = self.hold_in(leader, "pods");
        drop(quota);
        let mut new = None;
        for _ in 0..20 {
            sleep(seconds(1)).await;
            let is_new = |uid: &str| before.iter().all(|known| known.uid != uid);
            new = self.ready_pods(app).into_iter().find(|pod| is_new(&pod.uid));
            if new.is_some() {
                break;
            }
        }
        let Some(new) = new else { return };
        let _quota = self.use_up_quota(app);
        let route = self.servers.route(other).await;
        let slow = self.slow_hook.delay(&new.namespace, &new.name, seconds(12));
        let mut waiting = Waiting::default();
        self.evict_later(&new, &mut waiting).await;
        drop(slow);
        sleep(seconds(3)).await;
        let mut others = self.ready_pods(app);
        others.retain(|pod| pod.uid != new.uid);
        self.evict_in_turn(&others).await;
        drop(route);
        waiting.all().await;
        drop(held);
    }

    /// A request is refused after it was admitted. Shortly before its claim expires, the same pod is requested again.
    pub(super) async fn second_request(&mut self, app: &App) {
        let quota = self.use_up_quota(app);
        let mut pods = self.ready_pods(app);
        let Some(pod) = pods.pop() else { return };
        let refused = self.slow_hook.refuse(&pod.namespace, &pod.name);
        evict(&self.client, &pod, &json!({})).await;
        drop(refused);
        sleep(seconds(104)).await;
        let slow = self.slow_hook.delay(&pod.namespace, &pod.name, seconds(27));
        let mut waiting = Waiting::default();
        self.evict_later(&pod, &mut waiting).await;
        drop(slow);
        // The first claim expires after 120 s.
        sleep(seconds(18)).await;
        self.evict_in_turn(&pods).await;
        waiting.all().await;
        drop(quota);
    }

    /// Two requests for a pod are admitted by the first budget. The first request waits; the second one is denied by the
    /// second budget, which has become tighter meanwhile.
    pub(super) async fn withdrawn(&mut self, app: &App) {
        let [first, second] = app.budgets.as_slice() else { return };
        let quota = self.use_up_quota(app);
        let mut pods = self.ready_pods(app);
        let Some(pod) = pods.pop() else { return };
        let slow = self.slow_hook.delay(&pod.namespace, &pod.name, seconds(22));
        let mut waiting = Waiting::default();
        self.evict_later(&pod, &mut waiting).await;
        let name = first.object["metadata"]["name"].as_str().unwrap_or_default();
        let claims = of_servers().verb("patch").resource("disruptionbudgets").name(name);
        let late = self.api.faults().requests(claims, Fault::Delay(seconds(3)));
        self.evict_later(&pod, &mut waiting).await;
        drop(slow);
        self.edit_budget(second, &json!({"minAvailable": pods.len() + 1})).await;
        sleep(seconds(3)).await;
        drop(late);
        self.edit_budget(second, &second.object["spec"]).await;
        sleep(seconds(4)).await;
        self.evict_in_turn(&pods).await;
        waiting.all().await;
        drop(quota);
    }
}
