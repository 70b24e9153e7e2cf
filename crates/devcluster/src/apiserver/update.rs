//! The verbs update and patch, for an object or its status.

use std::sync::Arc;

use serde_json::{Value, json};

use super::admission::{Attributes, Operation};
use super::api::{Api, Reply};
use super::conform::parse_body;
use super::create::Created;
use super::failure::{Failure, FieldError, Outcome};
use super::object;
use super::patching::{self, Patch};
use super::request::{Call, Verb};
use super::resource::{Resource, StatusMeta};
use super::store::{Expect, StoredObject};
use super::strategy;

/// Maximum attempts of a patch that conflicts with other writes.
const PATCH_ATTEMPTS: usize = 5;

impl Api {
    pub(crate) async fn update(self: &Arc<Self>, call: &Call) -> Outcome<Reply> {
        let body = parse_body(call)?;
        check_name(call, &body)?;
        let resource = &call.served.resource;
        if resource.create_on_update()
            && call.subresource.is_empty()
            && self.store.get(&resource.table, &call.key()).is_none()
        {
            return self.create_by_update(call, body).await;
        }
        let mut warnings = Vec::new();
        let done = self.rewrite(call, &mut warnings, |_| Ok(body.clone())).await?;
        Ok(self.written(call, 200, done).with_warnings(warnings))
    }

    async fn create_by_update(self: &Arc<Self>, call: &Call, mut body: Value) -> Outcome<Reply> {
        object::unset_meta(&mut body, "resourceVersion");
        object::set_meta(&mut body, "name", call.name.clone());
        let mut warnings = Vec::new();
        let reply = match self.create_object(call, body, &mut warnings).await? {
            Created::Stored(stored) => self.reply(call, 201, &stored),
            Created::DryRun(value) => self.reply_value(call, 201, value),
        };
        Ok(reply.with_warnings(warnings))
    }

    pub(crate) async fn patch(self: &Arc<Self>, call: &Call) -> Outcome<Reply> {
        let patch = Patch::parse(call)?;
        if let Patch::Apply(applied) = &patch {
            return self.apply(call, applied).await;
        }
        let mut warnings = Vec::new();
        let done = self
            .rewrite(call, &mut warnings, |current| patching::apply(&patch, current, &call.served.resource))
            .await?;
        Ok(self.written(call, 200, done).with_warnings(warnings))
    }

    pub(crate) fn written(&self, call: &Call, code: u16, done: UpdateResult) -> Reply {
        match done {
            UpdateResult::Stored(stored) => self.reply(call, code, &stored),
            UpdateResult::Value(value) => self.reply_value(call, code, value),
        }
    }

    /// Reads, proposes, admits, validates and writes. Retries after a conflict unless the caller pins a resource
    /// version.
    pub(crate) async fn rewrite(
        self: &Arc<Self>,
        call: &Call,
        warnings: &mut Vec<String>,
        propose: impl Fn(&Value) -> Outcome<Value>,
    ) -> Outcome<UpdateResult> {
        self.rewrite_with(call, warnings, propose, true).await
    }

    /// Same as `rewrite`, but without webhooks: they were already called for the subresource.
    pub(crate) async fn rewrite_without_admission(
        self: &Arc<Self>,
        call: &Call,
        warnings: &mut Vec<String>,
        propose: impl Fn(&Value) -> Outcome<Value>,
    ) -> Outcome<UpdateResult> {
        self.rewrite_with(call, warnings, propose, false).await
    }

    async fn rewrite_with(
        self: &Arc<Self>,
        call: &Call,
        warnings: &mut Vec<String>,
        propose: impl Fn(&Value) -> Outcome<Value>,
        admission: bool,
    ) -> Outcome<UpdateResult> {
        for attempt in 1.. {
            let current = self.current(call)?;
            let proposed = propose(&call.served.present(&current))?;
            check_name(call, &proposed)?;
            let pinned = !object::resource_version(&proposed).is_empty()
                && (call.verb == Verb::Update
                    || object::resource_version(&proposed) != current.revision.to_string());
            warnings.clear();
            match self.rewrite_once(call, &current, proposed, warnings, admission).await {
                Err(RewriteError::Raced) if !pinned && attempt < PATCH_ATTEMPTS => {}
                Err(RewriteError::Raced) => {
                    return Err(Failure::modified(call.served.resource.about(), &call.name));
                }
                Err(RewriteError::Refused(failure)) => return Err(failure),
                Ok(done) => return Ok(done),
            }
        }
        Err(Failure::modified(call.served.resource.about(), &call.name))
    }

    async fn rewrite_once(
        self: &Arc<Self>,
        call: &Call,
        current: &Arc<StoredObject>,
        proposed: Value,
        warnings: &mut Vec<String>,
        admission: bool,
    ) -> Result<UpdateResult, RewriteError> {
        let resource = &call.served.resource;
        let old = &current.value;
        check_preconditions(call, current, &proposed)?;
        let value = self.conform(call, proposed, warnings)?;
        let mut value = self.settle(call, old, value);
        let options = match call.verb {
            Verb::Patch => json!({"kind": "PatchOptions", "apiVersion": "meta.k8s.io/v1"}),
            _ => json!({"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"}),
        };
        let attributes = Attributes::of(call, Operation::Update, &call.name).with_options(options);
        if admission
            && let Some(patched) = self.admit_mutating(&attributes, Some(&value), Some(old), warnings).await?
        {
            let patched = self.conform(call, call.served.present_value(patched), warnings)?;
            value = self.settle(call, old, patched);
        }
        let mut errors = strategy::validate_update(resource, &call.subresource, old, &value);
        if let Some(custom) = resource.custom() {
            errors.extend(custom.validate_part(&call.served.version, &call.subresource, &value, old));
        }
        if !errors.is_empty() {
            return Err(Failure::invalid(&resource.group, &resource.kind, &call.name, &errors).into());
        }
        if admission {
            self.admit_validating(&attributes, Some(&value), Some(old), warnings).await?;
        }
        if call.dry_run {
            return Ok(UpdateResult::Value(value));
        }
        self.commit(resource, current, value).map_err(|_| RewriteError::Raced)
    }

