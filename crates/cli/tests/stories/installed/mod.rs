//! Quorate as Helm installs it: the rendered objects, its service accounts with their own tokens, and processes with
//! the arguments of the chart's pods. A missing right or a wrong rule fails here.

mod features;
mod uninstall;
mod upgrade;

use std::path::PathBuf;

use quorate_testbed::{Cluster, Process, User, Wire, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::endpoints::Endpoints;
use crate::quorate::{HOME, NAMESPACE, RENDERED, apply, args, established, is_policy, released, server_args};
use crate::replicas::addresses;

/// The objects that Helm rendered, and the program of the images.
#[derive(Clone, PartialEq, Eq)]
struct Release {
    rendered: String,
    program: PathBuf,
}

/// An installed release: the processes that its pods would run.
struct Installed {
    cluster: Cluster,
    release: Release,
    wire: Wire,
    servers: Vec<Server>,
    endpoints: Endpoints,
    started: usize,
    folder: TempDir,
}

struct Server {
    name: String,
    process: Process,
}

impl Release {
    /// The release under test.
    fn current() -> Self {
        Self { rendered: RENDERED.to_owned(), program: PathBuf::from(env!("CARGO_BIN_EXE_quorate")) }
    }

    /// Its objects, without kinds that this cluster does not have.
    fn objects(&self, cluster: &Cluster) -> Vec<&str> {
        let takes_policies = cluster.control_plane().is_some();
        released(&self.rendered).filter(|object| takes_policies || !is_policy(object)).collect()
    }
}

impl Installed {
    /// What `helm install` does.
    async fn install(cluster: &Cluster) -> Self {
        Self::install_release(cluster, Release::current()).await
    }

    async fn install_release(cluster: &Cluster, release: Release) -> Self {
        apply(cluster, &[HOME]).await;
        apply(cluster, &release.objects(cluster)).await;
        established(cluster).await;
        Self {
            release,
            wire: cluster.wire(),
            cluster: cluster.clone(),
            servers: Vec::new(),
            endpoints: Endpoints::of(cluster),
            started: 0,
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    /// What `helm upgrade` and `helm rollback` do: servers that start from now on have that release.
    async fn change_to(&mut self, release: &Release) {
        apply(&self.cluster, &release.objects(&self.cluster)).await;
        self.release = release.clone();
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
        let exchanged = [
            format!("--kubeconfig={}", kubeconfig.display()),
            // Long enough until the endpoint is gone; more would only delay the story.
            "--shutdown-delay-seconds=5".to_owned(),
        ];
        let args = server_args(&self.release.rendered, &self.cluster, &exchanged);
        self.started += 1;
        let name = format!("server-{}", self.started);
        let process = self.run(&name, &args);
        let (address, admin) = eventually("the server listens", || async {
            let log = process.log();
            addresses(&log).ok_or(log)
        })
        .await;
        eventually("the server is ready", || async {
            if crate::quorate::is_ready(admin).await { Ok(()) } else { Err(process.log_tail()) }
        })
        .await;
        self.endpoints.add(&name, address).await.expect("an endpoint");
        self.servers.push(Server { name, process });
    }

    /// Ends the oldest server, as a kubelet and the endpoints controller would.
    async fn end_server(&mut self) {
        let Server { name, mut process } = self.servers.remove(0);
        process.signal("TERM").expect("a signal");
        self.endpoints.remove(&name).await.expect("no endpoint");
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
        let exchanged = [
            "--admin-listen=127.0.0.1:0".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--node-name={node}"),
        ];
        let args = args(&self.release.rendered, "DaemonSet", "quorate-agent", &exchanged);
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
        Process::start(name, &self.release.program, args, self.folder.path()).expect("a process")
    }
}

impl Drop for Installed {
    /// A failed story needs the logs of the servers.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for server in &self.servers {
                println!("the log of {}:\n{}", server.name, server.process.log());
            }
        }
    }
}
