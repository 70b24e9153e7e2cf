//! CustomResourceDefinitions: turns a definition into a served resource.

mod definition;
mod rules;
mod schema;
mod validate;

use std::sync::Arc;

use serde_json::{Value, json};

use super::api::Api;
use super::builtin::table_id;
use super::discovery::priority;
use super::failure::FieldError;
use super::object;
use super::resource::{Resource, ResourceRules};
use super::store::{Expect, StoredObject};
use super::table::JsonPath;

pub(crate) use definition::{default_definition, validate_definition};

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";

/// The rules of a custom kind, for each version.
#[derive(Debug)]
pub(crate) struct CustomType {
    versions: Vec<CustomVersion>,
}

/// One version of a custom kind.
#[derive(Debug)]
pub(crate) struct CustomVersion {
    pub(crate) name: String,
    pub(crate) has_status: bool,
    pub(crate) scale: Option<ScalePaths>,
    pub(crate) selectable_fields: Vec<String>,
    pub(crate) columns: Vec<PrinterColumn>,
    /// The schema as the user wrote it.
    pub(crate) openapi: Option<Value>,
}

/// The paths of the replica counts in a custom kind.
#[derive(Debug)]
pub(crate) struct ScalePaths {
    pub(crate) wanted: JsonPath,
    pub(crate) seen: JsonPath,
    pub(crate) selector: Option<JsonPath>,
}

/// A column of `kubectl get`.
#[derive(Debug)]
pub(crate) struct PrinterColumn {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) description: String,
    pub(crate) priority: i64,
    pub(crate) path: JsonPath,
}

impl CustomType {
    pub(crate) fn version(&self, name: &str) -> Option<&CustomVersion> {
        self.versions.iter().find(|v| v.name == name)
    }

    fn schema(&self, version: &str) -> Option<&Value> {
        self.version(version)?.openapi.as_ref()
    }

    /// Drops fields that are not in the schema, and sets defaults.
    pub(crate) fn prune_and_default(&self, version: &str, value: &mut Value, unknown: &mut Vec<String>) {
        if let Some(schema) = self.schema(version) {
            schema::prune_root(schema, value, unknown);
            schema::default(schema, value);
        }
    }

    /// Validates an object against the schema and its rules.
    pub(crate) fn validate(&self, version: &str, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let Some(schema) = self.schema(version) else { return Vec::new() };
        let mut errors = Vec::new();
        validate::validate_root(schema, value, &mut errors);
        // Rules run only on values that match the schema.
        if errors.is_empty() {
            rules::check_root(schema, value, old, &mut errors);
        }
        errors
    }

    /// Validates an updated object. Ignores errors that the old object already had and that are unchanged.
    pub(crate) fn validate_part(
        &self,
        version: &str,
        _subresource: &str,
        value: &Value,
        old: &Value,
    ) -> Vec<FieldError> {
        let errors = self.validate(version, value, Some(old));
        if errors.is_empty() {
            return errors;
        }
        let before: Vec<String> = self.validate(version, old, None).iter().map(ToString::to_string).collect();
        errors.into_iter().filter(|e| !before.contains(&e.to_string())).collect()
    }
}

impl Api {
    /// Updates the served resources when a definition changes.
    pub(crate) fn after_write(&self, resource: &Arc<Resource>, stored: &Arc<StoredObject>) {
        if resource.is(GROUP, PLURAL) && !object::is_terminating(&stored.value) {
            self.establish(stored);
        }
    }

