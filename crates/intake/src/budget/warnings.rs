//! Warnings about budgets that are valid, but probably not what the user meant.

use quorate_api::names::kruise::PROTECT_OPERATIONS;
use quorate_engine::basics::Quantity;
use quorate_engine::facts::{BudgetKind, Covers, Operation, Rules, Units};
use quorate_engine::group_source::GroupSource;
use quorate_engine::workload_kind::REPLICATION_CONTROLLER;

/// Known facts about the pods that a budget covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownNumbers {
    /// Expected number of units.
    pub expected: Option<u32>,
    /// Number of pods in a group.
    pub group_size: Option<u32>,
    /// Whether the loss of one pod makes the controller recreate its group.
    pub falls_whole: bool,
}

/// The warnings for a user who creates or changes a budget.
pub fn warnings(kind: BudgetKind, rules: &Rules, known: KnownNumbers) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |text: String| warnings.push(text);
    let groups = rules.units != Units::Pods;
    let (unit, units) = if groups { ("group", "groups") } else { ("pod", "pods") };
    let expected = rules.expected.or(known.expected);

    if let Some(why) = never_allows(rules, expected, unit) {
        warn(format!("{why}: it will block every drain forever. Leave room for at least one {unit}."));
    } else if groups && expected == Some(1) {
        warn(
            "there is only one group, so any disruption takes it down. Add replicas, or expect downtime."
                .to_owned(),
        );
    }
    if protects_nothing(rules) {
        warn(format!("the budget allows all of its {units} to be disrupted at once: it protects nothing."));
    }
    if let Covers::Selector(selector) = &rules.covers
        && selector.0.is_empty()
    {
        warn("spec.selector is empty: the budget covers every pod of the namespace.".to_owned());
    }
    if !rules.operations.contains(Operation::Evict) {
        let left_out = match kind {
            BudgetKind::DisruptionBudget => "spec.operations leaves out Evict".to_owned(),
            BudgetKind::PodUnavailableBudget => {
                format!("the annotation {PROTECT_OPERATIONS} leaves out EVICT")
            }
        };
        warn(format!("{left_out}: the budget will not deny evictions by kubectl drain and autoscalers."));
    }
    if let (BudgetKind::PodUnavailableBudget, Covers::Target(kind, name)) = (kind, &rules.covers)
        && kind.group.is_empty()
        && !REPLICATION_CONTROLLER.is_kind(kind)
    {
        warn(format!(
            "spec.targetRef names {} {name} of the core API group, which has no such workload: \
             write apiVersion as group and version, such as apps/v1.",
            kind.kind
        ));
    }
    if let Units::Label { min_ready, .. } | Units::Owner { min_ready, .. } = &rules.units {
        match (min_ready, known.group_size) {
            (None, None) if !names_size(&rules.units) => warn(
                "spec.podGroupPolicy.minReadyReplicas is not set and the size of the groups is not known: \
                 a group counts as healthy while at least one of its pods is healthy."
                    .to_owned(),
            ),
            (Some(least), Some(size)) if *least > size => warn(format!(
                "spec.podGroupPolicy.minReadyReplicas is {least}, but a group has {size} pods and can never have more: \
                 {size} is used instead."
            )),
            (Some(least), Some(size)) if *least < size && known.falls_whole => warn(format!(
                "spec.podGroupPolicy.minReadyReplicas is {least}, but the loss of one of its {size} pods makes the \
                 controller recreate the group: {size} is used instead."
            )),
            _ => {}
        }
    }
    warnings
}

/// Whether the source of the groups writes their size on each pod.
fn names_size(units: &Units) -> bool {
    let Units::Label { key, .. } = units else { return false };
    GroupSource::of_group_label(key).is_some_and(|source| source.size_annotation.is_some())
}

/// The reason why the budget never allows a disruption, if its numbers show that.
fn never_allows(rules: &Rules, expected: Option<u32>, unit: &str) -> Option<String> {
    if expected == Some(0) && rules.expected.is_some() {
        return Some(
            "spec.expectedReplicas is 0, and a budget that expects nothing allows nothing".to_owned(),
        );
    }
    if let Some(max @ (Quantity::Count(0) | Quantity::Percent(0))) = rules.max_unavailable {
        return Some(format!("spec.maxUnavailable is {max}, so no {unit} may ever be disrupted"));
    }
    match (rules.min_available?, expected) {
        (Quantity::Percent(100), _) => {
            Some(format!("spec.minAvailable is 100%, so no {unit} may ever be disrupted"))
        }
        (min, Some(expected)) if expected > 0 && min.of(expected) >= expected => {
            Some(format!("spec.minAvailable is {min} of {expected}, so no {unit} may ever be disrupted"))
        }
        _ => None,
    }
}

fn protects_nothing(rules: &Rules) -> bool {
    let none = |quantity: Option<Quantity>| {
        matches!(quantity, None | Some(Quantity::Count(0) | Quantity::Percent(0)))
    };
    none(rules.min_available) && matches!(rules.max_unavailable, None | Some(Quantity::Percent(100)))
}
