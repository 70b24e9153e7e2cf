//! Eviction, with the steps in the order of the real API server: admission, pod, budgets, deletion.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::admission::{Attributes, Operation};
use super::api::{Api, Reply, request_info};
use super::conform::parse_body;
use super::delete::DeleteOptions;
use super::failure::{About, Failure, FieldError, Outcome};
use super::object::{self, map_mut};
use super::request::{Call, Form, Query, Verb};
use super::selector::Labels;
use super::store::StoredObject;
use super::users::User;

/// Maximum number of unconfirmed evictions of a budget.
const MAX_DISRUPTED: usize = 2000;
/// Maximum attempts after conflicts.
const ATTEMPTS: usize = 20;
/// Pause between attempts. The real API server waits half a second each time.
const PAUSE: Duration = Duration::from_millis(5);

const DENIED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
const CAUSE: &str = "DisruptionBudget";
const BUDGETS: About<'static> = About { group: "policy", resource: "poddisruptionbudgets" };

/// The result of the budget check of a pod.
enum Budget {
    /// A disruption was charged to the budget, or the pod has no budget.
    Paid,
    /// The pod is not ready and may be evicted, provided that it does not change before the deletion.
    Unready,
}

impl Api {
    pub(crate) async fn evict(self: &Arc<Self>, call: &Call) -> Outcome<Reply> {
        let mut eviction = parse_eviction(call)?;
        let options = json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"});
        let attributes = Attributes::of(call, Operation::Create, &call.name)
            .with_options(options)
            .with_kind(("policy", "v1", "Eviction"));
        let mut warnings = Vec::new();
        if let Some(changed) = self.admit_mutating(&attributes, Some(&eviction), None, &mut warnings).await? {
            eviction = changed;
        }
        if object::name(&eviction) != call.name {
            return Err(Failure::bad_request("name in URL does not match name in Eviction object"));
        }
        refuse_unsafe(&eviction, &call.name)?;
        propagate_dry_run(call, &mut eviction)?;
        self.admit_validating(&attributes, Some(&eviction), None, &mut warnings).await?;
        let options = DeleteOptions::of(&eviction["deleteOptions"], &Query::default())?;
        self.evict_admitted(call, options).await?;
        Ok(Reply::success(201, Value::Null).with_warnings(warnings))
    }

    async fn evict_admitted(self: &Arc<Self>, call: &Call, options: DeleteOptions) -> Outcome<()> {
        let caller_pins = options.version.is_some();
        let mut attempt = 0;
        let pod = loop {
            attempt += 1;
            let pod = self.current(call)?;
            if !ignores_budgets(&pod.value) {
                break pod;
            }
            let mut options = options.clone();
            if is_pending(&pod.value) && !caller_pins {
                // The pod may be running by the time of the deletion. Its budget then applies, so pin the version.
                options.version = Some(pod.revision.to_string());
            }
            match self.mark_and_delete(call, &options).await {
                Err(failure) if failure.reason() == "Conflict" && !caller_pins && attempt < ATTEMPTS => {
                    tokio::time::sleep(PAUSE).await;
                }
                done => return done,
            }
        };
        let budget = self.charge_budget(call, &pod, options.dry_run).await?;
        let mut options = options;
        if matches!(budget, Budget::Unready) {
            options.version = Some(pod.revision.to_string());
        }
        match self.mark_and_delete(call, &options).await {
            Err(failure)
                if failure.reason() == "Conflict" && matches!(budget, Budget::Unready) && !caller_pins =>
            {
                let name = self.budgets_of(&pod).first().map(|b| b.key.name.clone()).unwrap_or_default();
                Err(still_processed(&name))
            }
            done => done,
        }
    }

    /// The budgets of the namespace whose selector matches the pod.
    fn budgets_of(&self, pod: &StoredObject) -> Vec<Arc<StoredObject>> {
        let table = super::builtin::table_id(BUDGETS.group, BUDGETS.resource);
        let mut budgets = self.store.list(&table, &pod.key.namespace).objects;
        budgets.retain(|budget| {
            let selector = &budget.value["spec"]["selector"];
            selector.is_object()
                && Labels::from_object(selector).is_ok_and(|s| s.matches(object::labels(&pod.value)))
        });
        budgets
    }

