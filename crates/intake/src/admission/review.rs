//! The AdmissionReview that the API server sends.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::Unreadable;

/// A review that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
pub struct Rejected {
    /// The review's UID, if it was found. Without it the API server accepts no response.
    pub uid: Option<String>,
    /// The problem.
    pub fault: Fault,
}

/// The problem of a review.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The review is larger than the limit.
    #[error("the review is larger than the limit of {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// Too many reviews of the same client are in progress.
    #[error("too many reviews of this client are in progress: send fewer at once")]
    Busy,
    /// The body of the review did not arrive in time.
    #[error("the review did not arrive in time")]
    Slow,
    /// The review is not JSON, or has the wrong structure.
    #[error("the review cannot be read: {0}")]
    Malformed(String),
    /// The review has another version or kind.
    #[error("{given:?} is not supported: send an AdmissionReview of admission.k8s.io/v1")]
    Version {
        /// The given version and kind, as `apiVersion kind`.
        given: String,
    },
    /// A required field is missing.
    #[error("the review cannot be read: {0} is missing")]
    Missing(&'static str),
    /// An object in the review cannot be read.
    #[error("the review's {field} cannot be read: {why}")]
    Object {
        /// The field of the object.
        field: &'static str,
        /// The error.
        why: String,
    },
    /// The pod in the review cannot be converted into a fact.
    #[error("{0}")]
    Pod(Box<Unreadable>),
}

/// An admission review.
#[derive(Debug)]
pub struct Review<'a> {
    pub(super) call: ReviewRequest<'a>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReviewRequest<'a> {
    #[serde(default)]
    pub(super) uid: String,
    #[serde(default)]
    pub(super) resource: Resource,
    pub(super) sub_resource: Option<String>,
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    #[serde(default)]
    pub(super) operation: String,
    #[serde(default)]
    pub(super) user_info: UserInfo,
    #[serde(borrow)]
    pub(super) object: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) old_object: Option<&'a RawValue>,
    pub(super) dry_run: Option<bool>,
    #[serde(borrow)]
    pub(super) options: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Resource {
    pub(super) group: String,
    pub(super) resource: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct UserInfo {
    pub(super) username: String,
    pub(super) uid: Option<String>,
    pub(super) groups: Option<Vec<String>>,
    pub(super) extra: Option<BTreeMap<String, Vec<String>>>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    request: Option<ReviewRequest<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Types {
    api_version: String,
    kind: String,
}

/// Reads a review. `limit` is the maximum size of the body in bytes. A server that stops reading after more than
/// `limit` bytes may pass the truncated body.
pub fn read(body: &[u8], limit: usize) -> Result<Review<'_>, Rejected> {
    if body.len() > limit {
        return Err(Rejected { uid: find_uid(body), fault: Fault::TooLarge { limit } });
    }
    // apiVersion and kind first: another version may have another structure.
    let types: Types = serde_json::from_slice(body).map_err(|error| malformed(body, &error))?;
    if types.api_version != "admission.k8s.io/v1" || types.kind != "AdmissionReview" {
        let given = format!("{} {}", types.api_version, types.kind);
        return Err(Rejected { uid: find_uid(body), fault: Fault::Version { given } });
    }
    let envelope: Envelope<'_> = serde_json::from_slice(body).map_err(|error| malformed(body, &error))?;
    let missing = |what| Rejected { uid: None, fault: Fault::Missing(what) };
    let call = envelope.request.ok_or_else(|| missing("request"))?;
    if call.uid.is_empty() {
        return Err(missing("request.uid"));
    }
    Ok(Review { call })
}

fn malformed(body: &[u8], error: &serde_json::Error) -> Rejected {
    Rejected { uid: find_uid(body), fault: Fault::Malformed(error.to_string()) }
}

/// The UID of a review of any structure, even if it is truncated: API servers write the UID first.
fn find_uid(body: &[u8]) -> Option<String> {
    const BEFORE: &[u8] = br#""request":{"uid":""#;
    const NEAR: usize = 1024;
    let near = &body[..body.len().min(NEAR)];
    if let Some(at) = near.windows(BEFORE.len()).position(|window| window == BEFORE) {
        let rest = &near[at + BEFORE.len()..];
        let uid = &rest[..rest.iter().position(|byte| *byte == b'"')?];
        let plain = !uid.is_empty() && uid.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
        return plain.then(|| String::from_utf8_lossy(uid).into_owned());
    }
    let value: Value = serde_json::from_slice(body).ok()?;
    value.pointer("/request/uid")?.as_str().filter(|uid| !uid.is_empty()).map(str::to_owned)
}

impl<'a> Review<'a> {
    /// The review's UID, which the response repeats.
    pub fn uid(&self) -> &str {
        &self.call.uid
    }

    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub fn operation(&self) -> &str {
        &self.call.operation
    }

    /// The resource and, after a slash, the subresource, such as `pods/eviction`.
    pub fn resource(&self) -> String {
        match self.call.sub_resource.as_deref().filter(|sub| !sub.is_empty()) {
            Some(sub) => format!("{}/{sub}", self.call.resource.resource),
            None => self.call.resource.resource.clone(),
        }
    }

    /// The name of the user that sent the request.
    pub fn user(&self) -> &str {
        &self.call.user_info.username
    }

    /// The new object.
    pub fn object(&self) -> Result<Value, Rejected> {
        self.decode("object", self.call.object)
    }

    /// The object before the request.
    pub fn old_object(&self) -> Result<Value, Rejected> {
        self.decode("oldObject", self.call.old_object)
    }

    /// Decodes one of the objects.
    pub(super) fn decode<T: Deserialize<'a>>(
        &self,
        field: &'static str,
        raw: Option<&'a RawValue>,
    ) -> Result<T, Rejected> {
        let raw = raw.ok_or_else(|| self.rejected(Fault::Missing(field)))?;
        serde_json::from_str(raw.get())
            .map_err(|error| self.rejected(Fault::Object { field, why: error.to_string() }))
    }

    pub(super) fn rejected(&self, fault: Fault) -> Rejected {
        Rejected { uid: Some(self.call.uid.clone()), fault }
    }
}
