//! The delete verb: preconditions, grace period, propagation, finalizers.

use std::sync::Arc;

use serde_json::{Value, json};

use super::admission::{Attributes, Operation};
use super::api::{Api, Reply};
use super::conform::parse_json;
use super::failure::{Failure, FieldError, Outcome};
use super::object;
use super::protobuf;
use super::read::Selection;
use super::request::{Call, Query};
use super::resource::Resource;
use super::store::{Expect, StoredObject};

/// The options of a deletion.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) propagation: Option<String>,
    pub(crate) dry_run: bool,
}

/// The result of a deletion.
pub(crate) enum Deleted {
    /// The object still exists and waits for its grace period or finalizers.
    Marked(Arc<StoredObject>),
    /// The object is removed; this is its last state.
    Gone(Value),
    /// Without the dry run, the result would have been one of the two above.
    DryRun(Value),
}

/// The next step for one object, based on one state of the object.
enum Step {
    /// The object is already terminating, and the request does not shorten its grace period.
    Nothing,
    Mark {
        value: Value,
        then_remove: bool,
    },
    Remove,
}

impl DeleteOptions {
    pub(crate) fn of(body: &Value, query: &Query) -> Outcome<Self> {
        let number = |text: &str| {
            text.parse::<i64>()
                .map_err(|_| Failure::bad_request(format!("gracePeriodSeconds: Invalid value: {text:?}")))
        };
        let text = |field: &str| body[field].as_str().map(str::to_owned);
        let grace = match (body["gracePeriodSeconds"].as_i64(), query.get("gracePeriodSeconds")) {
            (Some(grace), _) => Some(grace),
            (None, Some(text)) if !text.is_empty() => Some(number(text)?),
            _ => None,
        };
        let orphan =
            body["orphanDependents"].as_bool().or_else(|| query.get("orphanDependents").map(|v| v == "true"));
        let propagation = text("propagationPolicy")
            .or_else(|| query.get("propagationPolicy").filter(|v| !v.is_empty()).map(str::to_owned));
        if orphan.is_some() && propagation.is_some() {
            return Err(invalid(&FieldError::invalid(
                "propagationPolicy",
                propagation.unwrap_or_default(),
                "orphanDependents and deletionPropagation cannot be both set",
            )));
        }
        let propagation = propagation
            .or_else(|| orphan.map(|o| if o { "Orphan".to_owned() } else { "Background".to_owned() }));
        if let Some(policy) = propagation.as_deref()
            && !matches!(policy, "Foreground" | "Background" | "Orphan")
        {
            return Err(invalid(&FieldError::not_supported(
                "propagationPolicy",
                policy,
                &["Foreground", "Background", "Orphan"],
            )));
        }
        let mut dry_run = query.dry_run()?;
        for value in body["dryRun"].as_array().into_iter().flatten() {
            if value != "All" {
                return Err(invalid(&FieldError::not_supported("dryRun", value.clone(), &["All"])));
            }
            dry_run = true;
        }
        Ok(Self {
            grace,
            uid: body["preconditions"]["uid"].as_str().map(str::to_owned),
            version: body["preconditions"]["resourceVersion"].as_str().map(str::to_owned),
            propagation,
            dry_run,
        })
    }

    /// The options as webhooks receive them.
    fn review(&self) -> Value {
        let mut options = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"});
        if let Some(grace) = self.grace {
            options["gracePeriodSeconds"] = grace.into();
        }
        if let Some(policy) = &self.propagation {
            options["propagationPolicy"] = policy.clone().into();
        }
        if self.uid.is_some() || self.version.is_some() {
            let mut preconditions = json!({});
            if let Some(uid) = &self.uid {
                preconditions["uid"] = uid.clone().into();
            }
            if let Some(version) = &self.version {
                preconditions["resourceVersion"] = version.clone().into();
            }
            options["preconditions"] = preconditions;
        }
        if self.dry_run {
            options["dryRun"] = json!(["All"]);
        }
        options
    }

