//! Every feature of an installed Quorate.

use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use quorate_devcluster::actors::NodeTemplate;
use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::Installed;
use crate::fixture::{TestNamespace, denial, has_condition};
use crate::quorate::NAMESPACE;

quorate_testbed::stories!(Whole: what_helm_installs_works);

async fn what_helm_installs_works(cluster: Cluster) {
    // Only agents tolerate the taint. Server pods would be hollow here, and the Service would send requests to them.
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

/// A budget denies evictions, and deletes and updates once its namespace is labelled.
async fn decisions(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "decided").await;
    for number in 0..3 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2, "operations": ["Evict", "Delete", "Update"],
    });
    ns.create_budget_allowing("web", spec, 1).await;
    ns.await_enforced_label(true).await;
    ns.evict("web-0").await.expect(201);
    ns.await_allowed("web", 0).await;
    denial(&ns.evict("web-1").await);
    denial(&ns.delete_pod("web-1").await);
    denial(&ns.set_image("web-1", "main:2").await);
    let senseless = json!({"selector": {"matchLabels": {"not a key": "web"}}, "maxUnavailable": 1});
    assert_eq!(ns.create_budget("bad", senseless).await.code, 422);
    let events = ns.path("events.k8s.io/v1", "events");
    eventually("the denial has an Event", || async {
        let events = ns.wire.get(&events).await.expect(200);
        if events.to_string().contains("DisruptionDenied") { Ok(()) } else { Err(events) }
    })
    .await;
}

