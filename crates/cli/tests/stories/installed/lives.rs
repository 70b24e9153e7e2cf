//! A day with an installed Quorate.

use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use quorate_devcluster::actors::NodeTemplate;
use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::Installed;
use crate::quorate::NAMESPACE;
use crate::town::{Town, is, refusal};

quorate_testbed::stories!(Whole: what_helm_installs_works);

async fn what_helm_installs_works(cluster: Cluster) {
    // Agents run everywhere. Servers would, in this story, be hollow pods that the Service sends requests to.
    let only_agents = Taint { key: "only".to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    let template = NodeTemplate { taints: vec![only_agents], ..NodeTemplate::default() };
    cluster.actors().nodes().add_like("node-1", &template).await.expect("a node");
    let mut installed = Installed::install(&cluster).await;
    for _ in 0..2 {
        installed.start_server().await;
    }
    decisions(&cluster).await;
    native(&cluster).await;
    kruise(&cluster).await;
    kinds(&cluster, &installed).await;
    probe(&cluster, &installed).await;
    trust(&cluster, &mut installed).await;
}

/// Evictions and deletes wait for a budget, also once its namespace is labelled.
async fn decisions(cluster: &Cluster) {
    let town = Town::found(cluster, "decided").await;
    for number in 0..3 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2, "operations": ["Evict", "Delete", "Update"],
    });
    town.budget("web", spec, 1).await;
    town.labelled(true).await;
    town.evict("web-0").await.expect(201);
    town.allows("web", 0).await;
    refusal(&town.evict("web-1").await);
    refusal(&town.delete("web-1").await);
    refusal(&town.set_image("web-1", "main:2").await);
    let senseless = json!({"selector": {"matchLabels": {"not a key": "web"}}, "maxUnavailable": 1});
    assert_eq!(town.new_budget("bad", senseless).await.code, 422);
    let events = format!("/apis/events.k8s.io/v1/namespaces/{}/events", town.namespace);
    eventually("the refusal can be read in events", || async {
        let events = town.wire.get(&events).await.expect(200);
        if events.to_string().contains("DisruptionDenied") { Ok(()) } else { Err(events) }
    })
    .await;
}

/// A native budget that asks for groups gets a twin, and is told of it.
async fn native(cluster: &Cluster) {
    let town = Town::found(cluster, "native").await;
    for (name, group) in [("a0", "a"), ("a1", "a"), ("b0", "b"), ("b1", "b")] {
        town.pod(name, json!({"app": "shard", "group": group})).await;
    }
    let native = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "shard", "annotations": {
            "quorate.dev/group-label-key": "group", "quorate.dev/max-unavailable": "1"}},
        "spec": {"maxUnavailable": "100%", "selector": {"matchLabels": {"app": "shard"}}}});
    let path = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", town.namespace);
    town.wire.post(&path, &native).await.expect(201);
    let twin =
        format!("/apis/policy.quorate.dev/v1alpha1/namespaces/{}/disruptionbudgets/shard", town.namespace);
    eventually("the twin is enforced", || async {
        let twin = town.wire.get(&twin).await.body;
        if is(&twin["status"], "Enforced", "True") { Ok(()) } else { Err(twin) }
    })
    .await;
    eventually("the native budget is told", || async {
        let native = town.wire.get(&format!("{path}/shard")).await.expect(200);
        let conditions = native["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|c| c["type"] == "BudgetConfigured") { Ok(()) } else { Err(native) }
    })
    .await;
    let gone = json!({"metadata": {"annotations": {
        "quorate.dev/group-label-key": null, "quorate.dev/max-unavailable": null}}});
    town.wire.patch(&format!("{path}/shard"), Patch::Merge, &gone).await.expect(200);
    eventually("the twin goes with the annotation", || async {
        let answer = town.wire.get(&twin).await;
        if answer.code == 404 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

/// A budget of OpenKruise is served.
async fn kruise(cluster: &Cluster) {
    let town = Town::found(cluster, "kruise").await;
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let budget = json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}});
    let path = format!("/apis/policy.kruise.io/v1alpha1/namespaces/{}/podunavailablebudgets", town.namespace);
    town.wire.post(&path, &budget).await.expect(201);
    eventually("it counts", || async {
        let budget = town.wire.get(&format!("{path}/web")).await.expect(200);
        if budget["status"]["currentAvailable"] == 2 { Ok(()) } else { Err(budget) }
    })
    .await;
    eventually("it refuses a delete", || async {
        let answer = town.delete("web-0").await;
        if answer.code == 429 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

/// Workloads of every kind that rights are granted for are watched once a budget names them.
async fn kinds(cluster: &Cluster, installed: &Installed) {
    let town = Town::found(cluster, "kinds").await;
    for (kind, plural) in
        [("CloneSet", "clonesets"), ("StatefulSet", "statefulsets"), ("DaemonSet", "daemonsets")]
    {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.apps.kruise.io")},
            "spec": {"group": "apps.kruise.io", "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1alpha1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": schema}}]},
        });
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        town.wire.post(path, &definition).await.expect(201);
    }
    let targets = [
        ("v1", "ReplicationController"),
        ("apps/v1", "DaemonSet"),
        ("batch/v1", "Job"),
        ("apps.kruise.io/v1alpha1", "CloneSet"),
        ("apps.kruise.io/v1alpha1", "StatefulSet"),
        ("apps.kruise.io/v1alpha1", "DaemonSet"),
    ];
    for (number, (version, kind)) in targets.iter().enumerate() {
        let target = json!({"apiVersion": version, "kind": kind, "name": "some"});
        let spec = json!({"targetRef": target, "maxUnavailable": 1});
        town.new_budget(&format!("of-{number}"), spec).await.expect(201);
    }
    for server in &installed.servers {
        for (version, kind) in targets {
            eventually(&format!("{kind} of {version} is watched"), || async {
                let log = server.process.log();
                let watching = |line: &str| {
                    line.contains("watching")
                        && line.contains(kind)
                        && line.contains(&format!("version=\"{version}\""))
                };
                if log.lines().any(watching) { Ok(()) } else { Err(log) }
            })
            .await;
        }
        let log = server.process.log();
        assert!(!log.contains("orbidden"), "a right is missing: {log}");
    }
}

