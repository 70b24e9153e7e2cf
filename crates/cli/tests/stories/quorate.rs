//! Quorate as in the chart: its objects, and one server in this process with the service account of the chart.

use std::net::{Ipv4Addr, SocketAddr};

use quorate_server::webhooks::{Endpoint, ManagedBy};
use quorate_server::{Options, Running};
use quorate_testbed::{Cluster, User, eventually};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::endpoints::{Endpoints, reachable};

pub(crate) const NAMESPACE: &str = "quorate-system";

/// The name of the endpoint of the server in this process.
const HERE: &str = "in-process";

/// The service account of servers. The manifests define its rights.
pub(crate) fn service_account() -> User {
    User::service_account(NAMESPACE, "quorate-server")
}

/// Port 0: the kernel selects a free port.
pub(crate) const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// One server, in this process. It ends when this is dropped.
pub(crate) struct Quorate {
    pub(crate) server: Running,
    endpoints: Endpoints,
    stop: DropGuard,
}

impl Quorate {
    /// Installs everything, and starts a server that the API server calls.
    pub(crate) async fn start(cluster: &Cluster) -> Self {
        install(cluster).await;
        Self::start_with(cluster, |_| {}).await
    }

    /// Starts a server with other options where everything is installed. It gets its endpoint when it is ready.
    pub(crate) async fn start_with(cluster: &Cluster, change: impl FnOnce(&mut Options)) -> Self {
        let options = options(cluster, change);
        let behind_service = matches!(options.endpoint, Some(Endpoint::Service { .. }));
        let quorate = Self::run(cluster, options).await;
        eventually("the server is ready", || async {
            if is_ready(quorate.server.admin).await { Ok(()) } else { Err("it is not") }
        })
        .await;
        if behind_service {
            quorate.add_endpoint().await;
        }
        quorate
    }

    /// Starts a server that gets its endpoint although it will never be ready.
    pub(crate) async fn start_unready(cluster: &Cluster) -> Self {
        let quorate = Self::run(cluster, options(cluster, |_| {})).await;
        quorate.add_endpoint().await;
        quorate
    }

    async fn run(cluster: &Cluster, options: Options) -> Self {
        // Shown when the story fails, or with --nocapture.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(std::env::var("RUST_LOG").unwrap_or_else(|_| "quorate_server=info".to_owned()))
            .with_test_writer()
            .try_init();
        let stop = CancellationToken::new();
        let server = quorate_server::start(options, stop.clone()).await.expect("a server");
        Self { server, endpoints: Endpoints::of(cluster), stop: stop.drop_guard() }
    }

    async fn add_endpoint(&self) {
        self.endpoints.add(HERE, self.server.address).await.expect("an endpoint");
    }

    /// Ends the server and waits for its end.
    pub(crate) async fn end(self) {
        let Self { server, endpoints, stop } = self;
        drop(stop);
        server.ended().await.expect("a server that ended without an error");
        endpoints.remove(HERE).await.expect("no endpoint");
    }
}

/// The options of the chart, with some changed.
fn options(cluster: &Cluster, change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options {
        listen: reachable(cluster),
        endpoint: Some(Endpoint::Service { name: "quorate".to_owned(), port: 443 }),
        webhooks: ManagedBy::CaBundleOnly,
        ..Options::here(cluster.config(&service_account()), NAMESPACE)
    };
    change(&mut options);
    options
}

/// The kinds of the policy for agents.
const POLICY: [&str; 2] = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];

/// The kinds that create pods, or cover them.
const PODS: [&str; 3] = ["Deployment", "DaemonSet", "PodDisruptionBudget"];

/// Installs the chart without its pods: the story runs servers and agents. The policy is only for stories with agents.
pub(crate) async fn install(cluster: &Cluster) {
    let elsewhere = [POLICY.as_slice(), &PODS].concat();
    let objects = released(RENDERED).filter(|object| !elsewhere.contains(&kind_of(object)));
    apply(cluster, &std::iter::once(HOME).chain(objects).collect::<Vec<_>>()).await;
    established(cluster).await;
}

/// Waits until all definitions are served.
pub(crate) async fn established(cluster: &Cluster) {
    let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
    let wait = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
    let waited = kubectl.run(&wait).await.expect("kubectl");
    assert!(waited.success, "{}", waited.stderr);
}

