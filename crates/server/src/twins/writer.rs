//! Writes twins and the conditions of native budgets, and reports their Events.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Error};
use quorate_api::DisruptionBudget;
use quorate_api::slim;
use quorate_engine::basics::ObjectKey;
use quorate_engine::status::ConditionType;
use serde_json::json;
use tracing::info;

use super::plan::{self, Change, TwinStep};
use crate::calls::FIELD_MANAGER;
use crate::events::Events;

pub(super) struct TwinWriter {
    client: Client,
    events: Events,
}

impl TwinWriter {
    pub(super) fn new(client: Client, events: Events) -> Self {
        Self { client, events }
    }

    /// Creates, changes or deletes a twin. After a conflict with another change, the watch shows the new state.
    pub(super) async fn perform(&self, key: &ObjectKey, step: TwinStep) -> Result<(), Error> {
        let budgets: Api<DisruptionBudget> = Api::namespaced(self.client.clone(), &key.namespace);
        let manager = Some(FIELD_MANAGER.to_owned());
        let outcome = match step {
            TwinStep::Create { owner, spec } => {
                let mut twin = DisruptionBudget::new(&key.name, *spec);
                twin.metadata.owner_references = Some(vec![OwnerReference {
                    api_version: "policy/v1".to_owned(),
                    kind: "PodDisruptionBudget".to_owned(),
                    name: key.name.to_string(),
                    uid: owner,
                    controller: Some(true),
                    block_owner_deletion: None,
                }]);
                let params = PostParams { field_manager: manager, ..PostParams::default() };
                info!(budget = %key, "creating a twin");
                budgets.create(&params, &twin).await.map(drop)
            }
            TwinStep::Change { twin, spec } => {
                let patch = json!([
                    {"op": "test", "path": "/metadata/uid", "value": twin},
                    {"op": "replace", "path": "/spec", "value": spec},
                ]);
                let patch = serde_json::from_value(patch).map_err(Error::SerdeError)?;
                let params = PatchParams { field_manager: manager, ..PatchParams::default() };
                budgets.patch(&key.name, &params, &Patch::<()>::Json(patch)).await.map(drop)
            }
            TwinStep::Delete { twin } => {
                info!(budget = %key, "deleting a twin");
                let preconditions = Some(Preconditions { uid: Some(twin), resource_version: None });
                let params = DeleteParams { preconditions, ..DeleteParams::default() };
                budgets.delete(&key.name, &params).await.map(drop)
            }
        };
        match outcome {
            Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            outcome => outcome,
        }
    }

    /// Writes the condition of a native budget, and an Event if something is wrong.
    pub(super) async fn write_condition(
        &self,
        key: &ObjectKey,
        native: &slim::PodDisruptionBudget,
        change: Change,
    ) -> Result<(), Error> {
        let kind = ConditionType::BudgetConfigured.name();
        let condition = match &change {
            Change::Remove => json!({"$patch": "delete", "type": kind}),
            Change::Set { status, reason, message } => {
                let before = plan::current_condition(native).filter(|current| current.status == *status);
                let since = before.and_then(|current| current.last_transition_time.clone());
                json!({
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "observedGeneration": native.metadata.generation,
                    "lastTransitionTime": since.unwrap_or_else(|| Time(Timestamp::now())),
                })
            }
        };
        // The disruption controller writes the status too. A strategic patch by type changes only our own condition.
        let patch = json!({"metadata": {"uid": native.metadata.uid}, "status": {"conditions": [condition]}});
        let natives: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &key.namespace);
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match natives.patch_status(&key.name, &params, &Patch::Strategic(patch)).await {
            Ok(_) => {}
            // The native budget is gone, or another one has its name.
            Err(Error::Api(status)) if matches!(status.code, 404 | 409) => return Ok(()),
            Err(error) => return Err(error),
        }
        if let Change::Set { status: "False", reason, message } = &change {
            self.events.native_misconfigured(key, native.metadata.uid.clone(), reason, message);
        }
        Ok(())
    }
}
