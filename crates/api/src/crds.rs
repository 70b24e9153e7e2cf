//! The CustomResourceDefinitions to install in a cluster.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::{DisruptionBudget, PodUnavailableBudget, Workload};

/// All CustomResourceDefinitions of Quorate.
///
/// Install these instead of the result of `crd()` on the types. The two differ in two points. With `crd()`, optional
/// fields are nullable: a `null` is stored and counts as set in the rules. Here the API server drops it, as it does for
/// its own objects. With `crd()`, numbers that are missing from a status become 0. Here they stay unknown.
pub fn all() -> Vec<CustomResourceDefinition> {
    [DisruptionBudget::crd(), Workload::crd(), PodUnavailableBudget::crd()].into_iter().map(finish).collect()
}

fn finish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        let Some(root) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) else {
            continue;
        };
        // The title would repeat the kind.
        root.title = None;
        walk(root, &mut |schema| {
            schema.nullable = None;
            schema.description = schema.description.take().map(|text| unwrap_lines(&text));
        });
        if let Some(status) = root.properties.as_mut().and_then(|fields| fields.get_mut("status")) {
            walk(status, &mut |schema| schema.default = None);
        }
    }
    crd
}

/// Removes the line breaks within paragraphs: `kubectl explain` keeps them, and adds its own.
fn unwrap_lines(text: &str) -> String {
    text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}

/// Visits a schema and all schemas in it.
fn walk(schema: &mut JSONSchemaProps, visit: &mut impl FnMut(&mut JSONSchemaProps)) {
    visit(schema);
    for field in schema.properties.iter_mut().flat_map(|fields| fields.values_mut()) {
        walk(field, visit);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(item)) => walk(item, visit),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(|item| walk(item, visit)),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &mut schema.additional_properties {
        walk(value, visit);
    }
}
