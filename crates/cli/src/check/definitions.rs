//! Checks the CustomResourceDefinitions, and whether the cluster serves the Workload API.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use kube::{Client, Error, ResourceExt as _};
use quorate_api::names::{SCHEDULING_GROUP, UPSTREAM_SCHEDULING_GROUP};

use super::report::Section;

const APPLY: &str = "apply the current ones: quorate crds | kubectl apply --server-side -f -";

pub(super) async fn check(client: &Client) -> Section {
    let mut section = Section::new("definitions");
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for wanted in quorate_api::crds::all() {
        let name = wanted.name_any();
        match definitions.get(&name).await {
            Err(Error::Api(status)) if status.code == 404 => section.bad(format!("{name} is missing"), APPLY),
            Err(error) => section.unlisted("customresourcedefinitions.apiextensions.k8s.io", &error),
            Ok(stored) if !is_established(&stored) => {
                section.bad(format!("{name} is not established"), format!("see kubectl describe crd {name}"));
            }
            Ok(stored) if fields(&stored) != fields(&wanted) => {
                section.bad(format!("{name} is not the version of this binary"), APPLY);
            }
            Ok(_) => section.good(format!("{name} is current")),
        }
    }
    workload_api(client, &mut section).await;
    section
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Established" && c.status == "True")
}

/// The names of all fields. The API server drops a field that an older definition lacks.
fn fields(definition: &CustomResourceDefinition) -> Vec<String> {
    let mut found = Vec::new();
    for version in &definition.spec.versions {
        let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
        if let Some(value) = schema.and_then(|schema| serde_json::to_value(schema).ok()) {
            collect(&value, &version.name, &mut found);
        }
    }
    found.sort();
    found
}

fn collect(schema: &serde_json::Value, path: &str, found: &mut Vec<String>) {
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        collect(inner, &path, found);
        found.push(path);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            collect(&schema[inner], path, found);
        }
    }
}

async fn workload_api(client: &Client, section: &mut Section) {
    let served = match client.list_api_groups().await {
        Ok(groups) => groups.groups.into_iter().find(|group| group.name == UPSTREAM_SCHEDULING_GROUP),
        Err(error) => return section.unlisted("the API groups", &error),
    };
    let versions: Vec<String> =
        served.into_iter().flat_map(|group| group.versions).map(|v| v.version).collect();
    let mut groups = Vec::new();
    for version in ["v1alpha1", "v1alpha2", "v1beta1"] {
        if versions.iter().any(|served| served == version) {
            groups.push(format!("{UPSTREAM_SCHEDULING_GROUP}/{version}"));
        }
    }
    section.good(match groups.is_empty() {
        true => {
            format!("the cluster does not serve the Workload API: use {SCHEDULING_GROUP} Workloads")
        }
        false => format!("the cluster serves the Workload API: {}", groups.join(", ")),
    });
}