/// Installs the policy that limits what agents may write.
pub(crate) async fn install_policy(cluster: &Cluster) {
    apply(cluster, &rendered(&POLICY)).await;
}

/// Installs the definition of Quorate's own Workloads.
pub(crate) async fn install_workloads(cluster: &Cluster) {
    let mut definitions = rendered(&["CustomResourceDefinition"]);
    definitions.retain(|definition| definition.contains("\n  name: workloads.scheduling.quorate.dev\n"));
    assert_eq!(definitions.len(), 1);
    apply(cluster, &definitions).await;
    established(cluster).await;
}

/// The output of Helm with default values.
pub(crate) const RENDERED: &str = include_str!("../../../../charts/rendered/default.yaml");

/// The output of Helm with every feature enabled.
pub(crate) const EVERYTHING: &str = include_str!("../../../../charts/rendered/everything.yaml");

/// The namespace, which Helm creates with `--create-namespace`.
pub(crate) const HOME: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: quorate-system}}";

/// The objects of a release, without those that are created only for its deletion.
pub(crate) fn released(rendered: &str) -> impl Iterator<Item = &str> {
    rendered.split("\n---\n").filter(|object| !object.contains("helm.sh/hook:"))
}

/// The objects of some kinds.
pub(crate) fn of_kinds<'a>(rendered: &'a str, kinds: &[&str]) -> Vec<&'a str> {
    released(rendered).filter(|object| kinds.contains(&kind_of(object))).collect()
}

/// The objects of some kinds, with default values.
pub(crate) fn rendered(kinds: &[&str]) -> Vec<&'static str> {
    of_kinds(RENDERED, kinds)
}

/// The kind of a rendered object.
fn kind_of(object: &str) -> &str {
    object.lines().find_map(|line| line.strip_prefix("kind: ")).unwrap_or_default()
}

/// Whether it is of a kind that the embedded cluster does not have.
pub(crate) fn is_policy(object: &str) -> bool {
    POLICY.contains(&kind_of(object))
}

/// The rendered object of this kind and name.
pub(crate) fn object(rendered: &str, kind: &str, name: &str) -> Value {
    let found = serde_yaml_ng::Deserializer::from_str(rendered)
        .map(|document| Value::deserialize(document).expect("YAML"))
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("the chart has no {kind} {name}"))
}

/// The arguments of the container of a rendered object, with some replaced: no pods run here, so there is no pod
/// network, and no kubelet mounts files.
pub(crate) fn args(rendered: &str, kind: &str, name: &str, exchanged: &[String]) -> Vec<String> {
    let args = object(rendered, kind, name)["spec"]["template"]["spec"]["containers"][0]["args"].take();
    let mut args: Vec<String> = serde_json::from_value(args).expect("arguments");
    for argument in exchanged {
        let (flag, _) = argument.split_once('=').expect("a flag with a value");
        args.retain(|arg| !arg.starts_with(&format!("{flag}=")));
        args.push(argument.clone());
    }
    args
}

/// The arguments of a server of the chart, with free ports that the API server can reach.
pub(crate) fn server_args(rendered: &str, cluster: &Cluster, exchanged: &[String]) -> Vec<String> {
    let here = [format!("--listen={}", reachable(cluster)), format!("--admin-listen={ANYWHERE}")];
    args(rendered, "Deployment", "quorate-server", &[&here, exchanged].concat())
}

/// Applies objects with `kubectl apply`.
pub(crate) async fn apply(cluster: &Cluster, objects: &[&str]) {
    let kubectl = cluster.kubectl(&User::admin()).expect("kubectl");
    let applied =
        kubectl.run_with_input(&["apply", "-f", "-"], &objects.join("\n---\n")).await.expect("kubectl");
    assert!(applied.success, "{}{}", applied.stdout, applied.stderr);
}

/// Whether a process is ready by its `/readyz`.
pub(crate) async fn is_ready(admin: SocketAddr) -> bool {
    get(admin, "/readyz").await.is_ok_and(|answer| answer.split_whitespace().nth(1) == Some("200"))
}

/// The metrics of a server.
pub(crate) async fn scrape(admin: SocketAddr) -> String {
    get(admin, "/metrics").await.expect("an answer")
}

/// The response on the admin port of a process.
pub(crate) async fn get(admin: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(admin).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
