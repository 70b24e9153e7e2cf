//! The fixture of these tests: a server, a real node, its agent, a namespace.

use std::path::Path;
use std::time::Duration;

use quorate_testbed::{
    BUSYBOX, Backend, Cluster, Kubectl, Node, Options, Patch, Process, Setup, User, Wire, WireResponse,
    eventually,
};
use serde_json::{Value, json};

use crate::quorate::{NAMESPACE, Quorate, install, install_policy};

pub(crate) const NODE: &str = "node-1";

/// An unused admission expires after this time. The default would make the tests too long.
const EXPIRY: Duration = Duration::from_secs(40);

/// Runs a story on a cluster with one real node.
pub(crate) fn with_node<F: Future<Output = ()>>(story: impl FnOnce(NodeFixture) -> F) {
    let lost_nodes_after = Some(Duration::from_secs(20));
    let options = Options { controllers: true, scheduler: true, lost_nodes_after, ..Options::default() };
    quorate_testbed::run_story(Backend::Real, Setup::Bare(options), async |cluster: Cluster| {
        story(NodeFixture::new(cluster).await).await;
    });
}

pub(crate) struct NodeFixture {
    pub(crate) kubectl: Kubectl,
    namespace: String,
    wire: Wire,
    agent: Process,
    pub(crate) node: Node,
    _quorate: Quorate,
    _cluster: Cluster,
}

