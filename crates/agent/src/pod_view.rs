//! The fields of a pod that the agent reads.

use quorate_api::names::DISRUPTABLE;
use quorate_api::slim;
use quorate_intake::probe::{self, Probe};
use serde::Deserialize;

/// A pod as the agent sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodView {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: u64,
    /// It has ended or is being deleted, so its probes no longer matter.
    pub(crate) over: bool,
    /// Its IP address.
    pub(crate) address: Option<String>,
    /// Its condition `Ready`.
    pub(crate) ready: Option<PodCondition>,
    /// Its condition `Disruptable`, from this agent or any other writer.
    pub(crate) condition: Option<PodCondition>,
    /// Its containers with a probe.
    pub(crate) probed: Vec<ProbedContainer>,
}

/// A condition of a pod; times are in whole seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodCondition {
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) probed: Option<i64>,
    pub(crate) since: Option<i64>,
}

/// A container with a probe.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProbedContainer {
    pub(crate) container: String,
    /// The probe, or why it is invalid.
    pub(crate) probe: Result<Probe, String>,
    /// Its named ports.
    pub(crate) ports: Vec<(String, u16)>,
    pub(crate) runs: ContainerState,
}

/// Whether a container can be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerState {
    /// It has never run, or its startup probe has not passed yet.
    NotStarted,
    /// It ran before and does not run now.
    Stopped,
    /// It is running.
    Running(RunningContainer),
}

/// One run of a container, from a start to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunningContainer {
    /// The container ID, which changes with each restart.
    pub(crate) id: String,
    /// When it started, in whole seconds since 1970.
    pub(crate) started: Option<i64>,
}

impl PodView {
    /// Reads a pod from its JSON text.
    ///
    /// # Errors
    /// The text is not a pod, or the pod has no UID.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let pod: slim::Pod = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let fields: AgentFields = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let conditions = &pod.status.conditions;
        let meta = &pod.metadata;
        Ok(Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().filter(|uid| !uid.is_empty()).ok_or("it has no UID")?,
            version: meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0),
            over: meta.deletion_timestamp.is_some() || pod.status.phase.is_terminal(),
            address: fields.status.pod_ip.clone().filter(|address| !address.is_empty()),
            ready: slim::Condition::find(conditions, "Ready").map(condition),
            condition: slim::Condition::find(conditions, DISRUPTABLE).map(condition),
            probed: probe::declared(&pod).map(|(name, probe)| probed(&pod, &fields, name, probe)).collect(),
        })
    }
}

fn condition(condition: &slim::Condition) -> PodCondition {
    let second = |time: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time| time.0.as_second();
    PodCondition {
        status: condition.status.clone(),
        reason: condition.reason.clone().unwrap_or_default(),
        message: condition.message.clone().unwrap_or_default(),
        probed: condition.last_probe_time.as_ref().map(second),
        since: condition.last_transition_time.as_ref().map(second),
    }
}

fn probed(
    pod: &slim::Pod,
    fields: &AgentFields,
    name: &str,
    probe: Result<Probe, Vec<quorate_intake::Problem>>,
) -> ProbedContainer {
    let specs = fields.spec.containers.iter().chain(&fields.spec.init_containers).flatten();
    let ports = specs.filter(|spec| spec.name == name).flat_map(|spec| spec.ports.iter().flatten());
    let status = &pod.status;
    let statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
    let details = fields.status.container_statuses.iter().chain(&fields.status.init_container_statuses);
    let started = details.flatten().find(|status| status.name == name).and_then(|status| status.started);
    let runs = match statuses.clone().find(|status| status.name == name) {
        Some(status) => match (&status.container_id, &status.state.running) {
            // The kubelet reports in `started` whether the startup probe has passed; absent counts as passed.
            (Some(_), Some(_)) if started == Some(false) => ContainerState::NotStarted,
            (Some(id), Some(running)) if !id.is_empty() => ContainerState::Running(RunningContainer {
                id: id.clone(),
                started: running.started_at.as_ref().map(|time| time.0.as_second()),
            }),
            (Some(id), None) if !id.is_empty() => ContainerState::Stopped,
            _ => ContainerState::NotStarted,
        },
        None => ContainerState::NotStarted,
    };
    ProbedContainer {
        container: name.to_owned(),
        probe: probe.map_err(|problems| match problems.first() {
            Some(problem) => problem.to_string(),
            None => "it cannot be read".to_owned(),
        }),
        ports: ports.filter_map(|port| Some((port.name.clone()?, port.container_port))).collect(),
        runs,
    }
}

