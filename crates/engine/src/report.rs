//! Computes the status of a budget: its numbers, its groups, its conditions.

use std::cmp::Ordering;

use crate::basics::{Quantity, Text, Time};
use crate::claims::{Claim, PROTOCOL};
use crate::condition_reason::ConditionReason as Reason;
use crate::decision::{Noun, Numbers, Unresolved};
use crate::engine::{BudgetRecord, Engine};
use crate::facts::{BudgetKey, NativeBudget, Operation, Rules, Units};
use crate::names::WORKLOAD;
use crate::sentence;
use crate::status::{Condition, ConditionType, Group, MAX_GROUPS, Scope, Status};
use crate::tally::Unit;
use crate::units::{GroupSize, required_minimum};

/// The largest number of pods or workloads that a message lists by name.
const NAMED: usize = 3;

impl Engine {
    /// The status of a budget as it should be written now.
    pub fn status(&mut self, key: &BudgetKey, now: Time) -> Option<Status> {
        self.advance_quietly(now);
        let budget = &self.budgets[self.budget_id(key)? as usize];
        let rules = &budget.rules;
        let tally = &budget.tally;
        let valid = budget.fact.spec.is_ok();
        let (noun, units) =
            if valid { self.shown_numbers(budget) } else { (noun(rules), Numbers::default()) };
        let unresolved = if valid { self.unresolved(budget, rules) } else { None };
        let enforced = enforced(budget);
        let (groups, groups_omitted) = self.groups(budget);
        let by_pods = noun == Noun::Pod;
        Some(Status {
            generation: budget.fact.generation,
            scope: Scope::of(&rules.units),
            noun,
            units,
            pods_healthy: if valid { tally.pods_healthy } else { 0 },
            pods_desired: if by_pods { units.desired } else { pods_needed(budget, units.desired) },
            pods_expected: match (valid, by_pods) {
                (false, _) => 0,
                (true, true) => units.expected,
                (true, false) => tally.pods,
            },
            disrupted: claimed(budget, Operation::removes),
            updating: claimed(budget, |operation| !operation.removes()),
            group_size: smallest_size(budget),
            groups,
            groups_omitted,
            memory: if valid { tally.memory(rules) } else { budget.fact.memory.clone() },
            conditions: [
                allowed_condition(budget, noun, units, unresolved.as_ref(), &enforced),
                self.configured(budget, noun, units),
                enforced,
            ],
        })
    }

    /// The numbers of a valid budget, and what they count. A budget that cannot be resolved, or that not every replica
    /// enforces, denies every request.
    pub(crate) fn shown_numbers(&self, budget: &BudgetRecord) -> (Noun, Numbers) {
        let (noun, numbers) = budget.tally.shown_numbers(&budget.rules);
        let closed = !enforced(budget).status || self.unresolved(budget, &budget.rules).is_some();
        (noun, Numbers { allowed: if closed { 0 } else { numbers.allowed }, ..numbers })
    }

