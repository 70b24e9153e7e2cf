//! Quorate at work in a cluster.

use std::net::{Ipv4Addr, SocketAddr};

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, ObjectMeta, PostParams};
use quorate_server::{Options, Running};
use quorate_testbed::{Cluster, User, eventually};
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "quorate-system";

/// One server, in this process. It ends when this is dropped.
pub(crate) struct Quorate {
    stop: CancellationToken,
    _server: Running,
}

impl Quorate {
    /// Installs the definitions, starts a server and makes the API server ask it.
    pub(crate) async fn start(cluster: &Cluster) -> Self {
        // Shown when the story fails, or with --nocapture.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(std::env::var("RUST_LOG").unwrap_or_else(|_| "quorate_server=info".to_owned()))
            .with_test_writer()
            .try_init();
        install(cluster).await;
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        Api::all(cluster.admin()).create(&PostParams::default(), &namespace).await.expect("a namespace");
        let options = Options {
            kubernetes: cluster.config(&User::admin()),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            webhook_url: None,
            namespace: NAMESPACE.to_owned(),
            register_webhooks: true,
        };
        let stop = CancellationToken::new();
        let server = quorate_server::start(options, stop.clone()).await.expect("a server");
        Self { stop, _server: server }
    }
}

impl Drop for Quorate {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn install(cluster: &Cluster) {
    for definition in quorate_api::crds::all() {
        define(cluster, &definition).await;
    }
}

/// Installs the definition of Quorate's own workloads.
pub(crate) async fn install_workloads(cluster: &Cluster) {
    for definition in quorate_api::crds::all().into_iter().filter(|d| d.spec.names.kind == "Workload") {
        define(cluster, &definition).await;
    }
}

async fn define(cluster: &Cluster, definition: &CustomResourceDefinition) {
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.admin());
    definitions.create(&PostParams::default(), definition).await.expect("a definition");
    eventually("the definition is established", || async {
        let stored = definitions.get(&definition.name_any()).await.map_err(|error| error.to_string())?;
        let conditions = stored.status.and_then(|status| status.conditions).unwrap_or_default();
        let established = conditions.iter().any(|c| c.type_ == "Established" && c.status == "True");
        if established { Ok(()) } else { Err(format!("{conditions:?}")) }
    })
    .await;
}
