//! Converts watched objects into facts.
//!
//! Each function takes one object and returns its fact, or the problem of that object. A missing fact makes the engine
//! stricter, never more permissive: a group that cannot be read cannot be resolved. Pods are the exception: a pod that
//! is gone settles its claims, so a pod that exists is kept, with the fields that can be read.

mod cluster;
mod controller;
mod group;
mod leader_worker_set;
mod pod;
mod twin;

pub use cluster::{agent, namespace, native_budget, node};
pub use controller::{any as any_controller, deployment, replica_set, stateful_set};
pub use group::{own_workload, pod_group, upstream_workload};
pub use leader_worker_set::leader_worker_set;
pub use pod::{any_pod, pod};
pub use twin::{Groups, TooTight, is_twin, native_owner, too_tight, twin};

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use quorate_engine::basics::{GroupKind, ObjectKey, Text, Uid, Version};
use quorate_engine::facts::Owner;

use crate::error::{Problem, Unreadable};

/// The kind and metadata of a watched object, to read its fields and to name it in errors.
#[derive(Clone, Copy)]
pub(crate) struct Incoming<'a> {
    kind: &'static str,
    meta: &'a ObjectMeta,
}

impl<'a> Incoming<'a> {
    pub(crate) fn new(kind: &'static str, meta: &'a ObjectMeta) -> Self {
        Self { kind, meta }
    }

    pub(crate) fn unreadable(self, problem: Problem) -> Unreadable {
        let name = self.meta.name.as_deref().unwrap_or("(no name)");
        let object = match self.meta.namespace.as_deref() {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        };
        Unreadable { kind: self.kind, object, problem }
    }

    fn required(self, value: Option<&str>, path: &str) -> Result<Text, Unreadable> {
        match value.filter(|value| !value.is_empty()) {
            Some(value) => Ok(value.into()),
            None => Err(self.unreadable(Problem::at(path, "is missing"))),
        }
    }

    pub(crate) fn name(self) -> Result<Text, Unreadable> {
        self.required(self.meta.name.as_deref(), "metadata.name")
    }

    pub(crate) fn uid(self) -> Result<Uid, Unreadable> {
        self.required(self.meta.uid.as_deref(), "metadata.uid")
    }

    pub(crate) fn key(self) -> Result<ObjectKey, Unreadable> {
        Ok(ObjectKey {
            namespace: self.required(self.meta.namespace.as_deref(), "metadata.namespace")?,
            name: self.name()?,
        })
    }

    pub(crate) fn version(self) -> Result<Version, Unreadable> {
        let text = self.required(self.meta.resource_version.as_deref(), "metadata.resourceVersion")?;
        version(&text).ok_or_else(|| {
            self.unreadable(Problem::with("metadata.resourceVersion", text, "must be a number"))
        })
    }

    pub(crate) fn terminating(self) -> bool {
        self.meta.deletion_timestamp.is_some()
    }

    pub(crate) fn owners(self) -> Arc<[Owner]> {
        self.meta.owner_references.iter().flatten().map(owner).collect()
    }

    pub(crate) fn controller(self) -> Option<Owner> {
        self.meta.owner_references.iter().flatten().map(owner).find(|owner| owner.controller)
    }

    pub(crate) fn label(self, key: &str) -> Option<&'a str> {
        self.meta.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// A count that must be at least `least`.
    pub(crate) fn count(self, path: &str, number: i32, least: u32) -> Result<u32, Unreadable> {
        u32::try_from(number).ok().filter(|number| *number >= least).ok_or_else(|| {
            self.unreadable(Problem::with(path, number, format!("must be a whole number from {least} up")))
        })
    }
}

/// A `resourceVersion` as a number; `None` if it is not a number.
pub fn version(text: &str) -> Option<Version> {
    // Digits only: `parse` alone would accept a sign.
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten().map(Version)
}

fn owner(reference: &OwnerReference) -> Owner {
    Owner {
        uid: reference.uid.as_str().into(),
        kind: group_kind(&reference.api_version, &reference.kind),
        name: reference.name.as_str().into(),
        controller: reference.controller == Some(true),
    }
}

/// Group and kind from an `apiVersion` and a kind. The core group has no name.
pub(crate) fn group_kind(api_version: &str, kind: &str) -> GroupKind {
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    GroupKind::new(group, kind)
}
