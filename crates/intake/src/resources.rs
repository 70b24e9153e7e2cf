//! The resources that apply to a container. Its fingerprint is stored in budgets, so this is part of the ledger protocol.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use quorate_api::slim::{Condition, Container, Pod, Resources};

use crate::quantity;

/// The resources that apply to a container of the pod: its own, and the limits of the pod where it has none. To the kubelet
/// a limit of zero is none. A container takes no requests from the pod. Owned if it takes a limit.
pub(crate) fn effective<'a>(pod: &Pod, container: &'a Container) -> Cow<'a, Resources> {
    let own = &container.resources;
    let missing = |name: &str| own.limits.get(name).is_none_or(is_zero);
    let of_pod = pod.spec.resources.limits.iter();
    let mut taken = of_pod.filter(|(name, amount)| missing(name) && !is_zero(amount)).peekable();
    if taken.peek().is_none() {
        return Cow::Borrowed(own);
    }
    let mut effective = own.clone();
    effective.limits.extend(taken.map(|(name, amount)| (name.clone(), amount.clone())));
    Cow::Owned(effective)
}

fn is_zero(amount: &Quantity) -> bool {
    quantity::nanos(&amount.0) == Some(0)
}

/// Whether the kubelet reports that it has read the pod's present spec, and that no resize is left to do.
pub(crate) fn is_resized(pod: &Pod) -> bool {
    let wanted = pod.metadata.generation;
    let is_read = wanted.is_some() && pod.status.observed_generation >= wanted;
    let reports = |name| Condition::find(&pod.status.conditions, name).is_some_and(Condition::is_true);
    is_read && !reports("PodResizePending") && !reports("PodResizeInProgress")
}
