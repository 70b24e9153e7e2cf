//! Review resources, which are answered and not stored: the requesting user, access, and tokens.
//!
//! The server does not enforce authorization, so every access review is allowed, and the response says why.

use serde_json::{Value, json};

use super::api::{Api, Reply};
use super::failure::{Failure, Outcome};
use super::protobuf;
use super::request::ResourcePath;
use super::users::User;

/// A resource that clients can only create. The response is the same object with its status filled in.
pub(crate) struct Review {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) namespaced: bool,
}

const fn review(group: &'static str, plural: &'static str, kind: &'static str, namespaced: bool) -> Review {
    Review { group, version: "v1", plural, kind, namespaced }
}

pub(crate) static ALL: &[Review] = &[
    review("authentication.k8s.io", "tokenreviews", "TokenReview", false),
    review("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview", false),
    review("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview", false),
    review("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview", false),
    review("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview", false),
    review("authorization.k8s.io", "localsubjectaccessreviews", "LocalSubjectAccessReview", true),
];

/// The review resource that a path names.
pub(crate) fn find(path: &ResourcePath) -> Option<&'static Review> {
    ALL.iter().find(|r| r.group == path.group && r.version == path.version && r.plural == path.plural)
}

impl Api {
    pub(crate) fn review(&self, review: &Review, user: &User, body: &[u8]) -> Outcome<Reply> {
        // Here, typed Go clients send only empty self subject reviews as protobuf.
        let mut value: Value = if review.plural == "selfsubjectreviews" && protobuf::is_envelope(body) {
            json!({})
        } else {
            serde_json::from_slice(body)
                .map_err(|e| Failure::bad_request(format!("json parse error: {e}")))?
        };
        if !value.is_object() {
            return Err(Failure::bad_request("the body of the request is not a JSON object"));
        }
        value["kind"] = review.kind.into();
        value["apiVersion"] = format!("{}/{}", review.group, review.version).into();
        value["status"] = match review.plural {
            "selfsubjectreviews" => json!({"userInfo": user.info()}),
            "tokenreviews" => {
                match self.users.by_token(value["spec"]["token"].as_str().unwrap_or_default()) {
                    Some(user) => json!({"authenticated": true, "user": user.info()}),
                    None => json!({"authenticated": false, "error": "invalid bearer token"}),
                }
            }
            "selfsubjectrulesreviews" => json!({
                "incomplete": false,
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            }),
            _ => json!({"allowed": true, "reason": "this API server enforces no authorization"}),
        };
        Ok(Reply::json(201, &value))
    }
}
