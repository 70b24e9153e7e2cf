//! Patches: JSON Patch, merge patch, strategic merge patch, server-side apply.

mod apply;
mod strategic;

use serde_json::Value;

use super::conform::parse_json;
use super::failure::{Failure, Outcome};
use super::request::Call;
use super::resource::Resource;

/// A patch as the client sent it.
pub(crate) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
    Apply(Value),
}

const KNOWN: &str = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml";

impl Patch {
    pub(crate) fn parse(call: &Call) -> Outcome<Self> {
        let media = call.content_type.split(';').next().unwrap_or_default().trim();
        match media {
            "application/json-patch+json" => serde_json::from_slice(&call.body)
                .map(Self::Json)
                .map_err(|e| Failure::bad_request(format!("error decoding patch: {e}"))),
            "application/merge-patch+json" => parse_json(&call.body).map(Self::Merge),
            "application/strategic-merge-patch+json" => {
                if call.served.resource.custom().is_some() {
                    return Err(Failure::unsupported_media_type(
                        media,
                        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
                    ));
                }
                parse_json(&call.body).map(Self::Strategic)
            }
            // In practice, clients send JSON with this type. The parser rejects YAML that is not JSON.
            "application/apply-patch+yaml" | "application/apply-patch+json" => {
                parse_json(&call.body).map(Self::Apply)
            }
            other => Err(Failure::unsupported_media_type(other, KNOWN)),
        }
    }
}

/// The object after the patch.
pub(crate) fn apply(patch: &Patch, current: &Value, resource: &Resource) -> Outcome<Value> {
    let mut next = current.clone();
    match patch {
        Patch::Json(patch) => {
            for step in &patch.0 {
                if tests_absence(step, &next) {
                    continue;
                }
                json_patch::patch(&mut next, std::slice::from_ref(step)).map_err(|_| {
                    let message = "the server rejected our request due to an error in our request";
                    Failure::new(422, "Invalid", message)
                })?;
            }
        }
        Patch::Merge(patch) => json_patch::merge(&mut next, patch),
        Patch::Strategic(patch) => strategic::merge(&mut next, patch, &resource.kind)?,
        Patch::Apply(_) => return Err(Failure::internal("an apply is no plain patch")),
    }
    if !next.is_object() {
        return Err(Failure::bad_request("the patch leaves no object"));
    }
    Ok(next)
}

/// Whether a step tests that a field is missing, and it is. A real API server takes `null` for that; the standard does not.
fn tests_absence(step: &json_patch::PatchOperation, object: &Value) -> bool {
    let json_patch::PatchOperation::Test(test) = step else { return false };
    let (Some((around, _)), None) = (test.path.split_back(), test.path.resolve(object).ok()) else {
        return false;
    };
    test.value.is_null() && around.resolve(object).is_ok_and(Value::is_object)
}