    /// The first groups, those that are down before the others, and the number of further groups. Only the groups that are
    /// listed are sorted and copied: a budget may have ten thousand, and every commit of the leader needs this.
    fn groups(&self, budget: &BudgetRecord) -> (Vec<Group>, u32) {
        let tally = &budget.tally;
        let units = tally.units.iter().map(|(_, unit)| {
            let is_up = unit.is_whole() || unit.is_complete();
            (is_up, NaturalKey::of(&unit.name), ShownGroup::There(unit))
        });
        let gone = tally.gone.iter();
        let gone = gone.map(|(name, since)| (false, NaturalKey::of(name), ShownGroup::Gone(name, *since)));
        let mut groups: Vec<(bool, NaturalKey<'_>, ShownGroup<'_>)> = units.chain(gone).collect();
        let omitted = groups.len().saturating_sub(MAX_GROUPS) as u32;
        keep_first(&mut groups, MAX_GROUPS, |a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        (groups.into_iter().map(|(_, _, group)| group.write()).collect(), omitted)
    }

    fn configured(&self, budget: &BudgetRecord, noun: Noun, numbers: Numbers) -> Condition {
        let (reason, message) =
            self.misconfigured(budget, noun, numbers).unwrap_or_else(|| (Reason::ValidConfig, valid(budget)));
        Condition {
            kind: ConditionType::BudgetConfigured,
            status: reason == Reason::ValidConfig,
            reason,
            message,
        }
    }

    /// The worst problem of a budget's configuration.
    fn misconfigured(&self, budget: &BudgetRecord, noun: Noun, numbers: Numbers) -> Option<(Reason, String)> {
        let (rules, tally) = (&budget.rules, &budget.tally);
        let namespace = &budget.fact.key.object.namespace;
        let expected_by = budget.fact.key.kind.expected_field();
        if let Err(broken) = &budget.fact.spec {
            return Some((Reason::Invalid, sentence::invalid(&broken.why)));
        }
        if budget.downgraded {
            return Some((
                Reason::FeatureDisabled,
                "The feature gate MultiPodPDBs is disabled: the numbers count single pods. \
                 Enable the gate to protect groups."
                    .to_owned(),
            ));
        }
        if self.cluster.namespaces.get(namespace).is_some_and(|ns| ns.excluded) {
            return Some((
                Reason::NamespaceExcluded,
                format!(
                    "Namespace {namespace} is excluded from the webhooks, so the budget protects nothing."
                ),
            ));
        }
        if !tally.ungrouped.is_empty() {
            let pods = self.names(tally.ungrouped.iter(), ("names", "name"));
            return Some((
                Reason::MissingWorkloadReference,
                format!(
                    "The scope is Workload, but {pods} no workload; such pods count as unhealthy and are not \
                     evicted. Set schedulingGroup or the {WORKLOAD} labels in their template."
                ),
            ));
        }
        if let Some(message) = self.unreachable_minimum(budget) {
            return Some((Reason::UnreachableMinimum, message));
        }
        if never_allows(rules, Numbers { expected: tally.expected_at_most(rules, numbers), ..numbers }) {
            return Some((Reason::NeverAllows, never_allows_message(noun, numbers)));
        }
        if let Some(message) = self.native_too_tight(budget) {
            return Some((Reason::NativeRuleTooTight, message));
        }
        if tally.singles > 0 {
            let lack = match &rules.units {
                Units::Owner { kind, .. } => format!("owner of kind {}", kind.kind),
                Units::Label { key, .. } => format!("label {key}"),
                Units::Pods | Units::Workload => String::new(),
            };
            let pods = self.names(self.singles_of(budget).iter(), ("has", "have"));
            return Some((
                Reason::MissingGroupLabel,
                format!("{pods} no {lack}; such pods are counted one by one. Set it in their template."),
            ));
        }
        if tally.unmanaged > 0 && (matches!(rules.units, Units::Pods) && tally.pods > 0) && needs_scale(rules)
        {
            let pods = self.names(self.unmanaged_of(budget).iter(), ("has", "have"));
            return Some((
                Reason::UnmanagedPods,
                format!(
                    "{pods} no controller, so the expected number of such pods is not known. \
                     Use an integer minAvailable, or {expected_by}."
                ),
            ));
        }
        let workloads = tally.workloads(namespace, &self.cluster);
        if workloads.len() > 1 {
            let names: Vec<&str> = workloads.iter().take(NAMED).map(|name| &**name).collect();
            return Some((
                Reason::MultipleWorkloadsDetected,
                format!(
                    "The pods belong to {} workloads ({}{}); their groups are counted together. \
                     Write one budget for each workload, unless this is intended.",
                    workloads.len(),
                    names.join(", "),
                    if workloads.len() > NAMED { ", …" } else { "" }
                ),
            ));
        }
        if tally.is_observed() && !matches!(rules.units, Units::Pods) && needs_scale(rules) {
            return Some((
                Reason::ExpectedFromObservation,
                format!(
                    "No object states the expected number of groups, so the observed groups are counted. \
                     Set {expected_by} if that number can be wrong."
                ),
            ));
        }
        None
    }

    /// A group that can never have as many healthy pods as the budget requires: its stated size is smaller, or it has
    /// fewer pods and the controllers of these want no more.
    fn unreachable_minimum(&self, budget: &BudgetRecord) -> Option<String> {
        let (tally, required) = (&budget.tally, required_minimum(&budget.rules)?);
        if let Some(size) = smallest_size(budget).map(|size| size.pods).filter(|size| *size < required) {
            return Some(format!(
                "minReadyReplicas is {required}, but a group has {size} pods and can never have more; {size} is \
                 used. Set minReadyReplicas to {size} or less."
            ));
        }
        // A group with too few pods is down.
        let down = tally.down.iter().map(|id| &tally.units[*id as usize]);
        let (name, pods) = down
            .filter(|unit| unit.size.is_none())
            .filter_map(|unit| Some((unit, unit.running().filter(|pods| *pods < required)?)))
            .filter(|(unit, _)| !self.may_grow(budget, unit))
            .map(|(unit, pods)| (tally.shown(&unit.name), pods))
            .min_by(|a, b| natural(&a.0, &b.0))?;
        let has = if pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") };
        Some(format!(
            "minReadyReplicas is {required}, but group {name} has {has} and gets no more, so it can never be healthy. \
             Set minReadyReplicas to {pods} or less."
        ))
    }

    /// Whether a controller of the group's pods may create more pods for the budget.
    fn may_grow(&self, budget: &BudgetRecord, unit: &Unit) -> bool {
        let mut owners = unit.members.iter().filter_map(|pod| self.pods[*pod as usize].fact.controller());
        owners.any(|owner| budget.tally.scales.may_grow(&owner.uid))
    }

    /// A native budget that covers a group and allows fewer disruptions than the group has pods: a drain evicts the
    /// first pod, which breaks the group, and then no further one.
    fn native_too_tight(&self, budget: &BudgetRecord) -> Option<String> {
        let sizes = budget.tally.units.iter().map(|(_, unit)| unit.members.len() as i64);
        let largest = sizes.max().filter(|_| !matches!(budget.rules.units, Units::Pods))?;
        // Most namespaces have no native budget, or none that a group could be too large for: then no pod is looked at.
        let natives: Vec<(&Text, &NativeBudget)> = self
            .cluster
            .native_budgets_in(&budget.fact.key.object.namespace)
            .filter(|(_, native)| native.current && native.allowed_when_healthy() < largest)
            .collect();
        if natives.is_empty() {
            return None;
        }
        let tight = |unit: &Unit, (name, native): (&Text, &NativeBudget)| {
            let (size, allowed_when_healthy) = (unit.members.len() as i64, native.allowed_when_healthy());
            (native.current && allowed_when_healthy < size && size <= native.expected).then(|| {
                let pods = if allowed_when_healthy == 1 { "pod" } else { "pods" };
                format!(
                    "PodDisruptionBudget {name} allows {allowed_when_healthy} {pods} to be disrupted, but group {} has {size}, so a \
                     drain would break the group and then stop. Let {name} allow {size} or more: it counts pods, this \
                     budget counts groups.",
                    budget.tally.shown(&unit.name)
                )
            })
        };
        // Different native budgets may cover the pods of one group.
        budget.tally.units.iter().find_map(|(_, unit)| {
            let labels = unit.members.iter().map(|pod| &self.pods[*pod as usize].fact.labels);
            let mut over = labels.flat_map(|labels| {
                natives.iter().copied().filter(move |(_, native)| native.selector.matches(labels))
            });
            over.find_map(|native| tight(unit, native))
        })
    }

    fn singles_of(&self, budget: &BudgetRecord) -> Vec<u32> {
        self.members_where(budget, |slot, _| slot == crate::tally::UnitSlot::Single)
    }

    fn unmanaged_of(&self, budget: &BudgetRecord) -> Vec<u32> {
        self.members_where(budget, |_, pod| pod.controller().is_none())
    }

    fn members_where(
        &self,
        budget: &BudgetRecord,
        wanted: impl Fn(crate::tally::UnitSlot, &crate::facts::Pod) -> bool,
    ) -> Vec<u32> {
        let Some(id) = self.budget_id(&budget.fact.key) else { return Vec::new() };
        self.pods_in(&budget.fact.key.object.namespace)
            .filter(|pod| {
                let record = &self.pods[*pod as usize];
                record.members.iter().any(|member| member.budget == id && wanted(member.slot, &record.fact))
            })
            .collect()
    }

    /// Lists a few pods by name and the number of others, with the verb: "pods web-0, web-1 and 3 more have".
    fn names<'a>(&self, ids: impl ExactSizeIterator<Item = &'a u32>, (one, many): (&str, &str)) -> String {
        let total = ids.len();
        let mut names: Vec<&str> = ids.map(|id| &*self.pods[*id as usize].fact.key.name).collect();
        keep_first(&mut names, NAMED, |a, b| natural(a, b));
        let listed = names.join(", ");
        match total - names.len() {
            0 if total == 1 => format!("pod {listed} {one}"),
            0 => format!("pods {listed} {many}"),
            more => format!("pods {listed} and {more} more {many}"),
        }
    }
}

