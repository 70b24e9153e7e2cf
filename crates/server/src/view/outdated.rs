//! CustomResourceDefinitions that do not store what servers write to a budget, because they are older than the servers.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::Api;
use quorate_engine::Engine;
use quorate_engine::facts::BudgetKind;

/// The definitions of budgets.
const DEFINITIONS: [(BudgetKind, &str); 2] = [
    (BudgetKind::DisruptionBudget, "disruptionbudgets.policy.quorate.dev"),
    (BudgetKind::PodUnavailableBudget, "podunavailablebudgets.policy.kruise.io"),
];

/// The field of a status without which a budget stays closed.
const OPENED: &str = "openedFor";

/// The kinds whose definition drops that a budget is open. A definition is read only if a budget of its kind is closed, and
/// counts as current if the user may not read it.
pub(super) async fn kinds(client: &Client, engine: &Engine) -> Vec<BudgetKind> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut outdated = Vec::new();
    for (kind, name) in DEFINITIONS {
        let is_closed = |budget: &quorate_engine::facts::Budget| {
            budget.key.kind == kind && budget.ledger.enforced.is_none()
        };
        if engine.budgets().any(is_closed)
            && let Ok(definition) = definitions.get(name).await
            && !stores(&definition)
        {
            outdated.push(kind);
        }
    }
    outdated
}

fn stores(definition: &CustomResourceDefinition) -> bool {
    let stored = definition.spec.versions.iter().filter(|version| version.storage);
    let schemas = stored.filter_map(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref());
    schemas.into_iter().all(|schema| {
        let status = schema.properties.as_ref().and_then(|properties| properties.get("status"));
        let keeps = status.is_some_and(|status| status.x_kubernetes_preserve_unknown_fields == Some(true));
        let fields = status.and_then(|status| status.properties.as_ref());
        keeps || fields.is_some_and(|fields| fields.contains_key(OPENED))
    })
}
