//! Calculates the numbers in a budget's status. Pure functions.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::super::kinds::resolve;
use super::super::pods;

/// If an eviction does not lead to a deletion within this time, it no longer counts.
pub(super) const EVICTION_TIMEOUT: Duration = Duration::from_secs(120);

const ALLOWED: &str = "DisruptionAllowed";

/// The expected number of pods, and the number of them that must be healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) pods: i32,
    pub(super) healthy: i32,
}

/// Whether the number of expected pods comes from the scale of the pods' controllers.
pub(super) fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    let Some(spec) = &budget.spec else { return false };
    spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
}

/// The expected numbers. `scale` is the sum of the distinct controllers' scales, if the budget needs it.
pub(super) fn expected(budget: &PodDisruptionBudget, selected: usize, scale: i32) -> Expected {
    let spec = budget.spec.clone().unwrap_or_default();
    match (spec.max_unavailable, spec.min_available) {
        (Some(max), _) => Expected { pods: scale, healthy: (scale - resolve(&max, scale, true)).max(0) },
        (None, Some(IntOrString::Int(min))) => {
            Expected { pods: i32::try_from(selected).unwrap_or(i32::MAX), healthy: min }
        }
        (None, Some(min)) => Expected { pods: scale, healthy: resolve(&min, scale, true) },
        (None, None) => Expected { pods: 0, healthy: 0 },
    }
}

/// The evictions in progress, the failed ones, and when the next one would count as failed.
#[derive(Debug, Default)]
pub(super) struct Disrupted {
    pub(super) under_way: BTreeMap<String, Time>,
    pub(super) failed: Vec<Arc<Pod>>,
    pub(super) recheck_in: Option<Duration>,
}

pub(super) fn disrupted(budget: &PodDisruptionBudget, selected: &[Arc<Pod>], now: Timestamp) -> Disrupted {
    let mut result = Disrupted::default();
    let noted = budget.status.as_ref().and_then(|status| status.disrupted_pods.clone()).unwrap_or_default();
    for pod in selected {
        let Some(since) = noted.get(&pod.name_any()) else { continue };
        if pods::is_terminating(pod) {
            continue;
        }
        let until = since.0 + EVICTION_TIMEOUT;
        if until <= now {
            result.failed.push(pod.clone());
            continue;
        }
        let left = Duration::try_from(until.duration_since(now)).unwrap_or_default();
        result.recheck_in = Some(result.recheck_in.map_or(left, |earlier| earlier.min(left)));
        result.under_way.insert(pod.name_any(), since.clone());
    }
    result
}

/// The number of healthy pods: ready, not terminating, and without an eviction in progress.
pub(super) fn healthy(selected: &[Arc<Pod>], under_way: &BTreeMap<String, Time>) -> i32 {
    let names: HashSet<&str> = under_way.keys().map(String::as_str).collect();
    let counts = |pod: &&Arc<Pod>| {
        !pods::is_terminating(pod) && !names.contains(pod.name_any().as_str()) && pods::is_ready(pod)
    };
    i32::try_from(selected.iter().filter(counts).count()).unwrap_or(i32::MAX)
}

