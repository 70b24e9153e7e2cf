//! Two who change the same pods at once, each by its own rules: the three cases for which PodUnavailableBudget was
//! proposed. An independent log says that enough pods were available after every single event.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use quorate_devcluster::actors::Timing;
use quorate_testbed::{Cluster, Kubectl, Patch, User, eventually};
use serde_json::{Value, json};

use super::clone_set::{CloneSet, GATE};
use super::over;
use crate::floor_log::FloorLog;
use crate::quorate::Quorate;
use crate::scene::is_ready;
use crate::town::Town;

quorate_testbed::stories!(Whole:
    a_rolling_update_while_a_node_is_drained,
    a_scale_down_while_sidecars_are_upgraded_in_place,
    two_upgrades_in_place_at_once,
);

async fn a_rolling_update_while_a_node_is_drained(cluster: Cluster) {
    let shop = Shop::open(cluster, Some(4)).await;
    shop.town.pub_over("web", over("web", "maxUnavailable", 1), 1).await;
    let log = FloorLog::begin(&shop.cluster, &shop.town.namespace, "app", 3);
    let node = shop.busiest_node().await;
    let roll = async {
        shop.change(json!({"template": {"spec": {"containers": [{"name": "main", "image": "web:2"}]}}}))
            .await;
        shop.settles(4, |pod| runs(pod, "main", "web:2")).await;
    };
    let drain = async {
        let drained = shop.kubectl.run(&["drain", &node, "--ignore-daemonsets", "--timeout=120s"]).await;
        let drained = drained.expect("kubectl");
        assert!(drained.success, "the drain must end: {}{}", drained.stdout, drained.stderr);
    };
    tokio::join!(roll, drain);
    let left = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() != Some(&node));
    shop.settles(4, |pod| left(pod) && runs(pod, "main", "web:2")).await;
    shop.end(&log, "web").await;
}

async fn a_scale_down_while_sidecars_are_upgraded_in_place(cluster: Cluster) {
    let shop = Shop::open(cluster, Some(6)).await;
    shop.town.pub_over("web", over("web", "minAvailable", 3), 3).await;
    let log = FloorLog::begin(&shop.cluster, &shop.town.namespace, "app", 3);
    let scale = async {
        shop.change(json!({"replicas": 4})).await;
        shop.settles(4, |_| true).await;
    };
    tokio::join!(scale, shop.upgrade("sidecar", "mesh:2"));
    shop.settles(4, |pod| runs(pod, "sidecar", "mesh:2")).await;
    shop.end(&log, "web").await;
}

/// A CloneSet and a SidecarSet.
async fn two_upgrades_in_place_at_once(cluster: Cluster) {
    let shop = Shop::open(cluster, None).await;
    shop.town.pub_over("web", over("web", "minAvailable", 3), 1).await;
    let log = FloorLog::begin(&shop.cluster, &shop.town.namespace, "app", 3);
    let clone_set = CloneSet { town: &shop.town, name: "web" };
    let update = eventually("every main is updated", || clone_set.reconcile("web:2"));
    tokio::join!(update, shop.upgrade("sidecar", "mesh:2"));
    shop.settles(4, |pod| runs(pod, "main", "web:2") && runs(pod, "sidecar", "mesh:2")).await;
    shop.end(&log, "web").await;
}

/// Pods with a sidecar on two nodes, whose containers take a moment to start.
struct Shop {
    cluster: Cluster,
    town: Town,
    pods: Api<Pod>,
    kubectl: Kubectl,
    _quorate: Quorate,
}