    /// Rejects the request if the object does not match the caller's preconditions.
    pub(crate) fn check(&self, resource: &Resource, current: &StoredObject) -> Outcome<()> {
        let name = &current.key.name;
        if let Some(uid) = &self.uid
            && uid != object::uid(&current.value)
        {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
                object::uid(&current.value)
            );
            return Err(Failure::conflict(resource.about(), name, &why));
        }
        if let Some(version) = &self.version
            && *version != current.revision.to_string()
        {
            let why = format!(
                "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({}). The object might have been modified",
                current.revision
            );
            return Err(Failure::conflict(resource.about(), name, &why));
        }
        Ok(())
    }
}

/// Reads the options in the body. Typed Go clients send them as protobuf.
fn options_body(call: &Call) -> Outcome<Value> {
    if call.body.is_empty() {
        return Ok(json!({}));
    }
    if call.content_type.starts_with(protobuf::MEDIA_TYPE) {
        return protobuf::delete_options(&call.body)
            .ok_or_else(|| Failure::bad_request("the body is no DeleteOptions in protobuf"));
    }
    parse_json(&call.body)
}

fn invalid(error: &FieldError) -> Failure {
    Failure::invalid("meta.k8s.io", "DeleteOptions", "", std::slice::from_ref(error))
}

impl Api {
    pub(crate) async fn delete(self: &Arc<Self>, call: &Call) -> Outcome<Reply> {
        let body = options_body(call)?;
        // If the request has a body, the API server ignores the query.
        let query = if call.body.is_empty() { call.query.clone() } else { Query::default() };
        let options = DeleteOptions::of(&body, &query)?;
        let attributes = Attributes::of(call, Operation::Delete, &call.name).dry_run(options.dry_run);
        let mut warnings = Vec::new();
        let deleted =
            self.delete_object(call, &call.key(), &options, Some(&attributes), &mut warnings).await?;
        let resource = &call.served.resource;
        let reply = match deleted {
            Deleted::Marked(stored) => self.reply(call, 200, &stored),
            Deleted::Gone(value) | Deleted::DryRun(value) if returns_deleted(resource) => {
                self.reply_value(call, 200, value)
            }
            Deleted::Gone(value) | Deleted::DryRun(value) => {
                let mut details =
                    json!({"name": call.name, "kind": resource.plural, "uid": object::uid(&value)});
                if !resource.group.is_empty() {
                    details["group"] = resource.group.clone().into();
                }
                Reply::success(200, details)
            }
        };
        Ok(reply.with_warnings(warnings))
    }

    pub(crate) async fn delete_collection(self: &Arc<Self>, call: &Call) -> Outcome<Reply> {
        let body = options_body(call)?;
        // If the request has a body, the API server ignores the query.
        let query = if call.body.is_empty() { call.query.clone() } else { Query::default() };
        let options = DeleteOptions::of(&body, &query)?;
        let selection = Selection::of(call)?;
        let resource = &call.served.resource;
        let snapshot = self.store.list(&resource.table, &call.namespace);
        let chosen: Vec<_> = snapshot.objects.iter().filter(|o| selection.matches(&o.value)).collect();
        // Webhooks are called for each object; the admission request has no name.
        let attributes = Attributes::of(call, Operation::Delete, "").dry_run(options.dry_run);
        let mut items = Vec::new();
        let mut warnings = Vec::new();
        for object in chosen {
            match self.delete_object(call, &object.key, &options, Some(&attributes), &mut warnings).await {
                Ok(_) => items.push(call.served.present(object)),
                Err(failure) if failure.code() == 404 => {}
                Err(failure) => return Err(failure),
            }
        }
        let list = json!({
            "kind": resource.list_kind,
            "apiVersion": call.served.api_version(),
            "metadata": {"resourceVersion": snapshot.revision.to_string()},
            "items": items,
        });
        Ok(Reply::json(200, &list).with_warnings(warnings))
    }

