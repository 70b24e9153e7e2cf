//! The Leases of the servers: which of them keep a new budget closed, and which do not.

use std::time::{Duration, Instant};

use futures::future::join_all;
use quorate_devcluster::apiserver::{Fault, RequestFilter};
use quorate_testbed::{Cluster, Patch, WireResponse, eventually};
use serde_json::{Value, json};

use crate::fixture::{TestNamespace, denial, has_condition, spec_for_app};
use crate::quorate::{NAMESPACE, Quorate, apply, rendered, service_account};
use crate::replicas::Replicas;

quorate_testbed::stories!(Whole:
    a_lease_keeps_a_budget_closed_only_if_its_server_may_have_admitted_something,
    a_server_that_never_serves_keeps_no_budget_closed,
    a_server_that_ends_hands_over_what_it_admitted,
    the_lease_of_a_killed_server_goes_before_a_budget_needs_it,
    a_thousand_budgets_share_the_lists_of_leases,
    a_budget_that_covers_less_and_more_again_is_opened_again,
);

const RENEWED: &str = "2026-11-09T10:00:00.000000Z";

fn leases() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")
}

/// The Lease of a server that is not there, and last renewed its Lease a week ago by its own clock.
async fn create_lease(cluster: &Cluster, name: &str, annotations: &Value) -> WireResponse {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "annotations": annotations,
            "labels": {"quorate.dev/component": "server"}},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 15, "renewTime": RENEWED},
    });
    cluster.wire().post(&leases(), &lease).await
}

async fn delete_lease(cluster: &Cluster, name: &str) {
    let code = cluster.wire().delete(&format!("{}/{name}", leases()), &json!({})).await.code;
    assert!(matches!(code, 200 | 404), "{code}");
}

fn one_of_two() -> Value {
    spec_for_app("web", "minAvailable", 1)
}

async fn two_pods(cluster: &Cluster) -> TestNamespace {
    let ns = TestNamespace::with_manual_pods(cluster, "leased").await;
    ns.create_pods("web", 2).await;
    ns
}

async fn a_lease_keeps_a_budget_closed_only_if_its_server_may_have_admitted_something(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let silent = format!("604800 {RENEWED}");
    for (number, (annotations, closed, why)) in [
        (json!({"quorate.dev/serving": "false"}), false, "it has not begun to serve"),
        (json!({"quorate.dev/serving": "false", "quorate.dev/admitted": "[]"}), false, "it has ended"),
        (json!({"quorate.dev/serving": "true", "quorate.dev/silent": silent}), false, "killed last week"),
        (
            json!({"quorate.dev/serving": "true", "quorate.dev/acknowledged": "999999999999", "quorate.dev/silent": format!("40 {RENEWED}")}),
            false,
            "killed 40 s ago, after it had acknowledged the budget",
        ),
        (json!({}), true, "a server of the previous release"),
        (json!({"quorate.dev/serving": "true"}), true, "it may have been killed just now"),
        (json!({"quorate.dev/serving": "false", "quorate.dev/admitted": "?"}), true, "cannot be read"),
    ]
    .into_iter()
    .enumerate()
    {
        let ns = two_pods(&cluster).await;
        // A server that is restarted again and again leaves several.
        let names = [0, 1, 2].map(|life| format!("gone-{number}-{life}"));
        for name in &names {
            create_lease(&cluster, name, &annotations).await.expect(201);
        }
        ns.create_budget("web", one_of_two()).await.expect(201);
        if closed {
            ns.await_status("web", why, |status| has_condition(status, "Enforced", "False")).await;
            // This is the condition of a budget that waits: the server has listed the Leases since.
            let other = two_pods(&cluster).await;
            other.create_budget("web", one_of_two()).await.expect(201);
            other.await_status("web", why, |status| has_condition(status, "Enforced", "False")).await;
            let sentence = denial(&ns.evict("web-0").await);
            assert!(sentence.starts_with(&format!("{}/web: not now", ns.name)), "{why}: {sentence}");
            for name in &names {
                delete_lease(&cluster, name).await;
            }
        }
        ns.await_allowed("web", 1).await;
        for name in &names {
            delete_lease(&cluster, name).await;
        }
    }
}

const RIGHTS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/quorate-server";

/// The second server may not list nodes, so its initial sync never completes. The first one watches them already.
async fn a_server_that_never_serves_keeps_no_budget_closed(cluster: Cluster) {
    let mut replicas = Replicas::start(&cluster, 1, &[]).await;
    replicas.add_slots(1);
    let nodes = RequestFilter::any().user(service_account().name()).resource("nodes").verb("list");
    let refused = cluster.embedded().map(|server| server.faults().requests(nodes, Fault::Forbidden));
    if cluster.control_plane().is_some() {
        let role = cluster.wire().get(RIGHTS).await.expect(200);
        let mut rules = role["rules"].as_array().cloned().expect("rules");
        for rule in &mut rules {
            if let Some(resources) = rule.get_mut("resources").and_then(Value::as_array_mut) {
                resources.retain(|resource| resource != "nodes");
            }
        }
        rules.retain(|rule| rule["resources"] != json!([]));
        cluster.wire().patch(RIGHTS, Patch::Merge, &json!({"rules": rules})).await.expect(200);
    }
    replicas.fill(1).await;
    eventually("both servers have a Lease", || async {
        let servers = servers(&cluster).await;
        if servers.len() == 2 { Ok(()) } else { Err(servers) }
    })
    .await;
    let ns = two_pods(&cluster).await;
    ns.create_budget_allowing("web", one_of_two(), 1).await;
    drop(refused);
    if cluster.control_plane().is_some() {
        apply(&cluster, &rendered(&["ClusterRole"])).await;
    }
}

