//! CustomResourceDefinitions.

use super::api::Api;
use super::failure::FieldError;
use super::resource::Resource;
use super::store::Stored;
use super::table::JsonPath;
use serde_json::Value;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct CustomType {
    versions: Vec<CustomVersion>,
}
#[derive(Debug)]
pub(crate) struct CustomVersion {
    pub(crate) name: String,
    pub(crate) has_status: bool,
    pub(crate) scale: Option<ScalePaths>,
    pub(crate) selectable_fields: Vec<String>,
    pub(crate) columns: Vec<PrinterColumn>,
    pub(crate) openapi: Option<Value>,
}
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
    pub(crate) fn prune_and_default(&self, _version: &str, _value: &mut Value, _unknown: &mut Vec<String>) {}
    pub(crate) fn validate(&self, _version: &str, _value: &Value, _old: Option<&Value>) -> Vec<FieldError> {
        vec![]
    }
    pub(crate) fn validate_part(
        &self,
        _version: &str,
        _sub: &str,
        _value: &Value,
        _old: &Value,
    ) -> Vec<FieldError> {
        vec![]
    }
}
pub(crate) fn default_definition(_value: &mut Value) {}
pub(crate) fn validate_definition(_value: &Value) -> Vec<FieldError> {
    vec![]
}
impl Api {
    pub(crate) fn after_write(&self, _resource: &Arc<Resource>, _stored: &Arc<Stored>) {}
    pub(crate) fn after_removal(&self, _resource: &Arc<Resource>, _gone: &Arc<Stored>) {}
}

#[derive(Debug)]
pub(crate) struct ScalePaths {
    pub(crate) wanted: JsonPath,
    pub(crate) seen: JsonPath,
    pub(crate) selector: Option<JsonPath>,
}
