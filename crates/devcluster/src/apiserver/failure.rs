//! Error responses: `metav1.Status` with the texts of the real API server.

use serde_json::{Value, json};

/// The result of an operation that can fail a request.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// An error response: one `Status` with status Failure.
#[derive(Clone, Debug)]
pub(crate) struct Failure(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    code: u16,
    reason: String,
    message: String,
    details: Value,
}

/// The subject of an error: the resource (for most errors) or the kind (for validation errors).
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
}

impl About<'_> {
    fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }

    fn details(&self, name: &str) -> Value {
        let mut details = serde_json::Map::new();
        if !name.is_empty() {
            details.insert("name".into(), name.into());
        }
        if !self.group.is_empty() {
            details.insert("group".into(), self.group.into());
        }
        if !self.resource.is_empty() {
            details.insert("kind".into(), self.resource.into());
        }
        Value::Object(details)
    }
}

impl Failure {
    /// The message for the client.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// An error with code, reason and message from the caller.
    pub(crate) fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            code,
            reason: reason.to_owned(),
            message: message.into(),
            details: Value::Null,
        }))
    }

    fn about(mut self, about: About<'_>, name: &str) -> Self {
        self.0.details = about.details(name);
        self
    }

    /// Adds one cause to the details.
    pub(crate) fn cause(mut self, reason: &str, message: &str, field: &str) -> Self {
        if !self.0.details.is_object() {
            self.0.details = json!({});
        }
        let mut cause = json!({"reason": reason, "message": message});
        if !field.is_empty() {
            cause["field"] = field.into();
        }
        match self.0.details["causes"].as_array_mut() {
            Some(causes) => causes.push(cause),
            None => self.0.details["causes"] = json!([cause]),
        }
        self
    }

    /// Sets the seconds until a retry. A value above zero becomes the `Retry-After` header.
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        if seconds > 0 {
            if !self.0.details.is_object() {
                self.0.details = json!({});
            }
            self.0.details["retryAfterSeconds"] = seconds.into();
        }
        self
    }

    pub(crate) fn not_found(about: About<'_>, name: &str) -> Self {
        let message = format!("{} {name:?} not found", about.qualified());
        Self::new(404, "NotFound", message).about(about, name)
    }

    /// The path does not name a served resource.
    pub(crate) fn no_such_resource() -> Self {
        let mut failure = Self::new(404, "NotFound", "the server could not find the requested resource");
        failure.0.details = json!({});
        failure
    }

    pub(crate) fn already_exists(about: About<'_>, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", about.qualified());
        Self::new(409, "AlreadyExists", message).about(about, name)
    }

    pub(crate) fn conflict(about: About<'_>, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", about.qualified());
        Self::new(409, "Conflict", message).about(about, name)
    }

    /// The object changed since the caller read it.
    pub(crate) fn modified(about: About<'_>, name: &str) -> Self {
        Self::conflict(
            about,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub(crate) fn forbidden(about: About<'_>, name: &str, why: &str) -> Self {
        let message = if name.is_empty() {
            format!("{} is forbidden: {why}", about.qualified())
        } else {
            format!("{} {name:?} is forbidden: {why}", about.qualified())
        };
        Self::new(403, "Forbidden", message).about(about, name)
    }

    /// Validation rejected an object; `kind` is the Kind, not the resource.
    pub(crate) fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let about = About { group, resource: kind };
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let text = match texts.as_slice() {
            [one] => one.clone(),
            _ => format!("[{}]", texts.join(", ")),
        };
        let mut failure =
            Self::new(422, "Invalid", format!("{} {name:?} is invalid: {text}", about.qualified()))
                .about(about, name);
        for error in errors {
            failure = failure.cause(error.kind.reason(), &error.body(), &error.field);
        }
        failure
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    }

    /// A feature of the real API server that this one deliberately lacks.
    pub(crate) fn not_implemented(what: &str) -> Self {
        Self::new(501, "NotImplemented", format!("this API server does not implement {what}"))
    }

    pub(crate) fn unsupported_media_type(got: &str, allowed: &str) -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {allowed} (got {got:?})"
            ),
        )
    }

    pub(crate) fn internal(message: impl std::fmt::Display) -> Self {
        let text = message.to_string();
        let mut failure = Self::new(500, "InternalError", format!("Internal error occurred: {text}"));
        failure.0.details = json!({"causes": [{"message": text}]});
        failure
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn too_many_requests(message: impl Into<String>) -> Self {
        Self::new(429, "TooManyRequests", message)
    }

    /// Takes over a `Status` from a webhook, with `default_code` if it has no valid code.
    pub(crate) fn from_status(mut status: Value, default_code: u16) -> Self {
        let code = status["code"].as_u64().and_then(|c| u16::try_from(c).ok()).unwrap_or(default_code);
        Self(Box::new(Parts {
            code,
            reason: status["reason"].as_str().unwrap_or_default().to_owned(),
            message: status["message"].as_str().unwrap_or_default().to_owned(),
            details: status["details"].take(),
        }))
    }

    pub(crate) fn code(&self) -> u16 {
        self.0.code
    }

    pub(crate) fn reason(&self) -> &str {
        &self.0.reason
    }

    /// Seconds for the `Retry-After` header, if set.
    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        self.0.details["retryAfterSeconds"].as_u64().filter(|seconds| *seconds > 0)
    }

    /// The error as the `Status` object that the client receives.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.0.message,
            "code": self.0.code,
        });
        if !self.0.reason.is_empty() {
            status["reason"] = self.0.reason.clone().into();
        }
        if self.0.details.is_object() {
            status["details"] = self.0.details.clone();
        }
        status
    }
}

