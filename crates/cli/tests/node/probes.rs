//! Containers that say whether they may be disrupted.

use std::collections::BTreeSet;
use std::process::Stdio;

use quorate_testbed::eventually;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::fixture::{NODE, NodeFixture, with_node};

/// A container that runs until it is told to end.
const IDLE: &str = "until [ -e /tmp/end ]; do sleep 0.2; done";

#[test]
fn a_drain_waits_for_the_yes_of_every_container() {
    with_node(drained);
}

/// A web server that has no page yet, a server that does not listen yet, a command that does not succeed yet: each pod
/// says no, is ready, and stays until it says yes.
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
        fixture.says(pod, "False").await;
    }
    fixture.budget(0).await;
    let lie = fixture.lie("http").await;
    assert_eq!(lie.code, 403, "only the agent writes it: {}", lie.body);

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
    let mut refused: BTreeSet<&str> = BTreeSet::new();
    while refused.len() < pods.len() {
        let line = lines.next_line().await.expect("a line").expect("it goes on");
        let Some((asked, why)) = line.split_once("denied the request: ") else { continue };
        assert!(why.contains("its disruption probe says no"), "{line}");
        refused.extend(pods.iter().filter(|pod| asked.contains(&format!("\"{pod}\""))));
    }
    // Nobody reads the rest, and a full pipe would stop it.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    for (said, (pod, file)) in
        [("http", "/tmp/www/may"), ("tcp", "/tmp/may"), ("exec", "/tmp/may")].into_iter().enumerate()
    {
        // The others are where they were.
        for other in &pods[said..] {
            assert_eq!(fixture.condition(other).await["status"], "False");
        }
        fixture.inside(pod, &["touch", file]).await;
        fixture.gone(pod).await;
    }
    assert!(drain.wait().await.expect("its end").success(), "the drain ends well");
}

#[test]
fn a_container_that_starts_again_is_asked_again() {
    with_node(restarted);
}

async fn restarted(fixture: NodeFixture) {
    // It always says yes; but nobody asks in the first seconds of a container.
    let probe = json!({"exec": {"command": ["true"]}, "initialDelaySeconds": 8, "periodSeconds": 1});
    fixture.pod("db", IDLE, &probe).await;
    fixture.budget(0).await;
    fixture.healthy(0).await;
    fixture.healthy(1).await;
    fixture.says("db", "True").await;
    let before = fixture.condition("db").await["lastProbeTime"].clone();

    fixture.inside("db", &["touch", "/tmp/end"]).await;
    // What it said was said by a container that is no more.
    fixture.healthy(0).await;
    fixture.healthy(1).await;
    let after = fixture.condition("db").await["lastProbeTime"].clone();
    assert!(after.as_str() > before.as_str(), "{before} {after}");
    fixture.evict("db").await.expect(201);
}

#[test]
fn nobody_is_believed_beside_a_kubelet_that_stopped() {
    with_node(without_kubelet);
}

async fn without_kubelet(fixture: NodeFixture) {
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    tokio::join!(fixture.pod("db-0", IDLE, &probe), fixture.pod("db-1", IDLE, &probe));
    fixture.budget(1).await;
    fixture.healthy(2).await;

    fixture.node.signal_kubelet("STOP").expect("a kubelet");
    let node = format!("node/{NODE}");
    fixture.run(&["wait", "--for=condition=Ready=Unknown", &node, "--timeout=100s"]).await;
    fixture.healthy(0).await;
    // The agent is well, and the containers say yes.
    let renewed = fixture.renewed().await;
    eventually("the agent goes on", || async {
        let now = fixture.renewed().await;
        if now == renewed { Err(now) } else { Ok(()) }
    })
    .await;
    assert_eq!(fixture.condition("db-0").await["status"], "True");
    let refused = fixture.evict("db-0").await;
    assert_eq!(refused.code, 429, "{}", refused.body);

    fixture.node.signal_kubelet("CONT").expect("a kubelet");
    fixture.healthy(2).await;
    fixture.evict("db-0").await.expect(201);
}
