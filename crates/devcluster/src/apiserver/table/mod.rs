//! Tables for `kubectl get`: the server formats them, as the real API server does.

mod cells;
mod core;
mod custom;
mod jsonpath;
mod workloads;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::api::metadata_only;
use super::request::Query;
use super::resource::{ResourceRules, Served};

pub(crate) use jsonpath::JsonPath;

/// A column: its name, its type, and its priority. Priority zero is always shown.
pub(crate) struct Column {
    name: &'static str,
    kind: &'static str,
    priority: u8,
}

const fn column(name: &'static str, kind: &'static str, priority: u8) -> Column {
    Column { name, kind, priority }
}

const NAME: Column = column("Name", "string", 0);
const AGE: Column = column("Age", "string", 0);

/// How one kind is printed.
struct Printer {
    columns: &'static [Column],
    row: fn(&Value, Timestamp) -> Vec<Value>,
}

const DEFINITIONS: Printer = Printer {
    columns: &[NAME, column("Created At", "date", 0)],
    row: |o, _| vec![cells::name(o), o["metadata"]["creationTimestamp"].clone()],
};

const ANY: Printer =
    Printer { columns: &[NAME, AGE], row: |o, now| vec![cells::name(o), cells::age(o, now)] };

fn printer(group: &str, kind: &str) -> Printer {
    match (group, kind) {
        ("", "Pod") => core::PODS,
        ("", "Node") => core::NODES,
        ("", "Namespace") => core::NAMESPACES,
        ("", "Service") => core::SERVICES,
        ("" | "events.k8s.io", "Event") => core::EVENTS,
        ("", "ConfigMap") => core::CONFIG_MAPS,
        ("", "Secret") => core::SECRETS,
        ("", "ServiceAccount") => core::SERVICE_ACCOUNTS,
        ("apps", "Deployment") => workloads::DEPLOYMENTS,
        ("apps", "ReplicaSet") | ("", "ReplicationController") => workloads::REPLICA_SETS,
        ("apps", "StatefulSet") => workloads::STATEFUL_SETS,
        ("apps", "DaemonSet") => workloads::DAEMON_SETS,
        ("apps", "ControllerRevision") => workloads::CONTROLLER_REVISIONS,
        ("batch", "Job") => workloads::JOBS,
        ("policy", "PodDisruptionBudget") => workloads::DISRUPTION_BUDGETS,
        ("coordination.k8s.io", "Lease") => workloads::LEASES,
        ("scheduling.k8s.io", "PriorityClass") => workloads::PRIORITY_CLASSES,
        ("admissionregistration.k8s.io", _) => workloads::WEBHOOKS,
        ("apiextensions.k8s.io", _) => DEFINITIONS,
        _ => ANY,
    }
}

/// Formats these objects as a table.
pub(crate) fn of_objects(
    served: &Served,
    objects: &[&Value],
    meta: &Value,
    now: Timestamp,
    query: &Query,
) -> Value {
    let include = query.text("includeObject");
    let (columns, rows): (Vec<Value>, Vec<Vec<Value>>) = match &served.resource.rules {
        ResourceRules::BuiltIn(_) => {
            let printer = printer(&served.resource.group, &served.resource.kind);
            let columns =
                printer.columns.iter().map(|c| definition(c.name, c.kind, c.priority, "")).collect();
            // Events are printed from their stored form.
            let rows = objects.iter().map(|o| (printer.row)(&served.store_form((*o).clone()), now)).collect();
            (columns, rows)
        }
        ResourceRules::Custom(definition) => {
            custom::columns_and_rows(definition, &served.version, objects, now)
        }
    };
    let rows: Vec<Value> = rows
        .into_iter()
        .zip(objects)
        .map(|(cells, object)| {
            let mut row = json!({"cells": cells});
            match include {
                "None" => {}
                "Object" => row["object"] = (*object).clone(),
                _ => row["object"] = metadata_only(object, "PartialObjectMetadata"),
            }
            row
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

fn definition(name: &str, kind: &str, priority: impl Into<Value>, description: &str) -> Value {
    let format = if name == "Name" { "name" } else { "" };
    json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority.into()})
}
