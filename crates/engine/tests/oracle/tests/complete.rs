//! Groups that have finished their work.

use super::*;

fn succeeded(pod: &mut Pod) {
    (pod.phase, pod.ready) = (Phase::Succeeded, false);
}

/// A pod group of four replicas, of which the first two are complete and have no pods any more.
fn half_done() -> Fixture {
    let mut fixture = Fixture::new(counting(Units::Workload));
    fixture.workload("train", &[("worker", 4)], |_| {});
    for index in ["0", "1", "2", "3"] {
        fixture.pod(index, |pod| pod.link = replica("train", "worker", index));
    }
    for index in ["0", "1"] {
        fixture.pod(index, |pod| {
            succeeded(pod);
            pod.link = replica("train", "worker", index);
        });
    }
    assert_eq!(fixture.numbers(), (2, 1));
    fixture.gone("0");
    fixture.gone("1");
    fixture
}

fn again(fixture: &mut Fixture, index: &str) {
    fixture.pod(&format!("again-{index}"), |pod| pod.link = replica("train", "worker", index));
}

#[test]
fn a_complete_group_stays_complete_when_its_pods_are_removed() {
    assert_eq!(half_done().numbers(), (2, 1));
    assert_eq!(half_done().memory().complete.len(), 2);
    check(
        half_done,
        &[
            ("nothing else", |_| {}, 2),
            ("a pod of one", |w| again(w, "1"), 3),
            ("a pod of one, and it goes", |w| (again(w, "1"), w.gone("again-1")).1, 3),
            ("the rest is gone too", |w| (w.gone("2"), w.gone("3")).1, 2),
            ("it wants more", |w| w.change_workload("train", |train| train.groups[0].replicas = Some(6)), 4),
            ("three replicas", |w| w.change_workload("train", |train| train.groups[0].replicas = Some(3)), 2),
            ("two replicas", |w| w.change_workload("train", |train| train.groups[0].replicas = Some(2)), 2),
            ("another of that name", |w| w.change_workload("train", |train| train.uid = "new".into()), 4),
            ("gone and back", gone_and_back, 4),
            ("suspended and resumed", suspended_and_resumed, 2),
            ("the numbers change", |w| w.change_budget(|b| b.max_unavailable = Some(Quantity::Count(2))), 2),
            ("the budget states the number", |w| w.change_budget(|b| b.expected = Some(9)), 7),
        ],
    );
}

fn gone_and_back(fixture: &mut Fixture) {
    fixture.apply(Input::Workload(WorkloadSource::Own, object("train"), None));
    fixture.workload("train", &[("worker", 4)], |_| {});
}

fn suspended_and_resumed(fixture: &mut Fixture) {
    fixture.controller(controller("Job", "job", 3));
    fixture.change_workload("train", |train| train.owner = Some(owner("Job", "job")));
    fixture.change_controller("job", |job| job.activity = Activity::Suspended);
    assert_eq!(fixture.numbers().0, 0);
    fixture.change_controller("job", |job| job.activity = Activity::Active);
}

#[test]
fn complete_groups_above_the_replicas_are_forgotten() {
    let mut fixture = half_done();
    let texts =
        |fixture: &Fixture| fixture.memory().complete.iter().map(ToString::to_string).collect::<Vec<_>>();
    let of = |index: u8| format!("Workload.scheduling.quorate.dev/train/worker/{index}");
    assert_eq!(texts(&fixture), [of(0), of(1)]);
    fixture.change_workload("train", |train| train.groups[0].replicas = Some(3));
    assert_eq!(texts(&fixture), [of(0)], "the last one is forgotten");
    fixture.change_workload("train", |train| train.groups[0].replicas = Some(4));
    assert_eq!((texts(&fixture), fixture.numbers().0), (vec![of(0)], 3));
}

