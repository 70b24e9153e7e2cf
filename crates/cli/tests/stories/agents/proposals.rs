//! The two examples at the beginning of the proposal for disruption probes.

use quorate_testbed::Cluster;
use serde_json::json;

use super::target::Application;
use super::{Agent, await_denial, await_disruptable, await_disruptable_true, pod, probe};
use crate::fixture::TestNamespace;

quorate_testbed::stories!(Whole: a_syncing_shard_is_not_evicted, a_yellow_cluster_blocks_a_drain);

/// A database: each pod serves, and one still copies its shard from its siblings. None of them may be lost now.
async fn a_syncing_shard_is_not_evicted(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "shard").await;
    let mut replicas = Vec::new();
    for name in ["db-0", "db-1", "db-2"] {
        let web = Application::start().await;
        let handler = json!({"httpGet": {"host": "127.0.0.1", "port": web.port, "path": "/disruptable"}});
        ns.create("v1", "pods", &pod(name, &probe(&handler))).await;
        replicas.push(web);
    }
    replicas[2].respond_with(503, "syncing shard 7, 40 % done");
    ns.await_ready_pods(3).await;
    ns.create_enforced_budget(
        "db",
        json!({"selector": {"matchLabels": {"app": "db"}}, "maxUnavailable": 1, "expectedReplicas": 3}),
    )
    .await;
    let _agent = Agent::start(&ns.cluster, "node-1").await;
    ns.await_status("db", "two results count", |status| status["currentHealthy"] == 2).await;

    // Before its first result the eviction is denied too, with another message.
    let why = "pod db-2 must not be disrupted: its disruption probe says no (main: HTTP 503";
    await_denial(&ns, "db-2", why).await;
    await_denial(&ns, "db-0", "db-2 is not disruptable").await;

    let waiting = ["wait", "--for=condition=Disruptable", "pod/db-2", "--timeout=60s"];
    let (waited, ()) =
        tokio::join!(ns.kubectl_in_namespace(&waiting), async { replicas[2].respond_with(200, "") });
    waited.expect("kubectl sees that it is in step");
    ns.await_status("db", "one may go", |status| status["disruptionsAllowed"] == 1).await;
    ns.evict("db-0").await.expect(201);
    let refused = ns.evict("db-1").await;
    assert_eq!(refused.code, 429, "{:#}", refused.body);
}

/// A search cluster with one health for all: while a shard lacks replicas, every pod serves, and none may be evicted.
async fn a_yellow_cluster_blocks_a_drain(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "search").await;
    let health = Application::start().await;
    let handler =
        probe(&json!({"httpGet": {"host": "127.0.0.1", "port": health.port, "path": "/_cluster/health"}}));
    let mut template = pod("search", &handler);
    let metadata = template["metadata"].as_object_mut().expect("metadata");
    metadata.remove("name");
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "search"},
        "spec": {"serviceName": "search", "replicas": 3, "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]}}});
    ns.create("apps/v1", "statefulsets", &set).await;
    ns.await_ready_pods(3).await;
    ns.create_enforced_budget(
        "search",
        json!({"selector": {"matchLabels": {"app": "db"}}, "maxUnavailable": 1}),
    )
    .await;
    let _first = Agent::start(&ns.cluster, "node-1").await;
    for name in ["search-0", "search-1", "search-2"] {
        await_disruptable_true(&ns, name).await;
    }
    ns.cluster.actors().nodes().add("node-2").await.expect("a node");
    let _second = Agent::start(&ns.cluster, "node-2").await;
    ns.await_status("search", "one may go", |status| status["disruptionsAllowed"] == 1).await;

    health.respond_with(503, "yellow: 2 replicas are missing");
    await_disruptable(&ns, "search-2", "False", "ProbeFailed", "yellow").await;
    ns.await_status("search", "no pod may go", |status| status["currentHealthy"] == 0).await;
    let refusals = ns.drain_until_denied("node-1").await;
    for refusal in refusals.lines() {
        assert!(refusal.contains("its disruption probe says no (main: HTTP 503"), "{refusal}");
    }
    assert_eq!(ns.ready_pods_by("app").await.get("db"), Some(&3), "all of them serve");

    health.respond_with(200, "green");
    ns.drain("node-1").await;
    ns.await_ready_pods(3).await;
    for name in ["search-0", "search-1", "search-2"] {
        let pod = ns.get("v1", "pods", name).await.body;
        assert_eq!(pod["spec"]["nodeName"], "node-2", "{name}");
    }
}
