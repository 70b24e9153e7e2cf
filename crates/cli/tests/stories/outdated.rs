//! A CustomResourceDefinition that is older than the server drops unknown fields: then nothing is admitted, and the
//! status says why.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::fixture::{TestNamespace, denial, has_condition};
use crate::quorate::Quorate;

quorate_testbed::stories!(Whole:
    a_definition_without_claims_admits_nothing,
    the_definition_of_openkruise_admits_nothing,
);

async fn a_definition_without_claims_admits_nothing(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "outdated").await;
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    ns.create_budget_allowing(
        "web",
        json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}),
        1,
    )
    .await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.admin());
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/claims";
    let removal = json!([{"op": "remove", "path": path}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(removal).expect("a patch"));
    definitions
        .patch("disruptionbudgets.policy.quorate.dev", &PatchParams::default(), &patch)
        .await
        .expect("an older definition");
    // The API server needs a moment to serve it.
    let sentence = eventually("nothing is admitted any more", || async {
        let answer = ns.evict_with("web-0", json!({"preconditions": {"resourceVersion": "1"}}), "").await;
        let is_outdated = answer.code == 429 && answer.message().contains("CustomResourceDefinition");
        if is_outdated { Ok(denial(&answer)) } else { Err(answer.body) }
    })
    .await;
    assert!(sentence.contains("CustomResourceDefinition"), "{sentence}");
    assert!(ns.pod_exists("web-0").await && ns.pod_exists("web-1").await);
    ns.await_status("web", "it says why", |status| {
        has_condition(status, "DisruptionAllowed", "False")
            && status["conditions"].to_string().contains("CustomResourceDefinition")
    })
    .await;
}

/// OpenKruise's own definition of PodUnavailableBudgets, which an upgrade of OpenKruise may restore.
async fn the_definition_of_openkruise_admits_nothing(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "theirs").await;
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let number = json!({"type": "integer", "format": "int32"});
    let times = json!({"type": "object", "additionalProperties": {"type": "string", "format": "date-time"}});
    let status = json!({
        "type": "object",
        "required": ["unavailableAllowed", "currentAvailable", "desiredAvailable", "totalReplicas"],
        "properties": {
            "observedGeneration": {"type": "integer", "format": "int64"}, "disruptedPods": times,
            "unavailablePods": times, "unavailableAllowed": number, "currentAvailable": number,
            "desiredAvailable": number, "totalReplicas": number,
        },
    });
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status";
    let theirs = json!([{"op": "replace", "path": path, "value": status}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(theirs).expect("a patch"));
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.admin());
    let name = "podunavailablebudgets.policy.kruise.io";
    definitions.patch(name, &PatchParams::default(), &patch).await.expect("their definition");
    // The API server needs a moment to serve it. A budget created before that is enforced, and must be created again.
    let budgets = ns.path("policy.kruise.io/v1alpha1", "podunavailablebudgets");
    let budget = json!({
        "apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1},
    });
    // While it changes over, every request for the kind may get a 503: "apiserver is shutting down".
    let sentence = eventually("nothing is admitted", || async {
        let stored = ns.wire.get(&format!("{budgets}/web")).await;
        if stored.code == 404 {
            ns.wire.post(&budgets, &budget).await;
        }
        let stored = stored.body;
        if has_condition(&stored["status"], "Enforced", "True") {
            ns.wire.delete(&format!("{budgets}/web"), &json!({})).await;
        }
        let answer = ns.evict_with("web-0", json!({"dryRun": ["All"]}), "").await;
        let said = if answer.code == 429 { denial(&answer) } else { String::new() };
        if said.contains("CustomResourceDefinition") { Ok(said) } else { Err((stored, answer.body)) }
    })
    .await;
    assert!(sentence.starts_with("PodUnavailableBudget "), "{sentence}");
}
