//! Budgets that count groups.

use quorate_engine::callers::Caller;
use quorate_engine::claims::Target;
use quorate_engine::condition_reason::ConditionReason;
use quorate_engine::decision::AllowReason;
use quorate_engine::request::Request;

use super::*;
use crate::oracle::ExpectedDecision;

/// A Workload with three pod groups of one replica each. The pod of the first is gone.
fn training() -> Fixture {
    let mut fixture = Fixture::new(counting(Units::Workload));
    fixture.workload("train", &[("ps", 1), ("worker", 1), ("chief", 1)], |_| {});
    for group in ["ps", "worker", "chief"] {
        fixture.pod(group, |pod| pod.link = replica("train", group, "0"));
    }
    assert_eq!(fixture.numbers(), (3, 1));
    fixture.gone("ps");
    fixture
}

fn evict(fixture: &Fixture, pod: &str) -> ExpectedDecision {
    fixture.oracle.decide(&Request {
        operation: Operation::Evict,
        pod: object(pod),
        object: None,
        precondition: None,
        caller: Caller::named("alice"),
        dry_run: false,
        target: Target::default(),
        placement: None,
    })
}

#[test]
fn a_pod_group_of_a_workload_stays_expected_without_pods() {
    let fixture = training();
    assert_eq!(fixture.numbers(), (3, 0));
    assert!(matches!(evict(&fixture, "worker"), ExpectedDecision::Denied(_)));
    assert_eq!(fixture.restarted().numbers(), (3, 0));
    check(
        training,
        &[
            ("nothing else", |_| {}, 3),
            ("it wants more", |w| w.change_workload("train", |train| train.groups[0].replicas = Some(3)), 5),
            ("it wants none", |w| w.change_workload("train", |train| train.groups[0].replicas = Some(0)), 2),
            ("no number", |w| w.change_workload("train", |train| train.groups[0].replicas = None), 2),
            ("the pod group is gone", |w| w.workload("train", &[("worker", 1), ("chief", 1)], |_| {}), 2),
            ("being deleted", |w| w.change_workload("train", |train| train.deleting = true), 2),
            ("another of that name", |w| w.change_workload("train", |train| train.uid = "new".into()), 2),
            ("its owner is suspended", |w| own(w, Activity::Suspended), 0),
            ("its owner is complete", |w| own(w, Activity::Complete), 0),
            ("its owner has failed", |w| own(w, Activity::Failed), 0),
            ("its owner is active", |w| own(w, Activity::Active), 3),
            ("a list shows it", relist, 3),
            ("the selector changes", |w| w.change_budget(|b| b.covers = app("b")), 0),
            ("the numbers change", |w| w.change_budget(|b| b.max_unavailable = Some(Quantity::Count(2))), 3),
            ("the budget states the number", |w| w.change_budget(|b| b.expected = Some(9)), 9),
            ("no longer being deleted", there_and_back, 2),
        ],
    );
}

fn own(fixture: &mut Fixture, activity: Activity) {
    fixture.controller(Controller { activity, ..controller("Job", "job", 3) });
    fixture.change_workload("train", |train| train.owner = Some(owner("Job", "job")));
}

fn relist(fixture: &mut Fixture) {
    let all = fixture.oracle.workloads.iter().map(|((_, key), fact)| (key.clone(), fact.clone())).collect();
    fixture.step(Event::Sync(Snapshot::Workloads(WorkloadSource::Own, all)));
}

fn there_and_back(fixture: &mut Fixture) {
    fixture.change_workload("train", |train| train.deleting = true);
    fixture.change_workload("train", |train| train.deleting = false);
}

#[test]
fn a_workload_that_is_gone_with_pods_is_not_resolved() {
    let mut fixture = training();
    fixture.apply(Input::Workload(WorkloadSource::Own, object("train"), None));
    assert_eq!(fixture.status().conditions[0].0, ConditionReason::WorkloadResolutionFailed);
    fixture.gone("worker");
    fixture.gone("chief");
    assert!(fixture.memory().sources.is_empty());
}