impl Shop {
    /// With a Deployment of so many pods, or else with four that a CloneSet updates.
    async fn open(cluster: Cluster, deployed: Option<usize>) -> Self {
        let quorate = Quorate::start(&cluster).await;
        for node in ["node-1", "node-2"] {
            cluster.actors().nodes().add(node).await.expect("a node");
        }
        let timing = Timing { start: Duration::from_millis(200), ..Timing::default() };
        cluster.actors().kubelets().set_timing(timing);
        let town = Town::found(&cluster, "together").await;
        let pods = Api::namespaced(cluster.admin(), &town.namespace);
        let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
        let shop = Self { cluster, town, pods, kubectl, _quorate: quorate };
        let template = json!({
            "metadata": {"labels": {"app": "web"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [
                {"name": "main", "image": "web:1"}, {"name": "sidecar", "image": "mesh:1"},
            ]},
        });
        match deployed {
            Some(replicas) => {
                let spec = json!({
                    "replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template,
                });
                let deployment = json!({
                    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec,
                });
                let path = format!("/apis/apps/v1/namespaces/{}/deployments", shop.town.namespace);
                shop.town.wire.post(&path, &deployment).await.expect(201);
            }
            None => {
                for number in 0..4 {
                    let mut pod = template.clone();
                    pod["metadata"]["name"] = json!(format!("web-{number}"));
                    pod["metadata"]["labels"]["set"] = json!("web");
                    pod["spec"]["readinessGates"] = json!([{"conditionType": GATE}]);
                    let path = format!("/api/v1/namespaces/{}/pods", shop.town.namespace);
                    shop.town.wire.post(&path, &pod).await.expect(201);
                }
                let clone_set = CloneSet { town: &shop.town, name: "web" };
                eventually("the gates are open", || clone_set.reconcile("web:1")).await;
            }
        }
        shop.settles(deployed.unwrap_or(4), |_| true).await;
        shop
    }

    /// Changes the Deployment.
    async fn change(&self, spec: Value) {
        let path = format!("/apis/apps/v1/namespaces/{}/deployments/web", self.town.namespace);
        self.town.wire.patch(&path, Patch::Strategic, &json!({"spec": spec})).await.expect(200);
    }

    async fn list(&self) -> Vec<Pod> {
        self.pods.list(&ListParams::default()).await.expect("a list").items
    }

    async fn busiest_node(&self) -> String {
        let pods = self.list().await;
        let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let on = |name: &str| pods.iter().filter(|pod| node(pod).as_deref() == Some(name)).count();
        if on("node-1") >= on("node-2") { "node-1".to_owned() } else { "node-2".to_owned() }
    }

    /// Gives a container of every pod another image, as SidecarSet does: pod by pod, and again later where it is told to
    /// wait. CloneSet announces it first, see [`super::announced`].
    async fn upgrade(&self, container: &str, image: &str) {
        let patch = json!({"spec": {"containers": [{"name": container, "image": image}]}});
        eventually(&format!("every {container} is asked for {image}"), || async {
            let mut waiting = Vec::new();
            for pod in self.list().await {
                if pod.metadata.deletion_timestamp.is_some() || asks(&pod, container, image) {
                    continue;
                }
                let path = format!("/api/v1/namespaces/{}/pods/{}", self.town.namespace, pod.name_any());
                let answer = self.town.wire.patch(&path, Patch::Strategic, &patch).await;
                match answer.code {
                    // One that is gone needs no upgrade.
                    200 | 404 => {}
                    429 => waiting.push(answer.message().to_owned()),
                    // Somebody else changed the pod at the same moment.
                    409 => waiting.push(answer.message().to_owned()),
                    code => panic!("{code}: {}", answer.body),
                }
            }
            if waiting.is_empty() { Ok(()) } else { Err(waiting) }
        })
        .await;
    }

    /// Waits until there are exactly so many pods, all ready and as they should be.
    async fn settles(&self, count: usize, fits: impl Fn(&Pod) -> bool) {
        eventually(&format!("{count} pods are as they should be"), || async {
            let pods = self.list().await;
            let state = |pod: &Pod| format!("{} {} {}", pod.name_any(), is_ready(pod), fits(pod));
            let whole = pods.len() == count && pods.iter().all(|pod| is_ready(pod) && fits(pod));
            if whole { Ok(()) } else { Err(pods.iter().map(state).collect::<Vec<_>>()) }
        })
        .await;
    }

    /// The log is clean, and the budget at rest.
    async fn end(&self, log: &FloorLog, budget: &str) {
        let (events, lists, violations) = log.seen();
        assert!(violations.is_empty(), "{violations:#?}");
        assert!(events > 0 && lists == 1, "{events} events, {lists} lists");
        let status = self
            .town
            .pub_is(budget, "it is at rest", |status| {
                status["claims"] == json!({})
                    && status["disruptedPods"].is_null()
                    && status["unavailablePods"].is_null()
            })
            .await;
        assert!(status["ledger"].as_u64().is_some_and(|ledger| ledger > 0), "it was asked: {status}");
    }
}

fn asks(pod: &Pod, container: &str, image: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.into_iter().any(|c| c.name == container && c.image.as_deref() == Some(image))
}

fn runs(pod: &Pod, container: &str, image: &str) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    asks(pod, container, image) && statuses.into_iter().any(|c| c.name == container && c.image == image)
}
