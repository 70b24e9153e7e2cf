//! Jobs, groups that complete, pods without a controller, and kinds that are watched only while something names them.

use serde_json::{Value, json};

use crate::run::{DBU, RS_CONTROLLER, Run, Scenario, play_all};

const JOBS: &str = "jobs.batch";
const FLEETS: &str = "fleets.example.com";
const OWN_WORKLOADS: &str = "workloads.scheduling.quorate.dev";
const JOB_CONTROLLER: &str = "system:serviceaccount:kube-system:job-controller";

fn finish(run: &mut Run, pod: &str, phase: &str) {
    run.edit("pods", pod, |pod| pod["status"] = json!({"phase": phase}));
}

/// Three groups of two pods each, of which one group may be down. A group needs both pods.
fn groups(run: &mut Run, policy: Value) -> &mut Run {
    for group in ["a", "b", "c"] {
        for number in 0..2 {
            let labels = json!({"app": "sim", "shard": group, "quorate.dev/workload": "sim",
                "quorate.dev/pod-group": "w", "quorate.dev/pod-group-replica": group});
            run.bare(&format!("{group}-{number}"), labels);
        }
    }
    let mut spec = json!({"selector": {"matchLabels": {"app": "sim"}}, "maxUnavailable": 1});
    for (key, value) in policy.as_object().unwrap() {
        spec[key] = value.clone();
    }
    run.budget(spec).at(200.0)
}

fn by_label() -> Value {
    json!({"podGroupPolicy": {"groupLabelKey": "shard", "minReadyReplicas": 2}})
}

fn by_workload(run: &mut Run) -> Value {
    let group = json!({"name": "w", "replicas": 3, "policy": {"gang": {"minCount": 2}}});
    run.put(OWN_WORKLOADS, json!({"metadata": {"name": "sim"}, "spec": {"podGroups": [group]}}));
    json!({"budgetScope": "Workload"})
}

/// Two Jobs of two pods each.
fn jobs(run: &mut Run, labels: Value) {
    for name in ["one", "two"] {
        let template = json!({"metadata": {"labels": {"app": "etl"}}});
        run.put(JOBS, json!({"metadata": {"name": name}, "spec": {"parallelism": 2, "completions": 6, "template": template}}));
        for number in 0..2 {
            run.owned(&format!("{name}-{number}"), labels.clone(), (JOBS, "Job", name));
        }
    }
}

