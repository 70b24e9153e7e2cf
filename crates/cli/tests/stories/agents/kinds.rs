//! Every kind of probe, its thresholds and its errors.

use std::time::{Duration, Instant};

use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::json;

use super::target::{Application, Grpc};
use super::{
    Agent, await_denial, await_disruptable, await_disruptable_true, disruptable_condition, pod, probe,
};
use crate::fixture::TestNamespace;
use crate::quorate::get;

quorate_testbed::stories!(Whole:
    each_kind_of_probe_decides,
    thresholds_count_results_in_a_row,
    an_invalid_probe_fails,
    ready_is_mirrored_if_enabled,
);

const THREE_SECONDS: Duration = Duration::from_secs(3);

/// `HealthCheckResponse` with a status, `ExecSyncResponse` with an exit code.
const SERVING: &[u8] = &[0x08, 1];
const NOT_SERVING: &[u8] = &[0x08, 2];
const SUCCESS: &[u8] = &[];
const EXIT_3: &[u8] = &[0x0a, 6, b'y', b'e', b'l', b'l', b'o', b'w', 0x18, 3];

async fn each_kind_of_probe_decides(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "kinds").await;
    let (web, port) = (Application::start().await, Application::start().await);
    let (health, health_at) = Grpc::on_tcp(SERVING).await;
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("cri.sock");
    let runtime = Grpc::on_socket(&socket, SUCCESS);
    for (name, handler) in [
        ("http", json!({"httpGet": {"host": "127.0.0.1", "port": web.port, "path": "/disruptable"}})),
        ("tcp", json!({"tcpSocket": {"host": "127.0.0.1", "port": port.port}})),
        ("grpc", json!({"grpc": {"port": health_at.port(), "service": "shard"}})),
        ("exec", json!({"exec": {"command": ["is-synced"]}})),
    ] {
        ns.create("v1", "pods", &pod(name, &probe(&handler))).await;
    }
    ns.await_ready_pods(4).await;
    // The addresses of pods on hollow nodes are not reachable.
    let here = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
    let path = ns.pod_path("grpc/status");
    ns.wire.patch(&path, Patch::Merge, &here).await.expect(200);
    ns.create_enforced_budget("db", json!({"selector": {"matchLabels": {"app": "db"}}, "minAvailable": 1}))
        .await;
    ns.await_status("db", "no pod is probed", |status| status["currentHealthy"] == 0).await;

    let cri = socket.clone();
    let agent = Agent::start_with(&ns.cluster, "node-1", move |options| options.cri_socket = Some(cri)).await;
    for name in ["http", "tcp", "grpc", "exec"] {
        let waited = ["wait", "--for=condition=Disruptable", &format!("pod/{name}"), "--timeout=60s"];
        ns.kubectl_in_namespace(&waited).await.expect("kubectl waits for the condition");
        let shown = await_disruptable_true(&ns, name).await;
        assert!(shown["lastProbeTime"].is_string() && shown["lastTransitionTime"].is_string(), "{shown}");
    }
    ns.await_status("db", "all results count", |status| status["disruptionsAllowed"] == 3).await;
    // The agent also reports this on its admin port.
    for (path, expected) in
        [("/healthz", "200 OK"), ("/readyz", "200 OK"), ("/metrics", "\nquorate_agent_pods 4\n")]
    {
        let answer = get(agent.admin, path).await.expect("an answer");
        assert!(answer.contains(expected), "{path}: {answer}");
    }

    web.respond_with(503, "syncing shard 3");
    drop(port);
    health.respond_with(NOT_SERVING);
    runtime.respond_with(EXIT_3);
    await_disruptable(&ns, "http", "False", "ProbeFailed", "main: HTTP 503").await;
    await_disruptable(&ns, "tcp", "False", "ProbeFailed", "main: cannot connect to 127.0.0.1").await;
    await_disruptable(&ns, "grpc", "False", "ProbeFailed", "main: gRPC health is NOT_SERVING").await;
    await_disruptable(&ns, "exec", "False", "ProbeFailed", "main: is-synced exited with 3: yellow").await;
    ns.await_status("db", "no pod may be evicted", |status| status["currentHealthy"] == 0).await;
    let why = "pod http must not be disrupted: its disruption probe says no (main: HTTP 503 Service Unavailable: syncing shard 3";
    await_denial(&ns, "http", why).await;

    // A probe that hangs fails too, and delays no other probe.
    web.respond_with(0, "");
    health.respond_with(SERVING);
    await_disruptable_true(&ns, "grpc").await;
    web.respond_with(204, "");
    await_disruptable_true(&ns, "http").await;
}