    /// Removes the objects of a removed definition.
    pub(crate) fn after_removal(&self, resource: &Arc<Resource>, gone: &Arc<StoredObject>) {
        if !resource.is(GROUP, PLURAL) {
            return;
        }
        let spec = &gone.value["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
        self.change_registry(|registry| registry.remove(&group, &plural));
        self.store.clear(&table_id(&group, &plural));
    }

    fn establish(&self, stored: &Arc<StoredObject>) {
        let served = custom_resource(&stored.value);
        let taken = self.registry().all().any(|other| {
            other.group == served.group && other.kind == served.kind && other.plural != served.plural
        });
        let kind = served.kind.clone();
        if !taken {
            self.store.open(&served.table);
            self.change_registry(|registry| registry.insert(served));
        }
        let mut value = stored.value.clone();
        let status =
            established_status(&stored.value, taken.then_some(kind.as_str()), &self.clock.now_text());
        value["status"] = status;
        // On a conflict, the other write establishes the definition: every write calls this function.
        let _ = self.store.put(&table_id(GROUP, PLURAL), &stored.key, value, Expect::At(stored.revision));
    }
}

fn established_status(definition: &Value, taken: Option<&str>, now: &str) -> Value {
    let storage = definition["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|v| v["storage"] == true)
        .map(|v| v["name"].clone())
        .unwrap_or_default();
    let mut stored_versions = definition["status"]["storedVersions"].as_array().cloned().unwrap_or_default();
    if !stored_versions.contains(&storage) {
        stored_versions.push(storage);
    }
    let condition = |kind: &str, ok: bool, reason: &str, message: &str| {
        let status = if ok { "True" } else { "False" };
        let before = object::condition(definition, kind).filter(|c| c["status"] == status);
        let since = before.map_or(json!(now), |c| c["lastTransitionTime"].clone());
        json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
    };
    let conditions = match taken {
        None => json!([
            condition("NamesAccepted", true, "NoConflicts", "no conflicts found"),
            condition("Established", true, "InitialNamesAccepted", "the initial names have been accepted"),
        ]),
        Some(kind) => json!([
            condition("NamesAccepted", false, "KindConflict", &format!("{kind:?} is already in use")),
            condition("Established", false, "NotAccepted", "not all names are accepted"),
        ]),
    };
    json!({
        "acceptedNames": definition["spec"]["names"],
        "storedVersions": stored_versions,
        "conditions": conditions,
    })
}

/// The resource that a definition describes.
fn custom_resource(definition: &Value) -> Resource {
    let spec = &definition["spec"];
    let names = &spec["names"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| {
        value
            .as_array()
            .map(|l| l.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            .unwrap_or_default()
    };
    let all: Vec<&Value> = spec["versions"].as_array().into_iter().flatten().collect();
    let mut served: Vec<String> =
        all.iter().filter(|v| v["served"] == true).map(|v| text(&v["name"])).collect();
    served.sort_by_key(|version| std::cmp::Reverse(priority(version)));
    let (group, plural) = (text(&spec["group"]), text(&names["plural"]));
    Resource {
        kind: text(&names["kind"]),
        list_kind: text(&names["listKind"]),
        singular: text(&names["singular"]),
        short_names: list(&names["shortNames"]),
        categories: list(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        versions: served,
        storage_version: all
            .iter()
            .find(|v| v["storage"] == true)
            .map(|v| text(&v["name"]))
            .unwrap_or_default(),
        table: table_id(&group, &plural),
        rules: ResourceRules::Custom(Arc::new(CustomType {
            versions: all.iter().map(|v| custom_version(v)).collect(),
        })),
        group,
        plural,
    }
}

fn custom_version(version: &Value) -> CustomVersion {
    let path = |value: &Value| value.as_str().and_then(JsonPath::parse);
    let scale = &version["subresources"]["scale"];
    let columns = version["additionalPrinterColumns"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|c| {
            Some(PrinterColumn {
                name: c["name"].as_str()?.to_owned(),
                kind: c["type"].as_str()?.to_owned(),
                description: c["description"].as_str().unwrap_or_default().to_owned(),
                priority: c["priority"].as_i64().unwrap_or(0),
                path: path(&c["jsonPath"])?,
            })
        })
        .collect();
    CustomVersion {
        name: version["name"].as_str().unwrap_or_default().to_owned(),
        has_status: version["subresources"]["status"].is_object(),
        scale: path(&scale["specReplicasPath"])
            .zip(path(&scale["statusReplicasPath"]))
            .map(|(wanted, seen)| ScalePaths { wanted, seen, selector: path(&scale["labelSelectorPath"]) }),
        selectable_fields: version["selectableFields"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|f| f["jsonPath"].as_str().map(|p| p.trim_start_matches('.').to_owned()))
            .collect(),
        columns,
        openapi: version["schema"].get("openAPIV3Schema").filter(|s| s.is_object()).cloned(),
    }
}
