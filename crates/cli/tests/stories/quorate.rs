//! Quorate at work in a cluster: one server in this process, under its own service account.

use std::net::{Ipv4Addr, SocketAddr};

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

/// Installs the definitions, and the rights of servers and agents.
pub(crate) async fn install(cluster: &Cluster) {
    for definition in quorate_api::crds::all() {
        define(cluster, &definition).await;
    }
    let rights = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
    apply(cluster, &[vec![HOME], rendered(&rights), vec![REGISTERING]].concat()).await;
}

/// Has the API server see to it that agents write what they may and nothing else.
pub(crate) async fn install_policy(cluster: &Cluster) {
    let policy = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
    apply(cluster, &rendered(&policy)).await;
}

/// What Helm renders with default values.
pub(crate) const RENDERED: &str = include_str!("../../../../charts/rendered/default.yaml");

/// Helm makes it where it is told to.
pub(crate) const HOME: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: quorate-system}}";

/// Under the chart, Helm writes the webhook configurations. Servers that do it themselves may.
const REGISTERING: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: registering}
rules:
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations]
  verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: registering}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: registering}
subjects: [{kind: ServiceAccount, name: quorate-server, namespace: quorate-system}]
";

/// The rendered objects of these kinds, but not what is made only when the release goes.
pub(crate) fn rendered(kinds: &[&str]) -> Vec<&'static str> {
    let wanted = |object: &&str| {
        let kind = object.lines().find_map(|line| line.strip_prefix("kind: ")).unwrap_or_default();
        kinds.contains(&kind) && !object.contains("helm.sh/hook:")
    };
    RENDERED.split("\n---\n").filter(wanted).collect()
}

/// Applies objects as people do.
pub(crate) async fn apply(cluster: &Cluster, objects: &[&str]) {
    let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
    let applied =
        kubectl.run_with_input(&["apply", "-f", "-"], &objects.join("\n---\n")).await.expect("kubectl");
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