    /// Deletes one object as far as the options, its grace period and its finalizers allow. `None` for `attributes`
    /// skips admission.
    pub(crate) async fn delete_object(
        self: &Arc<Self>,
        call: &Call,
        key: &object::Key,
        options: &DeleteOptions,
        attributes: Option<&Attributes<'_>>,
        warnings: &mut Vec<String>,
    ) -> Outcome<Deleted> {
        let resource = &call.served.resource;
        let mut options = options.clone();
        let mut marked_here = false;
        loop {
            let Some(current) = self.store.get(&resource.table, key) else {
                if marked_here {
                    // This request marked the object without a grace period, and another request removed it first.
                    return Ok(Deleted::Gone(json!({})));
                }
                return Err(call.served.not_found(&key.name));
            };
            options.check(resource, &current)?;
            if resource.is("", "namespaces")
                && matches!(key.name.as_str(), "default" | "kube-system" | "kube-public")
            {
                return Err(Failure::forbidden(
                    resource.about(),
                    &key.name,
                    "this namespace may not be deleted",
                ));
            }
            let step = if marked_here { Step::Remove } else { self.step(resource, &current, &mut options) };
            if let Step::Nothing = step {
                return Ok(Deleted::Marked(current));
            }
            if let Some(attributes) = attributes {
                let attributes = attributes.clone().with_options(options.review());
                self.admit_mutating(&attributes, None, Some(&current.value), warnings).await?;
                self.admit_validating(&attributes, None, Some(&current.value), warnings).await?;
            }
            if options.dry_run {
                return Ok(Deleted::DryRun(match step {
                    Step::Mark { value, .. } => value,
                    _ => current.value.clone(),
                }));
            }
            match step {
                Step::Nothing => {}
                Step::Mark { value, then_remove } => {
                    match self.store.put(&resource.table, key, value, Expect::At(current.revision)) {
                        Ok(stored) => {
                            self.after_write(resource, &stored);
                            if !then_remove {
                                return Ok(Deleted::Marked(stored));
                            }
                            // This request wrote the mark, so a precondition on the version now applies to the marked
                            // object.
                            options.version = options.version.map(|_| stored.revision.to_string());
                            marked_here = true;
                        }
                        Err(_) if options.version.is_some() => {
                            return Err(Failure::modified(resource.about(), &key.name));
                        }
                        Err(_) => {}
                    }
                }
                Step::Remove => match self.store.remove(&resource.table, key, current.revision, None) {
                    Ok(gone) => {
                        self.after_removal(resource, &gone);
                        return Ok(Deleted::Gone(gone.value.clone()));
                    }
                    Err(_) if options.version.is_some() && !marked_here => {
                        return Err(Failure::modified(resource.about(), &key.name));
                    }
                    Err(_) => {}
                },
            }
        }
    }

    /// The step that deletes an object in this state.
    fn step(&self, resource: &Resource, current: &StoredObject, options: &mut DeleteOptions) -> Step {
        let mut value = current.value.clone();
        if resource.is("", "namespaces") {
            return self.step_namespace(value);
        }
        let finalizers_changed = set_propagation(resource, &mut value, options.propagation.as_deref());
        let waits = !object::finalizers(&value).is_empty();
        let terminating = object::is_terminating(&value);
        if resource.is_pods() {
            let set_grace = value["metadata"]["deletionGracePeriodSeconds"].as_i64();
            let grace = match (terminating, set_grace) {
                (true, None) => return if waits { Step::Nothing } else { Step::Remove },
                (true, Some(before)) => match options.grace.map(|g| if g < 0 { 1 } else { g }) {
                    Some(grace) if grace < before => grace,
                    Some(0) if before == 0 && !waits => return Step::Remove,
                    _ => return Step::Nothing,
                },
                (false, _) => pod_grace(&value, options.grace),
            };
            options.grace = Some(grace);
            self.mark(&mut value, grace, !terminating);
            return Step::Mark { value, then_remove: grace == 0 && !waits };
        }
        if waits {
            if terminating && !finalizers_changed {
                return Step::Nothing;
            }
            if !terminating {
                self.mark(&mut value, 0, true);
            }
            return Step::Mark { value, then_remove: false };
        }
        Step::Remove
    }