async fn thresholds_count_results_in_a_row(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "rows").await;
    let web = Application::start().await;
    let handler = json!({"httpGet": {"host": "127.0.0.1", "port": web.port}, "successThreshold": 2,
        "failureThreshold": 3, "initialDelaySeconds": 4});
    ns.create("v1", "pods", &pod("a", &probe(&handler))).await;
    ns.await_ready_pods(1).await;
    let _agent = Agent::start(&ns.cluster, "node-1").await;
    let first = await_disruptable_true(&ns, "a").await;
    assert!(web.requests() >= 2, "{} probes made a success", web.requests());

    // Two failures in a row are below the threshold, however often they occur.
    web.script(&[503, 503, 200, 503, 503, 200]);
    eventually("all responses were sent", || async {
        if web.remaining() == 0 { Ok(()) } else { Err(web.remaining()) }
    })
    .await;
    assert_eq!(disruptable_condition(&ns, "a").await, first, "nothing was written");
    web.script(&[503, 503, 503, 200, 503, 200]);
    await_disruptable(&ns, "a", "False", "ProbeFailed", "main: HTTP 503").await;
    assert!(web.remaining() <= 3, "{} of six answers were left", web.remaining());
    // One success is below the threshold too.
    await_disruptable_true(&ns, "a").await;
    assert_eq!(web.remaining(), 0);

    // A new container has no result yet, and is not probed during its initial delay.
    web.respond_with(500, "");
    let restarted = Instant::now();
    ns.cluster.actors().kubelets().restart(&ns.name, "a", None).expect("a pod on a node");
    await_disruptable(&ns, "a", "False", "ProbePending", "main has not passed its probe 2 times in a row")
        .await;
    await_disruptable(&ns, "a", "False", "ProbeFailed", "main: HTTP 500").await;
    // The agent may see the restart a little late, and the start of a container is stored in whole seconds.
    let early =
        web.request_times().iter().filter(|at| (restarted..restarted + THREE_SECONDS).contains(*at)).count();
    assert!(early < 3, "it was probed {early} times during its delay");
    web.respond_with(200, "");
    await_disruptable_true(&ns, "a").await;

    // The agent soon overwrites what another client writes.
    let lie =
        json!({"status": {"conditions": [{"type": "Disruptable", "status": "False", "reason": "Lie"}]}});
    let path = ns.pod_path("a/status");
    ns.wire.patch(&path, Patch::Strategic, &lie).await.expect(200);
    await_disruptable_true(&ns, "a").await;
}

async fn an_invalid_probe_fails(cluster: Cluster) {
    // The pod exists before a server could reject it.
    let namespace = cluster.namespace("odd").await.expect("a namespace");
    let mut odd = pod("odd", &json!({"httpGet": {"port": 99999}}));
    odd["spec"]["nodeName"] = json!("node-1");
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    cluster.wire().post(&pods, &odd).await.expect(201);
    let ns = TestNamespace::with_server_and_node(cluster, "sense").await;
    let web = Application::start().await;
    for (name, handler) in [
        ("port", json!({"httpGet": {"host": "127.0.0.1", "port": "nothing"}})),
        ("exec", json!({"exec": {"command": ["true"]}})),
        ("slow", json!({"httpGet": {"host": "127.0.0.1", "port": web.port}, "timeoutSeconds": 1})),
        ("named", json!({"httpGet": {"host": "127.0.0.1", "port": "web"}})),
    ] {
        ns.create("v1", "pods", &pod(name, &probe(&handler))).await;
    }
    web.respond_with(0, "");
    ns.await_ready_pods(4).await;
    let _agent = Agent::start(&ns.cluster, "node-1").await;
    await_disruptable(&ns, "port", "False", "ProbeFailed", "container main has no port named nothing").await;
    await_disruptable(&ns, "exec", "False", "ProbeFailed", "exec probes are off on this node").await;
    await_disruptable(&ns, "slow", "False", "ProbeFailed", "main: no answer within 1 s").await;
    await_disruptable(&ns, "named", "False", "ProbeFailed", "main: cannot connect to 127.0.0.1:80").await;
    eventually("the malformed probe is reported", || async {
        let shown = ns.wire.get(&format!("{pods}/odd")).await.expect(200)["status"].to_string();
        let is = shown.contains("ProbeMalformed") && shown.contains("must be a whole number from 1 to 65535");
        if is { Ok(()) } else { Err(shown) }
    })
    .await;
}

async fn ready_is_mirrored_if_enabled(cluster: Cluster) {
    let ns = TestNamespace::with_server_and_node(cluster, "mirror").await;
    let mut plain = pod("plain", &json!({}));
    plain["metadata"]["annotations"] = json!({});
    ns.create("v1", "pods", &plain).await;
    ns.await_ready_pods(1).await;
    let agent = Agent::start_with(&ns.cluster, "node-1", |options| options.mirror_ready = true).await;
    await_disruptable(&ns, "plain", "True", "MirrorsReady", "").await;
    ns.cluster.actors().kubelets().set_ready(&ns.name, "plain", false).expect("a pod on a node");
    await_disruptable(&ns, "plain", "False", "MirrorsReady", "").await;
    drop(agent);

    // The gate is off: the agent does not probe, and writes nothing.
    let web = Application::start().await;
    let handler = probe(&json!({"httpGet": {"host": "127.0.0.1", "port": web.port}}));
    let off = Agent::start_with(&ns.cluster, "node-1", |options| options.enabled = false).await;
    ns.create("v1", "pods", &pod("probed", &handler)).await;
    eventually("the pod runs", || async {
        let pod = ns.get("v1", "pods", "probed").await.body;
        if pod["status"]["phase"] == "Running" { Ok(()) } else { Err(pod) }
    })
    .await;
    assert_eq!((disruptable_condition(&ns, "probed").await, web.requests()), (json!(null), 0));
    drop(off);
    let _agent = Agent::start(&ns.cluster, "node-1").await;
    await_disruptable_true(&ns, "probed").await;
}