/// The desired status.
pub(super) fn status(
    budget: &PodDisruptionBudget,
    expected: Expected,
    current: i32,
    under_way: BTreeMap<String, Time>,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let before = budget.status.clone().unwrap_or_default();
    let allowed = if expected.pods <= 0 { 0 } else { (current - expected.healthy).max(0) };
    let generation = budget.metadata.generation;
    let (holds, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    PodDisruptionBudgetStatus {
        current_healthy: current,
        desired_healthy: expected.healthy,
        expected_pods: expected.pods,
        disruptions_allowed: allowed,
        disrupted_pods: (!under_way.is_empty()).then_some(under_way),
        observed_generation: generation,
        conditions: Some(with_condition(&before, holds, reason, "", generation, now)),
    }
}

/// The status if the numbers cannot be calculated: the old numbers, and no disruptions allowed.
pub(super) fn closed(budget: &PodDisruptionBudget, why: &str, now: Timestamp) -> PodDisruptionBudgetStatus {
    let before = budget.status.clone().unwrap_or_default();
    let conditions = with_condition(&before, "False", "SyncFailed", why, before.observed_generation, now);
    PodDisruptionBudgetStatus { disruptions_allowed: 0, conditions: Some(conditions), ..before }
}

/// The conditions with an updated `DisruptionAllowed`. Conditions of other writers stay.
fn with_condition(
    before: &PodDisruptionBudgetStatus,
    status: &str,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = before.conditions.clone().unwrap_or_default();
    let at = conditions.iter().position(|condition| condition.type_ == ALLOWED);
    let same = at.map(|at| &conditions[at]).filter(|condition| condition.status == status);
    let whole_seconds = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let since = same.map_or(Time(whole_seconds), |condition| condition.last_transition_time.clone());
    let condition = Condition {
        type_: ALLOWED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: since,
    };
    match at {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    conditions
}

/// Whether the budget already has this status. An empty map of disrupted pods equals an absent map.
pub(super) fn is_shown(budget: &PodDisruptionBudget, wanted: &PodDisruptionBudgetStatus) -> bool {
    let Some(mut shown) = budget.status.clone() else { return false };
    shown.disrupted_pods = shown.disrupted_pods.filter(|pods| !pods.is_empty());
    shown == *wanted
}

/// How long until the stale `DisruptionTarget` condition must be removed from this pod. `None` if the pod has none.
pub(super) fn stale_in(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let mark = pods::condition(pod, "DisruptionTarget").filter(|mark| mark.status == "True")?;
    if pods::is_terminating(pod)
        || pods::is_terminal(pod)
        || mark.reason.as_deref() == Some("TerminationByKubelet")
    {
        return None;
    }
    let since = mark.last_transition_time.as_ref().map_or(now, |time| time.0);
    Some(Duration::try_from((since + EVICTION_TIMEOUT).duration_since(now)).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "json!(…) stands where it is used")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(text: &str) -> Timestamp {
        format!("2026-01-01T00:{text}Z").parse().unwrap()
    }

    fn budget(spec: Value) -> PodDisruptionBudget {
        serde_json::from_value(json!({"metadata": {"name": "b", "generation": 7}, "spec": spec})).unwrap()
    }

    fn pod(name: &str, ready: bool, ending: bool) -> Arc<Pod> {
        let mut pod = json!({"metadata": {"name": name}, "status": {"conditions": [
            {"type": "Ready", "status": if ready { "True" } else { "False" }}]}});
        if ending {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    /// Returns the numbers allowed, current, desired, expected. Asserts that the condition agrees.
    fn numbers(budget: &PodDisruptionBudget, pods: &[Arc<Pod>], scale: i32) -> (i32, i32, i32, i32) {
        let now = at("10:00");
        let disrupted = disrupted(budget, pods, now);
        let current = healthy(pods, &disrupted.under_way);
        let status = status(budget, expected(budget, pods.len(), scale), current, disrupted.under_way, now);
        let condition = status.conditions.as_ref().unwrap().iter().find(|c| c.type_ == ALLOWED).unwrap();
        assert_eq!(condition.status == "True", status.disruptions_allowed > 0);
        assert_eq!(status.observed_generation, Some(7));
        (status.disruptions_allowed, status.current_healthy, status.desired_healthy, status.expected_pods)
    }

    fn ready(count: usize) -> Vec<Arc<Pod>> {
        (0..count).map(|n| pod(&format!("p{n}"), true, false)).collect()
    }

    #[test]
    fn the_numbers_are_those_of_the_disruption_controller() {
        type Case = (Value, usize, i32, (i32, i32, i32, i32));
        let table: &[Case] = &[
            (json!({"minAvailable": 3}), 0, 0, (0, 0, 3, 0)),
            (json!({"minAvailable": 3}), 1, 0, (0, 1, 3, 1)),
            (json!({"minAvailable": 3}), 4, 0, (1, 4, 3, 4)),
            (json!({"maxUnavailable": 1}), 0, 0, (0, 0, 0, 0)),
            (json!({"maxUnavailable": 1}), 1, 0, (0, 1, 0, 0)),
            (json!({"maxUnavailable": 2}), 1, 7, (0, 1, 5, 7)),
            (json!({"maxUnavailable": 2}), 1, 5, (0, 1, 3, 5)),
            (json!({"maxUnavailable": "30%"}), 1, 7, (0, 1, 4, 7)),
            (json!({"maxUnavailable": "30%"}), 1, 3, (0, 1, 2, 3)),
            (json!({"minAvailable": "20%"}), 1, 10, (0, 1, 2, 10)),
            (json!({"maxUnavailable": 5}), 4, 10, (0, 4, 5, 10)),
            (json!({"minAvailable": "1%"}), 2, 0, (0, 2, 0, 0)),
            (json!({"minAvailable": "1%"}), 2, 1, (1, 2, 1, 1)),
            (json!({"minAvailable": "34%"}), 1, 3, (0, 1, 2, 3)),
            (json!({"minAvailable": "34%"}), 2, 3, (0, 2, 2, 3)),
            (json!({"minAvailable": "34%"}), 3, 3, (1, 3, 2, 3)),
            (json!({"minAvailable": "34%"}), 4, 3, (2, 4, 2, 3)),
            (json!({"minAvailable": "28%"}), 11, 11, (7, 11, 4, 11)),
            (json!({"minAvailable": "28%"}), 22, 22, (15, 22, 7, 22)),
            (json!({}), 2, 5, (0, 2, 0, 0)),
        ];
        for (spec, pods, scale, wanted) in table {
            assert_eq!(
                numbers(&budget(spec.clone()), &ready(*pods), *scale),
                *wanted,
                "{spec} with {pods} of {scale}"
            );
        }
    }

    #[test]
    fn a_pod_under_eviction_is_not_healthy_until_the_eviction_counts_as_failed() {
        let mut budget = budget(json!({"minAvailable": 1}));
        budget.status = serde_json::from_value(json!({
            "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0, "disruptionsAllowed": 0,
            "disruptedPods": {"p1": "2026-01-01T00:10:00Z", "p2": "2026-01-01T00:07:00Z",
                              "p3": "2026-01-01T00:09:00Z", "notthere": "2026-01-01T00:10:00Z"}}))
        .unwrap();
        let pods = [pod("p1", true, true), pod("p2", true, false), pod("p3", true, false)];
        assert_eq!(numbers(&budget, &pods, 0), (0, 1, 1, 3));
        let disrupted = disrupted(&budget, &pods, at("10:00"));
        assert_eq!(disrupted.under_way.keys().collect::<Vec<_>>(), ["p3"]);
        assert_eq!(disrupted.failed.iter().map(|pod| pod.name_any()).collect::<Vec<_>>(), ["p2"]);
        assert_eq!(disrupted.recheck_in, Some(Duration::from_secs(60)));
    }

    /// Simulated time stands still until the next check, so a check that leaves no time would be repeated for ever.
    #[test]
    fn an_eviction_has_failed_when_its_time_is_over() {
        let mut budget = budget(json!({"minAvailable": 1}));
        budget.status = serde_json::from_value(json!({
            "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0, "disruptionsAllowed": 0,
            "disruptedPods": {"p1": "2026-01-01T00:08:00Z"}}))
        .unwrap();
        let disrupted = disrupted(&budget, &[pod("p1", true, false)], at("10:00"));
        assert_eq!(disrupted.recheck_in, None);
        assert_eq!(disrupted.failed.len(), 1);
    }

    #[test]
    fn other_conditions_stay_and_the_same_status_is_not_written_twice() {
        let mut budget = budget(json!({"minAvailable": 1}));
        let foreign = json!({"type": "Other", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        budget.status =
            serde_json::from_value(json!({"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
            "disruptionsAllowed": 0, "conditions": [foreign]}))
            .unwrap();
        let wanted = Expected { pods: 2, healthy: 1 };
        let first = status(&budget, wanted, 2, BTreeMap::new(), at("10:00"));
        assert_eq!(first.conditions.as_ref().unwrap().len(), 2);
        assert!(!is_shown(&budget, &first));
        budget.status = Some(first);
        assert!(is_shown(&budget, &status(&budget, wanted, 2, BTreeMap::new(), at("20:00"))));
        let closed = closed(&budget, "no such thing", at("20:00"));
        assert_eq!((closed.disruptions_allowed, closed.current_healthy, closed.expected_pods), (0, 2, 2));
    }

    #[test]
    fn a_disruption_target_condition_is_stale_after_two_minutes() {
        let marked = |status: &str, reason: &str, phase: &str, ending: bool| -> Pod {
            let mut pod = json!({"metadata": {}, "status": {"phase": phase, "conditions": [{"type": "DisruptionTarget",
                "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
            if ending {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            serde_json::from_value(pod).unwrap()
        };
        let evicted = marked("True", "EvictionByEvictionAPI", "Running", false);
        assert_eq!(stale_in(&evicted, at("02:01")), Some(Duration::ZERO));
        assert_eq!(stale_in(&evicted, at("01:59")), Some(Duration::from_secs(1)));
        assert_eq!(stale_in(&marked("True", "EvictionByEvictionAPI", "Running", true), at("02:01")), None);
        assert_eq!(stale_in(&marked("False", "EvictionByEvictionAPI", "Running", false), at("02:01")), None);
        assert_eq!(stale_in(&marked("True", "TerminationByKubelet", "Running", false), at("02:01")), None);
        assert_eq!(stale_in(&marked("True", "EvictionByEvictionAPI", "Failed", false), at("02:01")), None);
        assert_eq!(stale_in(&Pod::default(), at("02:01")), None);
    }
}
