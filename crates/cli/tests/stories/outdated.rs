//! A definition that is older than the server drops what it does not know: then nothing is admitted, and the status
//! says why.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::quorate::Quorate;
use crate::town::{Town, is, refusal};

quorate_testbed::stories!(Whole:
    where_claims_do_not_stick_nothing_is_admitted,
    with_the_definition_of_openkruise_nothing_is_admitted,
);

async fn where_claims_do_not_stick_nothing_is_admitted(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "outdated").await;
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}), 1).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.admin());
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/claims";
    let removal = json!([{"op": "remove", "path": path}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(removal).expect("a patch"));
    definitions
        .patch("disruptionbudgets.policy.quorate.dev", &PatchParams::default(), &patch)
        .await
        .expect("an older definition");
    // The API server takes a moment to serve it.
    let sentence = eventually("nothing is admitted any more", || async {
        let answer = town.evict_with("web-0", json!({"preconditions": {"resourceVersion": "1"}}), "").await;
        if answer.code == 429 { Ok(refusal(&answer)) } else { Err(answer.body) }
    })
    .await;
    assert!(sentence.contains("CustomResourceDefinition"), "{sentence}");
    assert!(town.exists("web-0").await && town.exists("web-1").await);
    town.status_is("web", "it says why", |status| {
        is(status, "DisruptionAllowed", "False")
            && status["conditions"].to_string().contains("CustomResourceDefinition")
    })
    .await;
}

/// OpenKruise's own definition of its budgets, which an upgrade of it may bring back.
async fn with_the_definition_of_openkruise_nothing_is_admitted(cluster: Cluster) {
    let _quorate = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "theirs").await;
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
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
    // The API server takes a moment to serve it: a budget made before that is opened, and has to be made again.
    let budgets =
        format!("/apis/policy.kruise.io/v1alpha1/namespaces/{}/podunavailablebudgets", town.namespace);
    let budget = json!({
        "apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1},
    });
    town.wire.post(&budgets, &budget).await.expect(201);
    let sentence = eventually("nothing is admitted", || async {
        let stored = town.wire.get(&format!("{budgets}/web")).await.expect(200);
        if is(&stored["status"], "Enforced", "True") {
            town.wire.delete(&format!("{budgets}/web"), &json!({})).await.expect(200);
            town.wire.post(&budgets, &budget).await.expect(201);
        }
        let answer = town.evict_with("web-0", json!({"dryRun": ["All"]}), "").await;
        let said = if answer.code == 429 { refusal(&answer) } else { String::new() };
        if said.contains("CustomResourceDefinition") { Ok(said) } else { Err((stored, answer.body)) }
    })
    .await;
    assert!(sentence.starts_with("PodUnavailableBudget "), "{sentence}");
}
