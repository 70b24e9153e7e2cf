//! Twins: the DisruptionBudget of a PodDisruptionBudget that requests groups by annotations.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use quorate_api::DisruptionBudgetSpec;
use quorate_api::budget::{BudgetScope, PodGroupPolicy, UnhealthyPodEvictionPolicy};
use quorate_api::names::{BUDGET_SCOPE, GROUP_LABEL_KEY, MAX_UNAVAILABLE, MIN_AVAILABLE};
use quorate_api::slim::PodDisruptionBudget;
use quorate_engine::basics::Quantity;

use crate::budget;
use crate::error::Problem;

/// Whether a budget is the twin of a native budget, which is its controller.
pub fn is_twin(budget: &ObjectMeta) -> bool {
    native_owner(budget).is_some()
}

/// The native budget whose twin a budget is.
pub fn native_owner(budget: &ObjectMeta) -> Option<&OwnerReference> {
    let is_native = |owner: &&OwnerReference| {
        owner.kind == "PodDisruptionBudget"
            && owner.api_version.starts_with("policy/")
            && owner.controller == Some(true)
    };
    budget.owner_references.iter().flatten().find(is_native)
}

/// The spec of the twin that a native budget requests by its annotations, or the problem with them; `None` if it
/// requests none.
///
/// The numbers come from the annotations if there are any, and from the native budget's spec otherwise.
pub fn twin(native: &PodDisruptionBudget) -> Option<Result<DisruptionBudgetSpec, Problem>> {
    let annotation = |key: &str| native.metadata.annotations.as_ref()?.get(key).map(String::as_str);
    let scope = annotation(BUDGET_SCOPE);
    let label = annotation(GROUP_LABEL_KEY);
    if label.is_none() && matches!(scope, None | Some("Pod")) {
        return None;
    }
    Some(read(native, scope, label, annotation(MIN_AVAILABLE), annotation(MAX_UNAVAILABLE)))
}

fn read(
    native: &PodDisruptionBudget,
    scope: Option<&str>,
    label: Option<&str>,
    min: Option<&str>,
    max: Option<&str>,
) -> Result<DisruptionBudgetSpec, Problem> {
    let budget_scope = match scope {
        None | Some("Pod") => BudgetScope::Pod,
        Some("Workload" | "PodGroup") => BudgetScope::Workload,
        Some(other) => {
            return Err(Problem::with(at(BUDGET_SCOPE), format!("{other:?}"), "must be Pod or Workload"));
        }
    };
    if budget_scope == BudgetScope::Workload && label.is_some() {
        let message = format!("forms groups of its own and excludes {BUDGET_SCOPE}: remove one of the two");
        return Err(Problem::at(at(GROUP_LABEL_KEY), message));
    }
    let own = &native.spec;
    let (min_available, max_unavailable) = match (min, max) {
        (None, None) => (own.min_available.clone(), own.max_unavailable.clone()),
        (min, max) => (
            min.map(|text| amount(MIN_AVAILABLE, text)).transpose()?,
            max.map(|text| amount(MAX_UNAVAILABLE, text)).transpose()?,
        ),
    };
    let selector: Option<LabelSelector> = own.selector.clone();
    if selector.is_none() {
        return Err(Problem::at("spec.selector", "is missing: the budget covers no pods"));
    }
    let spec = DisruptionBudgetSpec {
        selector,
        min_available,
        max_unavailable,
        budget_scope,
        pod_group_policy: label
            .map(|key| PodGroupPolicy { group_label_key: Some(key.to_owned()), ..PodGroupPolicy::default() }),
        unhealthy_pod_eviction_policy: match own.unhealthy_pod_eviction_policy.as_deref() {
            Some("AlwaysAllow") => UnhealthyPodEvictionPolicy::AlwaysAllow,
            _ => UnhealthyPodEvictionPolicy::IfHealthyBudget,
        },
        ..DisruptionBudgetSpec::default()
    };
    // The budget parser checks the rest, such as the selector and the label key.
    let value = serde_json::to_value(&spec).unwrap_or_default();
    match budget::validate(&value).into_iter().next() {
        None => Ok(spec),
        Some(problem) if problem.path.contains("groupLabelKey") => {
            Err(Problem { path: at(GROUP_LABEL_KEY), ..problem })
        }
        Some(problem) => Err(problem),
    }
}