    async fn charge_budget(
        self: &Arc<Self>,
        call: &Call,
        pod: &StoredObject,
        dry_run: bool,
    ) -> Outcome<Budget> {
        let budgets = self.budgets_of(pod);
        let first = match budgets.as_slice() {
            [] => return Ok(Budget::Paid),
            [one] => one,
            _ => {
                return Err(Failure::new(
                    500,
                    "",
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
        };
        if !is_ready(&pod.value) {
            let status = &first.value["status"];
            let (current, desired) = (number(status, "currentHealthy"), number(status, "desiredHealthy"));
            let always = first.value["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
            if always || (current >= desired && desired > 0) {
                return Ok(Budget::Unready);
            }
        }
        let mut budget = first.clone();
        for attempt in 1.. {
            let spent = self.spend(&budget, &pod.key.name)?;
            if dry_run {
                return Ok(Budget::Paid);
            }
            match self.write_budget(call, spent).await {
                Ok(()) => return Ok(Budget::Paid),
                Err(failure) if failure.reason() == "Conflict" && attempt < ATTEMPTS => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(failure) => return Err(failure),
            }
            let table = super::builtin::table_id(BUDGETS.group, BUDGETS.resource);
            budget = self
                .store
                .get(&table, &budget.key)
                .ok_or_else(|| Failure::not_found(BUDGETS, &budget.key.name))?;
        }
        Ok(Budget::Paid)
    }

    /// The budget with one allowed disruption less, or the reason why no disruption is allowed.
    fn spend(&self, budget: &StoredObject, pod: &str) -> Outcome<Value> {
        let name = &budget.key.name;
        let status = &budget.value["status"];
        if number(status, "observedGeneration") < object::generation(&budget.value) {
            return Err(still_processed(name));
        }
        let allowed = number(status, "disruptionsAllowed");
        let about = About { group: "policy", resource: "poddisruptionbudget" };
        if allowed < 0 {
            return Err(Failure::forbidden(about, name, "pdb disruptions allowed is negative"));
        }
        if status["disruptedPods"].as_object().is_some_and(|map| map.len() > MAX_DISRUPTED) {
            let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
            return Err(Failure::forbidden(about, name, why));
        }
        if allowed == 0 {
            return Err(denied(&exhausted(&budget.value)));
        }
        let mut spent = budget.value.clone();
        let now = self.clock.now_text();
        let generation = object::generation(&spent);
        let status = map_mut(&mut spent, "status");
        status.insert("disruptionsAllowed".into(), (allowed - 1).into());
        if allowed == 1 {
            set_not_allowed(status, generation, &now);
        }
        let disrupted = status.entry("disruptedPods").or_insert_with(|| json!({}));
        object::as_map(disrupted).insert(pod.to_owned(), now.into());
        Ok(spent)
    }

    /// Writes the budget's status as the API server's own user. Admission applies as for any other user.
    async fn write_budget(self: &Arc<Self>, call: &Call, budget: Value) -> Outcome<()> {
        let write = Call {
            user: User::new("system:apiserver", &["system:masters", "system:authenticated"]),
            verb: Verb::Update,
            served: self.stored_resource(BUDGETS.group, BUDGETS.resource)?,
            namespace: call.namespace.clone(),
            name: object::name(&budget).to_owned(),
            subresource: "status".to_owned(),
            query: Query::default(),
            dry_run: false,
            content_type: String::new(),
            form: Form::Object,
            body: serde_json::to_vec(&budget).map(Into::into).unwrap_or_default(),
            failed_open: Arc::default(),
        };
        for (_, fault) in self.faults.strike(&request_info(&write)) {
            if let Some(failure) = fault.refusal(&request_info(&write)) {
                return Err(failure);
            }
        }
        self.update(&write).await.map(|_| ())
    }

    /// Sets the `DisruptionTarget` condition on the pod, then deletes it. Neither write goes through admission.
    async fn mark_and_delete(self: &Arc<Self>, call: &Call, options: &DeleteOptions) -> Outcome<()> {
        let resource = &call.served.resource;
        let mut options = options.clone();
        if !options.dry_run {
            loop {
                let pod = self.current(call)?;
                options.check(resource, &pod)?;
                let with_disruption_target = with_disruption_target(&pod.value, &self.clock.now_text());
                match self.store.put(
                    &resource.table,
                    &pod.key,
                    with_disruption_target,
                    super::store::Expect::At(pod.revision),
                ) {
                    Ok(stored) => {
                        options.version = options.version.map(|_| stored.revision.to_string());
                        break;
                    }
                    Err(_) => continue,
                }
            }
        }
        self.delete_object(call, &call.key(), &options, None, &mut Vec::new()).await.map(|_| ())
    }
}

fn parse_eviction(call: &Call) -> Outcome<Value> {
    let mut eviction = parse_body(call)?;
    match eviction["apiVersion"].as_str().unwrap_or_default() {
        "" | "policy/v1" | "policy/v1beta1" => {}
        other => {
            return Err(Failure::bad_request(format!(
                "no kind \"Eviction\" is registered for version {other:?} in scheme"
            )));
        }
    }
    match eviction["kind"].as_str().unwrap_or_default() {
        "" | "Eviction" => {}
        other => return Err(Failure::bad_request(format!("not a Eviction object: {other}"))),
    }
    let namespace = object::namespace(&eviction);
    if !namespace.is_empty() && namespace != call.namespace {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    // Convert v1beta1, too: all later steps use v1.
    eviction["apiVersion"] = "policy/v1".into();
    eviction["kind"] = "Eviction".into();
    for field in ["uid", "creationTimestamp", "deletionTimestamp"] {
        object::unset_meta(&mut eviction, field);
    }
    object::set_meta(&mut eviction, "namespace", call.namespace.clone());
    Ok(eviction)
}

fn refuse_unsafe(eviction: &Value, name: &str) -> Outcome<()> {
    if eviction["deleteOptions"]["ignoreStoreReadErrorWithClusterBreakingPotential"] != true {
        return Ok(());
    }
    Err(Failure::invalid(
        "policy",
        "Eviction",
        name,
        &[FieldError::invalid(
            "deleteOptions.ignoreStoreReadErrorWithClusterBreakingPotential",
            true,
            "can not be set for pod eviction, try after removing the option",
        )],
    ))
}

/// A dry run can be requested in the query or in the body. Both must not differ.
fn propagate_dry_run(call: &Call, eviction: &mut Value) -> Outcome<()> {
    if !call.dry_run {
        return Ok(());
    }
    let body = &eviction["deleteOptions"]["dryRun"];
    match body.as_array().map(Vec::as_slice) {
        None | Some([]) => {
            map_mut(eviction, "deleteOptions").insert("dryRun".into(), json!(["All"]));
            Ok(())
        }
        Some(same) if same == [json!("All")] => Ok(()),
        Some(_) => Err(Failure::new(
            500,
            "",
            format!("Non-matching dry-run options in request and content: [All] and {body}"),
        )),
    }
}

fn is_pending(pod: &Value) -> bool {
    pod["status"]["phase"] == "Pending" && !object::is_terminating(pod)
}

/// Whether budgets ignore the pod: it is not running yet, no longer running, or terminating.
fn ignores_budgets(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"))
        || object::is_terminating(pod)
}

fn is_ready(pod: &Value) -> bool {
    object::condition(pod, "Ready").is_some_and(|c| c["status"] == "True")
}

fn number(status: &Value, field: &str) -> i64 {
    status[field].as_i64().unwrap_or(0)
}

fn denied(cause: &str) -> Failure {
    Failure::too_many_requests(DENIED).cause(CAUSE, cause, "")
}

fn still_processed(budget: &str) -> Failure {
    denied(&format!("The disruption budget {budget} is still being processed by the server.")).retry_after(10)
}

/// The reason why a budget allows no disruption.
fn exhausted(budget: &Value) -> String {
    let name = object::name(budget);
    let status = &budget["status"];
    let condition = object::condition(budget, "DisruptionAllowed").filter(|c| c["status"] == "False");
    let message = condition.and_then(|c| c["message"].as_str()).filter(|m| !m.is_empty());
    let reason = condition.and_then(|c| c["reason"].as_str()).unwrap_or_default();
    if let Some(message) = message
        && reason == "SyncFailed"
    {
        return format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
        );
    }
    let (current, desired) = (number(status, "currentHealthy"), number(status, "desiredHealthy"));
    if current <= desired {
        return format!(
            "The disruption budget {name} needs {desired} healthy pods and has {current} currently"
        );
    }
    match message {
        Some(message) => {
            format!(
                "The disruption budget {name} does not allow evicting pods currently ({reason}): {message}"
            )
        }
        None => format!("The disruption budget {name} does not allow evicting pods currently"),
    }
}

fn set_not_allowed(status: &mut serde_json::Map<String, Value>, generation: i64, now: &str) {
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else { return };
    let was_false = list.iter().find(|c| c["type"] == "DisruptionAllowed" && c["status"] == "False");
    let since = was_false.map_or(json!(now), |c| c["lastTransitionTime"].clone());
    let index = list.iter().position(|c| c["type"] == "DisruptionAllowed");
    let condition = json!({
        "type": "DisruptionAllowed",
        "status": "False",
        "reason": "InsufficientPods",
        "message": "",
        "observedGeneration": generation,
        "lastTransitionTime": since,
    });
    match index {
        Some(index) => list[index] = condition,
        None => list.push(condition),
    }
}

/// The pod with the condition that states why it is deleted.
fn with_disruption_target(pod: &Value, now: &str) -> Value {
    let mut pod = pod.clone();
    let status = map_mut(&mut pod, "status");
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut() {
        let before = list.iter().find(|c| c["type"] == "DisruptionTarget" && c["status"] == "True");
        let since = before.map_or(json!(now), |c| c["lastTransitionTime"].clone());
        list.retain(|c| c["type"] != "DisruptionTarget");
        list.push(json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastProbeTime": null,
            "lastTransitionTime": since,
        }));
    }
    pod
}
