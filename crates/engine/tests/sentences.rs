//! The text of every denial, as a user of `kubectl drain` reads it: which budget, what it counts, the reason, and what
//! to wait for or do.

use quorate_engine::basics::{GroupKind, ObjectKey, Text, Time};
use quorate_engine::decision::{
    Denial, DenialReason, Down, Exhausted, Missing, Noun, Numbers, ProbeDoubt, Unhealthy, Unresolved,
};
use quorate_engine::facts::{BudgetKey, BudgetKind};
use quorate_engine::sentence::{self, MAX_LENGTH};

const NOW: Time = Time(100_000_000);

fn ago(seconds: i64) -> Option<Time> {
    Some(Time(NOW.0 - seconds * 1000))
}

fn budget(name: &str) -> BudgetKey {
    BudgetKey { object: ObjectKey::new("inference", name), kind: BudgetKind::DisruptionBudget }
}

fn text(reason: DenialReason) -> String {
    let text = sentence::refusal(&[Denial { budget: Some(budget("llm")), reason }], NOW);
    assert!(!text.is_empty() && text.chars().count() < MAX_LENGTH, "{} characters: {text}", text.len());
    text
}

fn missing(pod: &str, why: Unhealthy, since: Option<Time>) -> Missing {
    Missing { pod: pod.into(), why, since }
}

fn down(unit: &str, healthy: (u32, u32), missing: Vec<Missing>) -> Down {
    Down { unit: unit.into(), missing, healthy }
}

/// A denial with these numbers of healthy, desired and expected units.
fn exhausted(
    noun: Noun,
    unit: &str,
    (current, desired, expected): (u32, u32, u32),
    down: Vec<Down>,
) -> Exhausted {
    Exhausted {
        noun,
        unit: unit.into(),
        unit_is_down: false,
        numbers: Numbers { allowed: 0, current, desired, expected },
        down_total: down.len(),
        down,
    }
}

fn groups(unit: &str, numbers: (u32, u32, u32), down: Vec<Down>) -> String {
    text(DenialReason::Exhausted(Box::new(exhausted(Noun::Group, unit, numbers, down))))
}

fn pods(unit: &str, numbers: (u32, u32, u32), down: Vec<Down>) -> String {
    text(DenialReason::Exhausted(Box::new(exhausted(Noun::Pod, unit, numbers, down))))
}

#[test]
fn one_group_is_down() {
    let one = down("1", (3, 4), vec![missing("llm-1-3", Unhealthy::NotReady, ago(240))]);
    insta::assert_snapshot!(groups("2", (3, 3, 4), vec![one]), @"inference/llm keeps 3 of 4 groups: group 2 would be the second one down (group 1 is missing llm-1-3, not ready for 4m). Waits for group 1.");
}

#[test]
fn groups_are_down_for_other_reasons() {
    let held = down("0", (1, 2), vec![missing("llm-0-1", Unhealthy::Held, ago(7))]);
    insta::assert_snapshot!(groups("2", (3, 3, 4), vec![held]), @"inference/llm keeps 3 of 4 groups: group 2 would be the second one down (group 0 is missing llm-0-1, being disrupted, admitted 7s ago). Waits for group 0.");
    let several =
        vec![missing("llm-0-0", Unhealthy::Terminating, None), missing("llm-0-1", Unhealthy::Ended, ago(90))];
    insta::assert_snapshot!(groups("2", (3, 3, 4), vec![down("0", (2, 4), several)]), @"inference/llm keeps 3 of 4 groups: group 2 would be the second one down (group 0 has 2 of the 4 pods it needs, llm-0-0 is terminating). Waits for group 0.");
    insta::assert_snapshot!(groups("2", (3, 3, 4), vec![down("0", (3, 4), vec![])]), @"inference/llm keeps 3 of 4 groups: group 2 would be the second one down (group 0 has 3 of the 4 pods it needs). Waits for group 0.");
    insta::assert_snapshot!(groups("2", (3, 3, 4), vec![down("0", (0, 0), vec![])]), @"inference/llm keeps 3 of 4 groups: group 2 would be the second one down (group 0 is gone). Waits for group 0.");
    insta::assert_snapshot!(groups("2", (2, 3, 4), vec![]), @"inference/llm keeps 3 of 4 groups: group 2 would be the third one down (2 groups are missing). Waits for 2 more groups.");
    let no = |n: u32| down(&n.to_string(), (0, 1), vec![missing("x", Unhealthy::NotDisruptable, ago(7200))]);
    insta::assert_snapshot!(groups("9", (8, 8, 10), vec![no(0), no(1)]), @"inference/llm keeps 8 of 10 groups: group 9 would be the third one down (group 0 is missing x, not disruptable for 2h). Waits for group 0 and one more.");
    insta::assert_snapshot!(groups("9", (7, 7, 10), vec![no(0), no(1), no(2)]), @"inference/llm keeps 7 of 10 groups: group 9 would be the 4th one down (group 0 is missing x, not disruptable for 2h). Waits for group 0 and 2 more.");
}