    /// A namespace waits until a controller has deleted its contents.
    fn step_namespace(&self, mut value: Value) -> Step {
        let waits = value["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty())
            || !object::finalizers(&value).is_empty();
        if !waits {
            return Step::Remove;
        }
        if object::is_terminating(&value) {
            return Step::Nothing;
        }
        object::set_meta(&mut value, "deletionTimestamp", self.clock.now_text());
        object::map_mut(&mut value, "status").insert("phase".into(), "Terminating".into());
        Step::Mark { value, then_remove: false }
    }

    fn mark(&self, value: &mut Value, grace: i64, first: bool) {
        let at = u64::try_from(grace).unwrap_or(0);
        if first {
            object::set_meta(
                value,
                "deletionTimestamp",
                self.clock.text_after(std::time::Duration::from_secs(at)),
            );
            let generation = object::generation(value);
            if generation > 0 {
                object::set_meta(value, "generation", generation + 1);
            }
        } else {
            self.bring_forward(value, grace);
        }
        object::set_meta(value, "deletionGracePeriodSeconds", grace);
    }

    /// A shorter grace period counts from the start of the deletion.
    fn bring_forward(&self, value: &mut Value, grace: i64) {
        let before = value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        let ends: Option<jiff::Timestamp> = object::meta_str(value, "deletionTimestamp").parse().ok();
        if let Some(ends) = ends
            && let Ok(sooner) = ends.checked_sub(jiff::SignedDuration::from_secs(before - grace))
        {
            object::set_meta(value, "deletionTimestamp", super::clock::seconds_text(sooner));
        }
    }
}

/// The grace period of a pod. It is zero if no kubelet will confirm the termination.
fn pod_grace(pod: &Value, requested: Option<i64>) -> i64 {
    let grace = requested.or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(0);
    let unscheduled = pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    let terminal = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if unscheduled || terminal {
        0
    } else if grace < 0 {
        1
    } else {
        grace
    }
}

/// Sets the finalizers that direct the garbage collector. Returns whether that changed any.
fn set_propagation(resource: &Resource, value: &mut Value, policy: Option<&str>) -> bool {
    let before: Vec<String> = object::finalizers(value).iter().map(|&f| f.to_owned()).collect();
    let orphans_by_default = resource.is("batch", "jobs") || resource.is("", "replicationcontrollers");
    let policy = match policy {
        Some(policy) => policy,
        None if before.iter().any(|f| f == "orphan") => "Orphan",
        None if before.iter().any(|f| f == "foregroundDeletion") => "Foreground",
        None if orphans_by_default => "Orphan",
        None => "Background",
    };
    let mut after: Vec<String> =
        before.iter().filter(|f| *f != "orphan" && *f != "foregroundDeletion").cloned().collect();
    match policy {
        "Orphan" => after.push("orphan".into()),
        "Foreground" => after.push("foregroundDeletion".into()),
        _ => {}
    }
    let mut compare = (before, after.clone());
    compare.0.sort();
    compare.1.sort();
    if compare.0 == compare.1 {
        return false;
    }
    if after.is_empty() {
        object::unset_meta(value, "finalizers");
    } else {
        object::set_meta(value, "finalizers", after);
    }
    true
}

/// Whether a deletion of this kind returns the object instead of a `Status`.
fn returns_deleted(resource: &Resource) -> bool {
    resource.group.is_empty()
        && matches!(
            resource.plural.as_str(),
            "pods"
                | "namespaces"
                | "services"
                | "serviceaccounts"
                | "persistentvolumeclaims"
                | "persistentvolumes"
                | "resourcequotas"
        )
}
