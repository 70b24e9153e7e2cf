//! Whom the API server is to trust, in configurations that somebody else writes.
//!
//! Only `caBundle` is touched, and nothing is made: whoever wrote the rest changes it, or takes it away, as they like.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::api::{Api, Patch, PatchParams};
use kube::core::Resource;
use kube::{Client, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::NAME;
use crate::calls::FIELD_MANAGER;

/// Has both configurations trust `bundle`; returns whether that changed anything. Where the bundle is empty somebody
/// else says whom to trust, and they need only be there.
pub(super) async fn keep(client: &Client, bundle: &str) -> Result<bool, Error> {
    let first = within::<MutatingWebhookConfiguration>(client, bundle, |configuration| {
        trusted(configuration.webhooks.iter().flatten().map(|entry| &entry.client_config))
    })
    .await?;
    let second = within::<ValidatingWebhookConfiguration>(client, bundle, |configuration| {
        trusted(configuration.webhooks.iter().flatten().map(|entry| &entry.client_config))
    })
    .await?;
    Ok(first || second)
}

/// Whom each entry trusts.
fn trusted<'a>(configs: impl Iterator<Item = &'a WebhookClientConfig>) -> Vec<Vec<u8>> {
    configs.map(|config| config.ca_bundle.clone().map(|bundle| bundle.0).unwrap_or_default()).collect()
}

async fn within<K>(client: &Client, bundle: &str, read: impl Fn(&K) -> Vec<Vec<u8>>) -> Result<bool, Error>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let all = Api::<K>::all(client.clone());
    let raw_budgets = all.get(NAME).await?;
    let Some(steps) = steps(raw_budgets.meta().resource_version.as_deref(), &read(&raw_budgets), bundle)
    else {
        return Ok(false);
    };
    let patch: Patch<()> = Patch::Json(serde_json::from_value(steps).map_err(Error::SerdeError)?);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    all.patch(NAME, &params, &patch).await?;
    Ok(true)
}

/// A JSON Patch, where one is needed. It holds for what was seen and for nothing else: entries are known by their
/// places in it.
fn steps(version: Option<&str>, trusted: &[Vec<u8>], bundle: &str) -> Option<Value> {
    let wanted = bundle.as_bytes();
    if wanted.is_empty() || trusted.iter().all(|found| found == wanted) {
        return None;
    }
    let mut steps = vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})];
    let bundle = ByteString(wanted.to_vec());
    for (index, _) in trusted.iter().enumerate().filter(|(_, found)| *found != wanted) {
        let path = format!("/webhooks/{index}/clientConfig/caBundle");
        steps.push(json!({"op": "add", "path": path, "value": bundle}));
    }
    Some(Value::Array(steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_entries_that_trust_somebody_else_are_written() {
        let trusted = ["new", "old", ""].map(|bundle| bundle.as_bytes().to_vec());
        let expected = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": "bmV3"},
            {"op": "add", "path": "/webhooks/2/clientConfig/caBundle", "value": "bmV3"},
        ]);
        assert_eq!(steps(Some("7"), &trusted, "new"), Some(expected));
    }

    #[test]
    fn what_is_current_or_up_to_others_is_left_alone() {
        let trusted = [b"new".to_vec()];
        assert_eq!(steps(None, &trusted, "new"), None);
        assert_eq!(steps(None, &trusted, ""), None);
    }
}
