//! `AdmissionReview`: the request to a webhook and its response.

use serde_json::{Value, json};

use super::{Attributes, Match};
use crate::apiserver::failure::{Failure, Outcome};
use crate::apiserver::resource::Served;

/// The response of a webhook.
#[derive(Debug, Default)]
pub(super) struct WebhookResponse {
    /// The status of a denial; `None`: allowed.
    pub(super) refusal: Option<Value>,
    pub(super) patch: Option<json_patch::Patch>,
    pub(super) warnings: Vec<String>,
}

/// The admission request without the objects. Match conditions use it, too.
pub(super) fn condition_request(attributes: &Attributes<'_>, matched: &Match) -> Value {
    let call = attributes.call;
    let resource = &call.served.resource;
    let own_kind = (resource.group.as_str(), call.served.version.as_str(), resource.kind.as_str());
    let kind_in = |version: &str| {
        let (group, version, kind) =
            attributes.kind.map_or((own_kind.0, version, own_kind.2), |(g, v, k)| (g, v, k));
        json!({"group": group, "version": version, "kind": kind})
    };
    let resource_in =
        |version: &str| json!({"group": resource.group, "version": version, "resource": resource.plural});
    let mut request = json!({
        "kind": kind_in(&matched.version),
        "resource": resource_in(&matched.version),
        "requestKind": kind_in(&call.served.version),
        "requestResource": resource_in(&call.served.version),
        "operation": attributes.operation.text(),
        "userInfo": call.user.info(),
        "dryRun": attributes.dry_run,
        "options": attributes.options,
    });
    for (field, text) in [
        ("name", &attributes.name),
        ("namespace", &namespace(attributes)),
        ("subResource", &call.subresource),
        ("requestSubResource", &call.subresource),
    ] {
        if !text.is_empty() {
            request[field] = text.clone().into();
        }
    }
    request
}

/// The namespace of a review. For a namespace object, it is the namespace itself.
fn namespace(attributes: &Attributes<'_>) -> String {
    let call = attributes.call;
    if call.served.resource.is("", "namespaces") { attributes.name.clone() } else { call.namespace.clone() }
}

/// Creates the review to send, and its uid.
pub(super) fn request(
    attributes: &Attributes<'_>,
    matched: &Match,
    object: Option<&Value>,
    old: Option<&Value>,
) -> (String, Value) {
    let uid = uuid::Uuid::new_v4().to_string();
    let mut request = condition_request(attributes, matched);
    request["uid"] = uid.clone().into();
    request["object"] = shown(attributes, matched, object);
    request["oldObject"] = shown(attributes, matched, old);
    (uid, json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}))
}

fn in_version(attributes: &Attributes<'_>, matched: &Match) -> Served {
    Served { resource: attributes.call.served.resource.clone(), version: matched.version.clone() }
}

/// An object in the version that the webhook expects.
fn shown(attributes: &Attributes<'_>, matched: &Match, object: Option<&Value>) -> Value {
    match object {
        None => Value::Null,
        Some(object) if attributes.kind.is_some() => object.clone(),
        Some(object) => in_version(attributes, matched).present_value(object.clone()),
    }
}

/// Reads a response; `Err` says why it is invalid.
pub(super) fn read(response: &Value, uid: &str, mutating: bool) -> Result<WebhookResponse, String> {
    if response["kind"] != "AdmissionReview" || response["apiVersion"] != "admission.k8s.io/v1" {
        return Err(format!(
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {}, Kind={}",
            response["apiVersion"].as_str().unwrap_or_default(),
            response["kind"].as_str().unwrap_or_default()
        ));
    }
    let answer = &response["response"];
    if !answer.is_object() {
        return Err("webhook response was absent".to_owned());
    }
    let found = answer["uid"].as_str().unwrap_or_default();
    if found != uid {
        return Err(format!("expected response.uid={uid:?}, got {found:?}"));
    }
    let warnings = answer["warnings"]
        .as_array()
        .map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default();
    let allowed = answer["allowed"].as_bool().unwrap_or(false);
    let patch = read_patch(answer, mutating)?;
    let refusal = (!allowed).then(|| answer["status"].clone());
    Ok(WebhookResponse { refusal, patch, warnings })
}

