//! The CA bundle in webhook configurations that another tool writes.
//!
//! Only `caBundle` is changed, and nothing is created: the other tool, such as Helm, changes or deletes the rest.

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

/// Writes `bundle` to both configurations; returns whether that changed anything. An empty bundle is managed elsewhere:
/// then the configurations only have to exist.
pub(super) async fn reconcile(client: &Client, bundle: &str) -> Result<bool, Error> {
    let first = patch_bundle::<MutatingWebhookConfiguration>(client, bundle, |configuration| {
        ca_bundles(configuration.webhooks.iter().flatten().map(|entry| &entry.client_config))
    })
    .await?;
    let second = patch_bundle::<ValidatingWebhookConfiguration>(client, bundle, |configuration| {
        ca_bundles(configuration.webhooks.iter().flatten().map(|entry| &entry.client_config))
    })
    .await?;
    Ok(first || second)
}

/// The CA bundle of each entry.
fn ca_bundles<'a>(configs: impl Iterator<Item = &'a WebhookClientConfig>) -> Vec<Vec<u8>> {
    configs.map(|config| config.ca_bundle.clone().map(|bundle| bundle.0).unwrap_or_default()).collect()
}

async fn patch_bundle<K>(
    client: &Client,
    bundle: &str,
    read: impl Fn(&K) -> Vec<Vec<u8>>,
) -> Result<bool, Error>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let all = Api::<K>::all(client.clone());
    let configuration = all.get(NAME).await?;
    let Some(steps) = steps(configuration.meta().resource_version.as_deref(), &read(&configuration), bundle)
    else {
        return Ok(false);
    };
    let patch: Patch<()> = Patch::Json(serde_json::from_value(steps).map_err(Error::SerdeError)?);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    all.patch(NAME, &params, &patch).await?;
    Ok(true)
}

/// A JSON Patch, if one is needed. It tests the version that was read, because it addresses entries by their index.
fn steps(version: Option<&str>, current: &[Vec<u8>], bundle: &str) -> Option<Value> {
    let wanted = bundle.as_bytes();
    if wanted.is_empty() || current.iter().all(|found| found == wanted) {
        return None;
    }
    let mut steps = vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})];
    let bundle = ByteString(wanted.to_vec());
    for (index, _) in current.iter().enumerate().filter(|(_, found)| *found != wanted) {
        let path = format!("/webhooks/{index}/clientConfig/caBundle");
        steps.push(json!({"op": "add", "path": path, "value": bundle}));
    }
    Some(Value::Array(steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_entries_with_another_bundle_are_written() {
        let current = ["new", "old", ""].map(|bundle| bundle.as_bytes().to_vec());
        let expected = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": "bmV3"},
            {"op": "add", "path": "/webhooks/2/clientConfig/caBundle", "value": "bmV3"},
        ]);
        assert_eq!(steps(Some("7"), &current, "new"), Some(expected));
    }

    #[test]
    fn a_current_bundle_and_one_managed_elsewhere_are_not_written() {
        let current = [b"new".to_vec()];
        assert_eq!(steps(None, &current, "new"), None);
        assert_eq!(steps(None, &current, ""), None);
    }
}
