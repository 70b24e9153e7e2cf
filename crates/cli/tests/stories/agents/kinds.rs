//! Every kind of probe, its thresholds, and what goes wrong with them.

use std::time::{Duration, Instant};

use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::json;

use super::target::{Application, Grpc};
use super::{Agent, condition, pod, probe, refused, says, says_yes};
use crate::quorate::get;
use crate::space::Space;

quorate_testbed::stories!(Whole:
    each_kind_of_probe_decides,
    answers_in_a_row_count,
    what_makes_no_sense_is_a_no,
    ready_is_mirrored_where_that_is_asked_for,
);

const THREE_SECONDS: Duration = Duration::from_secs(3);

/// `HealthCheckResponse` with a status, `ExecSyncResponse` with an exit code.
const SERVING: &[u8] = &[0x08, 1];
const NOT_SERVING: &[u8] = &[0x08, 2];
const SUCCESS: &[u8] = &[];
const EXIT_3: &[u8] = &[0x0a, 6, b'y', b'e', b'l', b'l', b'o', b'w', 0x18, 3];

async fn each_kind_of_probe_decides(cluster: Cluster) {
    let space = Space::with_node(cluster, "kinds").await;
    let (web, port) = (Application::start().await, Application::start().await);
    let (health, health_at) = Grpc::on_tcp(SERVING).await;
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("cri.sock");
    let runtime = Grpc::on_socket(&socket, SUCCESS);
    for (name, asks) in [
        ("http", json!({"httpGet": {"host": "127.0.0.1", "port": web.port, "path": "/disruptable"}})),
        ("tcp", json!({"tcpSocket": {"host": "127.0.0.1", "port": port.port}})),
        ("grpc", json!({"grpc": {"port": health_at.port(), "service": "shard"}})),
        ("exec", json!({"exec": {"command": ["is-synced"]}})),
    ] {
        space.create("v1", "pods", &pod(name, &probe(&asks))).await;
    }
    space.ready(4).await;
    // Pods of hollow nodes have addresses that nobody answers at.
    let here = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
    let path = format!("/api/v1/namespaces/{}/pods/grpc/status", space.namespace);
    space.cluster.wire().patch(&path, Patch::Merge, &here).await.expect(200);
    space.budget("db", json!({"selector": {"matchLabels": {"app": "db"}}, "minAvailable": 1})).await;
    space.budget_is("db", "nobody is probed", |status| status["currentHealthy"] == 0).await;

    let cri = socket.clone();
    let agent =
        Agent::start_with(&space.cluster, "node-1", move |options| options.cri_socket = Some(cri)).await;
    for name in ["http", "tcp", "grpc", "exec"] {
        let waited = ["wait", "--for=condition=Disruptable", &format!("pod/{name}"), "--timeout=60s"];
        space.kubectl(&waited).await.expect("kubectl waits for the condition");
        let shown = says_yes(&space, name).await;
        assert!(shown["lastProbeTime"].is_string() && shown["lastTransitionTime"].is_string(), "{shown}");
    }
    space.budget_is("db", "all are believed", |status| status["disruptionsAllowed"] == 3).await;
    // It tells so to whoever runs it, too.
    for (path, tells) in
        [("/healthz", "200 OK"), ("/readyz", "200 OK"), ("/metrics", "\nquorate_agent_pods 4\n")]
    {
        let answer = get(agent.admin, path).await.expect("an answer");
        assert!(answer.contains(tells), "{path}: {answer}");
    }

    web.say(503, "syncing shard 3");
    drop(port);
    health.say(NOT_SERVING);
    runtime.say(EXIT_3);
    says(&space, "http", "False", "ProbeFailed", "main: HTTP 503").await;
    says(&space, "tcp", "False", "ProbeFailed", "main: cannot connect to 127.0.0.1").await;
    says(&space, "grpc", "False", "ProbeFailed", "main: gRPC health is NOT_SERVING").await;
    says(&space, "exec", "False", "ProbeFailed", "main: is-synced exited with 3: yellow").await;
    space.budget_is("db", "nobody may be taken", |status| status["currentHealthy"] == 0).await;
    let why = "pod http must not be disrupted: its disruption probe says no (main: HTTP 503 Service Unavailable: syncing shard 3";
    refused(&space, "http", why).await;

    // One that hangs is a no as well, and holds up nobody.
    web.say(0, "");
    health.say(SERVING);
    says_yes(&space, "grpc").await;
    web.say(204, "");
    says_yes(&space, "http").await;
}

