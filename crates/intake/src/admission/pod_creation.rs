//! A pod that a controller creates: its owners, and the owners that its template names.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use quorate_api::names::OWNER_REFERENCES;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{allow, allow_with_patch};
use super::review::{Rejected, Review};

/// A pod with a controller that is about to be created.
#[derive(Clone, Debug, PartialEq)]
pub struct PodCreation {
    /// Its namespace.
    pub namespace: String,
    /// Its owners, including the controller.
    pub present: Vec<OwnerReference>,
    /// Its controller.
    pub controller: OwnerReference,
    /// The annotation with the owners that its template names. Controllers copy annotations from the template.
    pub annotation: Option<String>,
    /// The user that creates it.
    pub creator: Creator,
    /// Whether the request is a dry run.
    pub dry_run: bool,
}

/// A user, as the API server has authenticated it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Creator {
    /// The user name.
    pub user: String,
    /// The UID, if there is one.
    pub uid: Option<String>,
    /// The groups.
    pub groups: Vec<String>,
    /// Extra attributes from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Made {
    metadata: Meta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    namespace: Option<String>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl Review<'_> {
    /// The pod that is created; `None` if the review is not the creation of a pod with a controller.
    ///
    /// # Errors
    /// The pod cannot be read.
    pub fn creation(&self) -> Result<Option<PodCreation>, Rejected> {
        if self.operation() != "CREATE" || self.resource() != "pods" {
            return Ok(None);
        }
        let Made { metadata } = self.decode("object", self.call.object)?;
        let present = metadata.owner_references.unwrap_or_default();
        let Some(controller) = present.iter().find(|owner| owner.controller == Some(true)).cloned() else {
            return Ok(None);
        };
        let user = &self.call.user_info;
        Ok(Some(PodCreation {
            namespace: self.call.namespace.clone().or(metadata.namespace).unwrap_or_default(),
            present,
            controller,
            annotation: metadata.annotations.and_then(|mut all| all.remove(OWNER_REFERENCES)),
            creator: Creator {
                user: user.username.clone(),
                uid: user.uid.clone().filter(|uid| !uid.is_empty()),
                groups: user.groups.clone().unwrap_or_default(),
                extra: user.extra.clone().unwrap_or_default(),
            },
            dry_run: self.call.dry_run.unwrap_or(false),
        }))
    }
}

/// Allows the creation of the pod, and appends these owners to its own.
pub fn give_owners(uid: &str, owners: &[OwnerReference]) -> Value {
    if owners.is_empty() {
        return allow(uid);
    }
    let add = |owner| json!({ "op": "add", "path": "/metadata/ownerReferences/-", "value": owner });
    allow_with_patch(uid, &owners.iter().map(add).collect())
}
