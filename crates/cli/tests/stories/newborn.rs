//! Budgets that are young: nothing gets past one because nobody knew it yet.

use std::cell::Cell;

use quorate_devcluster::apiserver::{Fault, FaultGuard, RequestFilter};
use quorate_testbed::{Cluster, Patch, eventually};
use serde_json::{Value, json};

use crate::quorate::{Quorate, apply, rendered, service_account};
use crate::replicas::Replicas;
use crate::town::{Town, is, refusal};

quorate_testbed::stories!(Whole:
    a_budget_just_made_says_not_now_and_then_keeps_its_rule,
    a_budget_waits_for_a_server_that_was_just_killed,
    a_budget_is_not_enforced_before_its_namespace_is_labelled,
    a_budget_deleted_and_made_again_forgets_nothing,
);

fn one_of_two() -> Value {
    json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1})
}

async fn two_pods(cluster: &Cluster) -> Town {
    let town = Town::found(cluster, "newborn").await;
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    town
}

async fn a_budget_just_made_says_not_now_and_then_keeps_its_rule(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let town = two_pods(&cluster).await;
    town.evict_with("web-0", json!({"dryRun": ["All"]}), "").await.expect(201);
    town.new_budget("web", one_of_two()).await.expect(201);
    // Right away: either it is not known yet for certain, and says so, or it is enforced and keeps its rule. Asked
    // until it is enforced, it never lets both go.
    let admitted = Cell::new(0);
    let ask_for_both = async || {
        for pod in ["web-0", "web-1"] {
            let answer = town.evict(pod).await;
            match answer.code {
                201 => admitted.set(admitted.get() + 1),
                404 => {}
                _ => drop(refusal(&answer)),
            }
        }
    };
    eventually("it is enforced, and has let one go", || async {
        ask_for_both().await;
        let status = town.status("web").await;
        let enforced = is(&status, "Enforced", "True");
        if enforced && admitted.get() > 0 { Ok(()) } else { Err(status) }
    })
    .await;
    ask_for_both().await;
    assert_eq!(admitted.get(), 1, "one of two stays");
}

async fn a_budget_waits_for_a_server_that_was_just_killed(cluster: Cluster) {
    let mut replicas = Replicas::start(&cluster, 3, &["--claim-expiry-seconds=40"]).await;
    let town = two_pods(&cluster).await;
    replicas.kill(1);
    town.new_budget("web", one_of_two()).await.expect(201);
    town.status_is("web", "it waits", |status| is(status, "Enforced", "False")).await;
    // Nobody can ask that server what it admitted: nothing is admitted before that has happened or cannot any more.
    let sentence = refusal(&town.evict("web-0").await);
    assert!(sentence.starts_with(&format!("{}/web: not now", town.namespace)), "{sentence}");
    town.allows("web", 1).await;
    town.evict("web-0").await.expect(201);
    refusal(&town.evict("web-1").await);
}

async fn a_budget_is_not_enforced_before_its_namespace_is_labelled(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let town = two_pods(&cluster).await;
    let labelled = two_pods(&cluster).await;
    let label = json!({"metadata": {"labels": {"quorate.dev/enforced": "true"}}});
    let path = format!("/api/v1/namespaces/{}", labelled.namespace);
    cluster.wire().patch(&path, Patch::Merge, &label).await.expect(200);

    let hindered = Hindered::start(&cluster).await;
    town.new_budget("web", one_of_two()).await.expect(201);
    town.status_is("web", "it waits", |status| is(status, "Enforced", "False")).await;
    // Made later, and enforced: it is not for want of time that the other is not.
    labelled.budget("web", one_of_two(), 1).await;
    assert!(is(&town.status("web").await, "Enforced", "False"));
    let sentence = refusal(&town.evict("web-0").await);
    assert!(sentence.starts_with(&format!("{}/web: not now", town.namespace)), "{sentence}");

    hindered.end(&cluster).await;
    town.allows("web", 1).await;
    let namespace = cluster.wire().get(&format!("/api/v1/namespaces/{}", town.namespace)).await.expect(200);
    assert_eq!(namespace["metadata"]["labels"]["quorate.dev/enforced"], "true");
    town.evict("web-0").await.expect(201);
    refusal(&town.evict("web-1").await);
}

/// While this lasts the server cannot write to namespaces.
struct Hindered {
    fault: Option<FaultGuard>,
}

const RIGHTS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/quorate-server";

impl Hindered {
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
            let asked = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {"user": service_account().name(),
                    "resourceAttributes": {"verb": "patch", "resource": "namespaces"}}});
            eventually("the right is gone", || async {
                let answer =
                    cluster.wire().post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &asked).await;
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

async fn a_budget_deleted_and_made_again_forgets_nothing(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let town = two_pods(&cluster).await;
    town.budget("web", one_of_two(), 1).await;
    // Admitted, and held up in the API server for a reason of its own: it may still be carried out.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(town.evict_with("web-0", later, "").await.code, 409);
    town.delete_budget("web").await;
    town.new_budget("web", one_of_two()).await.expect(201);
    town.status_is("web", "it knows of what was admitted before", |status| {
        let claims = status["claims"].as_object().map_or(0, serde_json::Map::len);
        is(status, "Enforced", "True") && claims == 1 && status["disruptionsAllowed"] == 0
    })
    .await;
    refusal(&town.evict("web-1").await);
}
