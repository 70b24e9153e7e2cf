//! Whether PodUnavailableBudgets are served here must be known before the first decision: other servers may report them as
//! enforced.

use serde_json::{Value, json};

use super::*;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const UNAVAILABLE_BUDGETS: &str = "/apis/policy.kruise.io/v1alpha1/podunavailablebudgets";
const LISTED: &str = "PodUnavailableBudget 1";

/// A cluster with a PodUnavailableBudget, its definition, and these webhook configurations.
fn cluster(webhooks: Vec<Value>) -> FakeApi {
    let api = FakeApi::empty_cluster();
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
    let metadata =
        json!({"namespace": "shop", "name": "web", "uid": "b", "generation": 1, "resourceVersion": "4"});
    api.serve(UNAVAILABLE_BUDGETS, vec![json!({"metadata": metadata, "spec": spec})]);
    api.serve(DEFINITIONS, vec![definition()]);
    api.serve(WEBHOOKS, webhooks);
    api
}

fn definition() -> Value {
    let version = json!({"name": "v1alpha1", "served": true});
    json!({"metadata": {"name": "podunavailablebudgets.policy.kruise.io", "uid": "d", "resourceVersion": "1"},
        "spec": {"group": "policy.kruise.io", "names": {"kind": "PodUnavailableBudget"}, "versions": [version]}})
}

/// The configuration of OpenKruise while it serves the budgets itself.
fn openkruise() -> Value {
    json!({"metadata": {"name": "kruise-validating-webhook-configuration", "uid": "k", "resourceVersion": "3"},
        "webhooks": [{"name": "vpod.kb.io"}]})
}

impl Fixture {
    /// Why the initial sync is still not complete after 10 minutes.
    async fn why_not_synced(&mut self) -> &'static str {
        let synced = tokio::time::timeout(Duration::from_secs(600), self.until_synced()).await;
        assert!(synced.is_err(), "it is synced: {synced:?}");
        self.scope.awaited().unwrap_or_default()
    }
}

#[tokio::test(start_paused = true)]
async fn webhooks_that_cannot_be_read_block_the_initial_sync() {
    for (webhooks, is_listed) in [(vec![], true), (vec![openkruise()], false)] {
        let api = cluster(webhooks);
        api.forbid(WEBHOOKS);
        let mut fixture = Fixture::start_with(api, ServePub::Auto);
        let why = fixture.why_not_synced().await;
        assert!(why.contains("ValidatingWebhookConfigurations") && why.contains("--serve-pub"), "{why}");
        fixture.api.permit(WEBHOOKS);
        let events = fixture.until_synced().await;
        assert_eq!(events.contains(&LISTED.to_owned()), is_listed, "{events:?}");
        assert_eq!(fixture.scope.awaited(), None);
    }
    // An administrator who has decided needs no webhooks.
    for (serve, is_listed) in [(ServePub::Always, true), (ServePub::Never, false)] {
        let api = cluster(vec![]);
        api.forbid(WEBHOOKS);
        let events = Fixture::start_with(api, serve).until_synced().await;
        assert_eq!(events.contains(&LISTED.to_owned()), is_listed, "{events:?}");
    }
}

/// Discovery omits the group while an API server starts. Only the definitions show whether the kind exists.
#[tokio::test(start_paused = true)]
async fn a_kind_that_discovery_omits_blocks_the_initial_sync_until_definitions_are_read() {
    for defined in [true, false] {
        let api = cluster(vec![]);
        api.hide("/apis/policy.kruise.io");
        api.forbid(DEFINITIONS);
        let mut fixture = Fixture::start_with(api, ServePub::Auto);
        let why = fixture.why_not_synced().await;
        assert!(why.contains("CustomResourceDefinitions") && why.contains("--serve-pub"), "{why}");
        if !defined {
            fixture.api.serve(DEFINITIONS, vec![]);
        }
        fixture.api.permit(DEFINITIONS);
        if defined {
            fixture.events_within(60).await;
            fixture.api.show("/apis/policy.kruise.io");
        }
        let events = fixture.until_synced().await;
        assert_eq!(events.contains(&LISTED.to_owned()), defined, "{events:?}");
    }
}

/// The watches lag: OpenKruise stops to serve the budgets, or the kind is defined, before the process says that it serves.
/// The leader may have opened the budgets without it.
#[tokio::test(start_paused = true)]
async fn budgets_that_are_served_since_the_initial_sync_are_listed_before_the_process_serves() {
    let unserved = cluster(vec![openkruise()]);
    let undefined = cluster(vec![]);
    undefined.withdraw(UNAVAILABLE_BUDGETS);
    undefined.serve(DEFINITIONS, vec![]);
    for api in [unserved, undefined] {
        let mut fixture = Fixture::start_with(api, ServePub::Auto);
        let events = fixture.until_synced().await;
        assert!(!events.contains(&LISTED.to_owned()), "{events:?}");
        // No watch shows this.
        for (path, objects) in
            [(UNAVAILABLE_BUDGETS, vec![budget()]), (DEFINITIONS, vec![definition()]), (WEBHOOKS, vec![])]
        {
            fixture.api.serve(path, objects);
        }
        let scope = fixture.scope.clone();
        tokio::time::timeout(Duration::from_secs(10), scope.list_budgets_again()).await.expect("it is done");
        let events = fixture.events_within(0).await;
        assert!(events.contains(&LISTED.to_owned()), "{events:?}");
    }
}

/// The kind is removed while its budgets are to be listed once more.
#[tokio::test(start_paused = true)]
async fn a_kind_that_is_removed_before_the_process_serves_is_not_waited_for() {
    let mut fixture = Fixture::start_with(cluster(vec![]), ServePub::Auto);
    fixture.until_synced().await;
    fixture.api.withdraw(UNAVAILABLE_BUDGETS);
    fixture.api.serve(DEFINITIONS, vec![]);
    let scope = fixture.scope.clone();
    let waiting = tokio::spawn(async move { scope.list_budgets_again().await });
    fixture.events_within(300).await;
    assert!(waiting.is_finished(), "it waits for a kind that does not exist any more");
}
