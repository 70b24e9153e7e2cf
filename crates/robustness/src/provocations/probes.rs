//! Probes whose results must not count.

use serde_json::json;
use tokio::time::sleep;

use super::tools::evict;
use super::{Provoker, dedicated_apps, seconds};
use crate::apps::App;

impl Provoker {
    /// The agent of the first node dies. The agent of the second one is replaced, and the new one has no results yet. All
    /// probes said yes before. After that, no server can believe any of them.
    pub(super) async fn unbelieved_probes(&mut self, app: &App) {
        // All pods have been probed, and all servers know their agents.
        sleep(seconds(20)).await;
        let [first, second] = dedicated_apps::NODES.map(str::to_owned);
        self.orders.lock().dead.extend([first.clone(), second.clone()]);
        // An agent that lives would take back the yes of a probe that does not answer any more.
        sleep(seconds(3)).await;
        {
            let mut orders = self.orders.lock();
            orders.mute.insert(app.name.clone());
            orders.dead.remove(&second);
        }
        // A Lease counts for 40 s, and a view may be 90 s old. The new agent takes the Lease after 10 s.
        sleep(seconds(150)).await;
        for pod in self.ready_pods(app) {
            evict(&self.client, &pod, &json!({})).await;
            sleep(seconds(2)).await;
        }
        let mut orders = self.orders.lock();
        orders.mute.remove(&app.name);
        orders.dead.remove(&first);
    }
}