async fn a_server_that_ends_hands_over_what_it_admitted(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let ns = two_pods(&cluster).await;
    // Admitted by Quorate, without a budget, and then rejected by the API server: a retry may still use it.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(ns.evict_with("web-0", later, "").await.code, 409);
    quorate.end().await;
    let _next = Quorate::start_with(&cluster, |_| {}).await;
    ns.create_budget("web", one_of_two()).await.expect(201);
    ns.await_status("web", "it has the earlier claim", |status| {
        let claims = status["claims"].as_object().map_or(0, serde_json::Map::len);
        has_condition(status, "Enforced", "True") && claims == 1 && status["disruptionsAllowed"] == 0
    })
    .await;
    denial(&ns.evict("web-1").await);
}

async fn the_lease_of_a_killed_server_goes_before_a_budget_needs_it(cluster: Cluster) {
    let mut replicas = Replicas::start(&cluster, 2, &["--claim-expiry-seconds=40"]).await;
    replicas.kill(1);
    // No budget waits, and yet the other server notices.
    let killed = eventually("the other server writes that it sees no renewal", || async {
        let servers = servers(&cluster).await;
        let noted = |lease: &&Value| lease["metadata"]["annotations"]["quorate.dev/silent"].is_string();
        servers.iter().find(noted).map(|lease| lease["metadata"]["uid"].clone()).ok_or(servers)
    })
    .await;
    // A server that starts now continues to count. It may delete the Leases of both killed servers at once.
    replicas.fill(1).await;
    replicas.until_ready(2).await;
    replicas.kill(0);
    eventually("the Lease of the first killed server is deleted", || async {
        let servers = servers(&cluster).await;
        if servers.iter().all(|lease| lease["metadata"]["uid"] != killed) { Ok(()) } else { Err(servers) }
    })
    .await;
    assert!(!servers(&cluster).await.is_empty(), "the server that runs has lost its Lease");
}

/// The Leases of servers.
async fn servers(cluster: &Cluster) -> Vec<Value> {
    let listed = cluster.wire().get(&leases()).await.expect(200);
    let serving = |lease: &&Value| lease["metadata"]["annotations"]["quorate.dev/serving"].is_string();
    listed["items"].as_array().into_iter().flatten().filter(serving).cloned().collect()
}

const MANY: usize = 1_000;

async fn a_thousand_budgets_share_the_lists_of_leases(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = two_pods(&cluster).await;
    // All wait for this one.
    create_lease(&cluster, "gone", &json!({})).await.expect(201);
    let began = Instant::now();
    let lists = cluster.embedded().map(|server| {
        let lists = RequestFilter::any().user(service_account().name()).resource("leases").verb("list");
        server.faults().requests(lists, Fault::Delay(Duration::ZERO))
    });
    let create = async |number: usize| {
        let spec = spec_for_app(&format!("app-{number}"), "minAvailable", 1);
        ns.create_budget(&format!("budget-{number}"), spec).await.expect(201);
    };
    for first in (0..MANY).step_by(50) {
        join_all((first..first + 50).map(create)).await;
    }
    delete_lease(&cluster, "gone").await;
    let path = ns.path("policy.quorate.dev/v1alpha1", "disruptionbudgets");
    eventually("all are opened", || async {
        let listed = ns.wire.get(&path).await.expect(200);
        let opened = |budget: &&Value| budget["status"]["opened"]["generation"] == 1;
        let count = listed["items"].as_array().into_iter().flatten().filter(opened).count();
        if count == MANY { Ok(()) } else { Err(count) }
    })
    .await;
    if let Some(lists) = lists {
        // The pause between two lists is 100 ms at least, however many budgets wait.
        let (hits, took) = (lists.hits(), began.elapsed());
        println!("{hits} lists of Leases for {MANY} budgets in {took:?}");
        assert!(hits as f64 <= 10.0 * took.as_secs_f64() + 10.0, "{hits} lists in {took:?}");
    }
}

/// The hash of the coverage is the same as before, but a server may have admitted something in between.
async fn a_budget_that_covers_less_and_more_again_is_opened_again(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = two_pods(&cluster).await;
    ns.create_budget_allowing("web", one_of_two(), 1).await;
    let first = ns.budget_status("web").await["opened"].clone();
    assert_eq!(first["generation"], 1);
    create_lease(&cluster, "gone", &json!({})).await.expect(201);
    for app in ["other", "web"] {
        ns.patch_budget_spec("web", json!({"selector": {"matchLabels": {"app": app}}})).await;
    }
    ns.await_status("web", "it waits", |status| {
        has_condition(status, "Enforced", "False") && status["observedGeneration"] == 3
    })
    .await;
    let sentence = denial(&ns.evict("web-0").await);
    assert!(sentence.starts_with(&format!("{}/web: not now", ns.name)), "{sentence}");
    delete_lease(&cluster, "gone").await;
    ns.await_allowed("web", 1).await;
    let again = ns.budget_status("web").await["opened"].clone();
    assert_eq!((&again["coverage"], &again["generation"]), (&first["coverage"], &json!(3)));
    // Other numbers do not close it.
    ns.patch_budget_spec("web", json!({"minAvailable": 2})).await;
    ns.await_status("web", "it names the generation", |status| status["opened"]["generation"] == 4).await;
}