    /// Reduces the proposed object to the parts that the request may write; the rest comes from the old object.
    fn settle(&self, call: &Call, old: &Value, mut value: Value) -> Value {
        let resource = &call.served.resource;
        for field in [
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "name",
            "namespace",
            "generateName",
            "resourceVersion",
        ] {
            object::carry_meta(old, &mut value, field);
        }
        if !call.content_type.contains("apply-patch") {
            object::carry_meta(old, &mut value, "managedFields");
        }
        let rule = resource.status_rule(&call.served.version);
        match call.subresource.as_str() {
            "status" => {
                let mut settled = old.clone();
                object::carry(&value, &mut settled, "status");
                match rule {
                    Some(StatusMeta::Free) => {
                        object::carry_meta(&value, &mut settled, "labels");
                        object::carry_meta(&value, &mut settled, "annotations");
                        object::carry_meta(&value, &mut settled, "finalizers");
                    }
                    Some(StatusMeta::KeepLabels) => {
                        object::carry_meta(&value, &mut settled, "annotations");
                        object::carry_meta(&value, &mut settled, "finalizers");
                    }
                    _ => {}
                }
                object::carry_meta(&value, &mut settled, "managedFields");
                value = settled;
            }
            "resize" => {
                let mut settled = old.clone();
                object::carry(&value, &mut settled, "spec");
                value = settled;
            }
            _ => {
                if rule.is_some() {
                    object::carry(old, &mut value, "status");
                }
            }
        }
        strategy::prepare_update(resource, &call.subresource, old, &mut value);
        if resource.counts_generations()
            && call.subresource != "status"
            && counted_field_changed(old, &value, rule.is_some())
        {
            object::set_meta(&mut value, "generation", object::generation(old) + 1);
        }
        value
    }

    /// Writes the object, or removes it if this write removes the last reason to keep a terminating object.
    pub(crate) fn commit(
        &self,
        resource: &Arc<Resource>,
        current: &Arc<StoredObject>,
        value: Value,
    ) -> Result<UpdateResult, Lost> {
        if ends_with_this(resource, &value) {
            let gone = self
                .store
                .remove(&resource.table, &current.key, current.revision, Some(value))
                .map_err(|_| Lost)?;
            self.after_removal(resource, &gone);
            return Ok(UpdateResult::Value(gone.value.clone()));
        }
        let stored = self
            .store
            .put(&resource.table, &current.key, value, Expect::At(current.revision))
            .map_err(|_| Lost)?;
        self.after_write(resource, &stored);
        Ok(UpdateResult::Stored(stored))
    }
}

/// Another write came first.
#[derive(Debug)]
pub(crate) struct Lost;

/// The result of an update.
pub(crate) enum UpdateResult {
    Stored(Arc<StoredObject>),
    /// Not stored: the request was a dry run, or the update removed the object.
    Value(Value),
}

enum RewriteError {
    Raced,
    Refused(Failure),
}

impl From<Failure> for RewriteError {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

fn check_name(call: &Call, body: &Value) -> Outcome<()> {
    let name = object::name(body);
    if name.is_empty() {
        if call.subresource.is_empty() || !call.served.resource.is_pods() {
            return Err(Failure::bad_request(
                "the name of the object (based on the URL) must be set in the object: metadata.name is empty",
            ));
        }
    } else if name != call.name {
        return Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.name
        )));
    }
    let namespace = object::namespace(body);
    if !namespace.is_empty() && namespace != call.namespace && call.served.resource.namespaced {
        return Err(Failure::bad_request(format!(
            "the namespace of the object ({namespace}) does not match the namespace on the URL ({})",
            call.namespace
        )));
    }
    Ok(())
}

fn check_preconditions(call: &Call, current: &StoredObject, proposed: &Value) -> Outcome<()> {
    let resource = &call.served.resource;
    let uid = object::uid(proposed);
    let current_uid = object::uid(&current.value);
    if !uid.is_empty() && uid != current_uid {
        let why =
            format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {current_uid}");
        return Err(Failure::conflict(resource.about(), &call.name, &why));
    }
    match object::resource_version(proposed) {
        "" | "0" if call.verb == Verb::Update && !resource.unconditional_update() => Err(Failure::invalid(
            &resource.group,
            &resource.kind,
            &call.name,
            &[FieldError::invalid("metadata.resourceVersion", 0, "must be specified for an update")],
        )),
        "" | "0" => Ok(()),
        version if version == current.revision.to_string() => Ok(()),
        _ => Err(Failure::modified(resource.about(), &call.name)),
    }
}

/// Whether a field changed that the generation counts: any field except metadata and, if it is a subresource, status.
fn counted_field_changed(old: &Value, new: &Value, status_apart: bool) -> bool {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return true };
    let counted = |field: &str| field != "metadata" && !(status_apart && field == "status");
    old.keys().chain(new.keys()).filter(|field| counted(field)).any(|field| old.get(field) != new.get(field))
}

/// Whether a terminating object has nothing left to wait for.
fn ends_with_this(resource: &Resource, value: &Value) -> bool {
    object::is_terminating(value)
        && object::finalizers(value).is_empty()
        && value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && !(resource.is("", "namespaces")
            && value["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty()))
}
