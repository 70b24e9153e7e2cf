//! What simulated runs found in servers, as short scenarios in simulated time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that panics shows where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quorate_devcluster::apiserver::{self, Clock, Fault, RequestFilter, Server, WatchFault};
use quorate_robustness::determinism;
use quorate_robustness::http::Http;
use quorate_robustness::recorder::Recorder;
use quorate_robustness::servers::{OWN, Servers};
use quorate_server::ServePub;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// A cluster with servers. Its time is simulated.
struct Cluster {
    api: Arc<Server>,
    admin: Http,
    servers: Arc<Servers>,
    _background: JoinSet<()>,
}

impl Cluster {
    /// A cluster whose server has not started. It will serve PodUnavailableBudgets.
    async fn new() -> Self {
        Self::with(ServePub::Always, 1).await
    }

    async fn with(serve_pub: ServePub, servers: usize) -> Self {
        let options = apiserver::Options { clock: Clock::system(), ..apiserver::Options::default() };
        let api = Arc::new(Server::start(options).await.unwrap());
        let admin = Http::new(api.local_client_as("admin", &["system:masters"]));
        for definition in quorate_api::crds::all() {
            let definition = serde_json::to_value(&definition).unwrap();
            admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
        }
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OWN}});
        admin.post("/api/v1/namespaces", &namespace).await;
        let servers = Servers::new(api.clone(), Arc::new(Recorder::default()), admin.clone(), servers);
        let servers = Arc::new(servers.with_serve_pub(serve_pub));
        let mut background = JoinSet::new();
        background.spawn(servers.clone().publish());
        Self { api, admin, servers, _background: background }
    }

    fn unready(&self) -> Option<String> {
        self.servers.unready().pop().unwrap()
    }
}

/// Other servers may report the budgets of a kind as enforced. So a server that cannot read them does not serve, however
/// long that lasts. It does not lead either: it would remove the label of namespaces whose budgets it does not know, and
/// open no budget.
async fn a_server_that_cannot_read_a_kind_of_budgets_does_not_serve() {
    let cluster = Cluster::new().await;
    let reads = RequestFilter::any().resource("podunavailablebudgets");
    let forbidden = cluster.api.faults().requests(reads, Fault::Forbidden);
    let labels = json!({"quorate.dev/enforced": "true"});
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": labels}});
    assert!(cluster.admin.post("/api/v1/namespaces", &namespace).await.is_success());
    cluster.servers.start(0).await.unwrap();
    // Longer than a namespace without a budget keeps its label.
    sleep(Duration::from_secs(900)).await;
    let why = cluster.unready().unwrap_or_else(|| panic!("the server is ready"));
    assert!(why.contains("the initial sync is not complete"), "{why}");
    let shop = cluster.admin.get("/api/v1/namespaces/shop").await.body;
    assert_eq!(shop["metadata"]["labels"]["quorate.dev/enforced"], "true", "{shop}");
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{OWN}/leases/quorate-server");
    let leader = async || cluster.admin.get(&lease).await.body["spec"]["holderIdentity"].clone();
    assert_eq!(leader().await, Value::Null);
    drop(forbidden);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.unready(), None);
    assert_ne!(leader().await, Value::Null);
}

/// The same if it cannot find out whether it serves them: OpenKruise's webhooks, or their definition, cannot be read.
async fn a_server_that_does_not_know_which_budgets_it_serves_does_not_serve() {
    for (resource, name) in [
        ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
        ("customresourcedefinitions", "CustomResourceDefinition"),
    ] {
        for fault in [Fault::Forbidden, Fault::Hang] {
            let cluster = Cluster::with(ServePub::Auto, 1).await;
            let reads = RequestFilter::any().resource(resource);
            let faulty = cluster.api.faults().requests(reads, fault);
            // An API server that has just started omits groups, and shows them later.
            let hidden = cluster.api.faults().partial_discovery("policy.kruise.io", None);
            cluster.servers.start(0).await.unwrap();
            sleep(Duration::from_secs(120)).await;
            let why = cluster.unready().unwrap_or_else(|| panic!("{resource}: the server is ready"));
            assert!(why.contains(name), "{resource}: {why}");
            drop((faulty, hidden));
            sleep(Duration::from_secs(60)).await;
            assert_eq!(cluster.unready(), None, "{resource}");
        }
    }
}

