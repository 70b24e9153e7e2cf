//! Explanations as data.

use anyhow::{Result, bail};
use quorate_engine::basics::{ObjectKey, Time, Uid};
use quorate_engine::callers::Caller;
use quorate_engine::claims::Target;
use quorate_engine::condition_reason::ConditionReason;
use quorate_engine::decision::{Allow, Decision, DenialReason, Exhausted, NoEffect, Noun};
use quorate_engine::facts::{BudgetKey, BudgetKind, Operation, Pod};
use quorate_engine::request::Request;
use quorate_engine::sentence;
use quorate_engine::{Engine, status};
use quorate_server::view::{Unlisted, View};
use serde::{Serialize, Serializer};

/// An explanation, and what it leaves out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Explanation {
    #[serde(flatten)]
    pub(super) explained: Explained,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) left_out: Vec<UnlistedResource>,
    /// What the answer depends on besides the objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
}

/// A resource that the user may not list, and what is unknown without it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UnlistedResource {
    pub(super) resource: String,
    #[serde(rename = "hence")]
    pub(super) unknown: &'static str,
}

impl Explanation {
    pub(super) fn new(explained: Explained, unlisted: &[Unlisted], notes: Vec<String>) -> Self {
        let left_out = |unlisted: &Unlisted| UnlistedResource {
            resource: unlisted.what.clone(),
            unknown: unlisted.unknown,
        };
        Self { explained, left_out: unlisted.iter().map(left_out).collect(), notes }
    }
}

/// The explained objects.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Explained {
    Pods(Vec<PodAnswer>),
    Node(NodeAnswer),
    Budgets(Vec<BudgetAnswer>),
}

/// Whether a pod may be disrupted now.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodAnswer {
    pub(super) namespace: String,
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    #[serde(serialize_with = "verb")]
    pub(super) operation: Operation,
    pub(super) allowed: bool,
    /// The reason, if it does not come from a budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    pub(super) budgets: Vec<BudgetDecision>,
}

/// The decision of one budget on a pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BudgetDecision {
    pub(super) budget: String,
    pub(super) kind: &'static str,
    pub(super) agrees: bool,
    pub(super) why: String,
    pub(super) numbers: Numbers,
}

/// The unit counts of a budget.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Numbers {
    pub(super) unit: &'static str,
    pub(super) allowed: u32,
    pub(super) healthy: u32,
    pub(super) desired: u32,
    pub(super) expected: u32,
}

/// What a drain of a node would do now.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeAnswer {
    pub(super) node: String,
    pub(super) pods: Vec<PodAnswer>,
    /// Number of pods that a drain skips: pods of DaemonSets, and static pods.
    pub(super) left: usize,
}

/// The state of a budget.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BudgetAnswer {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) numbers: Numbers,
    #[serde(rename = "standing")]
    pub(super) summary: String,
    /// The units that are down and use up the budget.
    pub(super) down: Vec<String>,
    pub(super) conditions: Vec<Condition>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) status: bool,
    #[serde(serialize_with = "name")]
    pub(super) reason: ConditionReason,
    pub(super) message: String,
}

fn verb<S: Serializer>(operation: &Operation, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(operation.verb())
}

fn name<S: Serializer>(reason: &ConditionReason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(reason.name())
}

impl Explained {
    pub(super) fn is_allowed(&self) -> bool {
        match self {
            Self::Pods(pods) => pods.iter().all(|pod| pod.allowed),
            Self::Node(node) => node.pods.iter().all(|pod| pod.allowed),
            Self::Budgets(budgets) => budgets.iter().all(|budget| budget.numbers.allowed > 0),
        }
    }
}

/// Explains objects with the decisions of the servers.
pub(super) struct Explainer<'a> {
    view: &'a mut View,
    operation: Operation,
    now: Time,
}