/// A native budget with annotations for groups gets a twin and a condition.
async fn native(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "native").await;
    for (name, group) in [("a0", "a"), ("a1", "a"), ("b0", "b"), ("b1", "b")] {
        ns.create_pod(name, json!({"app": "shard", "group": group})).await;
    }
    let native = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "shard", "annotations": {
            "quorate.dev/group-label-key": "group", "quorate.dev/max-unavailable": "1"}},
        "spec": {"maxUnavailable": "100%", "selector": {"matchLabels": {"app": "shard"}}}});
    let path = ns.path("policy/v1", "poddisruptionbudgets");
    ns.wire.post(&path, &native).await.expect(201);
    let twin = ns.path("policy.quorate.dev/v1alpha1", "disruptionbudgets/shard");
    eventually("the twin is enforced", || async {
        let twin = ns.wire.get(&twin).await.body;
        if has_condition(&twin["status"], "Enforced", "True") { Ok(()) } else { Err(twin) }
    })
    .await;
    ns.await_native_condition("shard", "the condition is written", |_| true).await;
    let gone = json!({"metadata": {"annotations": {
        "quorate.dev/group-label-key": null, "quorate.dev/max-unavailable": null}}});
    ns.wire.patch(&format!("{path}/shard"), Patch::Merge, &gone).await.expect(200);
    eventually("the twin goes with the annotation", || async {
        let answer = ns.wire.get(&twin).await;
        if answer.code == 404 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

/// A PodUnavailableBudget is served.
async fn kruise(cluster: &Cluster) {
    let ns = TestNamespace::with_manual_pods(cluster, "kruise").await;
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let budget = json!({"apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}});
    let path = ns.path("policy.kruise.io/v1alpha1", "podunavailablebudgets");
    ns.wire.post(&path, &budget).await.expect(201);
    eventually("it counts", || async {
        let budget = ns.wire.get(&format!("{path}/web")).await.expect(200);
        if budget["status"]["currentAvailable"] == 2 { Ok(()) } else { Err(budget) }
    })
    .await;
    eventually("it denies a delete", || async {
        let answer = ns.delete_pod("web-0").await;
        if answer.code == 429 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

/// Every kind of workload that the chart grants rights for is watched once a budget names it.
async fn kinds(cluster: &Cluster, installed: &Installed) {
    let ns = TestNamespace::with_manual_pods(cluster, "kinds").await;
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
        ns.wire.post(path, &definition).await.expect(201);
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
        ns.create_budget(&format!("of-{number}"), spec).await.expect(201);
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

/// The agent of the node reports a failing probe of a pod.
async fn probe(cluster: &Cluster, installed: &Installed) {
    let ns = TestNamespace::with_manual_pods(cluster, "probed").await;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let handler =
        json!({"tcpSocket": {"host": "127.0.0.1", "port": port}, "periodSeconds": 1, "failureThreshold": 1});
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "db-0", "labels": {"app": "db"},
            "annotations": {"quorate.dev/disruption-probe.main": handler.to_string()}},
        "spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "main:1"}]}});
    let path = ns.path("v1", "pods");
    ns.wire.post(&path, &pod).await.expect(201);
    let agent = installed.start_agent("node-1").await;
    let await_disruptable = async |wanted: &str| {
        eventually(&format!("the pod is Disruptable {wanted}"), || async {
            let pod = ns.wire.get(&format!("{path}/db-0")).await.expect(200);
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let said = conditions.iter().any(|c| c["type"] == "Disruptable" && c["status"] == wanted);
            if said { Ok(()) } else { Err(format!("{conditions:?}\n{}", agent.log_tail())) }
        })
        .await;
    };
    await_disruptable("True").await;
    ns.create_budget_allowing(
        "db",
        json!({"selector": {"matchLabels": {"app": "db"}}, "minAvailable": 0}),
        1,
    )
    .await;
    drop(listener);
    await_disruptable("False").await;
    let refused = eventually("the failing probe counts", || async {
        let answer = ns.evict_with("db-0", json!({"dryRun": ["All"]}), "").await;
        if answer.code == 429 { Ok(denial(&answer)) } else { Err(answer.body) }
    })
    .await;
    assert!(refused.contains("db-0"), "{refused}");
    // Without a pod to probe, the agent deletes its Lease.
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/quorate-agent-node-1");
    ns.wire.get(&lease).await.expect(200);
    ns.wire.delete(&format!("{path}/db-0"), &json!({})).await.expect(200);
    eventually("nothing is probed any more", || async {
        let answer = ns.wire.get(&lease).await;
        if answer.code == 404 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

/// The server restores the CA bundle after it was removed, and replaces it when there is a new authority.
async fn trust(cluster: &Cluster, installed: &mut Installed) {
    let ns = TestNamespace::with_manual_pods(cluster, "trusted").await;
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    ns.create_budget_allowing(
        "web",
        json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}),
        0,
    )
    .await;
    ns.await_enforced_label(true).await;
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/quorate";
    let bundles = async || -> Vec<Value> {
        let entries = ns.wire.get(path).await.expect(200)["webhooks"].as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| entry["clientConfig"]["caBundle"].clone()).collect()
    };
    let first = bundles().await;
    assert!(first.iter().all(|bundle| bundle.is_string() && *bundle == first[0]), "{first:?}");
    let taken = json!([{"op": "remove", "path": "/webhooks/1/clientConfig/caBundle"}]);
    ns.wire.patch(path, Patch::Json, &taken).await.expect(200);
    eventually("it is there again", || async {
        let now = bundles().await;
        if now == first { Ok(()) } else { Err(now) }
    })
    .await;
    denial(&ns.evict("web-0").await);

    // The authority is lost, and all servers with it.
    installed.end_servers().await;
    let secret = format!("/api/v1/namespaces/{NAMESPACE}/secrets/quorate-webhook-ca");
    ns.wire.delete(&secret, &json!({})).await.expect(200);
    let untrusted = ns.evict("web-0").await;
    assert_eq!(untrusted.code, 500, "{}", untrusted.body);
    installed.start_server().await;
    tokio::time::timeout(Duration::from_secs(60), async {
        eventually("the API server calls the webhook again", || async {
            let answer = ns.evict("web-0").await;
            if answer.code == 429 { Ok(()) } else { Err(answer.body) }
        })
        .await;
    })
    .await
    .expect("trust within a minute");
    assert_ne!(bundles().await, first);
}