/// One validation error of one field.
#[derive(Clone, Debug)]
pub(crate) struct FieldError {
    kind: FieldErrorKind,
    field: String,
    value: Option<Value>,
    detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldErrorKind {
    Required,
    Invalid,
    TypeInvalid,
    NotSupported,
    Forbidden,
    Duplicate,
    TooLong,
    TooMany,
}

impl FieldErrorKind {
    fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }
}

impl FieldError {
    fn new(kind: FieldErrorKind, field: impl Into<String>, value: Option<Value>, detail: String) -> Self {
        Self { kind, field: field.into(), value, detail }
    }

    pub(crate) fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(FieldErrorKind::Required, field, None, detail.to_owned())
    }

    pub(crate) fn invalid(
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(FieldErrorKind::Invalid, field, Some(value.into()), detail.into())
    }

    pub(crate) fn type_invalid(
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(FieldErrorKind::TypeInvalid, field, Some(value.into()), detail.into())
    }

    pub(crate) fn not_supported(
        field: impl Into<String>,
        value: impl Into<Value>,
        supported: &[&str],
    ) -> Self {
        let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        Self::new(
            FieldErrorKind::NotSupported,
            field,
            Some(value.into()),
            format!("supported values: {}", list.join(", ")),
        )
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Forbidden, field, None, detail.into())
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(FieldErrorKind::Duplicate, field, Some(value.into()), String::new())
    }

    pub(crate) fn too_long(field: impl Into<String>, max: usize) -> Self {
        Self::new(FieldErrorKind::TooLong, field, None, format!("may not be more than {max} bytes"))
    }

    pub(crate) fn too_many(field: impl Into<String>, got: usize, max: usize) -> Self {
        Self::new(FieldErrorKind::TooMany, field, Some(got.into()), format!("must have at most {max} items"))
    }

    /// The text without the field's path.
    fn body(&self) -> String {
        let value = self.value.as_ref().map(|value| match value {
            Value::Null => "null".to_owned(),
            other => other.to_string(),
        });
        let head = match self.kind {
            FieldErrorKind::Required => "Required value".to_owned(),
            FieldErrorKind::Forbidden => "Forbidden".to_owned(),
            FieldErrorKind::TooLong => "Too long".to_owned(),
            FieldErrorKind::Invalid | FieldErrorKind::TypeInvalid => {
                format!("Invalid value: {}", value.unwrap_or_default())
            }
            FieldErrorKind::NotSupported => format!("Unsupported value: {}", value.unwrap_or_default()),
            FieldErrorKind::Duplicate => format!("Duplicate value: {}", value.unwrap_or_default()),
            FieldErrorKind::TooMany => format!("Too many: {}", value.unwrap_or_default()),
        };
        if self.detail.is_empty() { head } else { format!("{head}: {}", self.detail) }
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.field.is_empty() {
            write!(f, "{}", self.body())
        } else {
            write!(f, "{}: {}", self.field, self.body())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{About, Failure, FieldError};

    #[test]
    fn validation_errors_have_the_texts_of_the_real_api_server() {
        let failure = Failure::invalid(
            "policy",
            "PodDisruptionBudget",
            "x",
            &[FieldError::invalid("spec.minAvailable", "1.1%", "must be an integer or percentage")],
        );
        assert_eq!(
            failure.message(),
            "PodDisruptionBudget.policy \"x\" is invalid: spec.minAvailable: Invalid value: \"1.1%\": must be an integer or percentage"
        );
        let status = failure.status();
        assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueInvalid");
        assert_eq!(status["details"]["causes"][0]["field"], "spec.minAvailable");
    }

    #[test]
    fn core_resources_have_no_group_suffix() {
        let pods = About { group: "", resource: "pods" };
        assert_eq!(Failure::not_found(pods, "a").message(), "pods \"a\" not found");
        let deployments = About { group: "apps", resource: "deployments" };
        assert_eq!(Failure::not_found(deployments, "a").message(), "deployments.apps \"a\" not found");
    }
}