#[test]
fn pods_are_down() {
    let web = |why, since| down("web-1", (0, 1), vec![missing("web-1", why, since)]);
    insta::assert_snapshot!(pods("web-0", (2, 2, 3), vec![web(Unhealthy::NotReady, ago(240))]), @"inference/llm keeps 2 of 3 pods: pod web-0 would be the second one down (web-1 is not ready for 4m). Waits for pod web-1.");
    insta::assert_snapshot!(pods("web-0", (2, 2, 3), vec![web(Unhealthy::Held, ago(3))]), @"inference/llm keeps 2 of 3 pods: pod web-0 would be the second one down (web-1 is being disrupted, admitted 3s ago). Waits for pod web-1.");
    insta::assert_snapshot!(pods("web-0", (2, 2, 3), vec![web(Unhealthy::Inconsistent, None)]), @"inference/llm keeps 2 of 3 pods: pod web-0 would be the second one down (web-1 is being updated). Waits for pod web-1.");
    insta::assert_snapshot!(pods("web-0", (2, 2, 3), vec![web(Unhealthy::Ahead, None)]), @"inference/llm keeps 2 of 3 pods: pod web-0 would be the second one down (web-1 is newly ready). Waits for pod web-1.");
    insta::assert_snapshot!(pods("web-0", (2, 2, 3), vec![web(Unhealthy::Terminating, None)]), @"inference/llm keeps 2 of 3 pods: pod web-0 would be the second one down (web-1 is terminating). Waits for pod web-1.");
    insta::assert_snapshot!(pods("web-0", (3, 3, 4), vec![]), @"inference/llm keeps 3 of 4 pods: pod web-0 would be the second one down (1 pod is missing). Waits for 1 more pod.");
}

#[test]
fn the_budget_never_allows_a_disruption() {
    insta::assert_snapshot!(pods("web-0", (3, 3, 3), vec![]), @"inference/llm keeps 3 of 3 pods: pod web-0 would be the first one down, and none may be. Allow at least one to be down, or add replicas.");
    insta::assert_snapshot!(groups("0", (1, 1, 1), vec![]), @"inference/llm keeps 1 of 1 groups: group 0 would be the first one down, and none may be. Allow at least one to be down, or add replicas.");
    insta::assert_snapshot!(pods("web-0", (2, 5, 2), vec![]), @"inference/llm keeps 5 pods where 2 are expected: pod web-0 would be the first one down, and none may be. Allow at least one to be down, or add replicas.");
    insta::assert_snapshot!(pods("web-0", (1, 0, 0), vec![]), @"inference/llm expects no pods, so none may be disrupted: pod web-0 is not among its expected replicas. Scale its workload up, or set expectedReplicas.");
}

#[test]
fn the_unit_is_down_itself() {
    let other = down("1", (3, 4), vec![missing("llm-1-3", Unhealthy::NotReady, ago(240))]);
    let mut why = exhausted(Noun::Group, "2", (2, 3, 4), vec![other]);
    why.unit_is_down = true;
    insta::assert_snapshot!(text(DenialReason::Exhausted(Box::new(why))), @"inference/llm keeps 3 of 4 groups and has 2: group 2 is down, but may recover, and is kept until 1 more is healthy (group 1 is missing llm-1-3, not ready for 4m). unhealthyPodEvictionPolicy: AlwaysAllow would allow the eviction.");
    let mut why = exhausted(Noun::Pod, "web-0", (0, 2, 1), vec![]);
    why.unit_is_down = true;
    insta::assert_snapshot!(text(DenialReason::Exhausted(Box::new(why))), @"inference/llm keeps 2 pods where 1 is expected and has 0: pod web-0 is down, but may recover, and is kept until 2 more are healthy. unhealthyPodEvictionPolicy: AlwaysAllow would allow the eviction.");
}

