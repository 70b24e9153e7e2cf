//! Two controllers that disrupt the same pods at once, each by its own rules: the three cases for which
//! PodUnavailableBudget was proposed. An independent witness checks the available pods after every single event.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use quorate_devcluster::actors::Timing;
use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::{Value, json};

use super::clone_set::{CloneSet, GATE};
use crate::fixture::{TestNamespace, is_ready, spec_for_app};
use crate::quorate::Quorate;
use crate::witness::Witness;

quorate_testbed::stories!(Whole:
    a_rolling_update_and_a_drain_keep_three_pods,
    a_scale_down_and_an_upgrade_of_sidecars_keep_three_pods,
    two_upgrades_in_place_keep_three_pods,
);

async fn a_rolling_update_and_a_drain_keep_three_pods(cluster: Cluster) {
    let web = UpdatedPods::create(cluster, Some(4)).await;
    web.ns.create_pub_allowing("web", spec_for_app("web", "maxUnavailable", 1), 1).await;
    let witness = Witness::start(&web.ns.cluster, &web.ns.name, "app").await;
    let node = web.busiest_node().await;
    let roll = async {
        web.patch_deployment(
            json!({"template": {"spec": {"containers": [{"name": "main", "image": "web:2"}]}}}),
        )
        .await;
        web.await_pods(4, |pod| runs(pod, "main", "web:2")).await;
    };
    let drain = async {
        let drained = web.ns.kubectl.run(&["drain", &node, "--ignore-daemonsets", "--timeout=120s"]).await;
        let drained = drained.expect("kubectl");
        assert!(drained.success, "the drain must end: {}{}", drained.stdout, drained.stderr);
    };
    tokio::join!(roll, drain);
    let left = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() != Some(&node));
    web.await_pods(4, |pod| left(pod) && runs(pod, "main", "web:2")).await;
    web.assert_kept(&witness, "web").await;
}

async fn a_scale_down_and_an_upgrade_of_sidecars_keep_three_pods(cluster: Cluster) {
    let web = UpdatedPods::create(cluster, Some(6)).await;
    web.ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 3), 3).await;
    let witness = Witness::start(&web.ns.cluster, &web.ns.name, "app").await;
    let scale = async {
        web.patch_deployment(json!({"replicas": 4})).await;
        web.await_pods(4, |_| true).await;
    };
    tokio::join!(scale, web.upgrade("sidecar", "mesh:2"));
    web.await_pods(4, |pod| runs(pod, "sidecar", "mesh:2")).await;
    web.assert_kept(&witness, "web").await;
}

/// A CloneSet and a SidecarSet.
async fn two_upgrades_in_place_keep_three_pods(cluster: Cluster) {
    let web = UpdatedPods::create(cluster, None).await;
    web.ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 3), 1).await;
    let witness = Witness::start(&web.ns.cluster, &web.ns.name, "app").await;
    let clone_set = CloneSet { ns: &web.ns, name: "web" };
    let update = eventually("every main is updated", || clone_set.reconcile("web:2"));
    tokio::join!(update, web.upgrade("sidecar", "mesh:2"));
    web.await_pods(4, |pod| runs(pod, "main", "web:2") && runs(pod, "sidecar", "mesh:2")).await;
    web.assert_kept(&witness, "web").await;
}

/// Pods with a sidecar on two nodes, whose containers take a moment to start.
struct UpdatedPods {
    ns: TestNamespace,
    _quorate: Quorate,
}

