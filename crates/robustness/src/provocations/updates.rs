//! Updates in place.

use quorate_devcluster::apiserver::{Fault, RequestFilter};
use serde_json::json;
use tokio::time::sleep;

use super::tools::{Waiting, pod_path};
use super::{Provoker, seconds};
use crate::apps::App;

impl Provoker {
    /// An update is stored, and its container is not restarted yet: the pod looks healthy.
    pub(super) async fn slow_kubelet(&mut self, app: &App) {
        let quota = self.use_up_quota(app);
        let mut pods = self.ready_pods(app);
        let Some(pod) = pods.pop() else { return };
        let reports =
            RequestFilter::any().writes().resource("pods").namespace(&pod.namespace).name(&pod.name);
        let reports = reports.and(|request| request.user.starts_with("system:node:"));
        let slow = self.api.faults().requests(reports, Fault::Unavailable);
        self.update(&pod).await;
        sleep(seconds(2)).await;
        self.evict_in_turn(&pods).await;
        drop((slow, quota));
    }

    /// An update is admitted and refused elsewhere, and an eviction of the same pod waits. A change of the pod shows that the
    /// update will not come any more.
    pub(super) async fn refused_update(&mut self, app: &App) {
        let quota = self.use_up_quota(app);
        let mut pods = self.ready_pods(app);
        let Some(pod) = pods.pop() else { return };
        let refused = self.slow_hook.refuse(&pod.namespace, &pod.name);
        self.update(&pod).await;
        drop(refused);
        let slow = self.slow_hook.delay(&pod.namespace, &pod.name, seconds(12));
        let mut waiting = Waiting::default();
        self.evict_later(&pod, &mut waiting).await;
        drop(slow);
        let note = json!({"metadata": {"annotations": {"example.com/note": "changed"}}});
        self.admin.merge(&pod_path(&pod), &note).await;
        sleep(seconds(3)).await;
        self.evict_in_turn(&pods).await;
        waiting.all().await;
        drop(quota);
    }
}