#[test]
fn groups_of_an_inactive_owner_cost_nothing() {
    let mut fixture = training();
    own(&mut fixture, Activity::Suspended);
    let ExpectedDecision::Agreed(reasons) = evict(&fixture, "worker") else {
        panic!("{:?}", evict(&fixture, "worker"))
    };
    assert_eq!(reasons[0].1, AllowReason::Surge);
    fixture.change_budget(|budget| budget.expected = Some(3));
    assert!(
        matches!(evict(&fixture, "worker"), ExpectedDecision::Denied(_)),
        "unless the budget states the number"
    );
}

/// Two PodGroups without template or controller. The pods of the first are gone.
fn two_pod_groups() -> Fixture {
    let mut fixture = Fixture::new(counting(Units::Workload));
    for name in ["pg0", "pg1"] {
        fixture.pod_group(name, |_| {});
        fixture.pod(&format!("{name}-pod"), |pod| pod.link = in_pod_group(name));
    }
    assert_eq!(
        (fixture.numbers(), fixture.status().conditions[1].0),
        ((2, 1), ConditionReason::ExpectedFromObservation)
    );
    fixture.gone("pg0-pod");
    fixture
}

#[test]
fn a_pod_group_stays_expected_without_pods() {
    assert_eq!(two_pod_groups().numbers(), (2, 0));
    check(
        two_pod_groups,
        &[
            ("nothing else", |_| {}, 2),
            ("gone", |w| w.apply(Input::PodGroup(object("pg0"), None)), 1),
            ("being deleted", |w| w.pod_group("pg0", |group| group.deleting = true), 1),
            ("another of that name", |w| w.pod_group("pg0", |group| group.uid = "new".into()), 1),
            ("its owner has failed", owner_of_pg0_failed, 1),
            ("a scale counts it by now", a_scale_counts_pg0, 1),
            ("being deleted, with pods", |w| w.pod_group("pg1", |group| group.deleting = true), 2),
        ],
    );
}

fn owner_of_pg0_failed(fixture: &mut Fixture) {
    fixture.controller(Controller { activity: Activity::Failed, ..controller("Job", "job", 1) });
    fixture.pod_group("pg0", |group| group.controller = Some(owner("Job", "job")));
}

fn a_scale_counts_pg0(fixture: &mut Fixture) {
    fixture.controller(controller("GangSet", "gangs", 1));
    fixture.pod_group("pg0", |group| group.controller = Some(owner("GangSet", "gangs")));
}

/// Three PodGroups of one template, without pods.
fn template() -> Fixture {
    let mut fixture = Fixture::new(counting(Units::Workload));
    for name in ["pg0", "pg1", "pg2"] {
        of_template(&mut fixture, name, |_| {});
    }
    fixture.pod("pod", |pod| pod.link = in_pod_group("pg0"));
    fixture.gone("pod");
    fixture
}

fn of_template(fixture: &mut Fixture, name: &str, change: impl Fn(&mut PodGroup)) {
    fixture.pod_group(name, |group| {
        group.template = Some(("train".into(), "worker".into()));
        change(group);
    });
}

fn all(fixture: &mut Fixture, change: impl Fn(&mut PodGroup)) {
    for name in ["pg0", "pg1", "pg2"] {
        of_template(fixture, name, &change);
    }
}

#[test]
fn the_pod_groups_of_a_template_stay_expected_without_pods() {
    check(
        template,
        &[
            ("nothing else", |_| {}, 3),
            ("one more", |w| of_template(w, "pg3", |_| {}), 4),
            ("one is gone", |w| w.apply(Input::PodGroup(object("pg0"), None)), 2),
            ("one is being deleted", |w| of_template(w, "pg0", |group| group.deleting = true), 3),
            ("all are being deleted", |w| all(w, |group| group.deleting = true), 0),
            ("the owner of one is complete", |w| complete_job(w, &["pg0"]), 2),
            ("the owner of all is complete", |w| complete_job(w, &["pg0", "pg1", "pg2"]), 0),
            ("all are gone", |w| w.step(Event::Sync(Snapshot::PodGroups(Vec::new()))), 0),
        ],
    );
}

fn complete_job(fixture: &mut Fixture, names: &[&str]) {
    fixture.controller(Controller { activity: Activity::Complete, ..controller("Job", "job", 1) });
    for name in names {
        of_template(fixture, name, |group| group.controller = Some(owner("Job", "job")));
    }
}

