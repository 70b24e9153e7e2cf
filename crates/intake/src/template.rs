//! The owners that a pod template names.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::syntax;

/// The owners that a template names, split into valid and invalid ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sorted {
    /// Owners that the pod does not have yet, in the template's order. Their existence has not been checked.
    pub added: Vec<OwnerReference>,
    /// Owners that no pod can have, and the reason.
    pub flawed: Vec<(OwnerReference, Flaw)>,
}

/// Splits the owners that a template names. `present` are the owners that the pod already has. Owners with the same UID
/// are added only once.
pub fn sort(named: &[OwnerReference], present: &[OwnerReference]) -> Sorted {
    let mut sorted = Sorted::default();
    for owner in named {
        let known = present.iter().chain(&sorted.added).any(|other| other.uid == owner.uid);
        let reported = sorted.flawed.iter().any(|(other, _)| other == owner);
        match flaw(owner) {
            _ if known || reported => {}
            None => sorted.added.push(owner.clone()),
            Some(flaw) => sorted.flawed.push((owner.clone(), flaw)),
        }
    }
    sorted
}

/// Why no pod can have an owner, even if the owner exists: the API server would reject the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The reference is marked as the controller.
    Controller,
    /// A field of the reference is missing.
    Lacks(&'static str),
    /// The API version is not valid.
    ApiVersion,
    /// The name is not valid.
    Name,
    /// The owner is an Event, which cannot own objects.
    Event,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller => f.write_str(
                "it has controller: true, but the only controller of a pod is its creator. Set controller: false.",
            ),
            Self::Lacks(part) => {
                write!(f, "it has no {part}. Set apiVersion, kind, name and uid of an existing object.")
            }
            Self::ApiVersion => f.write_str("its apiVersion is not valid. Use the form v1 or example.com/v1."),
            Self::Name => f.write_str("its name is not valid. Set the name of an existing object."),
            Self::Event => f.write_str("an Event cannot own objects. Name another object."),
        }
    }
}

/// Checks a reference to an additional owner, which must not be a controller.
fn flaw(owner: &OwnerReference) -> Option<Flaw> {
    if owner.controller == Some(true) { Some(Flaw::Controller) } else { misnamed(owner) }
}

/// Checks a reference to any owner. An owner with a flaw cannot be looked up.
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

/// Reads the owners from an annotation of a template, for kinds whose templates do not keep `ownerReferences`.
///
/// # Errors
/// The text is not a JSON list of references.
pub fn annotated(text: &str) -> Result<Vec<OwnerReference>, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}
