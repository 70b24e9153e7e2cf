//! Budgets of both kinds.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::Value;

use super::selector::Selector;
use super::source::owner_kind;
use super::{Id, Ids, Meta, api_group, condition, list, number, text};

/// Stands for a relabel in the label of a token whose operation is an update.
const RELABELLED: &str = "quorate.dev/relabelled";

/// A budget as stored.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::checker) struct Budget {
    pub(in crate::checker) meta: Meta,
    pub(in crate::checker) kind: &'static str,
    /// What it says, unless that makes no sense.
    pub(in crate::checker) spec: Option<Rc<Spec>>,
    /// Whether Enforced is True for the generation of this object.
    pub(in crate::checker) enforced: bool,
    /// The reason of BudgetConfigured.
    pub(in crate::checker) configured: String,
    /// Admitted disruptions, by the UID of the pod.
    pub(in crate::checker) claims: BTreeMap<String, Claim>,
    /// The pods that are held. Nothing if no server has written the ledger yet.
    pub(in crate::checker) held: Option<BTreeSet<Id>>,
    /// The UIDs of remembered sources, with the part of the source.
    pub(in crate::checker) sources: Vec<(u32, String)>,
}

/// A pod that is held.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::checker) struct Claim {
    pub(in crate::checker) pod: String,
    /// The tokens with their operations.
    pub(in crate::checker) tokens: BTreeMap<String, String>,
}

/// What a budget says.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::checker) struct Spec {
    /// Whether it is a PodUnavailableBudget.
    pub(in crate::checker) kruise: bool,
    pub(in crate::checker) selector: Selector,
    pub(in crate::checker) target: Option<Target>,
    pub(in crate::checker) min: Option<Amount>,
    pub(in crate::checker) max: Option<Amount>,
    pub(in crate::checker) grouping: Grouping,
    /// `minReadyReplicas`
    pub(in crate::checker) min_ready: Option<usize>,
    pub(in crate::checker) expected: Option<u32>,
    pub(in crate::checker) operations: Vec<Operation>,
    pub(in crate::checker) observes: bool,
}

/// The object whose pods a budget covers.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::checker) struct Target {
    pub(in crate::checker) group: String,
    pub(in crate::checker) kind: String,
    pub(in crate::checker) name: String,
}

/// A number of units, or a percentage of the expected ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::checker) enum Amount {
    Units(u32),
    Percent(u32),
}

/// What forms groups.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::checker) enum Grouping {
    /// Nothing: each pod is a unit.
    Pods,
    /// The Workload API.
    Workload,
    /// The value of a label.
    Label(String),
    /// An owner of this API group and kind.
    Owner(String, String),
}

/// What a request does to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::checker) enum Operation {
    Evict,
    Delete,
    Update,
    Resize,
    Relabel,
}

impl Amount {
    fn read(value: &Value) -> Option<Self> {
        match value.as_str() {
            Some(text) => text.strip_suffix('%')?.parse().ok().map(Self::Percent),
            None => number(value).map(Self::Units),
        }
    }

    /// This amount of that many units. Percentages round up.
    pub(in crate::checker) fn of(self, units: u32) -> u32 {
        match self {
            Self::Units(number) => number,
            Self::Percent(percent) => {
                let exact = u64::from(units) * u64::from(percent);
                u32::try_from(exact.div_ceil(100)).unwrap_or(u32::MAX)
            }
        }
    }
}

impl Operation {
    fn read(word: &str) -> Option<Self> {
        match word.to_ascii_uppercase().as_str() {
            "EVICT" => Some(Self::Evict),
            "DELETE" => Some(Self::Delete),
            "UPDATE" => Some(Self::Update),
            "RESIZE" => Some(Self::Resize),
            "RELABEL" => Some(Self::Relabel),
            _ => None,
        }
    }
}

impl Budget {
    /// Reads a DisruptionBudget or, if `kruise`, a PodUnavailableBudget.
    pub(in crate::checker) fn read(object: &Value, kruise: bool, ids: &mut Ids) -> Self {
        let meta = Meta::read(object, ids);
        let status = &object["status"];
        let enforced = condition(object, "Enforced").is_some_and(|condition| {
            let own = condition["observedGeneration"].as_i64();
            let seen = own.or_else(|| status["observedGeneration"].as_i64());
            condition["status"] == "True" && seen == Some(meta.generation)
        });
        let claims = claims(&status["claims"]);
        let held = || claims.keys().map(|uid| ids.of(uid)).collect();
        Self {
            held: status["protocol"].is_number().then(held),
            spec: if kruise { kruise_spec(object) } else { own_spec(object) }.map(Rc::new),
            kind: if kruise { "PodUnavailableBudget" } else { "DisruptionBudget" },
            configured: condition(object, "BudgetConfigured")
                .map(|condition| text(&condition["reason"]))
                .unwrap_or_default(),
            claims,
            sources: list(&status["sources"])
                .iter()
                .map(|source| (ids.of(&text(&source["uid"])), text(&source["part"])))
                .collect(),
            meta,
            enforced,
        }
    }
}

