//! Tests of responses as tables, which kubectl prints.

use quorate_testbed::{Cluster, stories};
use serde_json::{Value, json};

use crate::fixtures::{TestNamespace, deployment, pod};

stories!(ApiServer: pods_are_served_as_a_table, budgets_are_served_as_a_table, deployments_are_served_as_a_table, an_empty_list_is_a_table_too);

fn columns(table: &Value) -> Vec<(&str, i64)> {
    let columns = table["columnDefinitions"].as_array().expect("columns");
    columns
        .iter()
        .map(|column| {
            (column["name"].as_str().unwrap_or_default(), column["priority"].as_i64().unwrap_or_default())
        })
        .collect()
}

/// The names of the columns that are always printed.
fn narrow(table: &Value) -> Vec<&str> {
    columns(table).into_iter().filter(|(_, priority)| *priority == 0).map(|(name, _)| name).collect()
}

async fn pods_are_served_as_a_table(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "pods").await;
    ns.create("pods", &pod("one")).await;
    let table = ns.wire.table(&ns.core("pods")).await.expect(200);
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(narrow(&table), ["Name", "Ready", "Status", "Restarts", "Age"]);
    let wide: Vec<&str> = columns(&table).into_iter().map(|(name, _)| name).collect();
    assert!(wide.contains(&"Node") && wide.contains(&"IP"), "{wide:?}");
    let row = &table["rows"][0];
    assert_eq!(
        (&row["cells"][0], &row["cells"][1], &row["cells"][2]),
        (&json!("one"), &json!("0/1"), &json!("Pending"))
    );
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(row["object"]["metadata"]["name"], "one");
    let single = ns.wire.table(&ns.core("pods/one")).await.expect(200);
    assert_eq!(single["rows"].as_array().map(Vec::len), Some(1));
}

async fn budgets_are_served_as_a_table(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "budgets").await;
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "one"},
        "spec": {"minAvailable": "50%", "selector": {}}});
    ns.wire.post(&ns.budgets(""), &budget).await.expect(201);
    let table = ns.wire.table(&ns.budgets("")).await.expect(200);
    assert_eq!(narrow(&table), ["Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"]);
    let cells = table["rows"][0]["cells"].as_array().expect("cells");
    assert_eq!(cells[..4], [json!("one"), json!("50%"), json!("N/A"), json!(0)]);
}

async fn deployments_are_served_as_a_table(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "deployments").await;
    let path = ns.path("apps/v1", "deployments");
    ns.wire.post(&path, &deployment("web", 3)).await.expect(201);
    let table = ns.wire.table(&path).await.expect(200);
    assert_eq!(narrow(&table), ["Name", "Ready", "Up-to-date", "Available", "Age"]);
    let cells = table["rows"][0]["cells"].as_array().expect("cells");
    assert_eq!(cells[..4], [json!("web"), json!("0/3"), json!(0), json!(0)]);
}

async fn an_empty_list_is_a_table_too(cluster: Cluster) {
    let ns = TestNamespace::new(&cluster, "empty").await;
    let table = ns.wire.table(&ns.core("pods")).await.expect(200);
    assert_eq!(table["rows"].as_array().map(Vec::len).unwrap_or_default(), 0);
    assert_eq!(narrow(&table), ["Name", "Ready", "Status", "Restarts", "Age"]);
}
