//! New budgets: no request is admitted because a server did not know the budget yet.

use std::cell::Cell;

use quorate_devcluster::apiserver::{Fault, FaultGuard, RequestFilter};
use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::{Value, json};

use crate::fixture::{TestNamespace, condition, denial, has_condition};
use crate::quorate::{Quorate, apply, rendered, service_account};
use crate::replicas::Replicas;

quorate_testbed::stories!(Whole:
    a_new_budget_denies_until_it_is_enforced,
    a_budget_waits_for_a_server_that_was_just_killed,
    a_budget_is_not_enforced_before_its_namespace_is_labelled,
    a_recreated_budget_keeps_earlier_claims,
);

fn one_of_two() -> Value {
    json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1})
}

async fn two_pods(cluster: &Cluster) -> TestNamespace {
    let ns = TestNamespace::with_manual_pods(cluster, "new-budgets").await;
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    ns
}

async fn a_new_budget_denies_until_it_is_enforced(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = two_pods(&cluster).await;
    ns.evict_with("web-0", json!({"dryRun": ["All"]}), "").await.expect(201);
    ns.create_budget("web", one_of_two()).await.expect(201);
    // A server that has not seen the budget yet lets the pods pass.
    ns.await_status("web", "a server knows it", |status| condition(status, "Enforced").is_object()).await;
    // From then on, the budget either denies because it is not enforced yet, or is enforced and keeps its rule. It never
    // admits both evictions.
    let admitted = Cell::new(0);
    let evict_both = async || {
        for pod in ["web-0", "web-1"] {
            let answer = ns.evict(pod).await;
            match answer.code {
                201 => admitted.set(admitted.get() + 1),
                404 => {}
                _ => drop(denial(&answer)),
            }
        }
    };
    eventually("it is enforced, and has admitted one", || async {
        evict_both().await;
        let status = ns.budget_status("web").await;
        let enforced = has_condition(&status, "Enforced", "True");
        if enforced && admitted.get() > 0 { Ok(()) } else { Err(status) }
    })
    .await;
    evict_both().await;
    assert_eq!(admitted.get(), 1, "one of two stays");
}

async fn a_budget_waits_for_a_server_that_was_just_killed(cluster: Cluster) {
    let mut replicas = Replicas::start(&cluster, 3, &["--claim-expiry-seconds=40"]).await;
    let ns = two_pods(&cluster).await;
    replicas.kill(1);
    // Until its endpoint is gone, the API server may still call it.
    replicas.until_ready(2).await;
    ns.create_budget("web", one_of_two()).await.expect(201);
    ns.await_status("web", "it waits", |status| has_condition(status, "Enforced", "False")).await;
    // The killed server cannot report what it admitted, so nothing is admitted until its
    // admissions were carried out or have expired.
    let sentence = denial(&ns.evict("web-0").await);
    assert!(sentence.starts_with(&format!("{}/web: not now", ns.name)), "{sentence}");
    ns.await_allowed("web", 1).await;
    ns.evict("web-0").await.expect(201);
    denial(&ns.evict("web-1").await);
}

async fn a_budget_is_not_enforced_before_its_namespace_is_labelled(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = two_pods(&cluster).await;
    let labelled = two_pods(&cluster).await;
    let label = json!({"metadata": {"labels": {"quorate.dev/enforced": "true"}}});
    let path = format!("/api/v1/namespaces/{}", labelled.name);
    cluster.wire().patch(&path, Patch::Merge, &label).await.expect(200);

    let blocked = BlockedWrites::start(&cluster).await;
    ns.create_budget("web", one_of_two()).await.expect(201);
    ns.await_status("web", "it waits", |status| has_condition(status, "Enforced", "False")).await;
    // This one is created later and is enforced, so the other one does not just need more time.
    labelled.create_budget_allowing("web", one_of_two(), 1).await;
    assert!(has_condition(&ns.budget_status("web").await, "Enforced", "False"));
    let sentence = denial(&ns.evict("web-0").await);
    assert!(sentence.starts_with(&format!("{}/web: not now", ns.name)), "{sentence}");

    blocked.end(&cluster).await;
    ns.await_allowed("web", 1).await;
    let namespace = cluster.wire().get(&format!("/api/v1/namespaces/{}", ns.name)).await.expect(200);
    assert_eq!(namespace["metadata"]["labels"]["quorate.dev/enforced"], "true");
    ns.evict("web-0").await.expect(201);
    denial(&ns.evict("web-1").await);
}

/// The server cannot write to namespaces until this ends.
struct BlockedWrites {
    fault: Option<FaultGuard>,
}

const RIGHTS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/quorate-server";

impl BlockedWrites {
    async fn start(cluster: &Cluster) -> Self {
        let fault = cluster.embedded().map(|server| {
            let writes =
                RequestFilter::any().user(service_account().name()).resource("namespaces").verb("patch");
            server.faults().requests(writes, Fault::InternalError)
        });
        if cluster.control_plane().is_some() {
            let role = cluster.wire().get(RIGHTS).await.expect(200);
            let mut rules = role["rules"].as_array().cloned().expect("rules");
            rules.retain(|rule| {
                !(rule["resources"] == json!(["namespaces"]) && rule["verbs"] == json!(["patch"]))
            });
            cluster.wire().patch(RIGHTS, Patch::Merge, &json!({"rules": rules})).await.expect(200);
            let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {"user": service_account().name(),
                    "resourceAttributes": {"verb": "patch", "resource": "namespaces"}}});
            eventually("the right is gone", || async {
                let answer =
                    cluster.wire().post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await;
                if answer.body["status"]["allowed"] == true { Err(answer.body) } else { Ok(()) }
            })
            .await;
        }
        Self { fault }
    }

    async fn end(self, cluster: &Cluster) {
        drop(self.fault);
        if cluster.control_plane().is_some() {
            apply(cluster, &rendered(&["ClusterRole"])).await;
        }
    }
}

async fn a_recreated_budget_keeps_earlier_claims(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = two_pods(&cluster).await;
    ns.create_budget_allowing("web", one_of_two(), 1).await;
    // Admitted by Quorate and then rejected by the API server: a claim, which a retry may still use.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(ns.evict_with("web-0", later, "").await.code, 409);
    ns.delete_budget("web").await;
    ns.create_budget("web", one_of_two()).await.expect(201);
    ns.await_status("web", "it has the earlier claim", |status| {
        let claims = status["claims"].as_object().map_or(0, serde_json::Map::len);
        has_condition(status, "Enforced", "True") && claims == 1 && status["disruptionsAllowed"] == 0
    })
    .await;
    denial(&ns.evict("web-1").await);
}
