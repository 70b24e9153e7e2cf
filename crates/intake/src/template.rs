//! Pods from templates, with the owners that a template names.

use std::fmt;

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::syntax;

/// The pod that a controller makes from a template: labels, annotations, finalizers and spec of the template, and the
/// controller as its owner. With `propagate`, the gate `PropagateOwnerReferences`, it also has the owners that the
/// template names. Its name is for whoever makes it to give.
pub fn pod_from_template(
    template: &PodTemplateSpec,
    controller: Option<&OwnerReference>,
    propagate: bool,
) -> Pod {
    let none = ObjectMeta::default();
    let meta = template.metadata.as_ref().unwrap_or(&none);
    let mut owners: Vec<OwnerReference> = controller.cloned().into_iter().collect();
    if propagate {
        let named = meta.owner_references.as_deref().unwrap_or_default();
        owners.extend(sort(named, &owners).added);
    }
    Pod {
        metadata: ObjectMeta {
            labels: meta.labels.clone(),
            annotations: meta.annotations.clone(),
            finalizers: meta.finalizers.clone(),
            owner_references: (!owners.is_empty()).then_some(owners),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// The owners that a template names, by what becomes of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sorted {
    /// Those that the pod does not have yet, in the template's order. Whether they exist is not known here.
    pub added: Vec<OwnerReference>,
    /// Those that no pod can have, and why.
    pub flawed: Vec<(OwnerReference, Flaw)>,
}

/// Sorts the owners that a template names for a pod that has those which are `present`. What is there twice is there
/// once, by its UID.
pub fn sort(named: &[OwnerReference], present: &[OwnerReference]) -> Sorted {
    let mut sorted = Sorted::default();
    for owner in named {
        let known = present.iter().chain(&sorted.added).any(|other| other.uid == owner.uid);
        let told = sorted.flawed.iter().any(|(other, _)| other == owner);
        match flaw(owner) {
            _ if known || told => {}
            None => sorted.added.push(owner.clone()),
            Some(flaw) => sorted.flawed.push((owner.clone(), flaw)),
        }
    }
    sorted
}

/// Why no pod can have an owner, whether it exists or not: with it the API server would refuse the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It claims to be the controller.
    Controller,
    /// A part of the reference is missing.
    Lacks(&'static str),
    /// Its API version cannot be one.
    ApiVersion,
    /// Its name cannot be one.
    Name,
    /// Events may own nothing.
    Event,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller => f.write_str(
                "it has controller: true, and a pod has one controller, which made it. Write controller: false.",
            ),
            Self::Lacks(part) => {
                write!(f, "it has no {part}. Write apiVersion, kind, name and uid of an object that exists.")
            }
            Self::ApiVersion => f.write_str("its apiVersion is none. Write it as v1, or as example.com/v1."),
            Self::Name => f.write_str("no object can have that name. Write the name of one that exists."),
            Self::Event => f.write_str("an Event owns nothing. Name another object."),
        }
    }
}

/// What is wrong with a reference to an owner beside the controller.
fn flaw(owner: &OwnerReference) -> Option<Flaw> {
    if owner.controller == Some(true) { Some(Flaw::Controller) } else { misnamed(owner) }
}

/// What is wrong with a reference to any owner, which then cannot be looked up either.
pub fn misnamed(owner: &OwnerReference) -> Option<Flaw> {
    let parts = [
        ("apiVersion", &owner.api_version),
        ("kind", &owner.kind),
        ("name", &owner.name),
        ("uid", &owner.uid),
    ];
    if let Some((part, _)) = parts.iter().find(|(_, text)| text.is_empty()) {
        return Some(Flaw::Lacks(part));
    }
    if !syntax::is_group_version(&owner.api_version) {
        return Some(Flaw::ApiVersion);
    }
    if !syntax::is_object_name(&owner.name) {
        return Some(Flaw::Name);
    }
    (owner.api_version == "v1" && owner.kind == "Event").then_some(Flaw::Event)
}

/// Reads the owners in an annotation of a template, for kinds that lose `ownerReferences` there.
///
/// # Errors
/// It is not a list of references in JSON.
pub fn annotated(text: &str) -> Result<Vec<OwnerReference>, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}
