//! Tables of workloads, budgets, leases and the other built-in kinds.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{age, containers, human, name, number, selector, text_or_none};
use super::{AGE, NAME, Printer, column};

pub(super) const DEPLOYMENTS: Printer = Printer {
    columns: &[
        NAME,
        column("Ready", "string", 0),
        column("Up-to-date", "string", 0),
        column("Available", "string", 0),
        AGE,
        column("Containers", "string", 1),
        column("Images", "string", 1),
        column("Selector", "string", 1),
    ],
    row: |o, now| {
        let (names, images) = containers(&o["spec"]["template"]["spec"]);
        let status = &o["status"];
        vec![
            name(o),
            ready(o),
            number(&status["updatedReplicas"]),
            number(&status["availableReplicas"]),
            age(o, now),
            names,
            images,
            selector(&o["spec"]["selector"]),
        ]
    },
};

fn ready(object: &Value) -> Value {
    let ready = object["status"]["readyReplicas"].as_i64().unwrap_or(0);
    format!("{ready}/{}", object["spec"]["replicas"].as_i64().unwrap_or(0)).into()
}

pub(super) const REPLICA_SETS: Printer = Printer {
    columns: &[
        NAME,
        column("Desired", "integer", 0),
        column("Current", "integer", 0),
        column("Ready", "integer", 0),
        AGE,
        column("Containers", "string", 1),
        column("Images", "string", 1),
        column("Selector", "string", 1),
    ],
    row: |o, now| {
        let (names, images) = containers(&o["spec"]["template"]["spec"]);
        vec![
            name(o),
            number(&o["spec"]["replicas"]),
            number(&o["status"]["replicas"]),
            number(&o["status"]["readyReplicas"]),
            age(o, now),
            names,
            images,
            selector(&o["spec"]["selector"]),
        ]
    },
};

pub(super) const STATEFUL_SETS: Printer = Printer {
    columns: &[
        NAME,
        column("Ready", "string", 0),
        AGE,
        column("Containers", "string", 1),
        column("Images", "string", 1),
    ],
    row: |o, now| {
        let (names, images) = containers(&o["spec"]["template"]["spec"]);
        vec![name(o), ready(o), age(o, now), names, images]
    },
};

pub(super) const DAEMON_SETS: Printer = Printer {
    columns: &[
        NAME,
        column("Desired", "integer", 0),
        column("Current", "integer", 0),
        column("Ready", "integer", 0),
        column("Up-to-date", "integer", 0),
        column("Available", "integer", 0),
        column("Node Selector", "string", 0),
        AGE,
        column("Containers", "string", 1),
        column("Images", "string", 1),
        column("Selector", "string", 1),
    ],
    row: |o, now| {
        let (names, images) = containers(&o["spec"]["template"]["spec"]);
        let status = &o["status"];
        vec![
            name(o),
            number(&status["desiredNumberScheduled"]),
            number(&status["currentNumberScheduled"]),
            number(&status["numberReady"]),
            number(&status["updatedNumberScheduled"]),
            number(&status["numberAvailable"]),
            selector(&o["spec"]["template"]["spec"]["nodeSelector"]),
            age(o, now),
            names,
            images,
            selector(&o["spec"]["selector"]),
        ]
    },
};

pub(super) const CONTROLLER_REVISIONS: Printer = Printer {
    columns: &[NAME, column("Controller", "string", 0), column("Revision", "string", 0), AGE],
    row: |o, now| {
        let owner = o["metadata"]["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|r| r["controller"] == true);
        let owner = owner.map_or(json!("<none>"), |r| {
            let kind = r["kind"].as_str().unwrap_or_default().to_lowercase();
            let group = r["apiVersion"].as_str().unwrap_or_default().split_once('/').map_or("", |(g, _)| g);
            let dot = if group.is_empty() { "" } else { "." };
            json!(format!("{kind}{dot}{group}/{}", r["name"].as_str().unwrap_or_default()))
        });
        vec![name(o), owner, number(&o["revision"]), age(o, now)]
    },
};

pub(super) const JOBS: Printer = Printer {
    columns: &[
        NAME,
        column("Status", "string", 0),
        column("Completions", "string", 0),
        column("Duration", "string", 0),
        AGE,
        column("Containers", "string", 1),
        column("Images", "string", 1),
        column("Selector", "string", 1),
    ],
    row: job,
};

fn job(o: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(&o["spec"]["template"]["spec"]);
    let status = &o["status"];
    let done = status["succeeded"].as_i64().unwrap_or(0);
    let completions = match o["spec"]["completions"].as_i64() {
        Some(wanted) => format!("{done}/{wanted}"),
        None => format!("{done}/1"),
    };
    let holds =
        |kind: &str| crate::apiserver::object::condition(o, kind).is_some_and(|c| c["status"] == "True");
    let word = if holds("Complete") {
        "Complete"
    } else if holds("Failed") {
        "Failed"
    } else if crate::apiserver::object::is_terminating(o) {
        "Terminating"
    } else if holds("Suspended") {
        "Suspended"
    } else {
        "Running"
    };
    let time = |value: &Value| value.as_str().and_then(|t| t.parse::<Timestamp>().ok());
    let duration = match (time(&status["startTime"]), time(&status["completionTime"])) {
        (Some(start), end) => human(end.unwrap_or(now).duration_since(start).as_secs()),
        (None, _) => String::new(),
    };
    vec![
        name(o),
        word.into(),
        completions.into(),
        duration.into(),
        age(o, now),
        names,
        images,
        selector(&o["spec"]["selector"]),
    ]
}

pub(super) const DISRUPTION_BUDGETS: Printer = Printer {
    columns: &[
        NAME,
        column("Min Available", "string", 0),
        column("Max Unavailable", "string", 0),
        column("Allowed Disruptions", "integer", 0),
        AGE,
    ],
    row: |o, now| {
        let amount = |value: &Value| match value {
            Value::Null => json!("N/A"),
            Value::String(text) => json!(text),
            other => json!(other.to_string()),
        };
        vec![
            name(o),
            amount(&o["spec"]["minAvailable"]),
            amount(&o["spec"]["maxUnavailable"]),
            number(&o["status"]["disruptionsAllowed"]),
            age(o, now),
        ]
    },
};

pub(super) const LEASES: Printer = Printer {
    columns: &[NAME, column("Holder", "string", 0), AGE],
    row: |o, now| vec![name(o), o["spec"]["holderIdentity"].as_str().unwrap_or_default().into(), age(o, now)],
};

pub(super) const PRIORITY_CLASSES: Printer = Printer {
    columns: &[
        NAME,
        column("Value", "integer", 0),
        column("Global-Default", "boolean", 0),
        AGE,
        column("PreemptionPolicy", "string", 0),
    ],
    row: |o, now| {
        vec![
            name(o),
            number(&o["value"]),
            o["globalDefault"].as_bool().unwrap_or(false).into(),
            age(o, now),
            text_or_none(&o["preemptionPolicy"]),
        ]
    },
};

pub(super) const WEBHOOKS: Printer = Printer {
    columns: &[NAME, column("Webhooks", "integer", 0), AGE],
    row: |o, now| vec![name(o), o["webhooks"].as_array().map_or(0, Vec::len).into(), age(o, now)],
};