/// OpenKruise's webhooks come and go again, and one server does not see the latter. It lets everything pass that
/// PodUnavailableBudgets cover, so they must not be reported as enforced.
async fn a_server_that_still_leaves_budgets_to_openkruise_takes_them_back() {
    let cluster = Cluster::with(ServePub::Auto, 2).await;
    for number in 0..2 {
        cluster.servers.start(number).await.unwrap();
    }
    let budgets = format!("/apis/policy.kruise.io/v1alpha1/namespaces/{OWN}/podunavailablebudgets");
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
    let budget = json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
        "metadata": {"name": "web"}, "spec": spec});
    assert!(cluster.admin.post(&budgets, &budget).await.is_success());
    let is_enforced = async || {
        let budget = cluster.admin.get(&format!("{budgets}/web")).await.body;
        let conditions = budget["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|all| all["type"] == "Enforced" && all["status"] == "True")
    };
    // One of the two is the leader.
    for number in 0..2 {
        sleep(Duration::from_secs(100)).await;
        assert!(is_enforced().await, "before the webhooks, {number}");
        let configurations = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        let webhook = json!({"name": "vpod.kb.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore", "clientConfig": {"url": "https://127.0.0.1:1/"}, "rules": []});
        let name = "kruise-validating-webhook-configuration";
        let webhooks = json!({"apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration", "metadata": {"name": name}, "webhooks": [webhook]});
        assert!(cluster.admin.post(configurations, &webhooks).await.is_success());
        sleep(Duration::from_millis(500)).await;
        let watch = RequestFilter::any()
            .user(&cluster.servers.user(number).unwrap())
            .resource("validatingwebhookconfigurations");
        let held = cluster.api.faults().watches(watch, WatchFault::Hold);
        assert!(cluster.admin.delete(&format!("{configurations}/{name}"), &json!({})).await.is_success());
        sleep(Duration::from_secs(20)).await;
        assert!(!is_enforced().await, "server {number} does not serve it");
        drop(held);
    }
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

/// A server that ends hands over what it admitted, and one that was killed is dated at its death. So neither delays a new
/// budget later.
async fn no_budget_waits_for_servers_that_ended_or_were_killed_before() {
    let cluster = Cluster::with(ServePub::Always, 3).await;
    for number in 0..3 {
        cluster.servers.start(number).await.unwrap();
    }
    sleep(Duration::from_secs(60)).await;
    let budgets = format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{OWN}/disruptionbudgets");
    let create = async |name: &str| {
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
        let budget = json!({"apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget",
            "metadata": {"name": name}, "spec": spec});
        assert!(cluster.admin.post(&budgets, &budget).await.is_success());
        sleep(Duration::from_secs(5)).await;
        let budget = cluster.admin.get(&format!("{budgets}/{name}")).await.body;
        let conditions = budget["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_enforced = |all: &Value| all["type"] == "Enforced" && all["status"] == "True";
        assert!(conditions.iter().any(is_enforced), "{name}: {:#}", budget["status"]);
    };
    create("first").await;
    for number in 0..3 {
        // Each server has admitted something when it ends.
        let pods = format!("/api/v1/namespaces/{OWN}/pods");
        let name = format!("web-{number}");
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "web:1"}]}});
        assert!(cluster.admin.post(&pods, &pod).await.is_success());
        let route = cluster.servers.route(number).await;
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        let evicted = cluster.admin.post(&format!("{pods}/{name}/eviction"), &eviction).await;
        assert!(evicted.is_success(), "{evicted:?}");
        drop(route);
        cluster.servers.stop(number).await;
        create(&format!("without-{number}")).await;
        cluster.servers.start(number).await.unwrap();
        sleep(Duration::from_secs(10)).await;
    }
    create("upgraded").await;
    cluster.servers.kill(0);
    sleep(Duration::from_secs(180)).await;
    create("later").await;
}

