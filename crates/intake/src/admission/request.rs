//! What a review asks for.

use quorate_api::slim;
use quorate_engine::basics::ObjectKey;
use quorate_engine::callers::{Caller, Exempt};
use quorate_engine::claims::Target;
use quorate_engine::facts::{Operation, Pod};
use quorate_engine::request::{Request, ReviewedPod};
use serde::Deserialize;
use serde_json::Value;

use super::change;
use super::delete_options::DeleteOptions;
use super::review::{Fault, Rejected, Review};
use crate::objects;

/// What a review asks for.
#[derive(Debug)]
pub enum ReviewedOperation {
    /// Nothing that could disrupt a pod: it may go ahead.
    NoDisruption(Harmless),
    /// To disrupt a pod.
    Disruption(Box<Disruption>),
}

/// Why there is nothing to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Harmless {
    /// It is about something else than pods, or does something else to them.
    OtherResource,
    /// An update that restarts no container, a resize that needs no restart.
    NoRestart,
    /// The pod is on its way out already.
    Terminating,
}

/// A request to disrupt a pod.
#[derive(Debug)]
pub struct Disruption {
    /// The request.
    pub request: Request,
    /// Where an eviction's body takes the UID of the pod that is admitted; `None` for other operations.
    pub pin: Option<Pin>,
}

/// What an eviction's body has already of `deleteOptions.preconditions.uid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    /// Nothing, not even `deleteOptions`.
    NoOptions,
    /// `deleteOptions`, without `preconditions`.
    NoPreconditions,
    /// `deleteOptions.preconditions`, without a UID.
    NoUid,
    /// All of it: the caller insists on a pod.
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
    /// What is asked for.
    pub fn asked(&self) -> Result<ReviewedOperation, Rejected> {
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
            ("status", "UPDATE") => self.change(change::announcement, Operation::Update),
            _ => Ok(ReviewedOperation::NoDisruption(Harmless::OtherResource)),
        }
    }

    fn eviction(&self) -> Result<ReviewedOperation, Rejected> {
        let body: Value = self.object()?;
        let malformed = |why: String| self.rejected(Fault::Object { field: "object", why });
        if !body.is_object() {
            return Err(malformed("it is no object".to_owned()));
        }
        let eviction =
            Eviction::deserialize(&body).map_err(|error| malformed(format!("as an eviction: {error}")))?;
        // A body without types is one of the current version.
        let version = eviction.api_version.as_deref().unwrap_or("policy/v1");
        let kind = eviction.kind.as_deref().unwrap_or("Eviction");
        if !matches!((version, kind), ("policy/v1" | "policy/v1beta1" | "", "Eviction" | "")) {
            return Err(malformed(format!(
                "{version} {kind} is not understood: send an Eviction of policy/v1"
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

    /// A caller that is never held up is not held up by an object that cannot be read either.
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

    /// The pod as it is before the request; `None` where it is terminating.
    fn old_pod(&self) -> Result<Option<Pod>, Rejected> {
        let mut old: slim::Pod = self.decode("oldObject", self.call.old_object)?;
        if old.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        if old.metadata.namespace.is_none() {
            old.metadata.namespace.clone_from(&self.call.namespace);
        }
        objects::pod(&old).map(Some).map_err(|why| self.rejected(Fault::Pod(Box::new(why))))
    }

    fn disruption(
        &self,
        operation: Operation,
        pod: &Pod,
        options: &DeleteOptions,
        target: Target,
    ) -> Result<ReviewedOperation, Rejected> {
        // A delete of a collection is asked about pod by pod, without a name.
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
            // The review's own flag knows only of the query; `kubectl drain --dry-run=server` sets the body's.
            dry_run: self.call.dry_run == Some(true) || options.is_dry_run(),
            target,
        }
    }

    fn caller(&self, options: &DeleteOptions) -> Caller {
        Caller { user: self.user().into(), names_uid: options.uid().is_some(), no_grace: options.no_grace() }
    }

    /// The pod that is named by the address, or else by the body.
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

/// How much of the way to `deleteOptions.preconditions.uid` is there. `null` is nothing.
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