impl<'a> Explainer<'a> {
    pub(super) fn new(view: &'a mut View, operation: Operation) -> Self {
        let now = view.now();
        Self { view, operation, now }
    }

    fn engine(&mut self) -> &mut Engine {
        self.view.engine()
    }

    pub(super) fn pod(&mut self, key: &ObjectKey) -> Result<PodAnswer> {
        let Some(pod) = self.engine().pod(key).cloned() else {
            bail!("there is no pod {} in namespace {}", key.name, key.namespace)
        };
        Ok(self.pod_answer(&pod))
    }

    /// The pods that are wanted, by name.
    pub(super) fn pods(&mut self, wanted: impl Fn(&Pod) -> bool) -> Vec<PodAnswer> {
        let mut pods: Vec<Pod> = self.engine().pods().filter(|pod| wanted(pod)).cloned().collect();
        pods.sort_by(|a, b| a.key.cmp(&b.key));
        pods.iter().map(|pod| self.pod_answer(pod)).collect()
    }

    pub(super) fn node(&mut self, name: &str) -> Result<Explained> {
        let on_node =
            self.engine().pods().filter(|pod| pod.node.as_deref() == Some(name) && !pod.terminating);
        let (stay, mut go): (Vec<Pod>, Vec<Pod>) = on_node.cloned().partition(is_skipped_by_drain);
        if stay.is_empty() && go.is_empty() && !self.engine().knows_node(name) {
            bail!("there is no node {name}");
        }
        go.sort_by(|a, b| a.key.cmp(&b.key));
        let pods = go.iter().map(|pod| self.pod_answer(pod)).collect();
        Ok(Explained::Node(NodeAnswer { node: name.to_owned(), pods, left: stay.len() }))
    }

    pub(super) fn budget(&mut self, key: &ObjectKey) -> Result<Vec<BudgetAnswer>> {
        let found = self.budgets(|budget| budget.object == *key);
        if found.is_empty() {
            bail!("there is no budget {} in namespace {}", key.name, key.namespace);
        }
        Ok(found)
    }

    pub(super) fn budgets(&mut self, wanted: impl Fn(&BudgetKey) -> bool) -> Vec<BudgetAnswer> {
        let mut keys: Vec<BudgetKey> =
            self.engine().budgets().map(|budget| budget.key.clone()).filter(wanted).collect();
        keys.sort();
        keys.iter().filter_map(|key| self.budget_answer(key)).collect()
    }

    fn request(&self, pod: &Pod) -> Request {
        Request {
            operation: self.operation,
            pod: pod.key.clone(),
            // An eviction request contains only the name of the pod.
            object: (self.operation != Operation::Evict).then(|| pod.into()),
            precondition: None,
            caller: Caller::named("user"),
            dry_run: true,
            target: Target::default(),
            // A relabel that takes the pod out of every budget that covers it: this is what a budget decides.
            placement: None,
        }
    }

    fn pod_answer(&mut self, pod: &Pod) -> PodAnswer {
        let request = self.request(pod);
        let decision = self.view.decide(&request);
        let needs_budgets = match &decision {
            Decision::Allow(Allow::NoEffect { .. } | Allow::Exempt(_)) => false,
            Decision::Allow(_) => true,
            // Where no server decides, no budget does.
            Decision::Deny(_) => self.view.servers().refusal().is_none(),
        };
        let budgets = match needs_budgets {
            true => self.engine().covering(&pod.uid),
            false => Vec::new(),
        };
        let why = match &decision {
            Decision::Allow(Allow::NotCovered { .. }) => Some("no budget covers it".to_owned()),
            Decision::Allow(Allow::NoEffect { why, .. }) => Some(no_effect(*why).to_owned()),
            Decision::Allow(_) => None,
            // Denied by a native budget, by one that may not cover the pod, or not by a budget at all.
            Decision::Deny(denials) => denials
                .iter()
                .find(|denial| denial.budget.as_ref().is_none_or(|budget| !budgets.contains(budget)))
                .map(|denial| sentence::denial(denial, self.now)),
        };
        PodAnswer {
            namespace: pod.key.namespace.to_string(),
            name: pod.key.name.to_string(),
            node: pod.node.as_ref().map(ToString::to_string),
            operation: self.operation,
            allowed: decision.is_allowed(),
            why,
            budgets: budgets.iter().filter_map(|key| self.budget_decision(key, &request, &pod.uid)).collect(),
        }
    }

