//! Dedicated applications: only provocations change them, and they have nodes of their own.
//!
//! An application of pods has four of them, and room for one disruption: its budget names the number of pods that must stay,
//! so that it depends on no other kind. It has a second, wider budget. An application of groups has several sources.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use quorate_devcluster::actors::NodeTemplate;
use quorate_devcluster::apiserver::WorkloadApi;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::apps::{App, Kind, Manifest, probe};

/// The namespaces of the dedicated applications: of those of pods, and of those of groups. A provocation may use up the quota
/// of one.
pub const NAMESPACES: [&str; 2] = ["apps-stage", "apps-stage-groups"];

/// The nodes of the dedicated applications.
pub const NODES: [&str; 2] = ["stage-0", "stage-1"];

/// The kinds of the applications of pods.
pub(super) const PODS: &[Kind] = &[Kind::Deployment, Kind::StatefulSet];

/// The kinds of the applications of groups.
pub(super) const GROUPS: &[Kind] = &[Kind::TwoLeaderWorkerSets, Kind::Workload, Kind::PodGroups];

/// The pods of an application of pods.
const COUNT: usize = 4;

/// The label and the taint of the nodes.
const MARK: &str = "stage";

/// What a dedicated node is like.
pub fn node() -> NodeTemplate {
    let taint = Taint { key: MARK.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    let labels = BTreeMap::from([(MARK.to_owned(), "true".to_owned())]);
    NodeTemplate { labels, taints: vec![taint], ..NodeTemplate::default() }
}

/// Whether an application is a dedicated one.
pub fn has(app: &App) -> bool {
    NAMESPACES.contains(&app.namespace.as_str())
}

/// The dedicated applications, for a cluster that serves the Workload API in this version.
pub fn apps(api: WorkloadApi, random: &mut ChaCha8Rng) -> Vec<App> {
    let [pods, groups] = NAMESPACES;
    let mut apps = vec![
        app("stage-web", "Deployment", Kind::Deployment),
        app("stage-db", "StatefulSet", Kind::StatefulSet),
        app("stage-queue", "StatefulSet", Kind::StatefulSet),
        probed("stage-shards"),
        App::random(Kind::TwoLeaderWorkerSets, groups, "stage-sets", api, random),
        App::random(Kind::Workload, groups, "stage-train", api, random),
        App::random(Kind::PodGroups, groups, "stage-gang", api, random),
    ];
    debug_assert!(apps.iter().all(|app| app.namespace == pods || app.namespace == groups));
    for workload in apps.iter_mut().flat_map(|app| &mut app.workloads) {
        move_to_dedicated_nodes(&mut workload.object);
    }
    apps
}

/// How many pods an application has.
pub(super) fn pods_of(app: &App) -> u64 {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let pods = |workload: &Manifest| {
        let spec = &workload.object["spec"];
        match &spec["leaderWorkerTemplate"]["size"] {
            Value::Null => number(&spec["replicas"]),
            size => number(&spec["replicas"]) * number(size),
        }
    };
    app.workloads.iter().map(pods).sum()
}

/// Makes all templates of pods select the dedicated nodes.
fn move_to_dedicated_nodes(object: &mut Value) {
    let Some(fields) = object.as_object_mut() else { return };
    if fields.contains_key("containers") {
        fields.insert("nodeSelector".to_owned(), json!({MARK: "true"}));
        fields.insert("tolerations".to_owned(), json!([{"key": MARK, "operator": "Exists"}]));
    }
    fields.values_mut().for_each(move_to_dedicated_nodes);
}

fn app(name: &str, workload: &str, kind: Kind) -> App {
    let labels = json!({"app": name});
    let template = json!({"metadata": {"labels": labels}, "spec": {
        "terminationGracePeriodSeconds": 2, "containers": [{"name": "main", "image": format!("{name}:1")}]}});
    let spec = json!({"replicas": COUNT, "serviceName": name, "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels}, "template": template});
    let plural = format!("{}s", workload.to_lowercase());
    let workload = manifest("apps/v1", workload, &plural, name, &spec);
    let spec = |least: usize| {
        json!({"selector": {"matchLabels": labels}, "minAvailable": least,
            "operations": ["Evict", "Delete", "Update"], "unhealthyPodEvictionPolicy": "IfHealthyBudget"})
    };
    let budgets = vec![budget(name, &spec(COUNT - 1)), budget(&format!("{name}-wide"), &spec(1))];
    App {
        namespace: NAMESPACES[0].to_owned(),
        name: name.to_owned(),
        kind,
        workloads: vec![workload],
        budgets,
    }
}

/// An application with probes. Its only budget has room for all of its pods, healthy or not, so that nothing but the probes
/// can keep a pod.
fn probed(name: &str) -> App {
    let mut app = app(name, "StatefulSet", Kind::Probed);
    for workload in &mut app.workloads {
        workload.object["spec"]["template"]["metadata"]["annotations"] = probe();
    }
    app.budgets.truncate(1);
    for budget in &mut app.budgets {
        budget.object["spec"]["minAvailable"] = json!(0);
        budget.object["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
    }
    app
}

/// A budget over pods of a dedicated application.
pub(super) fn budget(name: &str, spec: &Value) -> Manifest {
    manifest("policy.quorate.dev/v1alpha1", "DisruptionBudget", "disruptionbudgets", name, spec)
}

fn manifest(version: &str, kind: &str, plural: &str, name: &str, spec: &Value) -> Manifest {
    let namespace = NAMESPACES[0];
    Manifest {
        path: format!("/apis/{version}/namespaces/{namespace}/{plural}"),
        object: json!({"apiVersion": version, "kind": kind,
            "metadata": {"name": name, "namespace": namespace}, "spec": spec}),
    }
}
