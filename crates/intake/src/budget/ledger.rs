//! Converts the ledger between a budget's status and the engine.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use quorate_api::budget as api;
use quorate_api::names::RELABELLED;
use quorate_engine::Coverage;
use quorate_engine::basics::{Text, Time};
use quorate_engine::claims::{Claim, ContainerChange, Ledger, Target, Token};
use quorate_engine::facts::Operation;
use quorate_engine::ledger::Admission;
use serde_json::{Value, json};

use crate::announcements::ANNOUNCEMENTS;
use crate::error::Problem;
use crate::field::Field;
use crate::{objects, time};

/// Reads the ledger. A value that cannot be read is a problem: if a claim were ignored, its share of the budget could
/// be admitted twice.
pub(super) fn read(status: &Value, problems: &mut Vec<Problem>) -> Ledger {
    let status = Field::new("status", status);
    let mut ledger = Ledger::default();
    if !status.value.is_null() {
        status.must_be_object(problems);
    }
    if let Some(field) = status.get("ledger") {
        match field.value.as_u64() {
            Some(number) => ledger.number = number,
            None => problems.push(field.problem("must be a whole number from 0 up")),
        }
    }
    if let Some(field) = status.get("claims") {
        for (uid, claim) in field.members(problems) {
            ledger.claims.insert(uid.into(), read_claim(&claim, problems));
        }
    }
    if let Some(field) = status.get("settledVersion") {
        let text = field.text(problems).filter(|text| !text.is_empty());
        match text.map(objects::version) {
            Some(Some(version)) => ledger.settled = version,
            Some(None) => problems.push(field.problem("must be a resourceVersion, which is a number")),
            None => {}
        }
    }
    if let Some(field) = status.get("protocol") {
        // A missing number is stored as 0: no server has written the ledger yet.
        ledger.protocol = field.number(0, i32::MAX as u32, problems).filter(|protocol| *protocol != 0);
    }
    // A value that cannot be read leaves the budget closed, which is safe.
    (ledger.enforced, ledger.enforced_generation) = read_opened(&status);
    ledger
}

/// The coverage that the budget was opened for, and the generation that it was computed for. The release before knows
/// only `openedFor`. Quorate writes both alike, so if they differ, a server of that release has opened the budget since.
fn read_opened(status: &Field<'_>) -> (Option<Coverage>, Option<i64>) {
    let coverage = |field: &Field<'_>| from_hex(field.value.as_str()?).map(Coverage);
    let before = status.get("openedFor").and_then(|field| coverage(&field));
    let Some(opened) = status.get("opened") else { return (before, None) };
    let named = opened.get("coverage").and_then(|field| coverage(&field));
    let generation = opened.get("generation").and_then(|field| field.value.as_i64());
    match (named, generation) {
        (Some(_), Some(_)) if before.is_none() || before == named => (named, generation),
        _ => (before, None),
    }
}

/// The groups that the status records as gone.
pub(super) fn gone(status: &Value) -> Box<[(Text, Time)]> {
    let groups = status.get("groups").and_then(Value::as_array);
    groups
        .into_iter()
        .flatten()
        .filter_map(|group| {
            let since: Timestamp = group.get("goneSince")?.as_str()?.parse().ok()?;
            Some((group.get("name")?.as_str()?.into(), Time(since.as_millisecond())))
        })
        .collect()
}

fn read_claim(claim: &Field<'_>, problems: &mut Vec<Problem>) -> Claim {
    claim.must_be_object(problems);
    let mut tokens = BTreeMap::new();
    if let Some(field) = claim.get("tokens") {
        for (id, token) in field.members(problems) {
            if let Some(token) = read_token(&token, problems) {
                tokens.insert(id.into(), token);
            }
        }
    }
    Claim { pod: claim.get("pod").and_then(|field| field.text(problems)).unwrap_or_default().into(), tokens }
}

fn read_token(token: &Field<'_>, problems: &mut Vec<Problem>) -> Option<Token> {
    let missing = |name: &str| Problem::at(format!("{}.{name}", token.path), "is missing");
    let operation = match token.get("operation") {
        Some(field) => field.word(&Operation::ALL.map(|operation| (operation.name(), operation)), problems),
        None => {
            problems.push(missing("operation"));
            None
        }
    };
    let at = match token.get("at") {
        Some(field) => field.text(problems).and_then(|text| {
            let at = text.parse::<Timestamp>().ok();
            if at.is_none() {
                problems.push(field.problem("must be a time such as 2026-11-15T12:00:00.000000Z"));
            }
            at
        }),
        None => {
            problems.push(missing("at"));
            None
        }
    };
    let by = token.get("by").and_then(|field| field.text(problems)).unwrap_or_default();
    let mut target = match token.get("target") {
        Some(target) => read_target(&target, problems),
        None => Target::default(),
    };
    let operation = match target.label.take_if(|label| **label == *RELABELLED) {
        Some(_) => operation.map(|_| Operation::Relabel),
        None => operation,
    };
    Some(Token { operation: operation?, by: by.into(), at: Time(at?.as_millisecond()), target })
}

