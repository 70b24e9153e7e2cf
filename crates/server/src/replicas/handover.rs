//! The end of a process in order: it hands over what it admitted.

use kube::api::DeleteParams;
use quorate_api::names::{ADMITTED, SERVING};
use quorate_engine::ledger::Admission;
use quorate_intake::budget;
use quorate_kit::Plain;
use serde_json::json;
use tracing::{info, warn};

use super::{ReplicaLeases, WRITE_TIMEOUT};

/// Largest size of the admissions in a Lease. An object may have 256 KiB of annotations.
const MAX_ADMITTED_BYTES: usize = 200 * 1024;

impl ReplicaLeases {
    /// Leaves the replicas, after the last answer was sent. What this process admitted recently goes into its Lease, where
    /// the leader finds it, and with that no budget waits for this process. Without recent admissions the Lease is
    /// deleted. If it is not certain what was admitted, or it does not fit, the Lease stays as it is: then the leader
    /// waits until the admissions have expired.
    pub(crate) async fn leave(&self, admitted: Option<Vec<Admission>>) {
        self.validity.give_up();
        let Some(admitted) = admitted else { return };
        let outcome = match handover(&admitted) {
            None => {
                warn!(
                    admissions = admitted.len(),
                    "too many recent admissions to hand over: new budgets wait for them"
                );
                return;
            }
            Some(_) if admitted.is_empty() => {
                let (leases, params) = (self.leases(), DeleteParams::default());
                tokio::time::timeout(WRITE_TIMEOUT, leases.delete(&self.name, &params))
                    .await
                    .map(|done| done.map(drop))
            }
            Some(annotations) => {
                let patch = json!({ "metadata": { "annotations": annotations } });
                let written = tokio::time::timeout(WRITE_TIMEOUT, self.patch(&self.name, &patch)).await;
                written.map(|done| done.map(drop))
            }
        };
        match outcome {
            Ok(Err(error)) => warn!(error = %Plain(&error), "cannot give up the Lease"),
            Err(_) => warn!("cannot give up the Lease: no answer"),
            Ok(Ok(())) => info!(lease = self.name, admissions = admitted.len(), "gave up the Lease"),
        }
    }
}

/// The annotations by which a process that ends hands over what it admitted; `None` if that does not fit.
fn handover(admitted: &[Admission]) -> Option<serde_json::Value> {
    let admitted = budget::admissions_to_json(admitted).to_string();
    (admitted.len() <= MAX_ADMITTED_BYTES).then(|| json!({ (SERVING): "false", (ADMITTED): admitted }))
}

#[cfg(test)]
mod tests {
    use quorate_engine::basics::Time;
    use quorate_engine::claims::{Target, Token};
    use quorate_engine::facts::Operation;

    use super::*;

    #[test]
    fn admissions_that_do_not_fit_are_not_handed_over() {
        let what = Token {
            operation: Operation::Evict,
            by: "system:serviceaccount:kube-system:node-controller".into(),
            at: Time(0),
            target: Target::default(),
        };
        let admissions = |count: usize| -> Vec<Admission> {
            let admission = |number: usize| Admission {
                uid: format!("5f1d0c52-7f0e-4a53-9d2e-{number:012}").into(),
                pod: format!("web-{number}").into(),
                token: format!("quorate-server-5f1d0c527f0e4a539d2e0d5b9d3b1a01-{number}").into(),
                what: what.clone(),
            };
            (0..count).map(admission).collect()
        };
        assert!(handover(&admissions(0)).is_some() && handover(&admissions(500)).is_some());
        assert!(handover(&admissions(5_000)).is_none());
    }
}
