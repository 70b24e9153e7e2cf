//! Pods from templates, with the owners that a template names.

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// The pod that a controller makes from a template: labels, annotations, finalizers and spec of the template, and the
/// controller as its owner. With `propagate`, the gate `PropagateOwnerReferences`, it also has the owners that the
/// template names.
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
        owners.extend(propagated(named, &owners));
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

/// The owners that a template names and a pod does not have yet, in the template's order.
///
/// Controllers are left out: a pod has one, and it is there already. So are owners that are there twice, and those that
/// are not named in full, which would have the pod refused. Whether an owner exists is not known here; whoever adds one
/// that does not gets the pod collected.
pub fn propagated(named: &[OwnerReference], present: &[OwnerReference]) -> Vec<OwnerReference> {
    let mut added: Vec<OwnerReference> = Vec::new();
    for owner in named {
        let whole =
            [&owner.uid, &owner.name, &owner.kind, &owner.api_version].iter().all(|part| !part.is_empty());
        let known = present.iter().chain(&added).any(|other| other.uid == owner.uid);
        if owner.controller != Some(true) && whole && !known {
            added.push(owner.clone());
        }
    }
    added
}