#[test]
fn a_complete_pod_group_is_not_expected() {
    fn start() -> Fixture {
        let mut fixture = Fixture::new(counting(Units::Workload));
        for name in ["pg0", "pg1"] {
            fixture.pod_group(name, |_| {});
            fixture.pod(&format!("{name}-pod"), |pod| pod.link = in_pod_group(name));
        }
        fixture.pod("pg0-pod", |pod| {
            succeeded(pod);
            pod.link = in_pod_group("pg0");
        });
        fixture.gone("pg0-pod");
        fixture
    }
    check(
        start,
        &[
            ("nothing else", |_| {}, 1),
            ("a pod of it", |w| w.pod("new", |pod| pod.link = in_pod_group("pg0")), 2),
            ("another of that name", |w| w.pod_group("pg0", |group| group.uid = "new".into()), 1),
            ("gone", |w| w.apply(Input::PodGroup(object("pg0"), None)), 1),
        ],
    );
}

#[test]
fn a_complete_group_past_the_scale_is_forgotten() {
    let mut fixture = Fixture::new(counting(by_index()));
    fixture.controller(controller("LeaderWorkerSet", "x", 2));
    for index in ["0", "1"] {
        fixture.pod(index, |pod| pod.labels = in_set("x", index));
    }
    fixture.pod("1", |pod| {
        succeeded(pod);
        pod.labels = in_set("x", "1");
    });
    fixture.gone("1");
    assert_eq!(fixture.numbers().0, 1);
    fixture.change_controller("x", |x| x.replicas = Some(1));
    fixture.change_controller("x", |x| x.replicas = Some(2));
    assert_eq!(fixture.numbers().0, 2);
}

#[test]
fn label_groups_are_remembered_as_complete_only_if_the_budget_states_the_number() {
    let with = |expected: Option<u32>| {
        let units = Units::Label { key: "shard".into(), min_ready: None };
        let mut fixture = Fixture::new(Rules { expected, ..counting(units) });
        let shard = |at: &str| Labels::new([("app", "a"), ("shard", at)]);
        fixture.pod("0", |pod| pod.labels = shard("0"));
        fixture.pod("1", |pod| {
            succeeded(pod);
            pod.labels = shard("1");
        });
        fixture.gone("1");
        fixture
    };
    assert_eq!((with(None).numbers().0, with(None).memory().complete.len()), (1, 0));
    let mut fixture = with(Some(3));
    assert_eq!((fixture.numbers().0, &*fixture.memory().complete[0]), (2, "Label/1"));
    fixture.change_budget(|budget| budget.expected = None);
    fixture.change_budget(|budget| budget.expected = Some(3));
    assert_eq!(fixture.numbers().0, 3);
}

#[test]
fn complete_groups_are_read_with_the_budget_and_wait_for_their_object() {
    let key = half_done().memory().key;
    let run: Text = "Workload.scheduling.quorate.dev/train/worker/0~1".into();
    let memory = Memory { key, sources: Box::default(), complete: [run].into() };
    let fresh = || {
        let gates = Gates { multi_pod_pdbs: true, disruption_probe: true };
        let mut fixture = Fixture { oracle: Oracle::new(gates), version: 0 };
        fixture.budget(counting(Units::Workload), memory.clone());
        fixture
    };
    let mut fixture = fresh();
    fixture.workload("train", &[("worker", 4)], |_| {});
    fixture.pod("2", |pod| pod.link = replica("train", "worker", "2"));
    assert_eq!(fixture.numbers().0, 2);
    let mut fixture = fresh();
    fixture.step(Event::Sync(Snapshot::Workloads(WorkloadSource::Own, Vec::new())));
    assert_eq!(fixture.memory().complete.len(), 0);
    // A later input of the budget does not restore the memory.
    let mut fixture = Fixture::new(counting(Units::Workload));
    fixture.budget(counting(Units::Workload), memory.clone());
    assert_eq!(fixture.memory().complete.len(), 0);
}
