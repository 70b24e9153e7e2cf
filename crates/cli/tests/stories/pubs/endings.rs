//! Workloads that their owners scale down, scale away, delete, make again or recreate: a budget that keeps a number of
//! pods does not keep them from it.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::json;

use crate::quorate::Quorate;
use crate::scene::is_ready;
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: a_workload_ends_as_its_owner_wants);

async fn a_workload_ends_as_its_owner_wants(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    cluster.actors().nodes().add("node-1").await.expect("a node");
    for kind in ["Deployment", "StatefulSet"] {
        let shop = Shop::open(&cluster, kind).await;
        scaled_down(&shop).await;
        scaled_to_zero(&shop).await;
        deleted_and_made_again(&shop).await;
    }
    recreated(&Shop::open(&cluster, "Deployment").await).await;
}

/// Below what the budget keeps: the last pods are not pinned, and those that are wanted are still protected.
async fn scaled_down(shop: &Shop) {
    shop.scale(2).await;
    shop.has(2, "web:1").await;
    let pod = shop.names().await[0].clone();
    let sentence = refusal(&shop.town.delete(&pod).await);
    assert!(sentence.contains("keeps 3 pods where 2 are expected"), "{sentence}");
    refusal(&shop.town.evict(&pod).await);
}

async fn scaled_to_zero(shop: &Shop) {
    shop.scale(0).await;
    shop.has(0, "web:1").await;
    shop.scale(4).await;
    shop.has(4, "web:1").await;
    shop.town.pub_allows("web", 1).await;
}

/// The garbage collector takes the pods of what is deleted; what is made again by that name is protected again.
async fn deleted_and_made_again(shop: &Shop) {
    let path = format!("{}/web", shop.path());
    shop.town.wire.delete(&path, &json!({"propagationPolicy": "Background"})).await.expect(200);
    shop.has(0, "web:1").await;
    shop.make().await;
    shop.has(4, "web:1").await;
    shop.town.pub_allows("web", 1).await;
    let pods = shop.names().await;
    // Not by the controller, and no more than one at a time.
    let (one, two) = tokio::join!(shop.town.delete(&pods[0]), shop.town.delete(&pods[1]));
    let mut codes = [one.code, two.code];
    codes.sort_unstable();
    assert_eq!(codes, [200, 429], "{} {}", one.body, two.body);
    shop.has(4, "web:1").await;
    shop.town.pub_allows("web", 1).await;
}

/// Who chose Recreate asked for the gap.
async fn recreated(shop: &Shop) {
    let change = json!({"spec": {
        "strategy": {"type": "Recreate", "rollingUpdate": null},
        "template": {"spec": {"containers": [{"name": "main", "image": "web:2"}]}},
    }});
    let path = format!("{}/web", shop.path());
    shop.town.wire.patch(&path, Patch::Merge, &change).await.expect(200);
    shop.has(4, "web:2").await;
}

/// Four pods of one workload, under a budget that names it and keeps three.
struct Shop {
    town: Town,
    kind: &'static str,
    pods: Api<Pod>,
}

impl Shop {
    async fn open(cluster: &Cluster, kind: &'static str) -> Self {
        let town = Town::found(cluster, "shop").await;
        let pods = Api::namespaced(cluster.admin(), &town.namespace);
        let shop = Self { town, kind, pods };
        shop.make().await;
        shop.has(4, "web:1").await;
        let target = json!({"apiVersion": "apps/v1", "kind": kind, "name": "web"});
        shop.town.pub_over("web", json!({"targetRef": target, "minAvailable": 3}), 1).await;
        shop
    }

    fn path(&self) -> String {
        format!("/apis/apps/v1/namespaces/{}/{}s", self.town.namespace, self.kind.to_lowercase())
    }

    async fn make(&self) {
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
            let made = self.town.wire.post(&self.path(), &workload).await;
            if made.code == 201 { Ok(()) } else { Err(made.body) }
        })
        .await;
    }

    async fn scale(&self, replicas: u32) {
        let path = format!("{}/web", self.path());
        let change = json!({"spec": {"replicas": replicas}});
        self.town.wire.patch(&path, Patch::Merge, &change).await.expect(200);
    }

    async fn list(&self) -> Vec<Pod> {
        self.pods.list(&ListParams::default()).await.expect("a list").items
    }

    async fn names(&self) -> Vec<String> {
        self.list().await.iter().map(ResourceExt::name_any).collect()
    }

    /// Waits until there are exactly so many pods, all ready, with this image.
    async fn has(&self, count: usize, image: &str) {
        let runs = |pod: &Pod| -> bool {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            containers.into_iter().all(|container| container.image.as_deref() == Some(image))
        };
        eventually(&format!("{} of {} in {}", count, self.kind, self.town.namespace), || async {
            let pods = self.list().await;
            let state = |pod: &Pod| format!("{} {} {}", pod.name_any(), is_ready(pod), runs(pod));
            let fits = |pod: &Pod| is_ready(pod) && runs(pod);
            let whole = pods.len() == count && pods.iter().all(fits);
            if whole { Ok(()) } else { Err(pods.iter().map(state).collect::<Vec<_>>()) }
        })
        .await;
    }
}
