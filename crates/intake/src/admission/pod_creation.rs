//! A pod that a controller is making: who its owners are, and who else its template may name.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use quorate_api::names::OWNER_REFERENCES;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{allow, allow_with_patch};
use super::review::{Rejected, Review};

/// A pod with a controller, about to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct PodCreation {
    /// Its namespace.
    pub namespace: String,
    /// Its owners, the controller among them.
    pub present: Vec<OwnerReference>,
    /// Its controller.
    pub controller: OwnerReference,
    /// The owners that its template names in an annotation; controllers copy those.
    pub annotation: Option<String>,
    /// Who makes it.
    pub creator: Creator,
    /// Nothing will come of it.
    pub dry_run: bool,
}

/// Somebody, as the API server knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Creator {
    /// The name.
    pub user: String,
    /// The UID, where there is one.
    pub uid: Option<String>,
    /// The groups.
    pub groups: Vec<String>,
    /// Whatever else the authenticator said.
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
    /// The pod that is being made, if it is one and has a controller.
    ///
    /// # Errors
    /// It cannot be read.
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

/// Lets the pod be made with these owners after those that it has.
pub fn give_owners(uid: &str, owners: &[OwnerReference]) -> Value {
    if owners.is_empty() {
        return allow(uid);
    }
    let add = |owner| json!({ "op": "add", "path": "/metadata/ownerReferences/-", "value": owner });
    allow_with_patch(uid, &owners.iter().map(add).collect())
}
