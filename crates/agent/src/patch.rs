//! Writes conditions to pods.

use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error};
use quorate_api::slim;
use quorate_kit::Plain;
use tracing::{debug, warn};

use crate::disruptable;
use crate::manager::{ConditionWrite, PatchOutcome};

/// Timeout of one write.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Writes a condition and returns the outcome.
pub(crate) async fn patch_condition(client: Client, write: &ConditionWrite) -> PatchOutcome {
    let pod = &write.pod;
    let pods: Api<slim::Pod> = Api::namespaced(client, &pod.namespace);
    let patch = Patch::Strategic(disruptable::patch(pod, &write.condition));
    let params = PatchParams { field_manager: Some("quorate-agent".to_owned()), ..PatchParams::default() };
    let written = tokio::time::timeout(TIMEOUT, pods.patch_status(&pod.name, &params, &patch)).await;
    let name = format!("{}/{}", pod.namespace, pod.name);
    match written {
        Ok(Ok(after)) => {
            debug!(
                pod = name,
                status = write.condition.status,
                reason = write.condition.reason,
                "wrote the condition"
            );
            let version = after.metadata.resource_version.and_then(|text| text.parse().ok());
            PatchOutcome::Done(version.unwrap_or_default())
        }
        // The patch names the UID, so a newer pod of the same name is a conflict.
        Ok(Err(Error::Api(status))) if matches!(status.code, 404 | 409) => PatchOutcome::Gone,
        Ok(Err(error)) => {
            warn!(pod = name, error = %Plain(&error), "cannot write the condition");
            PatchOutcome::Failed
        }
        Err(_) => {
            warn!(pod = name, "cannot write the condition: no answer");
            PatchOutcome::Failed
        }
    }
}
