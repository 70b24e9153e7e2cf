//! Errors about a cluster that cannot be used: one line each, with a remedy.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use quorate_testbed::{Backend, Cluster, Setup, User, run_story};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::explain::{Output, quorate};
use crate::quorate::ANYWHERE;

/// A kubeconfig in its own folder.
struct Kubeconfig {
    _folder: TempDir,
    path: PathBuf,
}

impl Kubeconfig {
    fn of(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, text).expect("a file");
        Self { _folder: folder, path }
    }

    fn to(address: SocketAddr) -> Self {
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "there",
            "contexts": [{"name": "there", "context": {"cluster": "there", "user": "me"}}],
            "clusters": [{"name": "there", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "me", "user": {}}],
        });
        Self::of(&text.to_string())
    }

    async fn run(&self, command: &str) -> Output {
        quorate(&[command, "--kubeconfig", &self.path.to_string_lossy()]).await
    }
}

/// An API server that reports this release, and responds to every other request with this status.
async fn api_server(minor: &'static str, otherwise: StatusCode) -> SocketAddr {
    let listener = TcpListener::bind(ANYWHERE).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let release = json!({
        "major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.3"), "buildDate": "", "compiler": "",
        "gitCommit": "", "gitTreeState": "", "goVersion": "", "platform": "",
    });
    let version = axum::routing::get(async move || axum::Json(release.clone()));
    let reason = otherwise.canonical_reason().unwrap_or_default().replace(' ', "");
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
        "code": otherwise.as_u16(), "reason": reason, "message": reason});
    let other = async move || (otherwise, axum::Json(status.clone())).into_response();
    let router = axum::Router::new().route("/version", version).fallback(other);
    tokio::spawn(axum::serve(listener, router).into_future());
    address
}

#[tokio::test]
async fn an_unreachable_api_server_is_reported() {
    // No other program listens there: only root may, and it is reserved.
    let unused = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let kubeconfig = Kubeconfig::to(unused);
    let what =
        format!("the API server at http://{unused} does not answer (Connection refused (os error 111))");
    let hint = "check the address in the kubeconfig, or select another cluster with --context";
    let output = kubeconfig.run("explain").await;
    assert_eq!((output.code, output.err), (1, format!("error: {what}: {hint}\n")));
    let output = kubeconfig.run("check").await;
    assert_eq!((output.code, output.err.as_str()), (1, ""));
    assert!(output.out.contains(&format!("✗ {what}\n    {hint}\n")), "{}", output.out);
}

#[tokio::test]
async fn a_release_that_is_too_old_is_reported() {
    let kubeconfig = Kubeconfig::to(api_server("28", StatusCode::NOT_FOUND).await);
    let output = kubeconfig.run("check").await;
    let expected = "✗ release v1.28.3 is too old\n    Quorate is tested on 1.32 and later\n";
    assert!(output.code == 1 && output.out.contains(expected), "{}", output.out);
    // `explain` prints a note, and continues.
    let output = kubeconfig.run("explain").await;
    let note = "note: v1.28.3 is older than 1.32, the oldest release that Quorate is tested on\n";
    let rest = output.err.strip_prefix(note).unwrap_or_else(|| panic!("no note: {}", output.err));
    assert!(
        output.code == 1 && rest.starts_with("error: DisruptionBudgets are not installed here: "),
        "{rest}"
    );
    let current = Kubeconfig::to(api_server("36", StatusCode::NOT_FOUND).await);
    assert!(
        current.run("explain").await.err.starts_with("error: DisruptionBudgets are not installed here: ")
    );
}

#[tokio::test]
async fn an_unauthenticated_user_is_reported() {
    let kubeconfig = Kubeconfig::to(api_server("36", StatusCode::UNAUTHORIZED).await);
    let output = kubeconfig.run("explain").await;
    let expected = "error: not authenticated: Unauthorized\n";
    assert_eq!((output.code, output.err.as_str()), (1, expected));
}

#[tokio::test]
async fn an_unreadable_kubeconfig_is_reported() {
    for command in ["explain", "check"] {
        let output = quorate(&[command, "--kubeconfig", "/nonexistent/file"]).await;
        let expected = "error: cannot read /nonexistent/file: No such file or directory (os error 2); \
                        name another with --kubeconfig or KUBECONFIG\n";
        assert_eq!((output.code, output.err.as_str()), (1, expected));
        let output = Kubeconfig::of("clusters: nonsense").run(command).await;
        assert!(output.code == 1 && output.err.starts_with("error: cannot read "), "{}", output.err);
        assert_eq!(output.err.lines().count(), 1, "{}", output.err);
    }
}

#[test]
fn a_missing_right_is_reported() {
    // The embedded cluster has no authorization.
    run_story(Backend::Real, Setup::ApiServer, a_guest);
}

async fn a_guest(cluster: Cluster) {
    let kubeconfig = cluster.kubeconfig(&User::named("guest")).expect("a kubeconfig");
    let output = quorate(&["check", "--kubeconfig", &kubeconfig.to_string_lossy()]).await;
    assert_eq!((output.code, output.err.as_str()), (1, ""));
    for line in [
        "✓ the API server answers, release v1.",
        "✗ cannot read customresourcedefinitions.apiextensions.k8s.io: 403 Forbidden: ",
        "    you need the verbs get and list on customresourcedefinitions.apiextensions.k8s.io\n",
        "    you need the verbs get and list on mutatingwebhookconfigurations.admissionregistration.k8s.io\n",
        "    you need the verbs get and list on leases.coordination.k8s.io in quorate-system\n",
    ] {
        assert!(output.out.contains(line), "{line:?} is missing in\n{}", output.out);
    }
}