fn valid(budget: &BudgetRecord) -> String {
    let size = smallest_size(budget).filter(|size| size.falls_whole).map(|size| size.pods);
    match (size, required_minimum(&budget.rules)) {
        (Some(size), Some(required)) if required < size => format!(
            "The configuration is valid. minReadyReplicas {required} is raised to {size}: a group that loses one pod is \
             rebuilt as a whole, so all {size} pods are needed."
        ),
        _ => "The configuration is valid.".to_owned(),
    }
}

/// The size of the smallest group whose size is stated.
fn smallest_size(budget: &BudgetRecord) -> Option<GroupSize> {
    let sizes = budget.tally.units.iter().filter_map(|(_, unit)| unit.size);
    sizes.min_by_key(|size| (size.pods, !size.falls_whole))
}

/// Natural order of names: group 10 comes after group 9.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NaturalKey<'a> {
    head: &'a str,
    number: u64,
    name: &'a str,
}

impl<'a> NaturalKey<'a> {
    fn of(name: &'a str) -> Self {
        let head = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name[head.len()..].parse().unwrap_or(0);
        Self { head, number, name }
    }
}

/// Compares names in their natural order.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    NaturalKey::of(a).cmp(&NaturalKey::of(b))
}

/// Keeps the first few of many, in order.
fn keep_first<T>(all: &mut Vec<T>, count: usize, compare: impl Fn(&T, &T) -> Ordering) {
    if all.len() > count {
        all.select_nth_unstable_by(count, &compare);
        all.truncate(count);
    }
    all.sort_unstable_by(compare);
}