async fn answers_in_a_row_count(cluster: Cluster) {
    let space = Space::with_node(cluster, "rows").await;
    let web = Application::start().await;
    let asks = json!({"httpGet": {"host": "127.0.0.1", "port": web.port}, "successThreshold": 2,
        "failureThreshold": 3, "initialDelaySeconds": 4});
    space.create("v1", "pods", &pod("a", &probe(&asks))).await;
    space.ready(1).await;
    let _agent = Agent::start(&space.cluster, "node-1").await;
    let first = says_yes(&space, "a").await;
    assert!(web.asked() >= 2, "{} answers made a yes", web.asked());

    // Two failures in a row are too few, however often.
    web.script(&[503, 503, 200, 503, 503, 200]);
    eventually("all of it was said", || async { if web.left() == 0 { Ok(()) } else { Err(web.left()) } })
        .await;
    assert_eq!(condition(&space, "a").await, first, "nothing was written");
    web.script(&[503, 503, 503, 200, 503, 200]);
    says(&space, "a", "False", "ProbeFailed", "main: HTTP 503").await;
    assert!(web.left() <= 3, "{} of six answers were left", web.left());
    // One success is too few as well.
    says_yes(&space, "a").await;
    assert_eq!(web.left(), 0);

    // A new container has said nothing yet, and is left in peace at first.
    web.say(500, "");
    let restarted = Instant::now();
    space.cluster.actors().kubelets().restart(&space.namespace, "a", None).expect("a pod on a node");
    says(&space, "a", "False", "ProbePending", "main has not passed its probe 2 times in a row").await;
    says(&space, "a", "False", "ProbeFailed", "main: HTTP 500").await;
    // The agent may see the restart a little late, and a container's start is told in whole seconds.
    let early =
        web.asked_at().iter().filter(|at| (restarted..restarted + THREE_SECONDS).contains(*at)).count();
    assert!(early < 3, "it was asked {early} times before its time");
    web.say(200, "");
    says_yes(&space, "a").await;

    // What somebody else writes is not believed for long.
    let lie =
        json!({"status": {"conditions": [{"type": "Disruptable", "status": "False", "reason": "Lie"}]}});
    let path = format!("/api/v1/namespaces/{}/pods/a/status", space.namespace);
    space.cluster.wire().patch(&path, Patch::Strategic, &lie).await.expect(200);
    says_yes(&space, "a").await;
}

async fn what_makes_no_sense_is_a_no(cluster: Cluster) {
    // It was there before anybody could refuse it.
    let namespace = cluster.namespace("odd").await.expect("a namespace");
    let mut odd = pod("odd", &json!({"httpGet": {"port": 99999}}));
    odd["spec"]["nodeName"] = json!("node-1");
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    cluster.wire().post(&pods, &odd).await.expect(201);
    let space = Space::with_node(cluster, "sense").await;
    let web = Application::start().await;
    for (name, asks) in [
        ("port", json!({"httpGet": {"host": "127.0.0.1", "port": "nothing"}})),
        ("exec", json!({"exec": {"command": ["true"]}})),
        ("slow", json!({"httpGet": {"host": "127.0.0.1", "port": web.port}})),
        ("named", json!({"httpGet": {"host": "127.0.0.1", "port": "web"}})),
    ] {
        space.create("v1", "pods", &pod(name, &probe(&asks))).await;
    }
    web.say(0, "");
    space.ready(4).await;
    let _agent = Agent::start(&space.cluster, "node-1").await;
    says(&space, "port", "False", "ProbeFailed", "container main has no port named nothing").await;
    says(&space, "exec", "False", "ProbeFailed", "exec probes are off on this node").await;
    says(&space, "slow", "False", "ProbeFailed", "main: no answer within 1 s").await;
    says(&space, "named", "False", "ProbeFailed", "main: cannot connect to 127.0.0.1:80").await;
    eventually("the malformed one says so", || async {
        let shown = space.cluster.wire().get(&format!("{pods}/odd")).await.expect(200)["status"].to_string();
        let is = shown.contains("ProbeMalformed") && shown.contains("must be a whole number from 1 to 65535");
        if is { Ok(()) } else { Err(shown) }
    })
    .await;
}

async fn ready_is_mirrored_where_that_is_asked_for(cluster: Cluster) {
    let space = Space::with_node(cluster, "mirror").await;
    let mut plain = pod("plain", &json!({}));
    plain["metadata"]["annotations"] = json!({});
    space.create("v1", "pods", &plain).await;
    space.ready(1).await;
    let agent = Agent::start_with(&space.cluster, "node-1", |options| options.mirror_ready = true).await;
    says(&space, "plain", "True", "MirrorsReady", "").await;
    space.cluster.actors().kubelets().set_ready(&space.namespace, "plain", false).expect("a pod on a node");
    says(&space, "plain", "False", "MirrorsReady", "").await;
    drop(agent);

    // The gate is off: nothing is asked, and nothing said.
    let web = Application::start().await;
    let asks = probe(&json!({"httpGet": {"host": "127.0.0.1", "port": web.port}}));
    let off = Agent::start_with(&space.cluster, "node-1", |options| options.enabled = false).await;
    space.create("v1", "pods", &pod("probed", &asks)).await;
    eventually("the pod runs", || async {
        let pod = space.get("v1", "pods", "probed").await.body;
        if pod["status"]["phase"] == "Running" { Ok(()) } else { Err(pod) }
    })
    .await;
    assert_eq!((condition(&space, "probed").await, web.asked()), (json!(null), 0));
    drop(off);
    let _agent = Agent::start(&space.cluster, "node-1").await;
    says_yes(&space, "probed").await;
}
