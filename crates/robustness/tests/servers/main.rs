//! What simulated runs found in servers, as short scenarios in simulated time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that panics shows where")]

use std::sync::Arc;
use std::time::Duration;

use quorate_devcluster::apiserver::{self, Clock, Fault, RequestFilter, Server};
use quorate_robustness::determinism;
use quorate_robustness::http::Http;
use quorate_robustness::recorder::Recorder;
use quorate_robustness::servers::{OWN, Servers};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// A cluster with one server. Its time is simulated.
struct Cluster {
    api: Arc<Server>,
    admin: Http,
    servers: Arc<Servers>,
    _background: JoinSet<()>,
}

impl Cluster {
    /// A cluster whose server has not started.
    async fn new() -> Self {
        let options = apiserver::Options { clock: Clock::system(), ..apiserver::Options::default() };
        let api = Arc::new(Server::start(options).await.unwrap());
        let admin = Http::new(api.local_client_as("admin", &["system:masters"]));
        for definition in quorate_api::crds::all() {
            let definition = serde_json::to_value(&definition).unwrap();
            admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
        }
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OWN}});
        admin.post("/api/v1/namespaces", &namespace).await;
        let servers = Arc::new(Servers::new(api.clone(), Arc::new(Recorder::default()), admin.clone(), 1));
        let mut background = JoinSet::new();
        background.spawn(servers.clone().publish());
        Self { api, admin, servers, _background: background }
    }

    fn unready(&self) -> Option<String> {
        self.servers.unready().pop().unwrap()
    }
}

/// Other servers may report the budgets of a kind as enforced. So a server that cannot read them does not serve, however
/// long that lasts.
async fn a_server_that_cannot_read_a_kind_of_budgets_does_not_serve() {
    let cluster = Cluster::new().await;
    let reads = RequestFilter::any().resource("podunavailablebudgets");
    let forbidden = cluster.api.faults().requests(reads, Fault::Forbidden);
    cluster.servers.start(0).await.unwrap();
    sleep(Duration::from_secs(300)).await;
    let why = cluster.unready().unwrap_or_else(|| panic!("the server is ready"));
    assert!(why.contains("the initial sync is not complete"), "{why}");
    drop(forbidden);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.unready(), None);
}

/// After more than the time for which the Lease of a process that ended is kept.
async fn a_server_that_was_cut_off_continues() {
    let cluster = Cluster::new().await;
    cluster.servers.start(0).await.unwrap();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(cluster.unready(), None);
    let before = cluster.servers.user(0);
    // To open a budget, the leader lists the Leases. It may do that before it renews its own.
    let budgets = format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{OWN}/disruptionbudgets");
    for number in 0..10 {
        cluster.servers.set_cut(0, true);
        sleep(Duration::from_millis(200_000 + 1_700 * number)).await;
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
        let budget = json!({"apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget",
            "metadata": {"name": format!("web-{number}")}, "spec": spec});
        assert!(cluster.admin.post(&budgets, &budget).await.is_success());
        cluster.servers.set_cut(0, false);
        sleep(Duration::from_secs(60)).await;
    }
    assert_eq!(cluster.unready(), None);
    assert_eq!(cluster.servers.user(0), before, "the process ended, and was started again");
}

/// One test, because the replaced clocks are those of the whole process.
#[test]
fn servers() {
    determinism::begin(1);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let failed = runtime.block_on(async {
        let scenarios = [
            tokio::spawn(a_server_that_cannot_read_a_kind_of_budgets_does_not_serve()),
            tokio::spawn(a_server_that_was_cut_off_continues()),
        ];
        let mut failed = 0;
        for scenario in scenarios {
            failed += usize::from(scenario.await.is_err());
        }
        failed
    });
    assert_eq!(failed, 0, "scenarios failed: see above");
}