/// A group of the status.
enum ShownGroup<'a> {
    There(&'a Unit),
    Gone(&'a Text, Time),
}

impl ShownGroup<'_> {
    fn write(self) -> Group {
        match self {
            Self::There(unit) => Group {
                name: unit.name.clone(),
                healthy: unit.healthy,
                min_count: unit.min_count.unwrap_or(0),
                pods: unit.members.len() as u32,
                gone_since: None,
            },
            Self::Gone(name, since) => {
                Group { name: name.clone(), healthy: 0, min_count: 0, pods: 0, gone_since: Some(since) }
            }
        }
    }
}

/// Whether the rules depend on the expected number of units, and the budget does not state it.
fn needs_scale(rules: &Rules) -> bool {
    rules.expected.is_none()
        && (rules.max_unavailable.is_some() || matches!(rules.min_available, Some(Quantity::Percent(_))))
}

fn never_allows(rules: &Rules, numbers: Numbers) -> bool {
    numbers.expected > 0
        && numbers.desired >= numbers.expected
        && (matches!(rules.max_unavailable, Some(Quantity::Count(0) | Quantity::Percent(0)))
            || rules.min_available.is_some_and(|min| min.of(numbers.expected) >= numbers.expected))
}

fn never_allows_message(what: Noun, numbers: Numbers) -> String {
    let noun = sentence::noun(what, numbers.expected);
    format!(
        "The budget requires all {} {noun} to stay up, which blocks every drain forever. \
         Allow at least one to be down.",
        numbers.expected
    )
}

