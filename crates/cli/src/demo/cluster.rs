//! The cluster of the demo, with its server, agents and workloads.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::http::StatusCode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use quorate_devcluster::actors::{ActorOptions, Actors, Identities, Timing, install_leader_worker_sets};
use quorate_devcluster::apiserver::{self, Server};
use quorate_server::Options;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::screen::Screen;
use super::witness::Witness;

/// The namespace of the workloads.
pub(super) const NAMESPACE: &str = "inference";

/// Quorate's own namespace.
const OWN: &str = "quorate-system";

/// Number of groups of the model server, and pods in each.
pub(super) const GROUPS: usize = 4;
pub(super) const SIZE: usize = 4;

/// The label that forms the groups.
pub(super) const GROUP: &str = "leaderworkerset.sigs.k8s.io/group-index";

/// The annotation that declares the probe of the container main.
const PROBE: &str = "quorate.dev/disruption-probe.main";

const NODES: usize = 6;

/// Start time of a pod, long enough for a user to see it.
const STARTS: Duration = Duration::from_millis(2500);

/// Time limit for each step of the setup.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A cluster with a running server. It stops when this value is dropped.
pub(super) struct DemoCluster {
    pub(super) client: Client,
    pub(super) witness: Witness,
    /// The answer of the database to its disruption probe.
    pub(super) green: Arc<AtomicBool>,
    /// Declared before `server`, so that the actors stop before the API server.
    _actors: Actors,
    _quorate: DropGuard,
    server: Server,
    folder: TempDir,
}

impl DemoCluster {
    pub(super) async fn set(screen: &Screen) -> Result<Self> {
        let server = Server::start(apiserver::Options::default()).await?;
        let client = server.client_as("admin", &["system:masters"])?;
        let identities = Identities::impersonating(client.clone());
        install_leader_worker_sets(&client).await?;
        let timing = Timing { start: STARTS, termination: Duration::from_millis(300) };
        let actors = Actors::start(&identities, &ActorOptions { timing, ..ActorOptions::all() });
        for number in 1..=NODES {
            actors.nodes().add(&format!("node-{number}")).await?;
        }
        let stop = CancellationToken::new();
        let witness = Witness::start(client.clone(), NAMESPACE);
        screen.show(witness.clone());
        let mut cluster = Self {
            client,
            witness,
            green: Arc::new(AtomicBool::new(true)),
            _actors: actors,
            _quorate: stop.clone().drop_guard(),
            server,
            folder: tempfile::tempdir().context("cannot create a folder for the kubeconfig")?,
        };
        for namespace in [OWN, NAMESPACE] {
            cluster.namespace(namespace).await?;
        }
        cluster.serve(stop.clone()).await?;
        cluster.probe(&stop).await?;
        let port = cluster.answer().await?;
        cluster.workloads(port).await?;
        Ok(cluster)
    }