#[test]
fn this_replica_cannot_decide() {
    insta::assert_snapshot!(text(DenialReason::NotSynced), @"inference/llm: not now: Quorate is still starting. Retry in a moment.");
    insta::assert_snapshot!(text(DenialReason::NotServing), @"inference/llm: not now: this Quorate server has not renewed its Lease, so it must not decide. Retry: another server may answer.");
    insta::assert_snapshot!(text(DenialReason::Stale { kind: GroupKind::new("apps", "Deployment"), seconds: 95 }), @"inference/llm: not now: Deployment.apps is stale: Quorate has received nothing about it for 95s. Waits until it can be read again. If this lasts, run quorate check.");
    insta::assert_snapshot!(text(DenialReason::NotFresh { seconds: 95 }), @"inference/llm: not now: Quorate has not heard from the API server for 95s. Retry in a moment.");
    insta::assert_snapshot!(text(DenialReason::Deadline), @"inference/llm: not now: the budget could not be written in time. Retry in a moment.");
    insta::assert_snapshot!(text(DenialReason::NotOpen), @"inference/llm: not now: the budget was just created, or its selector changed. Waits until every replica enforces it.");
    insta::assert_snapshot!(text(DenialReason::Protocol(2)), @"inference/llm: not now: another version of Quorate writes this budget (protocol 2). Waits until all replicas run the same version.");
    insta::assert_snapshot!(text(DenialReason::OutdatedDefinition), @"inference/llm: not now: claims are not stored, because the CustomResourceDefinition is older than this server. Apply the current one (quorate crds).");
    insta::assert_snapshot!(text(DenialReason::TooManyClaims), @"inference/llm: not now: too many admitted disruptions are still pending. Waits until some of them complete.");
}

#[test]
fn the_budget_is_invalid_or_unresolved() {
    insta::assert_snapshot!(text(DenialReason::Invalid("spec.minAvailable: 150% is above 100%".into())), @"inference/llm: the budget is invalid, so it allows nothing: spec.minAvailable: 150% is above 100%");
    let pod: Text = "llm-0".into();
    let group = Unresolved::Group { pod: pod.clone(), name: "train/worker/0".into() };
    insta::assert_snapshot!(text(DenialReason::Unresolved(group)), @"inference/llm: pod llm-0 belongs to train/worker/0, which does not exist, so how many pods the group needs is not known. Create it, or correct the pod's template.");
    let controller =
        Unresolved::Controller { pod: pod.clone(), kind: "ReplicaSet".into(), name: "llm-5d4f".into() };
    insta::assert_snapshot!(text(DenialReason::Unresolved(controller)), @"inference/llm: ReplicaSet llm-5d4f, the controller of pod llm-0, is not known, so the expected number of pods is not known either. Set expectedReplicas, or an integer minAvailable.");
    let unread = Unresolved::Unread { kind: GroupKind::new("example.com", "Game"), name: "chess".into() };
    insta::assert_snapshot!(text(DenialReason::Unresolved(unread)), @"inference/llm: the expected number depends on Game chess, and Game.example.com cannot be read. Waits until it can be read; if this lasts, run quorate check. Or set expectedReplicas.");
    let scale = Unresolved::Scale { kind: "Game".into(), name: "chess".into() };
    insta::assert_snapshot!(text(DenialReason::Unresolved(scale)), @"inference/llm: Game chess has no scale, so the expected number of pods is not known. Set expectedReplicas, or an integer minAvailable.");
    insta::assert_snapshot!(text(DenialReason::NoGroup { pod }), @"inference/llm: pod llm-0 names no workload, so its group is not known. Set schedulingGroup or the quorate.dev/workload labels in its template.");
}