fn noun(rules: &Rules) -> Noun {
    match rules.units {
        Units::Pods => Noun::Pod,
        _ => Noun::Group,
    }
}

fn allowed_condition(
    budget: &BudgetRecord,
    noun: Noun,
    numbers: Numbers,
    unresolved: Option<&Unresolved>,
    enforced: &Condition,
) -> Condition {
    let by_pods = noun == Noun::Pod;
    let (status, reason, message) = match (&budget.fact.spec, unresolved) {
        (Err(broken), _) => (false, Reason::SyncFailed, sentence::invalid(&broken.why)),
        (_, Some(unresolved)) => {
            let reason = match unresolved {
                Unresolved::Group { .. } => Reason::WorkloadResolutionFailed,
                Unresolved::Controller { .. }
                | Unresolved::Owner { .. }
                | Unresolved::Scale { .. }
                | Unresolved::Unread { .. }
                | Unresolved::Sources { .. } => Reason::SyncFailed,
            };
            (false, reason, sentence::unresolved(unresolved, budget.fact.key.kind))
        }
        _ if !enforced.status => (false, Reason::SyncFailed, enforced.message.clone()),
        _ => {
            let reason = match (numbers.allowed > 0, by_pods) {
                (true, true) => Reason::SufficientPods,
                (true, false) => Reason::SufficientReplicas,
                (false, true) => Reason::InsufficientPods,
                (false, false) => Reason::InsufficientReplicas,
            };
            (numbers.allowed > 0, reason, sentence::summary(noun, numbers))
        }
    };
    Condition { kind: ConditionType::DisruptionAllowed, status, reason, message }
}

fn enforced(budget: &BudgetRecord) -> Condition {
    let ledger = budget.ledger();
    let open = budget.is_open();
    let other = ledger.protocol.filter(|protocol| *protocol != PROTOCOL);
    let (status, reason, message) = match (open, other) {
        (_, Some(protocol)) => (
            false,
            Reason::WaitingForReplica,
            format!("Another version of Quorate writes this budget (protocol {protocol}, not {PROTOCOL})."),
        ),
        (true, None) => (true, Reason::AllReplicas, "Every replica enforces it.".to_owned()),
        (false, None) => (
            false,
            Reason::JustCreated,
            "Not every replica enforces it yet, or its namespace has no label yet; until then it allows nothing."
                .to_owned(),
        ),
    };
    Condition { kind: ConditionType::Enforced, status, reason, message }
}

/// The smallest number of pods that the desired units need. Units that are complete, or above the expected number, need
/// none.
fn pods_needed(budget: &BudgetRecord, desired: u32) -> u32 {
    let units = budget.tally.units.iter().filter(|(_, unit)| !unit.is_complete() && !unit.surge);
    let mut minimums: Vec<u32> = units.filter_map(|(_, unit)| unit.min_count).collect();
    minimums.sort_unstable();
    let smallest = minimums.first().copied().unwrap_or(1);
    let unseen = desired.saturating_sub(minimums.len() as u32).saturating_mul(smallest);
    minimums.iter().take(desired as usize).fold(unseen, |sum, min| sum.saturating_add(*min))
}

/// The pods claimed for some operations, and since when.
fn claimed(budget: &BudgetRecord, wanted: impl Fn(Operation) -> bool) -> Vec<(Text, Time)> {
    let earliest = |claim: &Claim| {
        claim.tokens.values().filter(|token| wanted(token.operation)).map(|token| token.at).min()
    };
    let mut pods: Vec<(Text, Time)> = budget
        .ledger()
        .claims
        .values()
        .filter_map(|claim| Some((claim.pod.clone(), earliest(claim)?)))
        .collect();
    pods.sort();
    pods.dedup_by(|a, b| a.0 == b.0);
    pods
}