/// Fields that only the agent reads. The server has a thousand times as many pods in memory and does without them.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AgentFields {
    spec: AgentPodSpec,
    status: AgentPodStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AgentPodSpec {
    containers: Option<Vec<AgentContainer>>,
    init_containers: Option<Vec<AgentContainer>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AgentContainer {
    name: String,
    ports: Option<Vec<ContainerPort>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerPort {
    name: Option<String>,
    container_port: u16,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AgentPodStatus {
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    container_statuses: Option<Vec<AgentContainerStatus>>,
    init_container_statuses: Option<Vec<AgentContainerStatus>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AgentContainerStatus {
    name: String,
    started: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(status: &Value) -> Value {
        json!({
            "metadata": {"namespace": "db", "name": "db-0", "uid": "u0", "resourceVersion": "7",
                "annotations": {"quorate.dev/disruption-probe.main": "{\"httpGet\":{\"port\":\"web\"}}"}},
            "spec": {"containers": [{"name": "main", "ports": [
                {"name": "web", "containerPort": 8080}, {"containerPort": 9090}]}]},
            "status": status,
        })
    }

    fn read(pod: &Value) -> PodView {
        PodView::read(&pod.to_string()).unwrap()
    }

    #[test]
    fn the_container_status_decides_the_container_state() {
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let since = ContainerState::Running(RunningContainer {
            id: "containerd://a".to_owned(),
            started: Some(1_767_225_600),
        });
        for (status, expected) in [
            (json!({}), ContainerState::NotStarted),
            (
                json!({"containerStatuses": [{"name": "other", "containerID": "x", "state": running}]}),
                ContainerState::NotStarted,
            ),
            (
                json!({"containerStatuses": [{"name": "main", "state": {"waiting": {}}}]}),
                ContainerState::NotStarted,
            ),
            (
                json!({"containerStatuses": [{"name": "main", "containerID": "containerd://a", "state": running}]}),
                since.clone(),
            ),
            (
                json!({"containerStatuses": [
                    {"name": "main", "containerID": "containerd://a", "state": running, "started": true}]}),
                since,
            ),
            // Its startup probe has not passed yet.
            (
                json!({"containerStatuses": [
                    {"name": "main", "containerID": "containerd://a", "state": running, "started": false}]}),
                ContainerState::NotStarted,
            ),
            (
                json!({"containerStatuses": [
                    {"name": "main", "containerID": "containerd://a", "state": {"waiting": {}}, "started": false}]}),
                ContainerState::Stopped,
            ),
        ] {
            assert_eq!(read(&object(&status)).probed[0].runs, expected, "{status}");
        }
    }

    #[test]
    fn an_invalid_probe_has_its_reason() {
        let mut odd = object(&json!({}));
        odd["metadata"]["annotations"] = json!({
            "quorate.dev/disruption-probe.main": "{}",
            "quorate.dev/disruption-probe.other": "{\"tcpSocket\":{\"port\":1}}",
        });
        let probed = read(&odd).probed;
        let why: Vec<&str> = probed.iter().map(|p| p.probe.as_ref().unwrap_err().as_str()).collect();
        assert!(why[0].contains("has no handler"), "{why:?}");
        assert!(why[1].contains("must be the name of one of the pod's containers"), "{why:?}");
    }

    #[test]
    fn conditions_ports_and_the_end_of_a_pod_are_read() {
        let pod = read(&object(&json!({"podIP": "10.0.0.1", "phase": "Running", "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "Disruptable", "status": "False", "reason": "R", "message": "m",
             "lastProbeTime": "1970-01-01T00:00:09Z", "lastTransitionTime": "1970-01-01T00:00:08Z"}]})));
        assert_eq!((pod.version, pod.over, pod.address.as_deref()), (7, false, Some("10.0.0.1")));
        assert_eq!(pod.probed[0].ports, [("web".to_owned(), 8080)]);
        assert_eq!(pod.ready.map(|ready| ready.status).as_deref(), Some("True"));
        let condition = PodCondition {
            status: "False".to_owned(),
            reason: "R".to_owned(),
            message: "m".to_owned(),
            probed: Some(9),
            since: Some(8),
        };
        assert_eq!(pod.condition, Some(condition));
        let mut ending = object(&json!({}));
        ending["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:09Z");
        assert!(read(&ending).over);
        assert!(read(&object(&json!({"phase": "Succeeded"}))).over);
        assert_eq!(PodView::read("{\"metadata\":{}}").unwrap_err(), "it has no UID");
    }
}