fn read_patch(answer: &Value, mutating: bool) -> Result<Option<json_patch::Patch>, String> {
    let has = |field: &str| answer.get(field).is_some_and(|v| !v.is_null());
    if !mutating {
        return if has("patch") || has("patchType") {
            Err("validating webhook may not return response.patch or response.patchType".to_owned())
        } else {
            Ok(None)
        };
    }
    if !has("patch") {
        return Ok(None);
    }
    if answer["patchType"] != "JSONPatch" {
        return Err("webhook returned response.patch but not response.patchType \"JSONPatch\"".to_owned());
    }
    let bytes: k8s_openapi::ByteString = serde_json::from_value(answer["patch"].clone())
        .map_err(|e| format!("response.patch is not base64: {e}"))?;
    serde_json::from_slice(&bytes.0).map(Some).map_err(|e| format!("response.patch is no JSON patch: {e}"))
}

/// The error that the client gets for a denial.
pub(super) fn refusal(hook: &str, mut status: Value) -> Failure {
    if !status.is_object() {
        status = json!({});
    }
    let denied = format!("admission webhook {hook:?} denied the request");
    let field_text = |field: &str| status[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let message = match field_text("message").or_else(|| field_text("reason")) {
        Some(text) => format!("{denied}: {text}"),
        None => format!("{denied} without explanation"),
    };
    status["message"] = message.into();
    if status["code"].as_u64().unwrap_or(0) < 400 {
        status["code"] = 400.into();
    }
    Failure::from_status(status, 400)
}

/// Applies the webhook's patch. Returns the object in stored form.
pub(super) fn apply_patch(
    hook: &str,
    patch: &json_patch::Patch,
    attributes: &Attributes<'_>,
    matched: &Match,
    object: &Value,
) -> Outcome<Value> {
    let mut patched = shown(attributes, matched, Some(object));
    json_patch::patch(&mut patched, patch)
        .map_err(|e| Failure::internal(format!("failed to apply the patch of webhook {hook:?}: {e}")))?;
    if attributes.kind.is_some() {
        return Ok(patched);
    }
    Ok(in_version(attributes, matched).store_form(patched))
}

#[cfg(test)]
mod tests {
    use super::{read, refusal};
    use serde_json::json;

    fn review(response: &serde_json::Value) -> serde_json::Value {
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
    }

    #[test]
    fn a_denial_keeps_its_details() {
        let failure = refusal(
            "pods.example.com",
            json!({"code": 429, "reason": "TooManyRequests", "message": "wait", "details": {"causes": [{"reason": "DisruptionBudget"}]}}),
        );
        let status = failure.status();
        assert_eq!(status["code"], 429);
        assert_eq!(status["status"], "Failure");
        assert_eq!(status["message"], "admission webhook \"pods.example.com\" denied the request: wait");
        assert_eq!(status["details"]["causes"][0]["reason"], "DisruptionBudget");
        assert_eq!(refusal("x", json!({"code": 200})).code(), 400);
        assert!(refusal("x", json!(null)).message().ends_with("without explanation"));
    }

    #[test]
    fn a_response_must_match_the_request() {
        assert!(read(&review(&json!({"uid": "a", "allowed": true})), "a", false).is_ok());
        assert!(read(&review(&json!({"uid": "", "allowed": true})), "a", false).is_err());
        assert!(read(&json!({"allowed": true}), "a", false).is_err());
        assert!(
            read(
                &review(&json!({"uid": "a", "allowed": true, "patch": "W10=", "patchType": "JSONPatch"})),
                "a",
                false
            )
            .is_err()
        );
        let patched =
            review(&json!({"uid": "a", "allowed": true, "patch": "W10=", "patchType": "JSONPatch"}));
        assert!(read(&patched, "a", true).unwrap().patch.is_some());
    }
}
