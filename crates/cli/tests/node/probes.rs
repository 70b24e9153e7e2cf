//! Disruption probes of real containers.

use std::collections::BTreeSet;
use std::process::Stdio;

use quorate_testbed::eventually;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::fixture::{NODE, NodeFixture, with_node};

/// A container that runs until the file /tmp/end exists.
const IDLE: &str = "until [ -e /tmp/end ]; do sleep 0.2; done";

#[test]
fn a_drain_waits_until_every_probe_succeeds() {
    with_node(drained);
}

/// A web server without the page, a server that does not listen, a command that fails: each pod is ready, but its probe
/// fails, so it is not evicted until the probe succeeds.
async fn drained(fixture: NodeFixture) {
    let often = |mut probe: serde_json::Value| {
        probe["periodSeconds"] = json!(1);
        probe["failureThreshold"] = json!(1);
        probe
    };
    let web = "mkdir /tmp/www && exec httpd -f -p 8080 -h /tmp/www";
    let page = often(json!({"httpGet": {"path": "/may", "port": 8080}}));
    let port = often(json!({"tcpSocket": {"port": 9090}}));
    let late = "until [ -e /tmp/may ]; do sleep 0.2; done; exec httpd -f -p 9090 -h /tmp";
    let command = often(json!({"exec": {"command": ["test", "-e", "/tmp/may"]}}));
    let ((), (), ()) = tokio::join!(
        fixture.pod("http", web, &page),
        fixture.pod("tcp", late, &port),
        fixture.pod("exec", IDLE, &command),
    );
    let pods = ["http", "tcp", "exec"];
    for pod in pods {
        fixture.wait_disruptable(pod, "False").await;
    }
    fixture.budget(0).await;
    let forged = fixture.forge_condition("http").await;
    assert_eq!(forged.code, 403, "only the agent writes it: {}", forged.body);

    let mut drain = fixture
        .kubectl
        .command(&[
            "drain",
            NODE,
            "--force",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=120s",
        ])
        .stdout(Stdio::null())
        .spawn()
        .expect("kubectl");
    let mut lines = BufReader::new(drain.stderr.take().expect("its messages")).lines();
    let mut denied: BTreeSet<&str> = BTreeSet::new();
    while denied.len() < pods.len() {
        let line = lines.next_line().await.expect("a line").expect("kubectl continues");
        let Some((request, why)) = line.split_once("denied the request: ") else { continue };
        assert!(why.contains("its disruption probe says no"), "{line}");
        denied.extend(pods.iter().filter(|pod| request.contains(&format!("\"{pod}\""))));
    }
    // A full pipe would block kubectl, so the rest is read and dropped.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    for (index, (pod, file)) in
        [("http", "/tmp/www/may"), ("tcp", "/tmp/may"), ("exec", "/tmp/may")].into_iter().enumerate()
    {
        // The other pods are not disruptable yet.
        for other in &pods[index..] {
            assert_eq!(fixture.condition(other).await["status"], "False");
        }
        fixture.inside(pod, &["touch", file]).await;
        fixture.gone(pod).await;
    }
    assert!(drain.wait().await.expect("its end").success(), "the drain succeeds");
}

#[test]
fn the_probe_of_a_restarted_container_starts_over() {
    with_node(restarted);
}

async fn restarted(fixture: NodeFixture) {
    // The probe always succeeds, but it does not run in the first seconds of a container.
    let probe = json!({"exec": {"command": ["true"]}, "initialDelaySeconds": 20, "periodSeconds": 1});
    fixture.pod("db", IDLE, &probe).await;
    fixture.budget(0).await;
    fixture.healthy(0).await;
    fixture.healthy(1).await;
    fixture.wait_disruptable("db", "True").await;
    let before = fixture.condition("db").await["lastProbeTime"].clone();

    fixture.inside("db", &["touch", "/tmp/end"]).await;
    // The last result is of a container that no longer exists.
    fixture.healthy(0).await;
    fixture.healthy(1).await;
    let after = fixture.condition("db").await["lastProbeTime"].clone();
    assert!(after.as_str() > before.as_str(), "{before} {after}");
    fixture.evict("db").await.expect(201);
}

#[test]
fn conditions_are_not_trusted_while_the_kubelet_is_stopped() {
    with_node(without_kubelet);
}

async fn without_kubelet(fixture: NodeFixture) {
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 10});
    tokio::join!(fixture.pod("db-0", IDLE, &probe), fixture.pod("db-1", IDLE, &probe));
    fixture.budget(1).await;
    fixture.healthy(2).await;

    fixture.node.signal_kubelet("STOP").expect("a kubelet");
    let node = format!("node/{NODE}");
    fixture.run(&["wait", "--for=condition=Ready=Unknown", &node, "--timeout=100s"]).await;
    fixture.healthy(0).await;
    // The agent still runs, and the probes succeed.
    let renewed = fixture.renewed().await;
    eventually("the agent renews its Lease", || async {
        let now = fixture.renewed().await;
        if now == renewed { Err(now) } else { Ok(()) }
    })
    .await;
    assert_eq!(fixture.condition("db-0").await["status"], "True");
    let denied = fixture.evict("db-0").await;
    assert_eq!(denied.code, 429, "{}", denied.body);

    fixture.node.signal_kubelet("CONT").expect("a kubelet");
    fixture.healthy(2).await;
    fixture.evict("db-0").await.expect(201);
}
