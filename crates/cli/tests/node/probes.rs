//! Containers that say whether they may be disrupted.

use std::collections::BTreeSet;
use std::process::Stdio;

use quorate_testbed::eventually;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::ground::{Ground, NODE, tell};

/// A container that runs until it is told to end.
const IDLE: &str = "until [ -e /tmp/end ]; do sleep 0.2; done";

#[test]
fn a_drain_waits_for_the_yes_of_every_container() {
    tell(drained);
}

/// A web server that has no page yet, a server that does not listen yet, a command that does not succeed yet: each pod
/// says no, is ready, and stays until it says yes.
async fn drained(ground: Ground) {
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
        ground.pod("http", web, &page),
        ground.pod("tcp", late, &port),
        ground.pod("exec", IDLE, &command),
    );
    let pods = ["http", "tcp", "exec"];
    for pod in pods {
        ground.says(pod, "False").await;
    }
    ground.budget(0).await;
    let lie = ground.lie("http").await;
    assert_eq!(lie.code, 403, "only the agent writes it: {}", lie.body);

    let mut drain = ground
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
            assert_eq!(ground.condition(other).await["status"], "False");
        }
        ground.inside(pod, &["touch", file]).await;
        ground.gone(pod).await;
    }
    assert!(drain.wait().await.expect("its end").success(), "the drain ends well");
}

#[test]
fn a_container_that_starts_again_is_asked_again() {
    tell(restarted);
}

async fn restarted(ground: Ground) {
    // It always says yes; but nobody asks in the first seconds of a container.
    let probe = json!({"exec": {"command": ["true"]}, "initialDelaySeconds": 8, "periodSeconds": 1});
    ground.pod("db", IDLE, &probe).await;
    ground.budget(0).await;
    ground.healthy(0).await;
    ground.healthy(1).await;
    ground.says("db", "True").await;
    let before = ground.condition("db").await["lastProbeTime"].clone();

    ground.inside("db", &["touch", "/tmp/end"]).await;
    // What it said was said by a container that is no more.
    ground.healthy(0).await;
    ground.healthy(1).await;
    let after = ground.condition("db").await["lastProbeTime"].clone();
    assert!(after.as_str() > before.as_str(), "{before} {after}");
    ground.evict("db").await.expect(201);
}

#[test]
fn nobody_is_believed_beside_a_kubelet_that_stopped() {
    tell(without_kubelet);
}

async fn without_kubelet(ground: Ground) {
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    tokio::join!(ground.pod("db-0", IDLE, &probe), ground.pod("db-1", IDLE, &probe));
    ground.budget(1).await;
    ground.healthy(2).await;

    ground.node.signal_kubelet("STOP").expect("a kubelet");
    let node = format!("node/{NODE}");
    ground.run(&["wait", "--for=condition=Ready=Unknown", &node, "--timeout=100s"]).await;
    ground.healthy(0).await;
    // The agent is well, and the containers say yes.
    let renewed = ground.renewed().await;
    eventually("the agent goes on", || async {
        let now = ground.renewed().await;
        if now == renewed { Err(now) } else { Ok(()) }
    })
    .await;
    assert_eq!(ground.condition("db-0").await["status"], "True");
    let refused = ground.evict("db-0").await;
    assert_eq!(refused.code, 429, "{}", refused.body);

    ground.node.signal_kubelet("CONT").expect("a kubelet");
    ground.healthy(2).await;
    ground.evict("db-0").await.expect(201);
}
