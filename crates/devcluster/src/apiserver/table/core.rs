//! Tables of pods, nodes, namespaces, services, events and other small kinds.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{age, name, number, selector, since, text_or_none};
use super::{AGE, NAME, Printer, column};

pub(super) const PODS: Printer = Printer {
    columns: &[
        NAME,
        column("Ready", "string", 0),
        column("Status", "string", 0),
        column("Restarts", "string", 0),
        AGE,
        column("IP", "string", 1),
        column("Node", "string", 1),
        column("Nominated Node", "string", 1),
        column("Readiness Gates", "string", 1),
    ],
    row: pod,
};

fn pod(pod: &Value, now: Timestamp) -> Vec<Value> {
    let containers = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    let statuses: Vec<&Value> = pod["status"]["containerStatuses"].as_array().into_iter().flatten().collect();
    let ready = statuses.iter().filter(|s| s["ready"] == true).count();
    let restarts: i64 = statuses.iter().filter_map(|s| s["restartCount"].as_i64()).sum();
    let gates: Vec<&Value> = pod["spec"]["readinessGates"].as_array().into_iter().flatten().collect();
    let gates = if gates.is_empty() {
        json!("<none>")
    } else {
        let met = gates
            .iter()
            .filter(|gate| {
                let kind = gate["conditionType"].as_str().unwrap_or_default();
                crate::apiserver::object::condition(pod, kind).is_some_and(|c| c["status"] == "True")
            })
            .count();
        json!(format!("{met}/{}", gates.len()))
    };
    vec![
        name(pod),
        format!("{ready}/{containers}").into(),
        pod_status(pod, &statuses).into(),
        restarts.to_string().into(),
        age(pod, now),
        text_or_none(&pod["status"]["podIP"]),
        text_or_none(&pod["spec"]["nodeName"]),
        text_or_none(&pod["status"]["nominatedNodeName"]),
        gates,
    ]
}

/// The one-word status of a pod.
fn pod_status(pod: &Value, statuses: &[&Value]) -> String {
    let status = &pod["status"];
    let mut word = status["reason"].as_str().or(status["phase"].as_str()).unwrap_or_default().to_owned();
    if let Some(gate) = crate::apiserver::object::condition(pod, "PodScheduled")
        && gate["reason"] == "SchedulingGated"
    {
        word = "SchedulingGated".to_owned();
    }
    let mut running = false;
    for container in statuses.iter().rev() {
        let state = &container["state"];
        let waiting = state["waiting"]["reason"].as_str().unwrap_or_default();
        let ended = state["terminated"]["reason"].as_str().unwrap_or_default();
        if !waiting.is_empty() {
            word = waiting.to_owned();
        } else if !ended.is_empty() {
            word = ended.to_owned();
        } else if state["terminated"].is_object() {
            word = format!("ExitCode:{}", state["terminated"]["exitCode"].as_i64().unwrap_or(0));
        } else if container["ready"] == true && state["running"].is_object() {
            running = true;
        }
    }
    if word == "Completed" && running {
        let ready = crate::apiserver::object::condition(pod, "Ready").is_some_and(|c| c["status"] == "True");
        word = if ready { "Running" } else { "NotReady" }.to_owned();
    }
    let terminal = matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"));
    if crate::apiserver::object::is_terminating(pod) && !terminal {
        word = if status["reason"] == "NodeLost" { "Unknown" } else { "Terminating" }.to_owned();
    }
    word
}

pub(super) const NODES: Printer = Printer {
    columns: &[
        NAME,
        column("Status", "string", 0),
        column("Roles", "string", 0),
        AGE,
        column("Version", "string", 0),
        column("Internal-IP", "string", 1),
        column("External-IP", "string", 1),
        column("OS-Image", "string", 1),
        column("Kernel-Version", "string", 1),
        column("Container-Runtime", "string", 1),
    ],
    row: node,
};

