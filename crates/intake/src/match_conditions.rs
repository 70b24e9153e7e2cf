//! Match conditions: they exclude requests that need no decision from the webhook calls.
//!
//! They are derived from the engine's table of exempt callers, and from the same rules by which [`crate::admission`]
//! finds that a request disrupts nothing. Requests of exempt callers therefore pass even if no server answers.
//!
//! A webhook is called only if every condition is true. A condition that fails to evaluate counts like a webhook that
//! does not answer, so each expression tests that a field exists before it reads the field.

use quorate_api::names::DISRUPTION_PROBE_PREFIX;
use quorate_api::names::kruise::UNAVAILABLE_POD_PREFIX;
use quorate_engine::callers::{EXEMPT, Exempt, When, Who};

use crate::announcements;

/// The requests that a webhook is called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// CREATE of `pods/eviction`.
    Evictions,
    /// DELETE and UPDATE of `pods`, and UPDATE of `pods/resize`.
    Changes,
    /// UPDATE of `pods/status`, for the updates that are announced there.
    Announcements,
    /// UPDATE of `pods` and `pods/status`, for the labels and owners that they change.
    Relabels,
    /// CREATE and UPDATE of `pods`, for the probes that they declare.
    Probes,
    /// CREATE of `pods`, for the owners that their templates name.
    Owners,
}

/// A condition: a name, and an expression in CEL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchCondition {
    /// Its name.
    pub name: String,
    /// True if the API server must call the webhook.
    pub expression: String,
}

/// The match conditions of a webhook.
pub fn match_conditions(entry: Entry) -> Vec<MatchCondition> {
    let mut conditions: Vec<MatchCondition> = EXEMPT
        .iter()
        .filter_map(|exempt| {
            let expression = is_exempt(exempt, entry)?;
            Some(condition(&format!("not-{}", exempt.name), format!("!({expression})")))
        })
        .collect();
    if matches!(entry, Entry::Changes | Entry::Announcements | Entry::Relabels) {
        conditions
            .push(condition("not-terminating", "!has(oldObject.metadata.deletionTimestamp)".to_owned()));
    }
    if entry == Entry::Announcements {
        conditions.push(condition("announces-an-update", announcements::expression()));
    }
    if entry == Entry::Relabels {
        let expression = format!("!({}) || !({})", same("labels", "{}"), same("ownerReferences", "[]"));
        conditions.push(condition("changes-labels-or-owners", expression));
    }
    if entry == Entry::Changes {
        conditions.push(condition(
            "not-a-harmless-update",
            format!("request.operation != 'UPDATE' || {IS_RESIZE} || {}", is_disturbing()),
        ));
        conditions.push(condition(
            "not-a-harmless-resize",
            format!("request.operation != 'UPDATE' || !({IS_RESIZE}) || {}", may_restart()),
        ));
    }
    if entry == Entry::Probes {
        conditions.push(condition("declares-a-probe", declares_a_probe()));
    }
    if entry == Entry::Owners {
        conditions.push(condition("has-a-controller", HAS_A_CONTROLLER.to_owned()));
    }
    conditions
}

fn condition(name: &str, expression: String) -> MatchCondition {
    MatchCondition { name: name.to_owned(), expression }
}

const IS_RESIZE: &str = "(has(request.subResource) && request.subResource == 'resize')";

/// Only a pod with a controller was created from a template.
const HAS_A_CONTROLLER: &str = "has(object.metadata.ownerReferences) \
     && object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller)";