fn claims(value: &Value) -> BTreeMap<String, Claim> {
    let Some(claims) = value.as_object() else { return BTreeMap::new() };
    let operation = |token: &Value| match token["target"]["label"] == RELABELLED {
        true => "Relabel".to_owned(),
        false => text(&token["operation"]),
    };
    let tokens = |claim: &Value| {
        let tokens = claim["tokens"].as_object();
        tokens
            .map(|all| all.iter().map(|(key, token)| (key.clone(), operation(token))).collect())
            .unwrap_or_default()
    };
    claims
        .iter()
        .map(|(uid, claim)| (uid.clone(), Claim { pod: text(&claim["pod"]), tokens: tokens(claim) }))
        .collect()
}

fn target(spec: &Value) -> Option<Target> {
    let target = &spec["targetRef"];
    target.is_object().then(|| Target {
        group: api_group(&text(&target["apiVersion"])).to_owned(),
        kind: text(&target["kind"]),
        name: text(&target["name"]),
    })
}

fn own_spec(object: &Value) -> Option<Spec> {
    let spec = &object["spec"];
    let policy = &spec["podGroupPolicy"];
    let grouping = if let Some(key) = policy["groupLabelKey"].as_str() {
        Grouping::Label(key.to_owned())
    } else if let Some((group, kind)) = owner_kind(&policy["groupOwner"]) {
        Grouping::Owner(group, kind)
    } else if matches!(spec["budgetScope"].as_str(), Some("Workload" | "PodGroup")) {
        Grouping::Workload
    } else {
        Grouping::Pods
    };
    let operations = match &spec["operations"] {
        Value::Null => vec![Operation::Evict],
        words => list(words).iter().map(|word| Operation::read(&text(word))).collect::<Option<_>>()?,
    };
    let read = Spec {
        kruise: false,
        selector: Selector::read(&spec["selector"]).unwrap_or_default(),
        target: target(spec),
        min: Amount::read(&spec["minAvailable"]),
        max: Amount::read(&spec["maxUnavailable"]),
        grouping,
        min_ready: number(&policy["minReadyReplicas"]).map(|minimum| minimum as usize),
        expected: number(&spec["expectedReplicas"]),
        operations,
        observes: spec["enforcement"] == "Observe",
    };
    sensible(spec, read)
}

fn kruise_spec(object: &Value) -> Option<Spec> {
    let spec = &object["spec"];
    let policy = &spec["podGroupPolicy"];
    let annotation = |key: &str| object["metadata"]["annotations"][key].as_str();
    let grouping =
        policy["groupLabelKey"].as_str().map_or(Grouping::Pods, |key| Grouping::Label(key.to_owned()));
    let operations = match annotation("kruise.io/pub-protect-operations").filter(|words| !words.is_empty()) {
        None => vec![Operation::Delete, Operation::Update, Operation::Evict],
        Some(words) => words.split(',').map(|word| Operation::read(word.trim())).collect::<Option<_>>()?,
    };
    let max = Amount::read(&spec["maxUnavailable"]);
    let both = grouping != Grouping::Pods || max.is_none();
    let read = Spec {
        kruise: true,
        selector: Selector::read(&spec["selector"]).unwrap_or_default(),
        target: target(spec),
        min: Amount::read(&spec["minAvailable"]).filter(|_| both),
        max,
        min_ready: Some(number(&policy["minReadyReplicas"]).unwrap_or(1) as usize),
        grouping,
        expected: annotation("pub.kruise.io/protect-total-replicas").and_then(|number| number.parse().ok()),
        operations,
        observes: false,
    };
    sensible(spec, read)
}

/// Nothing for a spec that covers no pods or sets no limit: such a budget is invalid.
fn sensible(spec: &Value, read: Spec) -> Option<Spec> {
    let covers = spec["selector"].is_object() || read.target.is_some();
    (covers && (read.min.is_some() || read.max.is_some())).then_some(read)
}
