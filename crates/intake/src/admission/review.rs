//! The envelope of a review.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::Unreadable;

/// A review that could not be understood.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
pub struct Rejected {
    /// The review's UID, where it could be found: without it the API server takes no answer.
    pub uid: Option<String>,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong with a review.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It is larger than what is read.
    #[error("the review is larger than {limit} bytes, which is all that is read")]
    TooLarge {
        /// How much is read.
        limit: usize,
    },
    /// It is not JSON, or not of the right shape.
    #[error("the review cannot be read: {0}")]
    Malformed(String),
    /// It is of another version, or something else altogether.
    #[error("{given:?} is not understood: send an AdmissionReview of admission.k8s.io/v1")]
    Version {
        /// What was given, as `apiVersion kind`.
        given: String,
    },
    /// Something is missing that such a review has.
    #[error("the review cannot be read: {0} is missing")]
    Missing(&'static str),
    /// The object within it cannot be read.
    #[error("the review's {field} cannot be read: {why}")]
    Object {
        /// Which of the objects.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The pod within it cannot be taken in.
    #[error("{0}")]
    Pod(Box<Unreadable>),
}

/// What the API server asks.
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

/// Reads a review. `limit` is how large the body may be; a server that stops reading there may pass on what it has.
pub fn read(body: &[u8], limit: usize) -> Result<Review<'_>, Rejected> {
    if body.len() > limit {
        return Err(Rejected { uid: find_uid(body), fault: Fault::TooLarge { limit } });
    }
    // The types first: another version may have another shape.
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

/// The UID of a review of any shape, also of one that was cut off: API servers write it first.
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
    /// The review's UID, which the answer repeats.
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

    /// Who asks.
    pub fn user(&self) -> &str {
        &self.call.user_info.username
    }

    /// The new object, for whoever validates it.
    pub fn object(&self) -> Result<Value, Rejected> {
        self.decode("object", self.call.object)
    }

    /// The object as it was, for whoever compares.
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