fn node(node: &Value, now: Timestamp) -> Vec<Value> {
    let ready = match crate::apiserver::object::condition(node, "Ready") {
        Some(ready) if ready["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let mut status = ready.to_owned();
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    let mut roles: Vec<&str> = crate::apiserver::object::labels(node)
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    roles.sort_unstable();
    let roles = if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") };
    let address = |kind: &str| {
        let found = node["status"]["addresses"].as_array().into_iter().flatten().find(|a| a["type"] == kind);
        found.map_or(json!("<none>"), |a| text_or_none(&a["address"]))
    };
    let info = &node["status"]["nodeInfo"];
    let known = |value: &Value| match value.as_str() {
        Some(text) if !text.is_empty() => json!(text),
        _ => json!("<unknown>"),
    };
    vec![
        name(node),
        status.into(),
        roles.into(),
        age(node, now),
        info["kubeletVersion"].as_str().unwrap_or_default().into(),
        address("InternalIP"),
        address("ExternalIP"),
        known(&info["osImage"]),
        known(&info["kernelVersion"]),
        known(&info["containerRuntimeVersion"]),
    ]
}

pub(super) const NAMESPACES: Printer = Printer {
    columns: &[NAME, column("Status", "string", 0), AGE],
    row: |o, now| vec![name(o), o["status"]["phase"].clone(), age(o, now)],
};

pub(super) const SERVICES: Printer = Printer {
    columns: &[
        NAME,
        column("Type", "string", 0),
        column("Cluster-IP", "string", 0),
        column("External-IP", "string", 0),
        column("Port(s)", "string", 0),
        AGE,
        column("Selector", "string", 1),
    ],
    row: |o, now| {
        let spec = &o["spec"];
        let ports: Vec<String> = spec["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|p| format!("{}/{}", p["port"], p["protocol"].as_str().unwrap_or("TCP")))
            .collect();
        let ports = if ports.is_empty() { "<none>".to_owned() } else { ports.join(",") };
        vec![
            name(o),
            spec["type"].clone(),
            text_or_none(&spec["clusterIP"]),
            text_or_none(&spec["externalName"]),
            ports.into(),
            age(o, now),
            selector(&spec["selector"]),
        ]
    },
};

pub(super) const EVENTS: Printer = Printer {
    columns: &[
        column("Last Seen", "string", 0),
        column("Type", "string", 0),
        column("Reason", "string", 0),
        column("Object", "string", 0),
        column("Subobject", "string", 1),
        column("Source", "string", 1),
        column("Message", "string", 0),
        column("First Seen", "string", 1),
        column("Count", "string", 1),
        column("Name", "string", 1),
    ],
    row: |o, now| {
        let first_of =
            |fields: [&Value; 3]| fields.into_iter().find(|v| v.is_string()).cloned().unwrap_or_default();
        let about = &o["involvedObject"];
        let object = format!(
            "{}/{}",
            about["kind"].as_str().unwrap_or_default().to_lowercase(),
            about["name"].as_str().unwrap_or_default()
        );
        let source = [&o["source"]["component"], &o["reportingComponent"]]
            .into_iter()
            .find_map(|v| v.as_str().filter(|t| !t.is_empty()))
            .unwrap_or_default();
        let created = &o["metadata"]["creationTimestamp"];
        vec![
            since(&first_of([&o["series"]["lastObservedTime"], &o["lastTimestamp"], &o["eventTime"]]), now),
            o["type"].as_str().unwrap_or_default().into(),
            o["reason"].as_str().unwrap_or_default().into(),
            object.into(),
            about["fieldPath"].as_str().unwrap_or_default().into(),
            source.into(),
            o["message"].as_str().unwrap_or_default().trim().into(),
            since(&first_of([&o["firstTimestamp"], &o["eventTime"], created]), now),
            o["series"]["count"].as_i64().or(o["count"].as_i64()).unwrap_or(1).to_string().into(),
            name(o),
        ]
    },
};

fn size(value: &Value) -> usize {
    value.as_object().map_or(0, serde_json::Map::len)
}

pub(super) const CONFIG_MAPS: Printer = Printer {
    columns: &[NAME, column("Data", "string", 0), AGE],
    row: |o, now| vec![name(o), (size(&o["data"]) + size(&o["binaryData"])).into(), age(o, now)],
};

pub(super) const SECRETS: Printer = Printer {
    columns: &[NAME, column("Type", "string", 0), column("Data", "string", 0), AGE],
    row: |o, now| vec![name(o), o["type"].clone(), size(&o["data"]).into(), age(o, now)],
};

pub(super) const SERVICE_ACCOUNTS: Printer = Printer {
    columns: &[NAME, column("Secrets", "string", 0), AGE],
    row: |o, now| {
        vec![name(o), number(&o["secrets"].as_array().map(Vec::len).unwrap_or_default().into()), age(o, now)]
    },
};
