//! Agents that start, stop, are suspended, or cannot reach the API server.

use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use quorate_testbed::{Cluster, eventually};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::target::Application;
use super::{Agent, Agents, account, await_denial, await_disruptable, await_disruptable_true, pod, probe};
use crate::fixture::TestNamespace;
use crate::quorate::ANYWHERE;

quorate_testbed::stories!(Whole:
    a_replaced_agent_leaves_no_gap,
    the_results_of_a_stopped_agent_expire,
    a_resumed_agent_probes_before_its_results_count,
    an_agent_writes_pending_results_before_its_lease,
);

pub(super) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/quorate-system/leases";

/// Creates a pod whose probe succeeds, under a budget that allows its eviction.
pub(super) async fn create_probed_pod(cluster: Cluster, stem: &str) -> (TestNamespace, Application) {
    let ns = TestNamespace::with_server_and_node(cluster, stem).await;
    let web = Application::start().await;
    let handler = json!({"httpGet": {"host": "127.0.0.1", "port": web.port}});
    ns.create("v1", "pods", &pod("a", &probe(&handler))).await;
    ns.await_ready_pods(1).await;
    ns.create_enforced_budget("db", json!({"selector": {"matchLabels": {"app": "db"}}, "minAvailable": 0}))
        .await;
    (ns, web)
}

