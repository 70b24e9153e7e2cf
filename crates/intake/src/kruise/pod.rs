//! The conditions for an available pod that OpenKruise adds to readiness.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use quorate_api::names::kruise::{
    INPLACE_UPDATE_GRACE, INPLACE_UPDATE_STATE, NO_PROTECT, SIDECARSET_UPDATE_STATE, UNAVAILABLE_POD_PREFIX,
};
use quorate_api::slim;
use serde::Deserialize;
use serde_json::Value;

use crate::image;

/// Whether the pod opts out of protection.
pub(crate) fn waives(pod: &slim::Pod) -> bool {
    annotation(pod, NO_PROTECT).is_some_and(|text| matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True"))
}

/// Whether no label marks the pod as unavailable, its containers run the digests of its spec, and no in-place update of
/// OpenKruise is in progress.
pub(crate) fn is_consistent(pod: &slim::Pod) -> bool {
    let labelled =
        pod.metadata.labels.iter().flatten().any(|(key, _)| key.starts_with(UNAVAILABLE_POD_PREFIX));
    let in_place = annotation(pod, INPLACE_UPDATE_GRACE).is_none()
        && annotation(pod, INPLACE_UPDATE_STATE)
            .is_none_or(|text| serde_json::from_str(text).is_ok_and(|state: State| state.is_over(pod)))
        && annotation(pod, SIDECARSET_UPDATE_STATE).is_none_or(|text| {
            let states: Result<BTreeMap<String, State>, _> = serde_json::from_str(text);
            states.is_ok_and(|states| states.values().all(|state| state.is_over(pod)))
        });
    !labelled && in_place && runs_its_digests(pod)
}

fn annotation<'a>(pod: &'a slim::Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

fn status<'a>(pod: &'a slim::Pod, container: &str) -> Option<&'a slim::ContainerStatus> {
    let status = &pod.status;
    let mut all = status.container_statuses.iter().chain(&status.init_container_statuses);
    all.find(|status| status.name == container)
}

/// Whether no container runs another digest than the one in its spec. An unknown digest does not count as another one:
/// some runtimes only show the digest of the image's configuration, and such a pod would stay inconsistent forever.
fn runs_its_digests(pod: &slim::Pod) -> bool {
    pod.spec.containers.iter().all(|container| {
        let id = status(pod, &container.name).and_then(|status| status.image_id.as_deref());
        !image::is_another(container.image.as_deref(), id)
    })
}

/// The annotation that OpenKruise writes when it updates a pod in place.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct State {
    update_timestamp: Option<Time>,
    last_container_statuses: Option<BTreeMap<String, LastStatus>>,
    /// The changes of the next steps.
    next_container_images: Option<BTreeMap<String, Value>>,
    next_container_ref_metadata: Option<BTreeMap<String, Value>>,
    next_container_resources: Option<BTreeMap<String, Value>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LastStatus {
    #[serde(rename = "imageID")]
    image_id: String,
}

impl State {
    fn is_over(&self, pod: &slim::Pod) -> bool {
        let nexts =
            [&self.next_container_images, &self.next_container_ref_metadata, &self.next_container_resources];
        nexts.iter().all(|next| next.as_ref().is_none_or(BTreeMap::is_empty))
            && self.last_container_statuses.iter().flatten().all(|(name, last)| self.is_new(pod, name, last))
    }

    /// Whether a container needs no replacement any more: it runs another image than before, has started since the
    /// update, or shows the image of its spec. The start time matters because an image with another name may be the same
    /// image. The image of the spec matters because an update may be reverted before the kubelet acts: then the container
    /// is never replaced.
    fn is_new(&self, pod: &slim::Pod, name: &str, last: &LastStatus) -> bool {
        let Some(status) = status(pod, name) else { return false };
        let spec = pod.spec.containers.iter().find(|container| container.name == name);
        let wanted = spec.and_then(|container| container.image.as_deref());
        let shows_wanted = wanted
            .zip(status.image.as_deref())
            .is_some_and(|(wanted, shown)| image::full_name(wanted) == image::full_name(shown));
        let id = status.image_id.as_deref().unwrap_or_default();
        let started = status.state.running.as_ref().and_then(|running| running.started_at.as_ref());
        let since = match (started, &self.update_timestamp) {
            (Some(started), Some(updated)) => started.0 > updated.0,
            _ => false,
        };
        !id.is_empty() && (id != last.image_id || since || shows_wanted)
    }
}