#[test]
fn the_probe_does_not_allow_it() {
    let probe = |why, since| text(DenialReason::Probe { pod: "db-0".into(), why, since });
    insta::assert_snapshot!(probe(ProbeDoubt::SaysNo(None), ago(40)), @"inference/llm: pod db-0 must not be disrupted: its disruption probe says no, for 40s. Waits until it says yes.");
    insta::assert_snapshot!(probe(ProbeDoubt::SaysNo(Some("primary, 2 replicas behind".into())), ago(400_000)), @"inference/llm: pod db-0 must not be disrupted: its disruption probe says no (primary, 2 replicas behind), for 4d. Waits until it says yes.");
    insta::assert_snapshot!(probe(ProbeDoubt::Silent, None), @"inference/llm: pod db-0 must not be disrupted: its disruption probe has not answered yet. Waits for its first answer.");
    insta::assert_snapshot!(probe(ProbeDoubt::Malformed("httpGet.port: 99999 is above 65535".into()), None), @"inference/llm: pod db-0 must not be disrupted: its disruption probe is invalid (httpGet.port: 99999 is above 65535). Correct the annotation in the pod's template.");
    insta::assert_snapshot!(probe(ProbeDoubt::NoAgent, None), @"inference/llm: pod db-0 must not be disrupted: no agent runs its disruption probe. Start the Quorate agent on its node.");
    insta::assert_snapshot!(probe(ProbeDoubt::AgentStale, None), @"inference/llm: pod db-0 must not be disrupted: the agent on its node stopped reporting, so the last probe result is not trusted. Waits for the agent.");
    insta::assert_snapshot!(probe(ProbeDoubt::NodeNotReady, None), @"inference/llm: pod db-0 must not be disrupted: its node is not ready, so the last probe result is not trusted. Waits for the node.");
    insta::assert_snapshot!(probe(ProbeDoubt::Outdated, None), @"inference/llm: pod db-0 must not be disrupted: its probe has not answered since the agent or the container started. Waits for its next answer.");
}

#[test]
fn a_native_budget_would_deny_it() {
    let reason = DenialReason::Native { name: "llm-pdb".into(), healthy: (3, 3) };
    insta::assert_snapshot!(sentence::refusal(&[Denial { budget: None, reason }], NOW), @"PodDisruptionBudget llm-pdb allows nothing now (has 3 healthy pods, needs 3).");
}

#[test]
fn several_native_budgets_cover_the_pod() {
    let refusal = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).into()).collect();
        let reason = DenialReason::SeveralNative { pod: "llm-0".into(), names };
        sentence::refusal(&[Denial { budget: None, reason }], NOW)
    };
    insta::assert_snapshot!(refusal(&["all-pdb", "llm-pdb"]), @"pod llm-0 is covered by the PodDisruptionBudgets all-pdb and llm-pdb: the API server does not evict a pod that has more than one. Let only one of them cover it.");
    insta::assert_snapshot!(refusal(&["a", "b", "c", "d"]), @"pod llm-0 is covered by the PodDisruptionBudgets a and b (and 2 more): the API server does not evict a pod that has more than one. Let only one of them cover it.");
}

#[test]
fn several_budgets_deny_it() {
    let no = |name: &str| Denial { budget: Some(budget(name)), reason: DenialReason::NotOpen };
    insta::assert_snapshot!(sentence::refusal(&[no("a"), no("b")], NOW), @"inference/a: not now: the budget was just created, or its selector changed. Waits until every replica enforces it. One more budget denies it.");
    insta::assert_snapshot!(sentence::refusal(&[no("a"), no("b"), no("c")], NOW), @"inference/a: not now: the budget was just created, or its selector changed. Waits until every replica enforces it. 2 more budgets deny it.");
    insta::assert_snapshot!(sentence::refusal(&[], NOW), @"not now");
}

/// If names have 253 characters, their middle is cut and not the end of the sentence.
#[test]
fn long_names_are_cut_in_their_middle() {
    let long = |last: char| format!("{}-{last}", "very-long-name".repeat(18));
    let (unit, other) = (long('2'), long('1'));
    let first = down(&other, (3, 4), vec![missing(&long('3'), Unhealthy::NotReady, ago(240))]);
    let why = exhausted(Noun::Group, &unit, (999_997, 999_998, 1_000_000), vec![first]);
    let denial = Denial { budget: Some(budget(&long('b'))), reason: DenialReason::Exhausted(Box::new(why)) };
    let text = sentence::refusal(&[denial], NOW);
    assert!(text.chars().count() < MAX_LENGTH, "{} characters", text.chars().count());
    insta::assert_snapshot!(text, @"inference/very-long-n…-long-name-b keeps 999998 of 1000000 groups: group very-long-n…-long-name-2 would be the 4th one down (group very-long-n…-long-name-1 is missing very-long-n…-long-name-3, not ready for 4m). Waits for group very-long-n…-long-name-1 and 2 more.");
}

/// A message from a user may have any length.
#[test]
fn a_long_message_is_cut() {
    let reason = DenialReason::Invalid("x".repeat(1000).into());
    let text = sentence::refusal(&[Denial { budget: Some(budget("llm")), reason }], NOW);
    assert!(text.chars().count() <= MAX_LENGTH);
}