/// A pod says no to the agent of its node.
async fn probe(cluster: &Cluster, installed: &Installed) {
    let town = Town::found(cluster, "probed").await;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let asks =
        json!({"tcpSocket": {"host": "127.0.0.1", "port": port}, "periodSeconds": 1, "failureThreshold": 1});
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "db-0", "labels": {"app": "db"},
            "annotations": {"quorate.dev/disruption-probe.main": asks.to_string()}},
        "spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "main:1"}]}});
    let path = format!("/api/v1/namespaces/{}/pods", town.namespace);
    town.wire.post(&path, &pod).await.expect(201);
    let agent = installed.start_agent("node-1").await;
    let says = async |wanted: &str| {
        eventually(&format!("the pod says {wanted}"), || async {
            let pod = town.wire.get(&format!("{path}/db-0")).await.expect(200);
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let said = conditions.iter().any(|c| c["type"] == "Disruptable" && c["status"] == wanted);
            if said { Ok(()) } else { Err(format!("{conditions:?}\n{}", agent.log_tail())) }
        })
        .await;
    };
    says("True").await;
    town.budget("db", json!({"selector": {"matchLabels": {"app": "db"}}, "minAvailable": 0}), 1).await;
    drop(listener);
    says("False").await;
    let refused = eventually("the pod's no is heard", || async {
        let answer = town.evict_with("db-0", json!({"dryRun": ["All"]}), "").await;
        if answer.code == 429 { Ok(refusal(&answer)) } else { Err(answer.body) }
    })
    .await;
    assert!(refused.contains("db-0"), "{refused}");
    // An agent that is told to end gives its Lease back.
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/quorate-agent-node-1");
    town.wire.get(&lease).await.expect(200);
    town.wire.delete(&format!("{path}/db-0"), &json!({})).await.expect(200);
    eventually("nothing is probed any more", || async {
        let answer = town.wire.get(&lease).await;
        if answer.code == 404 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

/// Whom the API server trusts is set right: after somebody took it away, and when there is a new authority.
async fn trust(cluster: &Cluster, installed: &mut Installed) {
    let town = Town::found(cluster, "trusted").await;
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}), 0).await;
    town.labelled(true).await;
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/quorate";
    let bundles = async || -> Vec<Value> {
        let entries =
            town.wire.get(path).await.expect(200)["webhooks"].as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| entry["clientConfig"]["caBundle"].clone()).collect()
    };
    let first = bundles().await;
    assert!(first.iter().all(|bundle| bundle.is_string() && *bundle == first[0]), "{first:?}");
    let taken = json!([{"op": "remove", "path": "/webhooks/1/clientConfig/caBundle"}]);
    town.wire.patch(path, Patch::Json, &taken).await.expect(200);
    eventually("it is there again", || async {
        let now = bundles().await;
        if now == first { Ok(()) } else { Err(now) }
    })
    .await;
    refusal(&town.evict("web-0").await);

    // The authority is lost, and all servers with it.
    installed.end_servers().await;
    let secret = format!("/api/v1/namespaces/{NAMESPACE}/secrets/quorate-webhook-ca");
    town.wire.delete(&secret, &json!({})).await.expect(200);
    let untrusted = town.evict("web-0").await;
    assert_eq!(untrusted.code, 500, "{}", untrusted.body);
    installed.start_server().await;
    tokio::time::timeout(Duration::from_secs(60), async {
        eventually("the API server asks again", || async {
            let answer = town.evict("web-0").await;
            if answer.code == 429 { Ok(()) } else { Err(answer.body) }
        })
        .await;
    })
    .await
    .expect("trust within a minute");
    assert_ne!(bundles().await, first);
}