fn read_target(target: &Field<'_>, problems: &mut Vec<Problem>) -> Target {
    target.must_be_object(problems);
    let label = target.get("label").and_then(|label| label.text(problems)).map(Text::from);
    // This label is the readiness gate of an announcement; see `to_token`.
    let announced = |label: &Text| ANNOUNCEMENTS.contains(&&**label) && target.get("base").is_some();
    let label = label.filter(|label| !announced(label));
    let base = target.get("base").and_then(|field| {
        let found = field.text(problems).and_then(objects::version);
        if found.is_none() {
            problems.push(field.problem("must be a resourceVersion, which is a number"));
        }
        found
    });
    let mut changes = Vec::new();
    let containers = target.get("containers").map(|containers| containers.members(problems));
    for (name, container) in containers.into_iter().flatten() {
        container.must_be_object(problems);
        let mut fingerprint = |part: &str| {
            let field = container.get(part)?;
            let found = field.text(problems).and_then(from_hex);
            if found.is_none() {
                problems.push(field.problem("must be a fingerprint of 16 hexadecimal digits"));
            }
            found
        };
        changes.push(ContainerChange {
            name: name.into(),
            replaces: fingerprint("replaces"),
            image: fingerprint("image"),
            resources: fingerprint("resources"),
        });
    }
    changes.sort_by(|a, b| a.name.cmp(&b.name));
    let deadline = target.get("activeDeadlineSeconds").and_then(|field| field.number(0, u32::MAX, problems));
    Target { base, containers: changes.into(), label, deadline }
}

/// A claim as JSON for a status. Reading it back gives the same claim, and writing that claim gives the same JSON.
pub fn claim_to_json(claim: &Claim) -> Value {
    to_json(&api::Claim {
        pod: claim.pod.to_string(),
        tokens: claim.tokens.iter().map(|(id, token)| (id.to_string(), to_token(token))).collect(),
    })
}

/// Admissions as JSON, for the server that opens budgets.
pub fn admissions_to_json(admissions: &[Admission]) -> Value {
    let admission = |Admission { uid, pod, token, what }: &Admission| json!({ "uid": &**uid, "pod": &**pod, "token": &**token, "what": to_token(what) });
    Value::Array(admissions.iter().map(admission).collect())
}

/// Reads admissions; `None` if a part of them cannot be read.
pub fn read_admissions(admissions: &Value) -> Option<Vec<Admission>> {
    let read = |value: &Value| {
        let text = |name: &str| Some(Text::from(value.get(name)?.as_str()?));
        let mut problems = Vec::new();
        let what = read_token(&Field::new("what", value.get("what")?), &mut problems)?;
        let admission = Admission { uid: text("uid")?, pod: text("pod")?, token: text("token")?, what };
        problems.is_empty().then_some(admission)
    };
    admissions.as_array()?.iter().map(read).collect()
}

/// A coverage hash as JSON.
pub fn coverage_to_json(coverage: Coverage) -> Value {
    Value::String(to_hex(coverage.0))
}

fn to_token(token: &Token) -> api::Token {
    let containers: BTreeMap<String, api::ContainerTarget> = token
        .target
        .containers
        .iter()
        .map(|change| {
            let target = api::ContainerTarget {
                image: change.image.map(to_hex),
                replaces: change.replaces.map(to_hex),
                resources: change.resources.map(to_hex),
            };
            (change.name.to_string(), target)
        })
        .collect();
    let relabels = token.operation == Operation::Relabel;
    let label = token.target.label.as_deref().or(relabels.then_some(RELABELLED)).map(str::to_owned);
    // An announcement has only a base. The base is lost if the CustomResourceDefinition, or a server that rewrites the
    // claim, is of the previous release. The readiness gate in the label field then keeps the token until it expires.
    let bare = containers.is_empty() && token.target.base.is_some() && token.target.deadline.is_none();
    let label = label.or_else(|| ANNOUNCEMENTS.first().filter(|_| bare).map(|gate| (*gate).to_owned()));
    let base = token.target.base.map(|version| version.0.to_string());
    let deadline = token.target.deadline.map(i64::from);
    api::Token {
        operation: match token.operation {
            Operation::Evict => api::Operation::Evict,
            Operation::Delete => api::Operation::Delete,
            Operation::Update | Operation::Relabel => api::Operation::Update,
            Operation::Resize => api::Operation::Resize,
        },
        by: token.by.to_string(),
        at: time::to_micro(token.at),
        target: (!containers.is_empty() || label.is_some() || base.is_some() || deadline.is_some())
            .then_some(api::UpdateTarget { containers, label, base, active_deadline_seconds: deadline }),
    }
}

/// Serialization of these types never fails. The API server would reject the fallback `null`.
fn to_json<T: serde::Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

pub(super) fn to_hex(number: u64) -> String {
    format!("{number:016x}")
}

pub(super) fn from_hex(text: &str) -> Option<u64> {
    let fits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    fits.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}
