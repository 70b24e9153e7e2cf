//! The requested operation of a review.

use quorate_api::slim;
use quorate_engine::basics::ObjectKey;
use quorate_engine::callers::{Caller, Exempt};
use quorate_engine::claims::Target;
use quorate_engine::facts::{Operation, Pod};
use quorate_engine::request::{Placement, Request, ReviewedPod};
use serde::Deserialize;
use serde_json::Value;

use super::change;
use super::delete_options::DeleteOptions;
use super::review::{Fault, Rejected, Review};
use crate::{announcements, objects};

/// The requested operation of a review.
#[derive(Debug)]
pub enum ReviewedOperation {
    /// The request cannot disrupt a pod and is allowed.
    NoDisruption(Harmless),
    /// The request disrupts a pod.
    Disruption(Box<Disruption>),
}

/// Why a request needs no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Harmless {
    /// Another resource than pods, or another operation on pods.
    OtherResource,
    /// An update or a resize that restarts no container.
    NoRestart,
    /// The pod is already terminating.
    Terminating,
    /// The labels and owners of the pod stay as they are.
    SamePlace,
}

/// A request to disrupt a pod.
#[derive(Debug)]
pub struct Disruption {
    /// The request.
    pub request: Request,
    /// How to add the UID of the admitted pod to the body of an eviction; `None` for other operations.
    pub pin: Option<Pin>,
}