/// An expression that is true for an exempt caller; `None` if the exemption does not apply to requests of this webhook.
fn is_exempt(exempt: &Exempt, entry: Entry) -> Option<String> {
    let who = match exempt.who {
        Who::User(user) => format!("request.userInfo.username == {}", quoted(user)),
        Who::Prefix(prefix) => format!("request.userInfo.username.startsWith({})", quoted(prefix)),
    };
    match (&exempt.when, entry) {
        (When::Always, _) => Some(who),
        (When::OwnerChanges, Entry::Relabels) => Some(format!("{who} && {}", same("labels", "{}"))),
        (When::OwnerChanges, _) => None,
        (
            When::Deletes | When::PreciseDeletes,
            Entry::Evictions | Entry::Announcements | Entry::Relabels | Entry::Probes | Entry::Owners,
        ) => None,
        (When::Deletes, Entry::Changes) => Some(format!("request.operation == 'DELETE' && {who}")),
        (When::PreciseDeletes, Entry::Changes) => {
            let names_uid = "has(request.options.preconditions) && has(request.options.preconditions.uid) \
                             && request.options.preconditions.uid != ''";
            let no_grace =
                "has(request.options.gracePeriodSeconds) && request.options.gracePeriodSeconds == 0";
            Some(format!(
                "request.operation == 'DELETE' && {who} && has(request.options) && (({names_uid}) || ({no_grace}))"
            ))
        }
    }
}

/// An expression that is true if an update leaves a part of the metadata as it is. `none` is the empty value.
fn same(part: &str, none: &str) -> String {
    let of = |object: &str| format!("(has({object}.metadata.{part}) ? {object}.metadata.{part} : {none})");
    format!("{} == {}", of("object"), of("oldObject"))
}

/// An expression that is true for an update that restarts containers, ends the pod or labels it as unavailable.
/// Containers keep their order: the API server lets no client add, remove or move one.
fn is_disturbing() -> String {
    let differs = |list: &str, part: &str, none: &str| {
        let of = |object: &str| {
            format!(
                "(has({object}.spec.{list}) ? {object}.spec.{list}.map(c, has(c.{part}) ? c.{part} : {none}) : [])"
            )
        };
        format!("{} != {}", of("object"), of("oldObject"))
    };
    let mut reasons = Vec::new();
    for list in ["containers", "initContainers"] {
        reasons.push(differs(list, "image", "''"));
        // Some clusters accept a resize as an update of the pod.
        reasons.push(differs(list, "resources", "{}"));
    }
    let of = |object: &str| format!("(has({object}.spec.resources) ? {object}.spec.resources : {{}})");
    reasons.push(format!("{} != {}", of("object"), of("oldObject")));
    reasons.push(
        "(has(object.spec.activeDeadlineSeconds) && (!has(oldObject.spec.activeDeadlineSeconds) \
         || object.spec.activeDeadlineSeconds < oldObject.spec.activeDeadlineSeconds))"
            .to_owned(),
    );
    reasons.push(format!(
        "(has(object.metadata.labels) && object.metadata.labels.exists(k, k.startsWith({}) \
         && !(has(oldObject.metadata.labels) && k in oldObject.metadata.labels)))",
        quoted(UNAVAILABLE_POD_PREFIX)
    ));
    reasons.join(" || ")
}

/// An expression that is true if a resize may restart a container. Only a resizePolicy can require a restart.
fn may_restart() -> String {
    let any = |list: &str| {
        format!(
            "(has(object.spec.{list}) && object.spec.{list}.exists(c, has(c.resizePolicy) \
             && c.resizePolicy.exists(p, p.restartPolicy != 'NotRequired')))"
        )
    };
    format!("{} || {}", any("containers"), any("initContainers"))
}

/// An expression that is true for a new or changed probe. A probe that is already stored is not validated again:
/// clients must still be able to remove a finalizer of its pod, or to add a label.
fn declares_a_probe() -> String {
    let was = "has(oldObject.metadata.annotations) && k in oldObject.metadata.annotations \
               && oldObject.metadata.annotations[k] == object.metadata.annotations[k]";
    format!(
        "has(object.metadata.annotations) && object.metadata.annotations.exists(k, k.startsWith({}) \
         && (request.operation == 'CREATE' || !({was})))",
        quoted(DISRUPTION_PROBE_PREFIX)
    )
}

/// A CEL string literal.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