impl UpdatedPods {
    /// With a Deployment of so many pods, or else with four that a CloneSet updates.
    async fn create(cluster: Cluster, deployed: Option<usize>) -> Self {
        let quorate = Quorate::start(&cluster).await;
        for node in ["node-1", "node-2"] {
            cluster.actors().nodes().add(node).await.expect("a node");
        }
        let timing = Timing { start: Duration::from_millis(200), ..Timing::default() };
        cluster.actors().kubelets().set_timing(timing);
        let ns = TestNamespace::with_manual_pods(&cluster, "together").await;
        let web = Self { ns, _quorate: quorate };
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
                let path = web.ns.path("apps/v1", "deployments");
                web.ns.wire.post(&path, &deployment).await.expect(201);
            }
            None => {
                for number in 0..4 {
                    let mut pod = template.clone();
                    pod["metadata"]["name"] = json!(format!("web-{number}"));
                    pod["metadata"]["labels"]["set"] = json!("web");
                    pod["spec"]["readinessGates"] = json!([{"conditionType": GATE}]);
                    let path = web.ns.path("v1", "pods");
                    web.ns.wire.post(&path, &pod).await.expect(201);
                }
                let clone_set = CloneSet { ns: &web.ns, name: "web" };
                eventually("the gates are open", || clone_set.reconcile("web:1")).await;
            }
        }
        web.await_pods(deployed.unwrap_or(4), |_| true).await;
        web
    }

    /// Changes the Deployment.
    async fn patch_deployment(&self, spec: Value) {
        let path = self.ns.path("apps/v1", "deployments/web");
        self.ns.wire.patch(&path, Patch::Strategic, &json!({"spec": spec})).await.expect(200);
    }

    async fn list(&self) -> Vec<Pod> {
        self.ns.pods.list(&ListParams::default()).await.expect("a list").items
    }

    async fn busiest_node(&self) -> String {
        let pods = self.list().await;
        let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let on = |name: &str| pods.iter().filter(|pod| node(pod).as_deref() == Some(name)).count();
        if on("node-1") >= on("node-2") { "node-1".to_owned() } else { "node-2".to_owned() }
    }

    /// Sets the image of a container in every pod, as SidecarSet does: pod by pod, with a retry after a denial.
    /// CloneSet announces an update first, see [`super::announced`].
    async fn upgrade(&self, container: &str, image: &str) {
        let patch = json!({"spec": {"containers": [{"name": container, "image": image}]}});
        eventually(&format!("every {container} has {image} in its spec"), || async {
            let mut waiting = Vec::new();
            for pod in self.list().await {
                if pod.metadata.deletion_timestamp.is_some() || wants(&pod, container, image) {
                    continue;
                }
                let path = format!("/api/v1/namespaces/{}/pods/{}", self.ns.name, pod.name_any());
                let answer = self.ns.wire.patch(&path, Patch::Strategic, &patch).await;
                match answer.code {
                    // A pod that is gone needs no upgrade.
                    200 | 404 => {}
                    429 => waiting.push(answer.message().to_owned()),
                    // Another client changed the pod at the same time.
                    409 => waiting.push(answer.message().to_owned()),
                    code => panic!("{code}: {}", answer.body),
                }
            }
            if waiting.is_empty() { Ok(()) } else { Err(waiting) }
        })
        .await;
    }

    /// Waits until there are exactly so many pods, all ready and fitting.
    async fn await_pods(&self, count: usize, fits: impl Fn(&Pod) -> bool) {
        eventually(&format!("{count} pods are as they should be"), || async {
            let pods = self.list().await;
            let state = |pod: &Pod| format!("{} {} {}", pod.name_any(), is_ready(pod), fits(pod));
            let whole = pods.len() == count && pods.iter().all(|pod| is_ready(pod) && fits(pod));
            if whole { Ok(()) } else { Err(pods.iter().map(state).collect::<Vec<_>>()) }
        })
        .await;
    }

    /// There were always three healthy pods, and the budget has no claims left.
    async fn assert_kept(&self, witness: &Witness, budget: &str) {
        let (events, lists) = witness.counts();
        let violations = witness.below(3);
        assert!(violations.is_empty(), "{violations:#?}");
        assert!(events > 0 && lists == 1, "{events} events, {lists} lists");
        let status = self
            .ns
            .await_pub_status(budget, "it is at rest", |status| {
                status["claims"] == json!({})
                    && status["disruptedPods"].is_null()
                    && status["unavailablePods"].is_null()
            })
            .await;
        assert!(status["ledger"].as_u64().is_some_and(|ledger| ledger > 0), "nothing was claimed: {status}");
    }
}

fn wants(pod: &Pod, container: &str, image: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.into_iter().any(|c| c.name == container && c.image.as_deref() == Some(image))
}

fn runs(pod: &Pod, container: &str, image: &str) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    wants(pod, container, image) && statuses.into_iter().any(|c| c.name == container && c.image == image)
}