async fn a_replaced_agent_leaves_no_gap(cluster: Cluster) {
    let (ns, web) = create_probed_pod(cluster, "replaced").await;
    let mut agents = Agents::of(&ns.cluster).await;
    let first = agents.start();
    await_disruptable_true(&ns, "a").await;
    ns.await_status("db", "the result counts", |status| status["disruptionsAllowed"] == 1).await;
    let lease = || async { ns.wire.get(&format!("{LEASES}/quorate-agent-node-1")).await };
    let before = lease().await.expect(200);
    assert_eq!(before["spec"]["holderIdentity"], "node-1");
    assert_eq!(before["metadata"]["labels"]["quorate.dev/component"], "agent");

    let budgets = ns.path("policy.quorate.dev/v1alpha1", "disruptionbudgets");
    let list = ns.wire.get(&budgets).await.expect(200);
    let version = list["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    drop(first);
    // A Lease has the start of its agent in whole seconds, so two starts within one second look alike.
    let began: Timestamp =
        before["spec"]["acquireTime"].as_str().and_then(|at| at.parse().ok()).expect("a time");
    eventually("another second has come", async || {
        let now = Timestamp::now();
        if now.as_second() > began.as_second() { Ok(()) } else { Err(now) }
    })
    .await;
    let _second = agents.start();
    eventually("the next one has the Lease", || async {
        let now = lease().await.expect(200);
        if now["spec"]["acquireTime"] != before["spec"]["acquireTime"] { Ok(()) } else { Err(now) }
    })
    .await;
    web.respond_with(503, "");
    await_disruptable(&ns, "a", "False", "ProbeFailed", "HTTP 503").await;
    ns.await_status("db", "the pod does not count", |status| status["currentHealthy"] == 0).await;
    // Every status of the budget in between, up to that failure.
    let last = ns.wire.get(&ns.budget_path("db")).await.expect(200)["metadata"]["resourceVersion"].clone();
    let mut changes = ns.wire.watch(&format!("{budgets}?watch=1&resourceVersion={version}")).await;
    let mut seen = Vec::new();
    while let Some((_, budget)) = changes.next().await {
        seen.push(budget["status"]["currentHealthy"].as_u64().expect("a number"));
        if budget["metadata"]["resourceVersion"] == last {
            break;
        }
    }
    seen.dedup();
    assert!(seen.ends_with(&[0]), "it was not seen that the pod does not count: {seen:?}");
    assert_eq!(seen.iter().filter(|healthy| **healthy == 0).count(), 1, "the budget saw a gap: {seen:?}");

    // Without a pod to probe there is no Lease.
    ns.wire.delete(&ns.pod_path("a"), &json!({})).await.expect(200);
    eventually("the Lease is gone", || async {
        let now = lease().await;
        if now.code == 404 { Ok(()) } else { Err(now.body) }
    })
    .await;
}

async fn the_results_of_a_stopped_agent_expire(cluster: Cluster) {
    let (ns, _web) = create_probed_pod(cluster, "gone").await;
    let mut agents = Agents::of(&ns.cluster).await;
    let agent = agents.start();
    ns.await_status("db", "the result counts", |status| status["disruptionsAllowed"] == 1).await;
    drop(agent);
    ns.await_status("db", "its Lease ran out", |status| status["currentHealthy"] == 0).await;
    await_disruptable_true(&ns, "a").await;
    await_denial(&ns, "a", "the agent on its node stopped reporting").await;
    let _agent = agents.start();
    ns.await_status("db", "the result counts again", |status| status["disruptionsAllowed"] == 1).await;
}

async fn a_resumed_agent_probes_before_its_results_count(cluster: Cluster) {
    let (ns, web) = create_probed_pod(cluster, "still").await;
    let mut agents = Agents::of(&ns.cluster).await;
    let agent = agents.start();
    ns.await_status("db", "the result counts", |status| status["disruptionsAllowed"] == 1).await;
    agent.signal("STOP").expect("a signal");
    web.respond_with(503, "");
    ns.await_status("db", "its Lease ran out", |status| status["currentHealthy"] == 0).await;
    await_disruptable_true(&ns, "a").await;
    let budgets = ns.path("policy.quorate.dev/v1alpha1", "disruptionbudgets");
    let list = ns.wire.get(&budgets).await.expect(200);
    let version = list["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    agent.signal("CONT").expect("a signal");
    await_disruptable(&ns, "a", "False", "ProbeFailed", "HTTP 503").await;
    web.respond_with(200, "");
    ns.await_status("db", "the probe succeeds again", |status| status["disruptionsAllowed"] == 1).await;
    // The old success never counted again: the failure was written before the next success.
    let pods = ns.path("v1", &format!("pods?watch=1&resourceVersion={version}"));
    let mut changes = ns.wire.watch(&pods).await;
    let (_, first) = changes.next().await.expect("a change");
    let conditions = first["status"]["conditions"].to_string();
    assert!(conditions.contains("ProbeFailed"), "{conditions}");
}

async fn an_agent_writes_pending_results_before_its_lease(cluster: Cluster) {
    let (ns, web) = create_probed_pod(cluster, "away").await;
    let config = ns.cluster.config(&account());
    let authority = config.cluster_url.authority().expect("an address").to_string();
    let proxy = Proxy::to(authority.parse().expect("an address")).await;
    let address = proxy.address;
    let _agent = Agent::start_with(&ns.cluster, "node-1", move |options| {
        let url = options.kubernetes.cluster_url.to_string().replace(&authority, &address.to_string());
        options.kubernetes.cluster_url = url.parse().expect("a URL");
    })
    .await;
    ns.await_status("db", "the result counts", |status| status["disruptionsAllowed"] == 1).await;
    let lease = format!("{LEASES}/quorate-agent-node-1");
    let renewed = || async { ns.wire.get(&lease).await.expect(200)["spec"]["renewTime"].clone() };
    proxy.close();
    web.respond_with(503, "");
    let probes = async |count: usize| {
        let requests = web.requests();
        eventually("it keeps probing", || async {
            if web.requests() > requests + count { Ok(()) } else { Err(web.requests()) }
        })
        .await;
    };
    // A renewal may have been under way.
    probes(2).await;
    let before = renewed().await;
    probes(10).await;
    assert_eq!(renewed().await, before);
    await_disruptable_true(&ns, "a").await;
    proxy.open();
    eventually("the Lease is renewed again", || async {
        let now = renewed().await;
        if now != before { Ok(()) } else { Err(now) }
    })
    .await;
    // By then the failure was written.
    await_disruptable(&ns, "a", "False", "ProbeFailed", "HTTP 503").await;
    ns.await_status("db", "it may not go", |status| status["currentHealthy"] == 0).await;
}

/// A proxy to the API server that can be closed.
struct Proxy {
    address: SocketAddr,
    connections: Arc<Mutex<Option<JoinSet<()>>>>,
    _listening: JoinSet<()>,
}

impl Proxy {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(ANYWHERE).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let connections = Arc::new(Mutex::new(Some(JoinSet::new())));
        let open = connections.clone();
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                if let Some(connections) = open.lock().as_mut() {
                    connections.spawn(async move {
                        if let Ok(mut to) = TcpStream::connect(server).await {
                            let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                        }
                    });
                }
            }
        });
        Self { address, connections, _listening: listening }
    }

    /// Breaks every connection, and accepts no new one.
    fn close(&self) {
        *self.connections.lock() = None;
    }

    fn open(&self) {
        *self.connections.lock() = Some(JoinSet::new());
    }
}