/// A server serves for 40 s, is killed, and is started again, for ever. Only those of its lives that ended before a budget
/// existed keep that budget closed, for 15 s plus two minutes; each later one has acknowledged it.
async fn a_server_in_a_crash_loop_keeps_no_budget_closed_for_ever() {
    let cluster = Cluster::with(ServePub::Always, 2).await;
    cluster.servers.start(0).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    let crashes = cluster.servers.clone();
    let mut crash_loop = JoinSet::new();
    crash_loop.spawn(async move {
        loop {
            crashes.start(1).await.unwrap();
            sleep(Duration::from_secs(40)).await;
            crashes.kill(1);
            sleep(Duration::from_secs(5)).await;
        }
    });
    sleep(Duration::from_secs(200)).await;
    let budgets = format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{OWN}/disruptionbudgets");
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
    let budget = json!({"apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget",
        "metadata": {"name": "web"}, "spec": spec});
    assert!(cluster.admin.post(&budgets, &budget).await.is_success());
    // Longer than 15 s plus two minutes, by the time that a start takes.
    sleep(Duration::from_secs(160)).await;
    let budget = cluster.admin.get(&format!("{budgets}/web")).await.body;
    let conditions = budget["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is_enforced = |all: &Value| all["type"] == "Enforced" && all["status"] == "True";
    assert!(conditions.iter().any(is_enforced), "{:#}", budget["status"]);
}

/// While a budget waits to be opened, each change of a budget changes what the servers acknowledge. Their writes to the Leases
/// must not grow with the changes.
async fn acknowledgements_are_written_ten_times_a_second_at_most() {
    let cluster = Cluster::with(ServePub::Always, 2).await;
    for number in 0..2 {
        cluster.servers.start(number).await.unwrap();
    }
    sleep(Duration::from_secs(60)).await;
    let budgets = format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{OWN}/disruptionbudgets");
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
    let budget = json!({"apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget",
        "metadata": {"name": "web"}, "spec": spec});
    // The other server never acknowledges the budget, so it stays closed.
    let watch = RequestFilter::any().user(&cluster.servers.user(1).unwrap()).resource("disruptionbudgets");
    let _held = cluster.api.faults().watches(watch, WatchFault::Hold);
    let writes = Arc::new(AtomicUsize::new(0));
    let counter = writes.clone();
    let renewals = RequestFilter::any()
        .user(&cluster.servers.user(0).unwrap())
        .verb("patch")
        .resource("leases")
        .and(|request| request.name.starts_with("quorate-server-"))
        .and(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            false
        });
    let _counted = cluster.api.faults().requests(renewals, Fault::Conflict);
    assert!(cluster.admin.post(&budgets, &budget).await.is_success());
    let seconds = 10;
    for number in 0..seconds * 50 {
        let change = json!({"metadata": {"annotations": {"number": number.to_string()}}});
        assert!(cluster.admin.merge(&format!("{budgets}/web"), &change).await.is_success());
        sleep(Duration::from_millis(20)).await;
    }
    let writes = writes.load(Ordering::Relaxed);
    assert!(writes <= seconds * 10 + 1, "{writes} writes in {seconds} s");
    assert!(writes >= seconds * 5, "{writes} writes in {seconds} s: the changes were not acknowledged");
}

/// One test, because the replaced clocks are those of the whole process.
#[test]
fn servers_serve_only_what_they_know_and_keep_no_budget_closed() {
    determinism::begin(1);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let failed = runtime.block_on(async {
        let scenarios = [
            tokio::spawn(a_server_that_cannot_read_a_kind_of_budgets_does_not_serve()),
            tokio::spawn(a_server_that_does_not_know_which_budgets_it_serves_does_not_serve()),
            tokio::spawn(a_server_that_was_cut_off_continues()),
            tokio::spawn(no_budget_waits_for_servers_that_ended_or_were_killed_before()),
            tokio::spawn(a_server_in_a_crash_loop_keeps_no_budget_closed_for_ever()),
            tokio::spawn(acknowledgements_are_written_ten_times_a_second_at_most()),
            tokio::spawn(a_server_that_still_leaves_budgets_to_openkruise_takes_them_back()),
        ];
        let mut failed = 0;
        for scenario in scenarios {
            failed += usize::from(scenario.await.is_err());
        }
        failed
    });
    assert_eq!(failed, 0, "scenarios failed: see above");
}
