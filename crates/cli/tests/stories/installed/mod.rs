//! Quorate as Helm installs it: the rendered objects word for word, its service accounts with tokens of their own, and
//! processes with the arguments of the chart's pods. So a right that is missing, or a rule that is wrong, fails here.

mod lives;
mod uninstall;
mod upgrade;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use quorate_testbed::{Cluster, Process, User, Wire, eventually};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::quorate::{HOME, NAMESPACE, RENDERED, apply};
use crate::replicas::addresses;

/// The objects of the release, without what is made only when it goes.
const KINDS: [&str; 14] = [
    "CustomResourceDefinition",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "PodDisruptionBudget",
    "Deployment",
    "DaemonSet",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    // The embedded cluster has none of these.
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// A release, and the processes that its pods would run.
struct Installed {
    cluster: Cluster,
    wire: Wire,
    servers: Vec<Server>,
    /// Where the API server reaches servers: endpoints of a Service may not be on the loopback.
    address: IpAddr,
    started: usize,
    folder: TempDir,
}

struct Server {
    name: String,
    process: Process,
}

/// The rendered objects of the release, as this cluster can take them.
fn release(cluster: &Cluster) -> Vec<&'static str> {
    let all = crate::quorate::rendered(&KINDS);
    let known =
        |object: &&str| cluster.control_plane().is_some() || !object.contains("\nkind: ValidatingAdmission");
    all.into_iter().filter(known).collect()
}

/// The rendered object of a kind and a name.
fn object(kind: &str, name: &str) -> Value {
    let found = serde_yaml_ng::Deserializer::from_str(RENDERED)
        .map(|document| Value::deserialize(document).expect("YAML"))
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("the chart has no {kind} {name}"))
}

/// The arguments of the container that a rendered object runs, with some exchanged: there are no pods here, and hence
/// neither their network nor what a kubelet puts into them.
fn args(kind: &str, name: &str, exchanged: &[(&str, String)]) -> Vec<String> {
    let args = object(kind, name)["spec"]["template"]["spec"]["containers"][0]["args"].take();
    let mut args: Vec<String> = serde_json::from_value(args).expect("arguments");
    for (flag, value) in exchanged {
        args.retain(|arg| !arg.starts_with(&format!("{flag}=")));
        args.push(format!("{flag}={value}"));
    }
    args
}

impl Installed {
    /// What `helm install` does.
    async fn install(cluster: &Cluster) -> Self {
        apply(cluster, &[HOME]).await;
        apply(cluster, &release(cluster)).await;
        let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
        let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
        let waited = kubectl.run(&established).await.expect("kubectl");
        assert!(waited.success, "{}", waited.stderr);
        Self {
            wire: cluster.wire(),
            cluster: cluster.clone(),
            servers: Vec::new(),
            address: reachable(cluster),
            started: 0,
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    /// A kubeconfig of one of the release's service accounts; with a token that is bound to this pod, if any.
    async fn kubeconfig(&self, account: &str, pod: Option<&Value>) -> PathBuf {
        let Some(plane) = self.cluster.control_plane() else {
            let user = User::service_account(NAMESPACE, account);
            return self.cluster.kubeconfig(&user).expect("a kubeconfig");
        };
        let bound = pod.map(|pod| {
            let meta = &pod["metadata"];
            json!({"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]})
        });
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600, "boundObjectRef": bound}});
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token");
        let answer = self.wire.post(&path, &request).await.expect(201);
        plane.kubeconfig_of_token(answer["status"]["token"].as_str().expect("a token")).expect("a kubeconfig")
    }

    /// Starts one more server, as a pod of the Deployment would.
    async fn start_server(&mut self) {
        let kubeconfig = self.kubeconfig("quorate-server", None).await;
        let args = args(
            "Deployment",
            "quorate-server",
            &[
                ("--listen", SocketAddr::new(self.address, 0).to_string()),
                ("--admin-listen", "127.0.0.1:0".to_owned()),
                ("--kubeconfig", kubeconfig.display().to_string()),
                // Long enough for the endpoint to be gone; the rest would be waiting.
                ("--shutdown-delay-seconds", "2".to_owned()),
            ],
        );
        self.started += 1;
        let name = format!("server-{}", self.started);
        let process = self.run(&name, &args);
        let (address, admin) = eventually("the server listens", || async {
            let log = process.log();
            addresses(&log).ok_or(log)
        })
        .await;
        eventually("the server is ready", || async {
            if crate::replicas::is_ready(admin).await { Ok(()) } else { Err(process.log_tail()) }
        })
        .await;
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "quorate"}},
            "endpoints": [{"addresses": [address.ip()], "conditions": {"ready": true}}],
            "ports": [{"name": "webhooks", "port": address.port(), "protocol": "TCP"}],
        });
        let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices");
        self.wire.post(&slices, &slice).await.expect(201);
        self.servers.push(Server { name, process });
    }

    /// Ends the oldest server, as a kubelet and the endpoints controller would.
    async fn end_server(&mut self) {
        let Server { name, mut process } = self.servers.remove(0);
        process.signal("TERM").expect("a signal");
        let slice = format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/{name}");
        self.wire.delete(&slice, &json!({})).await.expect(200);
        let seen = parking_lot::Mutex::new(&mut process);
        let status =
            eventually("the server has ended", || async { seen.lock().ended().ok_or("running") }).await;
        assert!(status.success(), "{status}: {}", process.log_tail());
    }

    async fn end_servers(&mut self) {
        while !self.servers.is_empty() {
            self.end_server().await;
        }
    }

    /// Starts the agent of a node, as the DaemonSet's pod there would.
    async fn start_agent(&self, node: &str) -> Process {
        let pod = match self.cluster.control_plane() {
            Some(_) => Some(self.agent_pod(node).await),
            None => None,
        };
        let kubeconfig = self.kubeconfig("quorate-agent", pod.as_ref()).await;
        let args = args(
            "DaemonSet",
            "quorate-agent",
            &[
                ("--admin-listen", "127.0.0.1:0".to_owned()),
                ("--kubeconfig", kubeconfig.display().to_string()),
                ("--node-name", node.to_owned()),
            ],
        );
        self.run("agent", &args)
    }

    /// The pod that the DaemonSet has on a node.
    async fn agent_pod(&self, node: &str) -> Value {
        let agents = "labelSelector=app.kubernetes.io%2Fcomponent%3Dagent";
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods?{agents}");
        eventually("the DaemonSet has a pod on the node", || async {
            let pods =
                self.wire.get(&path).await.expect(200)["items"].as_array().cloned().unwrap_or_default();
            let there = pods.iter().find(|pod| pod["spec"]["nodeName"] == node).cloned();
            there.ok_or(pods)
        })
        .await
    }

    fn run(&self, name: &str, args: &[String]) -> Process {
        let binary = Path::new(env!("CARGO_BIN_EXE_quorate"));
        Process::start(name, binary, args, self.folder.path()).expect("a process")
    }
}

impl Drop for Installed {
    /// What the servers saw is half of what went wrong.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for server in &self.servers {
                println!("the log of {}:\n{}", server.name, server.process.log());
            }
        }
    }
}

/// An address of this machine that endpoints may have.
fn reachable(cluster: &Cluster) -> IpAddr {
    if cluster.control_plane().is_none() {
        return IpAddr::V4(Ipv4Addr::LOCALHOST);
    }
    // Nothing is sent: the kernel only says from where it would be.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
    socket.connect("203.0.113.1:9").expect("a route: this machine has no address but its loopback");
    socket.local_addr().expect("an address").ip()
}
