//! Budgets that are new, or cover other pods than before.

use std::time::Duration;

use quorate_devcluster::apiserver::Fault;
use rand::Rng;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::tools::{Waiting, of_place, of_servers};
use super::{Provoker, dedicated_apps, seconds};
use crate::apps::App;

/// What becomes of the server that admitted requests before a budget was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Lives,
    /// It ends in order.
    Stops,
    /// It is killed.
    Dies,
}

impl Provoker {
    /// Requests are admitted while no budget covers the pods. They wait, and are carried out after the budgets are enforced.
    pub(super) async fn admitted_before(&mut self, app: &App, end: End) {
        let Some((_, other)) = self.leader_and_other() else { return };
        self.delete_budgets(app).await;
        // A killed server counts as dead after 15 s. The budgets must not open before what it admitted is over.
        let delay = match end {
            End::Dies => self.random.random_range(24..28),
            End::Lives | End::Stops => self.random.random_range(8..16),
        };
        let route = self.servers.route(other).await;
        let mut waiting = Waiting::default();
        let mut slow = Vec::new();
        for pod in self.ready_pods(app).iter().take(2) {
            slow.push(self.slow_hook.delay(&pod.namespace, &pod.name, seconds(delay)));
            self.evict_later(pod, &mut waiting).await;
        }
        match end {
            End::Lives => {}
            End::Stops => self.servers.stop(other).await,
            End::Dies => self.servers.kill(other),
        }
        drop((route, slow));
        self.create_budgets(app).await;
        waiting.all().await;
        let _ = self.servers.start(other).await;
    }

    /// One server does not see that budgets are created. It lets their pods pass, so the budgets must not open.
    pub(super) async fn unacknowledged(&mut self, app: &App) {
        let Some((_, behind)) = self.leader_and_other() else { return };
        self.delete_budgets(app).await;
        let held = self.hold_in(behind, "disruptionbudgets");
        self.create_budgets(app).await;
        sleep(seconds(3)).await;
        let route = self.servers.route(behind).await;
        let pods = self.ready_pods(app);
        self.evict_in_turn(&pods).await;
        drop((route, held));
        sleep(seconds(2)).await;
    }

    /// A server starts, and cannot write to its Lease that it serves. So no other server waits until it knows a new budget.
    pub(super) async fn newcomer(&mut self, app: &App) {
        let Some((_, place)) = self.leader_and_other() else { return };
        self.servers.stop(place).await;
        self.delete_budgets(app).await;
        let writes = of_place(place).writes().resource("leases").and(|request| request.verb == "patch");
        let silent = self.api.faults().requests(writes, Fault::Hang);
        if self.servers.start(place).await.is_err() {
            return;
        }
        // It lists all kinds, and its Lease lasts for 10 s.
        for _ in 0..20 {
            if self.servers.unready().get(place).is_some_and(Option::is_none) {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        let held = self.hold_in(place, "disruptionbudgets");
        self.create_budgets(app).await;
        sleep(Duration::from_millis(1_500)).await;
        let route = self.servers.route(place).await;
        let pods = self.ready_pods(app);
        self.evict_in_turn(&pods).await;
        drop((route, silent, held));
        sleep(seconds(2)).await;
    }

    /// A budget covers other pods for a moment, and then the same as before, which one server does not see: it still knows
    /// the other coverage.
    pub(super) async fn flip(&mut self, app: &App) {
        let Some((_, behind)) = self.leader_and_other() else { return };
        let patch = |selector: &Value| json!({"spec": {"selector": selector}});
        for budget in &app.budgets {
            let other = json!({"matchLabels": {"app": "other"}});
            self.admin.merge(&budget.own_path(), &patch(&other)).await;
        }
        let pause = self.random.random_range(10..1_500);
        sleep(Duration::from_millis(pause)).await;
        let held = self.hold_in(behind, "disruptionbudgets");
        for budget in &app.budgets {
            self.admin.merge(&budget.own_path(), &patch(&budget.object["spec"]["selector"])).await;
        }
        sleep(seconds(2)).await;
        let route = self.servers.route(behind).await;
        let pods = self.ready_pods(app);
        self.evict_in_turn(&pods).await;
        drop((route, held));
        sleep(seconds(2)).await;
    }

    /// While a request waits for its claim in one budget, another budget is created and opened.
    pub(super) async fn late_budget(&mut self, app: &App) {
        let Some(pod) = self.ready_pods(app).pop() else { return };
        let claims = of_servers().verb("patch").resource("disruptionbudgets").name(&app.name);
        // A server waits 5 s for the answer to a write, and a budget opens within a second.
        let delay = Duration::from_millis(self.random.random_range(3_000..4_500));
        let slow = self.api.faults().requests(claims, Fault::Delay(delay));
        let mut waiting = Waiting::default();
        self.evict_later(&pod, &mut waiting).await;
        let spec = json!({"selector": {"matchLabels": {"app": app.name}}, "minAvailable": 1, "operations": ["Evict"]});
        let late = dedicated_apps::budget(&format!("{}-late", app.name), &spec);
        self.admin.post(&late.path, &late.object).await;
        waiting.all().await;
        drop(slow);
        sleep(seconds(3)).await;
        self.admin.delete(&late.own_path(), &json!({})).await;
    }
}