/// The part of `deleteOptions.preconditions.uid` that the body of an eviction already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    /// Nothing, not even `deleteOptions`.
    NoOptions,
    /// `deleteOptions`, without `preconditions`.
    NoPreconditions,
    /// `deleteOptions.preconditions`, without a UID.
    NoUid,
    /// The whole path: the client requires a UID.
    Pinned,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Eviction {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<EvictionMeta>,
    delete_options: Option<DeleteOptions>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EvictionMeta {
    name: Option<String>,
    namespace: Option<String>,
}

impl<'a> Review<'a> {
    /// The requested operation.
    pub fn reviewed_operation(&self) -> Result<ReviewedOperation, Rejected> {
        let call = &self.call;
        if call.resource.resource != "pods" || !call.resource.group.is_empty() {
            return Ok(ReviewedOperation::NoDisruption(Harmless::OtherResource));
        }
        let sub_resource = call.sub_resource.as_deref().unwrap_or_default();
        match (sub_resource, call.operation.as_str()) {
            ("eviction", "CREATE") => self.eviction(),
            ("", "DELETE") => self.deletion(),
            ("", "UPDATE") => self.change(change::update, Operation::Update),
            ("resize", "UPDATE") => self.change(change::resize, Operation::Resize),
            ("status", "UPDATE") => self.announcement(),
            _ => Ok(ReviewedOperation::NoDisruption(Harmless::OtherResource)),
        }
    }

    /// The requested change of labels and owners. A change of the pod's status can change labels too.
    pub fn reviewed_relabel(&self) -> Result<ReviewedOperation, Rejected> {
        let call = &self.call;
        let is_pod = call.resource.resource == "pods" && call.resource.group.is_empty();
        let sub_resource = call.sub_resource.as_deref().unwrap_or_default();
        if !is_pod || !matches!((sub_resource, call.operation.as_str()), ("" | "status", "UPDATE")) {
            return Ok(ReviewedOperation::NoDisruption(Harmless::OtherResource));
        }
        let operation = Operation::Relabel;
        if let Some(exempt) = self.exempt(operation, None) {
            return Ok(exempt);
        }
        let Some(old) = self.old_pod()? else {
            return Ok(ReviewedOperation::NoDisruption(Harmless::Terminating));
        };
        let new = self.fact(self.decode("object", call.object)?)?;
        let (before, after) = (Placement::from(&old), Placement::from(&new));
        if before == after {
            return Ok(ReviewedOperation::NoDisruption(Harmless::SamePlace));
        }
        let target = Target { base: Some(old.version), ..Target::default() };
        let mut request =
            self.request(operation, old.key.clone(), Some((&old).into()), &DeleteOptions::default(), target);
        request.caller.only_owners = before.labels == after.labels;
        request.placement = Some(Box::new(after));
        Ok(ReviewedOperation::Disruption(Box::new(Disruption { request, pin: None })))
    }

    fn eviction(&self) -> Result<ReviewedOperation, Rejected> {
        let body: Value = self.object()?;
        let malformed = |why: String| self.rejected(Fault::Object { field: "object", why });
        if !body.is_object() {
            return Err(malformed("must be an object".to_owned()));
        }
        let eviction =
            Eviction::deserialize(&body).map_err(|error| malformed(format!("as an eviction: {error}")))?;
        // A body without apiVersion and kind counts as the current version.
        let version = eviction.api_version.as_deref().unwrap_or("policy/v1");
        let kind = eviction.kind.as_deref().unwrap_or("Eviction");
        if !matches!((version, kind), ("policy/v1" | "policy/v1beta1" | "", "Eviction" | "")) {
            return Err(malformed(format!(
                "{version} {kind} is not supported: send an Eviction of policy/v1"
            )));
        }
        let options = eviction.delete_options.unwrap_or_default();
        let meta = eviction.metadata.unwrap_or_default();
        let pod = self.key(meta.name.as_deref(), meta.namespace.as_deref())?;
        let pin = Some(pin(&body));
        let request = self.request(Operation::Evict, pod, None, &options, Target::default());
        Ok(ReviewedOperation::Disruption(Box::new(Disruption { request, pin })))
    }

    fn deletion(&self) -> Result<ReviewedOperation, Rejected> {
        let options = match self.call.options {
            Some(_) => self.decode("options", self.call.options),
            None => Ok(DeleteOptions::default()),
        };
        if let Some(exempt) = self.exempt(Operation::Delete, options.as_ref().ok()) {
            return Ok(exempt);
        }
        let options = options?;
        match self.old_pod()? {
            Some(old) => self.disruption(Operation::Delete, &old, &options, Target::default()),
            None => Ok(ReviewedOperation::NoDisruption(Harmless::Terminating)),
        }
    }

    /// A write of the status that announces an update or a deletion. What an update changes is not known yet.
    fn announcement(&self) -> Result<ReviewedOperation, Rejected> {
        if let Some(exempt) = self.exempt(Operation::Update, None) {
            return Ok(exempt);
        }
        let old: slim::Pod = self.decode("oldObject", self.call.old_object)?;
        let new: slim::Pod = self.decode("object", self.call.object)?;
        let Some(operation) = announcements::announced(&old, &new) else {
            return Ok(ReviewedOperation::NoDisruption(Harmless::NoRestart));
        };
        match self.old_pod()? {
            Some(old) => {
                let base = (!operation.removes()).then_some(old.version);
                let target = Target { base, ..Target::default() };
                self.disruption(operation, &old, &DeleteOptions::default(), target)
            }
            None => Ok(ReviewedOperation::NoDisruption(Harmless::Terminating)),
        }
    }

    fn change(
        &self,
        leads_to: fn(&slim::Pod, &slim::Pod) -> Option<Target>,
        operation: Operation,
    ) -> Result<ReviewedOperation, Rejected> {
        if let Some(exempt) = self.exempt(operation, None) {
            return Ok(exempt);
        }
        let old: slim::Pod = self.decode("oldObject", self.call.old_object)?;
        let new: slim::Pod = self.decode("object", self.call.object)?;
        let Some(target) = leads_to(&old, &new) else {
            return Ok(ReviewedOperation::NoDisruption(Harmless::NoRestart));
        };
        match self.old_pod()? {
            Some(old) => {
                let target = Target { base: Some(old.version), ..target };
                self.disruption(operation, &old, &DeleteOptions::default(), target)
            }
            None => Ok(ReviewedOperation::NoDisruption(Harmless::Terminating)),
        }
    }

    /// A request of an exempt caller, which needs no object. An object that cannot be read must not block it.
    fn exempt(&self, operation: Operation, options: Option<&DeleteOptions>) -> Option<ReviewedOperation> {
        let none = DeleteOptions::default();
        let options = options.unwrap_or(&none);
        Exempt::find(&self.caller(options), operation)?;
        let pod = ObjectKey::new(
            self.call.namespace.as_deref().unwrap_or_default(),
            self.call.name.as_deref().unwrap_or_default(),
        );
        let request = self.request(operation, pod, None, options, Target::default());
        Some(ReviewedOperation::Disruption(Box::new(Disruption { request, pin: None })))
    }

    /// The pod before the request; `None` if it is terminating.
    fn old_pod(&self) -> Result<Option<Pod>, Rejected> {
        let old: slim::Pod = self.decode("oldObject", self.call.old_object)?;
        if old.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        self.fact(old).map(Some)
    }

    /// A pod of the review as a fact.
    fn fact(&self, mut pod: slim::Pod) -> Result<Pod, Rejected> {
        if pod.metadata.namespace.is_none() {
            pod.metadata.namespace.clone_from(&self.call.namespace);
        }
        objects::pod(&pod).map_err(|why| self.rejected(Fault::Pod(Box::new(why))))
    }

    fn disruption(
        &self,
        operation: Operation,
        pod: &Pod,
        options: &DeleteOptions,
        target: Target,
    ) -> Result<ReviewedOperation, Rejected> {
        // The API server reviews a deletecollection pod by pod, without a name in the request.
        let request = self.request(operation, pod.key.clone(), Some(pod.into()), options, target);
        Ok(ReviewedOperation::Disruption(Box::new(Disruption { request, pin: None })))
    }

    fn request(
        &self,
        operation: Operation,
        pod: ObjectKey,
        object: Option<ReviewedPod>,
        options: &DeleteOptions,
        target: Target,
    ) -> Request {
        Request {
            operation,
            pod,
            object,
            precondition: options.uid().map(Into::into),
            caller: self.caller(options),
            // `dryRun` of the review covers only the query parameter; `kubectl drain --dry-run=server` sets it in the
            // body.
            dry_run: self.call.dry_run == Some(true) || options.is_dry_run(),
            target,
            placement: None,
        }
    }

    fn caller(&self, options: &DeleteOptions) -> Caller {
        Caller {
            names_uid: options.uid().is_some(),
            no_grace: options.no_grace(),
            ..Caller::named(self.user())
        }
    }

    /// The pod that the URL names, or else the body.
    fn key(&self, name: Option<&str>, namespace: Option<&str>) -> Result<ObjectKey, Rejected> {
        fn filled<'t>(first: Option<&'t str>, second: Option<&'t str>) -> Option<&'t str> {
            first.filter(|text| !text.is_empty()).or(second).filter(|text| !text.is_empty())
        }
        let name = filled(self.call.name.as_deref(), name);
        let namespace = filled(self.call.namespace.as_deref(), namespace);
        Ok(ObjectKey::new(
            namespace.ok_or_else(|| self.rejected(Fault::Missing("request.namespace")))?,
            name.ok_or_else(|| self.rejected(Fault::Missing("request.name")))?,
        ))
    }
}

/// Finds how much of `deleteOptions.preconditions.uid` the body has. `null` is the same as a missing field.
fn pin(eviction: &Value) -> Pin {
    let there = |pointer: &str| eviction.pointer(pointer).is_some_and(|value| !value.is_null());
    if !there("/deleteOptions") {
        Pin::NoOptions
    } else if !there("/deleteOptions/preconditions") {
        Pin::NoPreconditions
    } else if !there("/deleteOptions/preconditions/uid") {
        Pin::NoUid
    } else {
        Pin::Pinned
    }
}