#[test]
fn pod_groups_of_a_scale_are_not_counted_by_their_template() {
    let mut fixture = Fixture::new(counting(Units::Workload));
    for name in ["pg0", "pg1"] {
        of_template(&mut fixture, name, |group| group.controller = Some(owner("GangSet", "gangs")));
        fixture.pod(&format!("{name}-pod"), |pod| pod.link = in_pod_group(name));
    }
    assert_eq!(fixture.memory().sources[0], template_source());
    fixture.controller(controller("GangSet", "gangs", 2));
    assert_eq!(fixture.numbers(), (2, 1));
    assert_eq!(&*fixture.memory().sources[0].name, "gangs");
    fixture.gone("pg0-pod");
    fixture.gone("pg1-pod");
    assert_eq!(fixture.numbers(), (2, 0));
}

/// Two LeaderWorkerSets of 2 groups under one budget. The groups of the second are gone.
fn two_sets(change: impl Fn(&mut Controller)) -> Fixture {
    let mut fixture = Fixture::new(counting(by_index()));
    for name in ["x", "y"] {
        let mut set = controller("LeaderWorkerSet", name, 2);
        change(&mut set);
        fixture.controller(set);
        for index in ["0", "1"] {
            fixture.pod(&format!("{name}-{index}"), |pod| pod.labels = in_set(name, index));
        }
    }
    assert_eq!(fixture.numbers(), (4, 1));
    fixture.gone("y-0");
    fixture.gone("y-1");
    fixture
}

#[test]
fn a_leader_worker_set_stays_expected_without_pods() {
    let cases: &[Case] = &[
        ("nothing else", |_| {}, 4),
        ("it wants more", |w| w.change_controller("y", |y| y.replicas = Some(3)), 5),
        ("it wants none", |w| w.change_controller("y", |y| y.replicas = Some(0)), 2),
        ("being deleted", |w| w.change_controller("y", |y| y.deleting = true), 2),
        ("gone", |w| w.apply(Input::ControllerGone("uid-y".into())), 2),
        ("suspended", |w| w.change_controller("y", |y| y.activity = Activity::Suspended), 2),
        ("suspended with pods", |w| w.change_controller("x", |x| x.activity = Activity::Suspended), 2),
        (
            "another template",
            |w| w.change_controller("y", |y| y.templates = templates(&[&[("app", "b")]])),
            2,
        ),
    ];
    assert_eq!(two_sets(|_| {}).numbers(), (4, 0));
    check(|| two_sets(|_| {}), cases);
    check(|| two_sets(|set| set.templates = templates(&[&[("app", "a")], &[("app", "a")]])), cases);
}

#[test]
fn a_target_that_counts_groups_is_expected_before_its_first_pod() {
    let covers = || Covers::Target(kind("LeaderWorkerSet"), "x".into());
    let mut fixture = Fixture::new(Rules { covers: covers(), ..counting(by_index()) });
    fixture.controller(controller("LeaderWorkerSet", "x", 2));
    fixture.controller(controller("LeaderWorkerSet", "y", 3));
    assert_eq!(fixture.numbers().0, 2);
    // With PodGroups as units, the target counts only if it owns PodGroups: the units may be those of a Workload.
    let mut fixture = Fixture::new(Rules { covers: covers(), ..counting(Units::Workload) });
    fixture.controller(controller("LeaderWorkerSet", "x", 2));
    assert_eq!(fixture.numbers().0, 0);
    fixture.workload("train", &[("worker", 2)], |_| {});
    fixture.pod("x-0", |pod| (pod.labels, pod.link) = (in_set("x", "0"), replica("train", "worker", "0")));
    assert_eq!(fixture.numbers().0, 2);
    fixture.pod_group("pg0", |group| group.controller = Some(owner("LeaderWorkerSet", "x")));
    assert_eq!(fixture.numbers().0, 4);
}

#[test]
fn groups_without_a_source_are_observed() {
    let mut fixture = Fixture::new(counting(Units::Label { key: "shard".into(), min_ready: None }));
    for shard in ["0", "1"] {
        fixture.pod(shard, |pod| pod.labels = Labels::new([("app", "a"), ("shard", shard)]));
    }
    fixture.gone("0");
    assert_eq!(fixture.numbers(), (2, 0));
    assert!(fixture.memory().sources.is_empty());
    fixture.oracle.step(Event::Time, Time(10_000_000 + 900_000));
    assert_eq!(fixture.numbers(), (1, 1));
}
