//! Agents that come and go, stand still, or cannot reach the API server.

use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use quorate_testbed::{Cluster, eventually};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::target::Application;
use super::{Agent, Agents, account, pod, probe, refused, says, says_yes};
use crate::quorate::ANYWHERE;
use crate::space::Space;

quorate_testbed::stories!(Whole:
    an_agent_is_replaced_and_nobody_notices,
    an_agent_that_is_gone_is_not_believed,
    an_agent_that_stood_still_looks_again_before_it_speaks,
    what_an_agent_could_not_write_comes_before_its_lease,
);

pub(super) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/quorate-system/leases";

/// One pod, which says yes, under a budget that lets it go.
pub(super) async fn one(cluster: Cluster, stem: &str) -> (Space, Application) {
    let space = Space::with_node(cluster, stem).await;
    let web = Application::start().await;
    let asks = json!({"httpGet": {"host": "127.0.0.1", "port": web.port}});
    space.create("v1", "pods", &pod("a", &probe(&asks))).await;
    space.ready(1).await;
    space.budget("db", json!({"selector": {"matchLabels": {"app": "db"}}, "minAvailable": 0})).await;
    (space, web)
}

async fn an_agent_is_replaced_and_nobody_notices(cluster: Cluster) {
    let (space, web) = one(cluster, "replaced").await;
    let mut agents = Agents::of(&space.cluster).await;
    let first = agents.start();
    says_yes(&space, "a").await;
    space.budget_is("db", "it is believed", |status| status["disruptionsAllowed"] == 1).await;
    let lease = || async { space.cluster.wire().get(&format!("{LEASES}/quorate-agent-node-1")).await };
    let before = lease().await.expect(200);
    assert_eq!(before["spec"]["holderIdentity"], "node-1");
    assert_eq!(before["metadata"]["labels"]["quorate.dev/component"], "agent");

    let budgets =
        format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{}/disruptionbudgets", space.namespace);
    let list = space.cluster.wire().get(&budgets).await.expect(200);
    let version = list["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    drop(first);
    // A Lease tells in whole seconds when its agent began: two that began in one look alike.
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
    web.say(503, "");
    space.budget_is("db", "it may not go", |status| status["disruptionsAllowed"] == 0).await;
    // Everything that the budget said meanwhile, up to that no.
    let mut changes =
        space.cluster.wire().watch(&format!("{budgets}?watch=1&resourceVersion={version}")).await;
    let mut seen = Vec::new();
    while let Some((_, budget)) = changes.next().await {
        seen.push(budget["status"]["currentHealthy"].clone());
        if budget["status"]["currentHealthy"] == 0 {
            break;
        }
    }
    let dips = seen.iter().filter(|healthy| **healthy == 0).count();
    assert_eq!(dips, 1, "the budget saw a gap: {seen:?}");
    says(&space, "a", "False", "ProbeFailed", "HTTP 503").await;

    // Nobody to probe: no Lease.
    space
        .cluster
        .wire()
        .delete(&format!("/api/v1/namespaces/{}/pods/a", space.namespace), &json!({}))
        .await
        .expect(200);
    eventually("the Lease is gone", || async {
        let now = lease().await;
        if now.code == 404 { Ok(()) } else { Err(now.body) }
    })
    .await;
}

async fn an_agent_that_is_gone_is_not_believed(cluster: Cluster) {
    let (space, _web) = one(cluster, "gone").await;
    let mut agents = Agents::of(&space.cluster).await;
    let agent = agents.start();
    space.budget_is("db", "it is believed", |status| status["disruptionsAllowed"] == 1).await;
    drop(agent);
    space.budget_is("db", "its Lease ran out", |status| status["currentHealthy"] == 0).await;
    says_yes(&space, "a").await;
    refused(&space, "a", "the agent on its node stopped reporting").await;
    let _agent = agents.start();
    space.budget_is("db", "it is believed again", |status| status["disruptionsAllowed"] == 1).await;
}

async fn an_agent_that_stood_still_looks_again_before_it_speaks(cluster: Cluster) {
    let (space, web) = one(cluster, "still").await;
    let mut agents = Agents::of(&space.cluster).await;
    let agent = agents.start();
    space.budget_is("db", "it is believed", |status| status["disruptionsAllowed"] == 1).await;
    agent.signal("STOP").expect("a signal");
    web.say(503, "");
    space.budget_is("db", "its Lease ran out", |status| status["currentHealthy"] == 0).await;
    says_yes(&space, "a").await;
    let budgets =
        format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{}/disruptionbudgets", space.namespace);
    let list = space.cluster.wire().get(&budgets).await.expect(200);
    let version = list["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    agent.signal("CONT").expect("a signal");
    says(&space, "a", "False", "ProbeFailed", "HTTP 503").await;
    web.say(200, "");
    space.budget_is("db", "it says yes again", |status| status["disruptionsAllowed"] == 1).await;
    // The yes of before was never believed again: the pod said no before it said yes.
    let pods = format!("/api/v1/namespaces/{}/pods?watch=1&resourceVersion={version}", space.namespace);
    let mut changes = space.cluster.wire().watch(&pods).await;
    let (_, first) = changes.next().await.expect("a change");
    let conditions = first["status"]["conditions"].to_string();
    assert!(conditions.contains("ProbeFailed"), "{conditions}");
}

async fn what_an_agent_could_not_write_comes_before_its_lease(cluster: Cluster) {
    let (space, web) = one(cluster, "away").await;
    let config = space.cluster.config(&account());
    let authority = config.cluster_url.authority().expect("an address").to_string();
    let way = Way::to(authority.parse().expect("an address")).await;
    let address = way.address;
    let _agent = Agent::start_with(&space.cluster, "node-1", move |options| {
        let url = options.kubernetes.cluster_url.to_string().replace(&authority, &address.to_string());
        options.kubernetes.cluster_url = url.parse().expect("a URL");
    })
    .await;
    space.budget_is("db", "it is believed", |status| status["disruptionsAllowed"] == 1).await;
    let lease = format!("{LEASES}/quorate-agent-node-1");
    let renewed =
        || async { space.cluster.wire().get(&lease).await.expect(200)["spec"]["renewTime"].clone() };
    way.close();
    let before = renewed().await;
    web.say(503, "");
    let asked = web.asked();
    eventually("it goes on asking", || async {
        if web.asked() > asked + 12 { Ok(()) } else { Err(web.asked()) }
    })
    .await;
    assert_eq!(renewed().await, before);
    says_yes(&space, "a").await;
    way.open();
    eventually("the Lease is renewed again", || async {
        let now = renewed().await;
        if now != before { Ok(()) } else { Err(now) }
    })
    .await;
    // By then everybody knew.
    says(&space, "a", "False", "ProbeFailed", "HTTP 503").await;
    space.budget_is("db", "it may not go", |status| status["currentHealthy"] == 0).await;
}

/// A way to the API server that can be closed.
struct Way {
    address: SocketAddr,
    connections: Arc<Mutex<Option<JoinSet<()>>>>,
    _listening: JoinSet<()>,
}

impl Way {
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

    /// Breaks every connection, and takes no new one.
    fn close(&self) {
        *self.connections.lock() = None;
    }

    fn open(&self) {
        *self.connections.lock() = Some(JoinSet::new());
    }
}