    /// Writes a kubeconfig with admin rights.
    pub(super) fn kubeconfig(&self) -> Result<PathBuf> {
        let path = self.folder.path().join("kubeconfig");
        let text = self.server.kubeconfig("admin", &["system:masters"]).to_string();
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    async fn namespace(&self, name: &str) -> Result<()> {
        self.create("v1", "Namespace", None, json!({"metadata": {"name": name}})).await?;
        self.create("v1", "ServiceAccount", Some(name), json!({"metadata": {"name": "default"}})).await
    }

    async fn serve(&mut self, stop: CancellationToken) -> Result<()> {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for definition in quorate_api::crds::all() {
            definitions.create(&PostParams::default(), &definition).await?;
            self.until("a definition is established", async || {
                let stored = definitions.get(&definition.name_any()).await?;
                let conditions = stored.status.and_then(|status| status.conditions).unwrap_or_default();
                Ok(conditions.iter().any(|c| c.type_ == "Established" && c.status == "True"))
            })
            .await?;
        }
        let who = self.server.config_as("quorate", &["system:masters"]);
        quorate_server::start(Options::here(who, OWN), stop).await?;
        Ok(())
    }

    /// Starts an agent for each node.
    async fn probe(&self, stop: &CancellationToken) -> Result<()> {
        for number in 1..=NODES {
            let options = quorate_agent::Options {
                kubernetes: self.server.config_as("quorate", &["system:masters"]),
                node: format!("node-{number}"),
                namespace: OWN.to_owned(),
                cri_socket: None,
                mirror_ready: false,
                admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
                enabled: true,
                time_of_day: quorate_agent::WallClock::default(),
            };
            quorate_agent::start(options, stop.clone()).await?;
        }
        Ok(())
    }

    /// Answers the probe of the database, because no containers run in the pods. Returns the port.
    async fn answer(&self) -> Result<u16> {
        let green = self.green.clone();
        let handler = move || {
            let green = green.load(Ordering::Relaxed);
            std::future::ready(match green {
                true => (StatusCode::OK, "green"),
                false => (StatusCode::SERVICE_UNAVAILABLE, "yellow: a shard has one copy"),
            })
        };
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let router = axum::Router::new().route("/disruptable", axum::routing::get(handler));
        tokio::spawn(axum::serve(listener, router).into_future());
        Ok(port)
    }

    /// Creates the workloads: a model server with groups, a database, and a web frontend.
    async fn workloads(&self, port: u16) -> Result<()> {
        let pod = |app: &str| {
            json!({
                "metadata": {"labels": {"app": app}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "main", "image": format!("{app}:1")}],
                },
            })
        };
        let llm = json!({"metadata": {"name": "llm"}, "spec": {
            "replicas": GROUPS, "leaderWorkerTemplate": {"size": SIZE, "workerTemplate": pod("llm")}}});
        self.create("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", Some(NAMESPACE), llm).await?;
        for (kind, name, replicas) in [("StatefulSet", "db", 3), ("Deployment", "web", 3)] {
            let mut template = pod(name);
            if name == "db" {
                let probe = json!({"httpGet": {"host": "127.0.0.1", "path": "/disruptable", "port": port},
                    "periodSeconds": 1, "failureThreshold": 1});
                template["metadata"]["annotations"] = json!({PROBE: probe.to_string()});
            }
            let object = json!({"metadata": {"name": name}, "spec": {
                "replicas": replicas, "serviceName": name, "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": name}}, "template": template}});
            self.create("apps/v1", kind, Some(NAMESPACE), object).await?;
        }
        self.wait_until_ready().await
    }

    /// Waits until every pod of the demo is ready.
    pub(super) async fn wait_until_ready(&self) -> Result<()> {
        let all = GROUPS * SIZE + 3 + 3;
        self.until("every pod is ready", async || {
            let pods = self.witness.pods();
            Ok(pods.len() == all && pods.iter().all(|pod| pod.ready))
        })
        .await
    }

    /// Waits until a condition holds.
    pub(super) async fn until(&self, what: &str, is: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let ends = tokio::time::Instant::now() + TIMEOUT;
        while !is().await? {
            if tokio::time::Instant::now() > ends {
                bail!("timed out after {} s; waited until {what}", TIMEOUT.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Creates an object.
    pub(super) async fn create(
        &self,
        version: &str,
        kind: &str,
        namespace: Option<&str>,
        object: Value,
    ) -> Result<()> {
        let mut object: DynamicObject = serde_json::from_value(object).context("an object of the demo")?;
        let api = self.api(version, kind, namespace);
        object.types = Some(kube::core::TypeMeta { api_version: version.to_owned(), kind: kind.to_owned() });
        let name = object.name_any();
        // The API server may need a moment to serve a new kind.
        let ends = tokio::time::Instant::now() + TIMEOUT;
        loop {
            match api.create(&PostParams::default(), &object).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 404 && tokio::time::Instant::now() < ends => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                // A controller has already created the default ServiceAccount.
                Err(kube::Error::Api(status)) if status.code == 409 && kind == "ServiceAccount" => {
                    return Ok(());
                }
                Err(error) => return Err(error).with_context(|| format!("cannot create {kind} {name}")),
            }
        }
    }

    /// The API of a kind.
    pub(super) fn api(&self, version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Creates a budget, and waits until it is enforced and allows this number of disruptions.
    pub(super) async fn budget(&self, name: &str, spec: Value, allows: u32) -> Result<()> {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        let (version, kind) = ("policy.quorate.dev/v1alpha1", "DisruptionBudget");
        self.create(version, kind, Some(NAMESPACE), object).await?;
        self.allows(name, allows).await
    }

    /// Waits until none of a budget's pods counts as healthy.
    pub(super) async fn none_healthy(&self, name: &str) -> Result<()> {
        let budgets = self.api("policy.quorate.dev/v1alpha1", "DisruptionBudget", Some(NAMESPACE));
        self.until(&format!("no pod of the budget {name} is healthy"), async || {
            Ok(budgets.get(name).await?.data["status"]["currentHealthy"] == 0)
        })
        .await
    }

    /// Waits until a budget is enforced and allows this number of disruptions.
    pub(super) async fn allows(&self, name: &str, allows: u32) -> Result<()> {
        let budgets = self.api("policy.quorate.dev/v1alpha1", "DisruptionBudget", Some(NAMESPACE));
        self.until(&format!("the budget {name} allows {allows} disruptions"), async || {
            let status = budgets.get(name).await?.data["status"].clone();
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            let enforced = conditions.iter().any(|c| c["type"] == "Enforced" && c["status"] == "True");
            Ok(enforced && status["disruptionsAllowed"] == allows)
        })
        .await
    }
}
