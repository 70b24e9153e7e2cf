//! Everything that happened in a run, as the API server saw it.
//!
//! The store of the embedded API server keeps a bounded log and compacts it; a history keeps all of it. It has raw objects
//! only, so that the checker depends on nothing that it checks.

use std::hash::{Hash as _, Hasher};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use fnv::FnvHasher;
use serde_json::{Value, json};

/// The history of a run. All times are measured from its start.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Every change of every object, in the order of their revisions.
    pub changes: Vec<Change>,
    /// Every request to disrupt a pod, in the order in which they ended.
    pub requests: Vec<Request>,
    /// Spans in which a budget is not judged.
    pub pardons: Vec<Pardon>,
    /// Spans in which a fault was active.
    pub faults: Vec<Span>,
    /// The length of the run.
    pub length: Duration,
}

impl History {
    /// Writes it to a file, one line of JSON for each change and each request, in the order in which they happened.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &std::path::Path) -> std::io::Result<()> {
        let mut lines: Vec<(Duration, Value)> = Vec::new();
        for Change { revision, at, resource, deleted, object } in &self.changes {
            let line = json!({"at": at.as_secs_f64(), "revision": revision, "resource": &**resource,
                "deleted": deleted, "object": &**object});
            lines.push((*at, line));
        }
        for request in &self.requests {
            let line = json!({"at": request.ended.as_secs_f64(), "received": request.received.as_secs_f64(),
                "user": request.user, "verb": request.verb, "subresource": request.subresource,
                "namespace": request.namespace, "name": request.name, "dryRun": request.dry_run,
                "receivedAt": request.received_at, "endedAt": request.ended_at, "code": request.code,
                "message": request.message, "failedOpen": request.failed_open});
            lines.push((request.ended, line));
        }
        for span in &self.faults {
            let line = json!({"at": span.from.as_secs_f64(), "fault": span.to.as_secs_f64()});
            lines.push((span.from, line));
        }
        lines.sort_by_key(|(at, _)| *at);
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        for (_, line) in &lines {
            writeln!(file, "{line}")?;
        }
        file.flush()
    }

    /// A fingerprint of everything in it. Equal runs have equal fingerprints, in every release of Rust: the hash of the
    /// standard library may change.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = FnvHasher::default();
        for change in &self.changes {
            change.revision.hash(&mut hasher);
            change.at.hash(&mut hasher);
            change.object.to_string().hash(&mut hasher);
        }
        for request in &self.requests {
            (&request.name, request.ended, request.code, &request.message).hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Change {
    /// The revision that the change made.
    pub revision: u64,
    /// When it happened.
    pub at: Duration,
    /// The resource: `pods`, `deployments.apps`, `disruptionbudgets.policy.quorate.dev`.
    pub resource: Arc<str>,
    /// Whether the object is gone with this change. `object` is its last state then.
    pub deleted: bool,
    /// The object after the change.
    pub object: Arc<Value>,
}

/// A request to disrupt a pod, or a write to a pod that could be one.
#[derive(Clone, Debug)]
pub struct Request {
    /// The user.
    pub user: String,
    /// The groups of the user.
    pub groups: Vec<String>,
    /// `create` (of an eviction), `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// Empty, `eviction`, `status` or `resize`.
    pub subresource: String,
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod; empty for `deletecollection`.
    pub name: String,
    /// Whether the request must change nothing.
    pub dry_run: bool,
    /// When the API server received it.
    pub received: Duration,
    /// The revision of the store at that moment.
    pub received_at: u64,
    /// When the API server had done its work. The client may never have got the answer.
    pub ended: Duration,
    /// The revision of the store at that moment.
    pub ended_at: u64,
    /// The HTTP status: 2xx if it was carried out.
    pub code: u16,
    /// The message of the answer, if it failed.
    pub message: String,
    /// Whether an admission webhook did not answer, and its failure policy let the request pass.
    pub failed_open: bool,
}

impl Request {
    /// Whether the API server carried it out.
    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Whether the API server may have carried it out, at least in part. It deletes a collection pod by pod until one is
    /// denied, and what it answers after a timeout says nothing about what it has written.
    pub fn may_have_acted(&self) -> bool {
        self.succeeded() || self.code >= 500 || self.verb == "deletecollection"
    }
}

/// A span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its begin.
    pub from: Duration,
    /// Its end.
    pub to: Duration,
}

/// A span in which a budget is not judged, because an administrator overwrote its claims or its ledger.
#[derive(Clone, Debug)]
pub struct Pardon {
    /// The namespace of the budget.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// When it is not judged.
    pub span: Span,
}