fn at(annotation: &str) -> String {
    format!("metadata.annotations[{annotation}]")
}

/// A number or a percentage from an annotation.
fn amount(annotation: &str, text: &str) -> Result<IntOrString, Problem> {
    let digits = text.strip_suffix('%').unwrap_or(text);
    let plain = (1..=9).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let number: Option<i32> = plain.then(|| digits.parse().ok()).flatten();
    match number {
        Some(percent) if text.ends_with('%') && percent <= 100 => {
            Ok(IntOrString::String(format!("{percent}%")))
        }
        Some(number) if !text.ends_with('%') => Ok(IntOrString::Int(number)),
        _ => Err(Problem::with(
            at(annotation),
            format!("{text:?}"),
            "must be a whole number from 0 to 999999999, or a percentage from 0% to 100%",
        )),
    }
}

/// The groups under a native budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of pods in the largest group.
    pub size: u32,
    /// Number of groups that may be down at the same time.
    pub may_be_down: u32,
    /// Number of all pods.
    pub pods: u32,
}

/// A native budget that allows fewer evictions than one group has pods. A drain would evict the first pods of a group,
/// which breaks the group, and could not evict the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooTight {
    /// Number of evictions that it allows if all pods are healthy.
    pub allows: u32,
    /// Number of evictions that it would have to allow.
    pub needs: u32,
    /// The field that would be right, as in `maxUnavailable: 8`.
    pub numbers: String,
    /// The annotation that keeps the present number, counted in groups; `None` if the budget already has one.
    pub annotation: Option<String>,
}

impl std::fmt::Display for TooTight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { allows, needs, numbers, annotation } = self;
        let pods = if *allows == 1 { "pod" } else { "pods" };
        write!(
            f,
            "The API server allows {allows} {pods} to be disrupted, but a group needs {needs}, so a drain would break \
             a group and then stop. Set {numbers}, which counts pods"
        )?;
        match annotation {
            Some(annotation) => write!(f, ", and the annotation {annotation}, which counts groups."),
            None => f.write_str("."),
        }
    }
}

/// Whether a native budget allows fewer evictions than one whole group needs, and the numbers that would be right.
pub fn too_tight(native: &PodDisruptionBudget, groups: Groups) -> Option<TooTight> {
    let quantity = |amount: &IntOrString| match amount {
        IntOrString::Int(number) => u32::try_from(*number).ok().map(Quantity::Count),
        IntOrString::String(text) => text.strip_suffix('%')?.parse().ok().map(Quantity::Percent),
    };
    let own = &native.spec;
    let (amount, by_minimum) = match (&own.max_unavailable, &own.min_available) {
        (Some(max), _) => (max, false),
        (None, Some(min)) => (min, true),
        (None, None) => return None,
    };
    let pods = quantity(amount)?.of(groups.pods);
    let allows = if by_minimum { groups.pods.saturating_sub(pods) } else { pods.min(groups.pods) };
    if allows >= groups.size || groups.may_be_down == 0 || groups.size > groups.pods {
        return None;
    }
    let needs = groups.size.saturating_mul(groups.may_be_down).min(groups.pods);
    let numbers = match by_minimum {
        true => format!("minAvailable: {}", groups.pods - needs),
        false => format!("maxUnavailable: {needs}"),
    };
    let has = |key: &str| native.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key));
    let annotation = (!has(MIN_AVAILABLE) && !has(MAX_UNAVAILABLE)).then(|| {
        let key = if by_minimum { MIN_AVAILABLE } else { MAX_UNAVAILABLE };
        let value = match amount {
            IntOrString::Int(number) => number.to_string(),
            IntOrString::String(text) => text.clone(),
        };
        format!("{key}: {value:?}")
    });
    Some(TooTight { allows, needs, numbers, annotation })
}
