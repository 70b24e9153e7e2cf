//! The two examples that the proposal of disruption probes begins with.

use quorate_testbed::Cluster;
use serde_json::json;

use super::target::Application;
use super::{Agent, pod, probe, refused, says, says_yes};
use crate::space::Space;

quorate_testbed::stories!(Whole: a_shard_that_syncs_and_serves_is_left_alone, a_yellow_cluster_holds_up_a_drain);

/// A database: each pod serves, and one still copies its shard from its siblings. None of them may be lost now.
async fn a_shard_that_syncs_and_serves_is_left_alone(cluster: Cluster) {
    let space = Space::with_node(cluster, "shard").await;
    let mut replicas = Vec::new();
    for name in ["db-0", "db-1", "db-2"] {
        let web = Application::start().await;
        let asks = json!({"httpGet": {"host": "127.0.0.1", "port": web.port, "path": "/disruptable"}});
        space.create("v1", "pods", &pod(name, &probe(&asks))).await;
        replicas.push(web);
    }
    replicas[2].say(503, "syncing shard 7, 40 % done");
    space.ready(3).await;
    space
        .budget(
            "db",
            json!({"selector": {"matchLabels": {"app": "db"}}, "maxUnavailable": 1, "expectedReplicas": 3}),
        )
        .await;
    let _agent = Agent::start(&space.cluster, "node-1").await;
    space.budget_is("db", "two are believed", |status| status["currentHealthy"] == 2).await;

    // Before its first answer it is refused as well, with other words.
    let why = "pod db-2 must not be disrupted: its disruption probe says no (main: HTTP 503";
    refused(&space, "db-2", why).await;
    refused(&space, "db-0", "db-2 is not disruptable").await;

    let waiting = ["wait", "--for=condition=Disruptable", "pod/db-2", "--timeout=60s"];
    let (waited, ()) = tokio::join!(space.kubectl(&waiting), async { replicas[2].say(200, "") });
    waited.expect("kubectl sees that it is in step");
    space.budget_is("db", "one may go", |status| status["disruptionsAllowed"] == 1).await;
    space.evict("db-0").await.expect(201);
    let refused = space.evict("db-1").await;
    assert_eq!(refused.code, 429, "{:#}", refused.body);
}

/// A search cluster whose health is one for all: while a shard lacks replicas every pod serves, and none may go.
async fn a_yellow_cluster_holds_up_a_drain(cluster: Cluster) {
    let space = Space::with_node(cluster, "search").await;
    let health = Application::start().await;
    let asks =
        probe(&json!({"httpGet": {"host": "127.0.0.1", "port": health.port, "path": "/_cluster/health"}}));
    let mut template = pod("search", &asks);
    let metadata = template["metadata"].as_object_mut().expect("metadata");
    metadata.remove("name");
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "search"},
        "spec": {"serviceName": "search", "replicas": 3, "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]}}});
    space.create("apps/v1", "statefulsets", &set).await;
    space.ready(3).await;
    space.budget("search", json!({"selector": {"matchLabels": {"app": "db"}}, "maxUnavailable": 1})).await;
    let _first = Agent::start(&space.cluster, "node-1").await;
    for name in ["search-0", "search-1", "search-2"] {
        says_yes(&space, name).await;
    }
    space.cluster.actors().nodes().add("node-2").await.expect("a node");
    let _second = Agent::start(&space.cluster, "node-2").await;
    space.budget_is("search", "one may go", |status| status["disruptionsAllowed"] == 1).await;

    health.say(503, "yellow: 2 replicas are missing");
    says(&space, "search-2", "False", "ProbeFailed", "yellow").await;
    space.budget_is("search", "nobody may go", |status| status["currentHealthy"] == 0).await;
    let refusals = space.drain_is_refused("node-1").await;
    for refusal in refusals.lines() {
        assert!(refusal.contains("its disruption probe says no (main: HTTP 503"), "{refusal}");
    }
    assert_eq!(space.ready_by("app").await.get("db"), Some(&3), "all of them serve");

    health.say(200, "green");
    space.drain("node-1").await;
    space.ready(3).await;
    for name in ["search-0", "search-1", "search-2"] {
        let pod = space.get("v1", "pods", name).await.body;
        assert_eq!(pod["spec"]["nodeName"], "node-2", "{name}");
    }
}