impl NodeFixture {
    async fn new(cluster: Cluster) -> Self {
        install(&cluster).await;
        install_policy(&cluster).await;
        let quorate = Quorate::start_with(&cluster, |options| options.claim_expiry = EXPIRY).await;
        let plane = cluster.control_plane().expect("a control plane");
        let node = Node::start(plane, NODE).await.expect("a node");
        let wire = cluster.wire();
        let kubeconfig = node.kubeconfig(plane, &token(&wire).await).expect("a kubeconfig");
        let args = [
            ["agent", "--node-name", NODE, "--admin-listen", "127.0.0.1:0"].map(str::to_owned).to_vec(),
            vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()],
            vec!["--cri-socket".to_owned(), node.runtime_socket().display().to_string()],
        ];
        let agent =
            node.run("agent", Path::new(env!("CARGO_BIN_EXE_quorate")), &args.concat()).expect("an agent");
        let namespace = cluster.namespace("db").await.expect("a namespace");
        let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
        Self { kubectl, namespace, wire, agent, node, _quorate: quorate, _cluster: cluster }
    }

    fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace)
    }

    /// Runs a pod with one container, which runs a shell script, and a disruption probe. Files in /data outlive the
    /// container.
    pub(crate) async fn pod(&self, name: &str, script: &str, probe: &Value) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": "db"},
                "annotations": {"quorate.dev/disruption-probe.main": probe.to_string()}},
            "spec": {"terminationGracePeriodSeconds": 0, "volumes": [{"name": "data", "emptyDir": {}}],
                "containers": [{"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never",
                    "command": ["sh", "-c", script],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}});
        self.wire.post(&self.pods(), &pod).await.expect(201);
        self.run(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=60s"]).await;
    }

    /// Creates a pod with OpenKruise's readiness gate. Its container is ready unless the file /tmp/busy exists. Does
    /// not wait for the pod.
    pub(crate) async fn gated_pod(&self, name: &str) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "db"}},
            "spec": {"terminationGracePeriodSeconds": 0,
                "readinessGates": [{"conditionType": "InPlaceUpdateReady"}],
                "containers": [{"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never",
                    "command": ["sh", "-c", "until [ -e /tmp/end ]; do sleep 0.2; done"],
                    "readinessProbe": {"exec": {"command": ["test", "!", "-e", "/tmp/busy"]},
                        "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 10}}]}});
        self.wire.post(&self.pods(), &pod).await.expect(201);
    }

    /// Sets the readiness gate of a pod, as a controller of OpenKruise does.
    pub(crate) async fn gate(&self, pod: &str, status: &str) -> WireResponse {
        let status = json!({"status": {"conditions": [{"type": "InPlaceUpdateReady", "status": status}]}});
        self.wire.patch(&format!("{}/{pod}/status", self.pods()), Patch::Strategic, &status).await
    }

    /// The status of a pod's container.
    pub(crate) async fn container(&self, pod: &str) -> Value {
        let pod = self.wire.get(&format!("{}/{pod}", self.pods())).await.expect(200);
        pod["status"]["containerStatuses"][0].clone()
    }

    /// Changes the image of a pod's container.
    pub(crate) async fn set_image(&self, pod: &str, image: &str) -> WireResponse {
        let patch = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
        self.wire.patch(&format!("{}/{pod}", self.pods()), Patch::Strategic, &patch).await
    }

    /// Waits until the budget has no claims.
    pub(crate) async fn unclaimed(&self) {
        let path =
            format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{}/disruptionbudgets/db", self.namespace);
        eventually("all claims are settled", || async {
            let claims = self.wire.get(&path).await.expect(200)["status"]["claims"].clone();
            if claims.as_object().is_none_or(serde_json::Map::is_empty) { Ok(()) } else { Err(claims) }
        })
        .await;
    }

    /// The metrics of the API server.
    pub(crate) async fn api_server_metrics(&self) -> Value {
        self.wire.get("/metrics").await.expect(200)
    }

    /// Creates a budget that covers all pods, and waits until it is enforced.
    pub(crate) async fn budget(&self, min_available: u32) {
        self.budget_of(min_available, &["Evict"]).await;
    }

    /// Creates a budget that covers all pods, for these operations, and waits until it is enforced.
    pub(crate) async fn budget_of(&self, min_available: u32, operations: &[&str]) {
        let path =
            format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{}/disruptionbudgets", self.namespace);
        let budget = json!({"apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget",
            "metadata": {"name": "db"},
            "spec": {"selector": {"matchLabels": {"app": "db"}}, "minAvailable": min_available,
                "operations": operations}});
        self.wire.post(&path, &budget).await.expect(201);
        self.run(&["wait", "--for=condition=Enforced", "dbu/db", "--timeout=60s"]).await;
    }

    /// Waits until the budget counts this number of healthy pods.
    pub(crate) async fn healthy(&self, wanted: u32) {
        let path =
            format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{}/disruptionbudgets/db", self.namespace);
        eventually(&format!("{wanted} pods are healthy"), || async {
            let status = self.wire.get(&path).await.expect(200)["status"].clone();
            if status["currentHealthy"] == wanted { Ok(()) } else { Err(status) }
        })
        .await;
    }

    /// Waits until the condition `Disruptable` of a pod has this status.
    pub(crate) async fn wait_disruptable(&self, pod: &str, status: &str) {
        let condition = format!("--for=condition=Disruptable={status}");
        self.run(&["wait", &condition, &format!("pod/{pod}"), "--timeout=60s"]).await;
    }

    /// The condition `Disruptable` of a pod.
    pub(crate) async fn condition(&self, pod: &str) -> Value {
        let pod = self.wire.get(&format!("{}/{pod}", self.pods())).await.expect(200);
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|c| c["type"] == "Disruptable").unwrap_or_default()
    }

    /// Runs a command in a pod's container.
    pub(crate) async fn inside(&self, pod: &str, command: &[&str]) {
        self.run(&[&["exec", pod, "--"], command].concat()).await;
    }

    /// Requests the eviction of a pod.
    pub(crate) async fn evict(&self, pod: &str) -> WireResponse {
        let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}});
        self.wire.post(&format!("{}/{pod}/eviction", self.pods()), &body).await
    }

    /// Waits until a pod is gone.
    pub(crate) async fn gone(&self, pod: &str) {
        let path = format!("{}/{pod}", self.pods());
        eventually(&format!("{pod} is gone"), || async {
            let answer = self.wire.get(&path).await;
            if answer.code == 404 { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }

    /// Runs kubectl in the namespace; it must succeed.
    pub(crate) async fn run(&self, args: &[&str]) -> String {
        let args = [&["--namespace", &self.namespace], args].concat();
        let printed = self.kubectl.run(&args).await.expect("kubectl");
        assert!(printed.success, "{args:?}: {}{}", printed.stdout, printed.stderr);
        printed.stdout
    }

    /// When the agent last renewed its Lease.
    pub(crate) async fn renewed(&self) -> Value {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/quorate-agent-{NODE}");
        self.wire.get(&path).await.expect(200)["spec"]["renewTime"].clone()
    }

    /// Tries to write the condition as a user that is not the agent.
    pub(crate) async fn forge_condition(&self, pod: &str) -> WireResponse {
        let status = json!({"status": {"conditions": [{"type": "Disruptable", "status": "True"}]}});
        self.wire.patch(&format!("{}/{pod}/status", self.pods()), Patch::Strategic, &status).await
    }
}

impl Drop for NodeFixture {
    /// Prints the log of the agent if the test failed.
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the agent's log:\n{}", self.agent.log_tail());
        }
    }
}

/// A token of the agent's service account that is bound to the node.
async fn token(wire: &Wire) -> String {
    let node = wire.get(&format!("/api/v1/nodes/{NODE}")).await.expect(200);
    let bound = json!({"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"]});
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600, "boundObjectRef": bound}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/quorate-agent/token");
    let answer = wire.post(&path, &request).await.expect(201);
    answer["status"]["token"].as_str().expect("a token").to_owned()
}