#[test]
fn a_group_is_complete_only_if_all_its_pods_succeeded() {
    play_all(&[
        Scenario {
            name: "a group whose last pod was evicted is down, though its other pod succeeded",
            play: |run| {
                groups(run, by_label());
                finish(run, "a-0", "Succeeded");
                run.at(400.0).evict("a-1").at(402.0).remove("pods", "a-1").at(600.0).evict("b-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "the same group of a Workload",
            play: |run| {
                let policy = by_workload(run);
                groups(run, policy);
                finish(run, "a-0", "Succeeded");
                run.at(400.0).evict("a-1").at(402.0).remove("pods", "a-1").at(600.0).evict("b-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a group whose pods all succeeded is not expected",
            play: |run| {
                groups(run, by_label());
                finish(run, "a-0", "Succeeded");
                finish(run, "a-1", "Succeeded");
                run.at(600.0).evict("b-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "nor after its pods were collected",
            play: |run| {
                let policy = by_workload(run);
                groups(run, policy);
                finish(run, "a-0", "Succeeded");
                finish(run, "a-1", "Succeeded");
                run.at(300.0).remove("pods", "a-0").remove("pods", "a-1").at(600.0).evict("b-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a lost pod was replaced, and then all succeeded: the group may be complete",
            play: |run| {
                groups(run, by_label());
                finish(run, "a-0", "Succeeded");
                run.at(400.0).evict("a-1").at(402.0).remove("pods", "a-1");
                run.bare("a-2", json!({"app": "sim", "shard": "a"}));
                run.at(500.0);
                finish(run, "a-2", "Succeeded");
                run.at(700.0).evict("b-0");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a pod that failed and was collected leaves its group incomplete",
            play: |run| {
                groups(run, by_label());
                finish(run, "a-0", "Succeeded");
                finish(run, "a-1", "Failed");
                run.at(300.0).remove("pods", "a-1").at(600.0).evict("b-0").evict("c-0");
            },
            violations: 2,
            judged: 2,
        },
        Scenario {
            name: "a stated number of groups does not count complete ones",
            play: |run| {
                let mut policy = by_label();
                policy["expectedReplicas"] = json!(3);
                groups(run, policy);
                finish(run, "a-0", "Succeeded");
                finish(run, "a-1", "Succeeded");
                run.at(600.0).evict("b-0").evict("c-0");
            },
            violations: 1,
            judged: 2,
        },
    ]);
}

#[test]
fn jobs_are_expected_by_what_they_still_want() {
    play_all(&[
        Scenario {
            name: "one pod of two Jobs, and a second one",
            play: |run| {
                jobs(run, json!({"app": "etl"}));
                run.budget(json!({"selector": {"matchLabels": {"app": "etl"}}, "maxUnavailable": 1}))
                    .at(200.0);
                run.evict("one-0").evict("two-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a suspended Job wants nothing",
            play: |run| {
                jobs(run, json!({"app": "etl"}));
                run.budget(json!({"selector": {"matchLabels": {"app": "etl"}}, "maxUnavailable": 1}))
                    .at(200.0);
                run.edit(JOBS, "one", |job| job["spec"]["suspend"] = json!(true));
                run.at(201.0).delete(JOB_CONTROLLER, "one-0").delete(JOB_CONTROLLER, "one-1");
                run.at(203.0).remove("pods", "one-0").remove("pods", "one-1").at(400.0).evict("two-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a work queue in which a pod has succeeded wants only the pods that are left",
            play: |run| {
                jobs(run, json!({"app": "etl"}));
                run.edit(JOBS, "one", |job| {
                    job["spec"]["completions"] = json!(null);
                    job["status"] = json!({"succeeded": 1, "active": 1});
                });
                finish(run, "one-0", "Succeeded");
                run.budget(json!({"selector": {"matchLabels": {"app": "etl"}}, "maxUnavailable": 1}))
                    .at(400.0);
                run.evict("one-1").evict("two-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a Job may delete its pods for a reason that it states only later",
            play: |run| {
                jobs(run, json!({"app": "etl"}));
                run.budget(json!({"selector": {"matchLabels": {"app": "etl"}}, "maxUnavailable": 1,
                    "operations": ["Evict", "Delete"]}))
                    .at(200.0);
                run.ready("two-0", false).at(400.0);
                run.delete(JOB_CONTROLLER, "one-0").delete(JOB_CONTROLLER, "one-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a Job whose pods are gone is still expected while it wants pods",
            play: |run| {
                jobs(run, json!({"app": "etl"}));
                run.budget(json!({"selector": {"matchLabels": {"app": "etl"}}, "maxUnavailable": 2}))
                    .at(200.0);
                run.evict("one-0").evict("one-1").at(202.0).remove("pods", "one-0").remove("pods", "one-1");
                run.at(600.0).evict("two-0");
            },
            violations: 1,
            judged: 3,
        },
    ]);
}

#[test]
fn groups_by_owner_are_those_of_the_owner() {
    play_all(&[
        Scenario {
            name: "a pod of another owner's group",
            play: |run| {
                jobs(run, json!({"app": "etl"}));
                run.budget(by_owner()).at(200.0).evict("one-0").evict("two-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "an owner of the same name replaces the group of the one that is gone",
            play: |run| {
                jobs(run, json!({"app": "etl"}));
                run.budget(by_owner()).at(200.0);
                for number in 0..2 {
                    finish(run, &format!("one-{number}"), "Failed");
                }
                run.at(300.0).remove("pods", "one-0").remove("pods", "one-1").remove(JOBS, "one");
                run.at(310.0).put(JOBS, json!({"metadata": {"name": "one"}, "spec": {"parallelism": 2}}));
                for number in 2..4 {
                    run.owned(&format!("one-{number}"), json!({"app": "etl"}), (JOBS, "Job", "one"));
                }
                run.at(600.0).evict("two-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a group by owner whose pods are gone stays expected",
            play: |run| {
                jobs(run, json!({"app": "etl"}));
                run.budget(by_owner()).at(200.0);
                for number in 0..2 {
                    finish(run, &format!("one-{number}"), "Failed");
                }
                run.at(300.0).remove("pods", "one-0").remove("pods", "one-1").at(600.0).evict("two-0");
            },
            violations: 1,
            judged: 1,
        },
    ]);
}

fn by_owner() -> Value {
    json!({"selector": {"matchLabels": {"app": "etl"}}, "maxUnavailable": 1, "podGroupPolicy":
        {"groupOwner": {"apiVersion": "batch/v1", "kind": "Job"}, "minReadyReplicas": 2}})
}

/// A Deployment of three, and two pods without a controller, all of which but one must stay.
fn beside(run: &mut Run) -> &mut Run {
    run.deployment("web", 3).pods("web", 0..3);
    run.bare("alone-0", json!({"app": "web"})).bare("alone-1", json!({"app": "web"}));
    run.budget(json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 4, "operations": ["Evict", "Delete"]}))
        .at(200.0)
}

#[test]
fn a_controller_leaves_what_workloads_want_and_the_pods_without_a_controller() {
    play_all(&[
        Scenario {
            name: "a scale-down beside healthy pods",
            play: |run| {
                beside(run).scale("deployments.apps", "web", 1).scale("replicasets.apps", "web-rs", 1);
                run.at(400.0).delete(RS_CONTROLLER, "web-0").delete(RS_CONTROLLER, "web-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a scale-down while a pod without a controller is down",
            play: |run| {
                beside(run).scale("deployments.apps", "web", 1).scale("replicasets.apps", "web-rs", 1);
                run.ready("alone-0", false).at(400.0);
                run.delete(RS_CONTROLLER, "web-0").delete(RS_CONTROLLER, "web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "the same after that pod was evicted: it is not wanted any more",
            play: |run| {
                beside(run).scale("deployments.apps", "web", 1).scale("replicasets.apps", "web-rs", 1);
                run.at(400.0).evict("alone-0").at(402.0).remove("pods", "alone-0");
                run.at(600.0).delete(RS_CONTROLLER, "web-0").delete(RS_CONTROLLER, "web-1");
            },
            violations: 0,
            judged: 3,
        },
    ]);
}

#[test]
fn a_template_counts_only_for_a_kind_that_servers_watch() {
    play_all(&[
        Scenario {
            name: "a custom kind whose template nothing is known about, without pods",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3);
                fleet_of_three(run, "red");
                run.budget(json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}))
                    .at(200.0);
                run.evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "the same kind after it had pods",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3);
                fleet_of_three(run, "red");
                for number in 0..3 {
                    run.owned(&format!("red-{number}"), json!({"app": "web"}), (FLEETS, "Fleet", "red"));
                }
                run.budget(json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}))
                    .at(200.0);
                for number in 0..3 {
                    run.remove("pods", &format!("red-{number}"));
                }
                run.at(400.0).evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a Job without pods, while no pod has a Job",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3);
                let template = json!({"metadata": {"labels": {"app": "web"}}});
                run.put(
                    JOBS,
                    json!({"metadata": {"name": "etl"}, "spec": {"parallelism": 3, "template": template}}),
                );
                run.budget(json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}))
                    .at(200.0);
                run.evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
    ]);
}

fn fleet_of_three(run: &mut Run, name: &str) {
    let template = json!({"metadata": {"labels": {"app": "web"}}});
    run.put(
        FLEETS,
        json!({"kind": "Fleet", "metadata": {"name": name}, "spec": {"replicas": 3, "template": template}}),
    );
}

/// Three shards of one pod each, and a Deployment of three whose pods have no shard.
fn singles(run: &mut Run) -> &mut Run {
    for shard in ["a", "b", "c"] {
        run.bare(&format!("{shard}-0"), json!({"app": "web", "shard": shard}));
    }
    run.deployment("web", 3).pods("web", 0..3);
    run.budget(json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1,
        "podGroupPolicy": {"groupLabelKey": "shard"}}))
        .at(200.0)
}

#[test]
fn pods_without_a_group_are_counted_one_by_one() {
    play_all(&[
        Scenario {
            name: "one pod without a group beside one group",
            play: |run| {
                singles(run).evict("web-0").evict("a-0");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a second pod without a group",
            play: |run| {
                singles(run).evict("web-0").evict("web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a pod without a controller stands in for one of them",
            play: |run| {
                singles(run).bare("alone", json!({"app": "web"})).evict("web-0").evict("web-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a missing pod without a group is expected",
            play: |run| {
                singles(run).scale("deployments.apps", "web", 4).at(600.0).evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
    ]);
}

#[test]
fn a_pod_that_has_ended_is_in_the_way_of_none() {
    let mut run = Run::default();
    singles(&mut run);
    // A pod of the Deployment has failed, and was replaced.
    finish(&mut run, "web-0", "Failed");
    run.pods("web", 3..4).edit(DBU, "b", |budget| budget["status"]["protocol"] = json!(1));
    run.at(500.0).denied("web-1");
    let report = run.check();
    assert_eq!(report.stuck.len(), 1, "{report}");
    // While a pod is missing the denial is right.
    run.remove("pods", "web-3").at(900.0).denied("web-1");
    let report = run.check();
    assert_eq!(report.stuck.len(), 1, "{report}");
}

#[test]
fn the_claim_of_a_group_does_not_explain_the_denial_of_a_pod_without_a_group() {
    let mut run = Run::default();
    singles(&mut run);
    let group = run.uid("pods", "a-0");
    run.at(380.0).ledger().claim(&group, "a-0").at(400.0).denied("web-1");
    let report = run.check();
    assert_eq!(report.stuck.len(), 1, "{report}");
}
