//! Quorate at work in a cluster: one server in this process, under its own service account.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use quorate_server::{Options, Running};
use quorate_testbed::{Cluster, User, eventually};
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) const NAMESPACE: &str = "quorate-system";

/// Whom servers act as: the manifests say what that may do.
pub(crate) fn service_account() -> User {
    User::service_account(NAMESPACE, "quorate-server")
}

/// Free ports are taken by asking for none.
pub(crate) const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// One server, in this process. It ends when this is dropped.
pub(crate) struct Quorate {
    pub(crate) server: Running,
    stop: DropGuard,
}

impl Quorate {
    /// Installs everything, starts a server and makes the API server ask it.
    pub(crate) async fn start(cluster: &Cluster) -> Self {
        install(cluster).await;
        Self::start_with(cluster, |_| {}).await
    }

    /// Starts a server with other options, where everything is installed.
    pub(crate) async fn start_with(cluster: &Cluster, change: impl FnOnce(&mut Options)) -> Self {
        // Shown when the story fails, or with --nocapture.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(std::env::var("RUST_LOG").unwrap_or_else(|_| "quorate_server=info".to_owned()))
            .with_test_writer()
            .try_init();
        let mut options = Options::here(cluster.config(&service_account()), NAMESPACE);
        change(&mut options);
        let stop = CancellationToken::new();
        let server = quorate_server::start(options, stop.clone()).await.expect("a server");
        Self { server, stop: stop.drop_guard() }
    }

    /// Ends the server and waits until it has.
    pub(crate) async fn end(self) {
        let Self { server, stop } = self;
        drop(stop);
        server.ended().await.expect("a server that ends because it was told to");
    }
}

/// Installs the definitions, and the rights of the servers.
pub(crate) async fn install(cluster: &Cluster) {
    for definition in quorate_api::crds::all() {
        define(cluster, &definition).await;
    }
    apply(cluster, "rbac/server.yaml").await;
}

/// Applies what users apply: a file, or all of a folder.
pub(crate) async fn apply(cluster: &Cluster, file: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config").join(file);
    let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
    let applied = kubectl.run(&["apply", "-f", &file.to_string_lossy()]).await.expect("kubectl");
    assert!(applied.success, "{}{}", applied.stdout, applied.stderr);
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
