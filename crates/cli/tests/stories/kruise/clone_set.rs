//! A CloneSet that updates its pods in place, as OpenKruise 1.8 does (`pkg/util/inplaceupdate`,
//! `pkg/controller/cloneset/sync`): it makes a pod unready by its readiness gate, sets the image, and opens the gate
//! again once the container runs.

use quorate_testbed::WireResponse;
use serde_json::{Value, json};

use crate::fixture::TestNamespace;

pub(super) const GATE: &str = "InPlaceUpdateReady";
const STATE: &str = "apps.kruise.io/inplace-update-state";

pub(super) struct CloneSet<'a> {
    pub(super) ns: &'a TestNamespace,
    /// The value of the label `set` of its pods.
    pub(super) name: &'a str,
}

impl CloneSet<'_> {
    fn path(&self, pod: &str) -> String {
        self.ns.pod_path(pod)
    }

    /// One reconciliation: opens the gates that may open, and starts updates of pods until one is denied. It has no own
    /// limit. Fails with the reason while some pod is not updated.
    pub(super) async fn reconcile(&self, image: &str) -> Result<(), String> {
        let path = format!("/api/v1/namespaces/{}/pods?labelSelector=set={}", self.ns.name, self.name);
        let listed = self.ns.wire.get(&path).await.expect(200);
        let pods = listed["items"].as_array().cloned().unwrap_or_default();
        for pod in pods.iter().filter(|pod| is_complete(pod) && !has(pod, GATE, "True")) {
            self.set_gate(pod, "True").await?;
        }
        for pod in pods.iter().filter(|pod| pod["spec"]["containers"][0]["image"] != image) {
            self.set_gate(pod, "False").await?;
            self.set_image(pod, image).await?;
        }
        let left = |pod: &&Value| !is_complete(pod) || !has(pod, GATE, "True") || !has(pod, "Ready", "True");
        match pods.iter().find(left) {
            Some(pod) => Err(format!("{} is not done", name(pod))),
            None if pods.iter().any(|pod| pod["spec"]["containers"][0]["image"] != image) => {
                Err("some are being updated".to_owned())
            }
            None => Ok(()),
        }
    }

    /// Makes a pod unready, or lets the kubelet make it ready again.
    pub(super) async fn set_gate(&self, pod: &Value, status: &str) -> Result<(), String> {
        self.write(pod, "/status", |pod| {
            set(pod, GATE, status, if status == "True" { "" } else { "StartInPlaceUpdate" });
            if status == "False" && has(pod, "ContainersReady", "True") {
                set(pod, "Ready", "False", "ReadinessGatesNotReady");
            }
        })
        .await
    }

    /// Sets the image, and notes in the pod which container this replaces.
    pub(super) async fn set_image(&self, pod: &Value, image: &str) -> Result<(), String> {
        self.write(pod, "", |pod| {
            let before = pod["status"]["containerStatuses"][0]["imageID"].clone();
            let main = pod["spec"]["containers"][0]["name"].as_str().unwrap_or_default().to_owned();
            let state = json!({
                "revision": image, "updateTimestamp": "2026-01-01T00:00:00Z", "updateImages": true,
                "lastContainerStatuses": {main: {"imageID": before}},
            });
            pod["metadata"]["annotations"][STATE] = json!(state.to_string());
            pod["spec"]["containers"][0]["image"] = json!(image);
        })
        .await
    }

    /// Reads, changes and writes the pod; retries after a conflict.
    async fn write(&self, pod: &Value, part: &str, change: impl Fn(&mut Value)) -> Result<(), String> {
        let path = self.path(name(pod));
        loop {
            let mut pod = self.ns.wire.get(&path).await.expect(200);
            change(&mut pod);
            let WireResponse { code, body, .. } = self.ns.wire.put(&format!("{path}{part}"), &pod).await;
            match code {
                200 => return Ok(()),
                409 => {}
                429 => return Err(body["message"].as_str().unwrap_or_default().to_owned()),
                code => panic!("{code}: {body}"),
            }
        }
    }
}

pub(super) fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

/// Whether the container has been replaced since the last update began, if there was one.
pub(super) fn is_complete(pod: &Value) -> bool {
    let Some(state) = pod["metadata"]["annotations"][STATE].as_str() else { return true };
    let state: Value = serde_json::from_str(state).expect("what was written above");
    let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
    state["lastContainerStatuses"].as_object().into_iter().flatten().all(|(container, last)| {
        let now = statuses.iter().find(|status| status["name"] == **container);
        now.is_some_and(|now| now["imageID"] != "" && now["imageID"] != last["imageID"])
    })
}

fn has(pod: &Value, condition: &str, status: &str) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|c| c["type"] == condition && c["status"] == status)
}

/// Sets a condition, unless it already has this status.
fn set(pod: &mut Value, condition: &str, status: &str, reason: &str) {
    let new = json!({
        "type": condition, "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let conditions = &mut pod["status"]["conditions"];
    if conditions.is_null() {
        *conditions = json!([]);
    }
    let conditions = conditions.as_array_mut().expect("a list");
    match conditions.iter_mut().find(|c| c["type"] == condition) {
        Some(old) if old["status"] == status => {}
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}