    fn budget_decision(&mut self, key: &BudgetKey, request: &Request, uid: &Uid) -> Option<BudgetDecision> {
        let (noun, numbers) = self.numbers(key)?;
        let (agrees, why) = match self.view.decide_one(key, request, uid) {
            Ok(reason) => (true, sentence::agreement(reason, noun)),
            Err(denial) => (false, sentence::denial(&denial, self.now)),
        };
        Some(BudgetDecision { budget: key.to_string(), kind: kind(key.kind), agrees, why, numbers })
    }

    fn numbers(&mut self, key: &BudgetKey) -> Option<(Noun, Numbers)> {
        let now = self.now;
        let status::Status { noun, units, .. } = self.engine().status(key, now)?;
        Some((noun, numbers(noun, units)))
    }

    fn budget_answer(&mut self, key: &BudgetKey) -> Option<BudgetAnswer> {
        let now = self.now;
        let status = self.engine().status(key, now)?;
        let noun = status.noun;
        let condition = |condition: &status::Condition| Condition {
            kind: condition.kind.name(),
            status: condition.status,
            reason: condition.reason,
            message: condition.message.clone(),
        };
        Some(BudgetAnswer {
            namespace: key.object.namespace.to_string(),
            name: key.object.name.to_string(),
            kind: kind(key.kind),
            numbers: numbers(noun, status.units),
            summary: sentence::summary(noun, status.units),
            down: self.units_down(key),
            conditions: status.conditions.iter().map(condition).collect(),
        })
    }

    /// The units that are down, in the words of the first denial that an exhausted budget causes.
    fn units_down(&mut self, key: &BudgetKey) -> Vec<String> {
        let pods: Vec<Pod> = self.engine().covered(key).into_iter().cloned().collect();
        let denial = pods.iter().find_map(|pod| {
            let request = Request { operation: Operation::Evict, object: None, ..self.request(pod) };
            match self.view.decide_one(key, &request, &pod.uid).err()?.reason {
                DenialReason::Exhausted(exhausted) => Some(exhausted),
                _ => None,
            }
        });
        let Some(denial) = denial else { return Vec::new() };
        let Exhausted { down, noun, .. } = *denial;
        down.iter().map(|unit| sentence::why_down(noun, unit, self.now)).collect()
    }
}

fn numbers(what: Noun, units: quorate_engine::decision::Numbers) -> Numbers {
    Numbers {
        unit: sentence::noun(what, 1),
        allowed: units.allowed,
        healthy: units.current,
        desired: units.desired,
        expected: units.expected,
    }
}

fn kind(kind: BudgetKind) -> &'static str {
    match kind {
        BudgetKind::DisruptionBudget => "DisruptionBudget",
        BudgetKind::PodUnavailableBudget => "PodUnavailableBudget",
    }
}

fn no_effect(why: NoEffect) -> &'static str {
    match why {
        NoEffect::Gone => "there is no such pod",
        NoEffect::Terminal => "it has terminated",
        NoEffect::Terminating => "it is already terminating",
        NoEffect::NamespaceTerminating => "its namespace is terminating",
        NoEffect::OtherUid => "another pod has that name now",
    }
}

/// Whether `kubectl drain --ignore-daemonsets` skips a pod.
fn is_skipped_by_drain(pod: &Pod) -> bool {
    pod.controller().is_some_and(|owner| matches!(&*owner.kind.kind, "DaemonSet" | "Node"))
}
