//! Webhook configurations of other projects.

use k8s_openapi::api::admissionregistration::v1 as registration;
use kube::Resource;
use kube::core::ObjectMeta;
use serde::Deserialize;

use super::{meta, or_default};

/// The validating webhooks that the API server calls before it stores an object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource)]
#[resource(inherit = registration::ValidatingWebhookConfiguration)]
#[serde(default)]
pub struct ValidatingWebhookConfiguration {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// Its entries.
    #[serde(deserialize_with = "or_default")]
    pub webhooks: Vec<Webhook>,
}

/// One webhook of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Webhook {
    /// Its name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
}
