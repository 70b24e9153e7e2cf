//! What tells the API server to ask: one mutating entry for evictions, one validating entry for the rest.
//!
//! What it need not ask about is for the intake to say, which knows the table of callers that are never held up.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhook,
    ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::{Client, Error};
use quorate_intake::match_conditions::{self, Entry};

use crate::admission::{EVICTIONS, PODS};
use crate::calls::FIELD_MANAGER;
use crate::feed::EXCLUDED;

/// The name of both configurations.
pub const NAME: &str = "quorate";

/// As long as the API server waits by default.
const TIMEOUT_SECONDS: i32 = 10;

/// Where the API server finds us, whom it is to trust there, and what it is not to ask about.
#[derive(Clone, Debug)]
pub struct Address {
    /// `https://host:port`, without a path.
    pub url: String,
    /// The certificate of our authority, as PEM.
    pub ca: String,
    /// Our own namespace: Quorate does not decide on itself.
    pub namespace: String,
}

impl Address {
    fn client_config(&self, path: &str) -> WebhookClientConfig {
        WebhookClientConfig {
            ca_bundle: Some(ByteString(self.ca.clone().into_bytes())),
            url: Some(format!("{}{path}", self.url.trim_end_matches('/'))),
            service: None,
        }
    }

    fn namespaces(&self) -> LabelSelector {
        LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: "kubernetes.io/metadata.name".to_owned(),
                operator: "NotIn".to_owned(),
                values: Some(vec![EXCLUDED.to_owned(), self.namespace.clone()]),
            }]),
            match_labels: None,
        }
    }
}

/// Writes both configurations.
pub async fn register(client: &Client, address: &Address) -> Result<(), Error> {
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let mutating_ones = Api::<MutatingWebhookConfiguration>::all(client.clone());
    mutating_ones.patch(NAME, &params, &Patch::Apply(&mutating(address))).await?;
    let validating_ones = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    validating_ones.patch(NAME, &params, &Patch::Apply(&validating(address))).await?;
    Ok(())
}

/// Evictions are decided where they can be pinned to a pod.
pub fn mutating(address: &Address) -> MutatingWebhookConfiguration {
    MutatingWebhookConfiguration {
        metadata: named(),
        webhooks: Some(vec![MutatingWebhook {
            name: "evictions.quorate.dev".to_owned(),
            client_config: address.client_config(EVICTIONS),
            rules: Some(vec![rule("CREATE", "pods/eviction")]),
            namespace_selector: Some(address.namespaces()),
            match_conditions: Some(conditions(Entry::Evictions)),
            // An outage of ours holds nobody up where no budget enforces; where one does it is for the namespace's
            // label to say.
            failure_policy: Some("Ignore".to_owned()),
            side_effects: "NoneOnDryRun".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
            admission_review_versions: vec!["v1".to_owned()],
            ..MutatingWebhook::default()
        }]),
    }
}

/// Deletes are asked about for the very object.
pub fn validating(address: &Address) -> ValidatingWebhookConfiguration {
    ValidatingWebhookConfiguration {
        metadata: named(),
        webhooks: Some(vec![ValidatingWebhook {
            name: "pods.quorate.dev".to_owned(),
            client_config: address.client_config(PODS),
            rules: Some(vec![rule("DELETE", "pods")]),
            namespace_selector: Some(address.namespaces()),
            match_conditions: Some(conditions(Entry::Changes)),
            failure_policy: Some("Ignore".to_owned()),
            side_effects: "NoneOnDryRun".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
            admission_review_versions: vec!["v1".to_owned()],
            ..ValidatingWebhook::default()
        }]),
    }
}

fn named() -> ObjectMeta {
    ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() }
}

fn rule(operation: &str, resource: &str) -> RuleWithOperations {
    RuleWithOperations {
        api_groups: Some(vec![String::new()]),
        api_versions: Some(vec!["v1".to_owned()]),
        operations: Some(vec![operation.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        scope: Some("Namespaced".to_owned()),
    }
}

fn conditions(entry: Entry) -> Vec<MatchCondition> {
    let condition = |intake: match_conditions::MatchCondition| MatchCondition {
        name: intake.name,
        expression: intake.expression,
    };
    match_conditions::match_conditions(entry).into_iter().map(condition).collect()
}
