//! Workloads that are scaled down, scaled to zero, deleted, created again or recreated: a budget with `minAvailable`
//! does not block the controllers.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::json;

use crate::fixture::{TestNamespace, denial, is_ready};
use crate::quorate::Quorate;

quorate_testbed::stories!(Whole: a_budget_does_not_block_scaling_or_deleting_its_workload);

async fn a_budget_does_not_block_scaling_or_deleting_its_workload(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    cluster.actors().nodes().add("node-1").await.expect("a node");
    for kind in ["Deployment", "StatefulSet"] {
        let web = Workload::create(&cluster, kind).await;
        scaled_down(&web).await;
        scaled_to_zero(&web).await;
        deleted_and_made_again(&web).await;
    }
    recreated(&Workload::create(&cluster, "Deployment").await).await;
}

/// Scaled below the minimum of the budget: the controller may delete pods, and the remaining pods are still protected.
async fn scaled_down(web: &Workload) {
    web.scale(2).await;
    web.await_pods(2, "web:1").await;
    let pod = web.names().await[0].clone();
    let sentence = denial(&web.ns.delete_pod(&pod).await);
    assert!(sentence.contains("keeps 3 pods where 2 are expected"), "{sentence}");
    denial(&web.ns.evict(&pod).await);
}

async fn scaled_to_zero(web: &Workload) {
    web.scale(0).await;
    web.await_pods(0, "web:1").await;
    web.scale(4).await;
    web.await_pods(4, "web:1").await;
    web.ns.await_pub_allowed("web", 1).await;
}

/// The garbage collector deletes the pods of a deleted workload. A new workload of that name is protected again.
async fn deleted_and_made_again(web: &Workload) {
    let path = format!("{}/web", web.path());
    web.ns.wire.delete(&path, &json!({"propagationPolicy": "Background"})).await.expect(200);
    web.await_pods(0, "web:1").await;
    web.create_object().await;
    web.await_pods(4, "web:1").await;
    web.ns.await_pub_allowed("web", 1).await;
    let pods = web.names().await;
    // Requests of other users are admitted one at a time. The first pod must not be replaced before the second request.
    web.ns.replace_slowly(true);
    let (one, two) = tokio::join!(web.ns.delete_pod(&pods[0]), web.ns.delete_pod(&pods[1]));
    let mut codes = [one.code, two.code];
    codes.sort_unstable();
    assert_eq!(codes, [200, 429], "{} {}", one.body, two.body);
    web.ns.replace_slowly(false);
    web.await_pods(4, "web:1").await;
    web.ns.await_pub_allowed("web", 1).await;
}

/// The strategy Recreate takes all pods down on purpose.
async fn recreated(web: &Workload) {
    let change = json!({"spec": {
        "strategy": {"type": "Recreate", "rollingUpdate": null},
        "template": {"spec": {"containers": [{"name": "main", "image": "web:2"}]}},
    }});
    let path = format!("{}/web", web.path());
    web.ns.wire.patch(&path, Patch::Merge, &change).await.expect(200);
    web.await_pods(4, "web:2").await;
}

/// Four pods of one workload, under a budget that names it and keeps three.
struct Workload {
    ns: TestNamespace,
    kind: &'static str,
}

impl Workload {
    async fn create(cluster: &Cluster, kind: &'static str) -> Self {
        let ns = TestNamespace::with_manual_pods(cluster, "shop").await;
        let web = Self { ns, kind };
        web.create_object().await;
        web.await_pods(4, "web:1").await;
        let target = json!({"apiVersion": "apps/v1", "kind": kind, "name": "web"});
        web.ns.create_pub_allowing("web", json!({"targetRef": target, "minAvailable": 3}), 1).await;
        web
    }

    fn path(&self) -> String {
        self.ns.path("apps/v1", &format!("{}s", self.kind.to_lowercase()))
    }

    async fn create_object(&self) {
        let mut spec = json!({
            "replicas": 4, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "web:1"}]},
            },
        });
        if self.kind == "StatefulSet" {
            spec["serviceName"] = json!("web");
            spec["podManagementPolicy"] = json!("Parallel");
        }
        let workload =
            json!({"apiVersion": "apps/v1", "kind": self.kind, "metadata": {"name": "web"}, "spec": spec});
        eventually("the name is free", || async {
            let made = self.ns.wire.post(&self.path(), &workload).await;
            if made.code == 201 { Ok(()) } else { Err(made.body) }
        })
        .await;
    }

    async fn scale(&self, replicas: u32) {
        let path = format!("{}/web", self.path());
        let change = json!({"spec": {"replicas": replicas}});
        self.ns.wire.patch(&path, Patch::Merge, &change).await.expect(200);
    }

    async fn list(&self) -> Vec<Pod> {
        self.ns.pods.list(&ListParams::default()).await.expect("a list").items
    }

    async fn names(&self) -> Vec<String> {
        self.list().await.iter().map(ResourceExt::name_any).collect()
    }

    /// Waits until there are exactly so many pods, all ready, with this image.
    async fn await_pods(&self, count: usize, image: &str) {
        let runs = |pod: &Pod| -> bool {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            containers.into_iter().all(|container| container.image.as_deref() == Some(image))
        };
        eventually(&format!("{} of {} in {}", count, self.kind, self.ns.name), || async {
            let pods = self.list().await;
            let state = |pod: &Pod| format!("{} {} {}", pod.name_any(), is_ready(pod), runs(pod));
            let fits = |pod: &Pod| is_ready(pod) && runs(pod);
            let whole = pods.len() == count && pods.iter().all(fits);
            if whole { Ok(()) } else { Err(pods.iter().map(state).collect::<Vec<_>>()) }
        })
        .await;
    }
}
