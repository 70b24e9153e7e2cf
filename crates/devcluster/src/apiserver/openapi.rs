//! OpenAPI documents, as far as clients need them: the parameters of a patch, and the schemas of custom kinds.

use serde_json::{Map, Value, json};

use super::api::Api;
use super::discovery::groups;
use super::failure::{Failure, Outcome};
use super::resource::Resource;

const PATCHES: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

impl Api {
    /// `/openapi/v2`: no definitions, so that clients leave validation to the server.
    pub(crate) fn openapi_v2(&self) -> Value {
        json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": self.options.version}, "paths": {}, "definitions": {}})
    }

    /// `/openapi/v3`: the address of the document of each group version.
    pub(crate) fn openapi_v3(&self) -> Value {
        let mut paths = Map::new();
        let revision = self.store.revision();
        for (group, versions) in groups(&self.registry()) {
            for version in versions {
                let path = document_path(&group, &version);
                let url = format!("/openapi/v3/{path}?hash={revision}");
                paths.insert(path, json!({"serverRelativeURL": url}));
            }
        }
        json!({"paths": paths})
    }

    /// `/openapi/v3/apis/G/V`.
    pub(crate) fn openapi_v3_of(&self, path: &str) -> Outcome<Value> {
        let registry = self.registry();
        let known = groups(&registry);
        let found = known
            .iter()
            .flat_map(|(g, versions)| versions.iter().map(move |v| (g, v)))
            .find(|(g, v)| document_path(g, v) == path);
        let (group, version) = found.ok_or_else(Failure::no_such_resource)?;
        let (mut paths, mut schemas) = (Map::new(), Map::new());
        for resource in registry.all().filter(|r| r.group == *group && r.versions.contains(version)) {
            paths.insert(object_path(resource, version), operations(resource, version));
            if let Some(schema) =
                resource.custom().and_then(|c| c.version(version)).and_then(|v| v.openapi.clone())
            {
                let mut schema = schema;
                schema["x-kubernetes-group-version-kind"] =
                    json!([{"group": group, "version": version, "kind": resource.kind}]);
                schemas.insert(format!("{group}.{version}.{}", resource.kind), schema);
            }
        }
        Ok(json!({
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": self.options.version},
            "paths": paths,
            "components": {"schemas": schemas},
        }))
    }
}

fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

fn object_path(resource: &Resource, version: &str) -> String {
    let namespace = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    format!("/{}{namespace}/{}/{{name}}", document_path(&resource.group, version), resource.plural)
}

fn operations(resource: &Resource, version: &str) -> Value {
    let kind = json!({"group": resource.group, "version": version, "kind": resource.kind});
    let parameters: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation", "force"]
        .iter()
        .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}))
        .collect();
    let content: Map<String, Value> =
        PATCHES.iter().map(|media| ((*media).to_owned(), json!({"schema": {}}))).collect();
    let description = format!("partially update the specified {}", resource.kind);
    json!({
        "patch": {
            "description": description,
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": kind,
            "parameters": parameters,
            "requestBody": {"content": content, "required": true},
            "responses": {"200": {"description": "OK"}},
        },
    })
}
