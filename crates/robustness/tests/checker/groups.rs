//! Budgets that count groups.

use serde_json::{Value, json};

use crate::run::{DBU, RS_CONTROLLER, Run, Scenario, play_all};

const LWS: &str = "leaderworkersets.leaderworkerset.x-k8s.io";
const OWN_WORKLOADS: &str = "workloads.scheduling.quorate.dev";
const POD_GROUPS: &str = "podgroups.scheduling.k8s.io";

/// Shards a, b and c of two pods, of which at most one may be down. A shard needs both pods.
pub(crate) fn shards(run: &mut Run) -> &mut Run {
    for shard in ["a", "b", "c"] {
        for number in 0..2 {
            run.bare(&format!("{shard}-{number}"), json!({"app": "db", "shard": shard}));
        }
    }
    run.budget(json!({"selector": {"matchLabels": {"app": "db"}}, "maxUnavailable": 1,
        "podGroupPolicy": {"groupLabelKey": "shard", "minReadyReplicas": 2}}))
        .at(200.0)
}

fn lws(run: &mut Run, name: &str, replicas: u32, restart: &str) {
    let template = json!({"metadata": {"labels": {"app": "llm"}}});
    run.put(
        LWS,
        json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "leaderWorkerTemplate":
            {"size": 2, "restartPolicy": restart, "workerTemplate": template}}}),
    );
    for group in 0..replicas {
        for worker in 0..2 {
            let labels = json!({"app": "llm", "leaderworkerset.sigs.k8s.io/name": name,
                "leaderworkerset.sigs.k8s.io/group-index": group.to_string()});
            let pod = format!("{name}-{group}-{worker}");
            run.bare(&pod, labels);
            run.edit("pods", &pod, |pod| {
                pod["metadata"]["annotations"] = json!({"leaderworkerset.sigs.k8s.io/size": "2"});
            });
        }
    }
}

fn by_index(max: u32) -> Value {
    json!({"selector": {"matchLabels": {"app": "llm"}}, "maxUnavailable": max,
        "podGroupPolicy": {"groupLabelKey": "leaderworkerset.sigs.k8s.io/group-index", "minReadyReplicas": 1}})
}

/// A Workload of Quorate's own kind with pod groups of one replica and one pod each.
fn workload(run: &mut Run) -> &mut Run {
    let groups: Vec<Value> = ["ps", "worker", "chief"]
        .iter()
        .map(|name| json!({"name": name, "replicas": 1, "policy": {"gang": {"minCount": 1}}}))
        .collect();
    run.put(OWN_WORKLOADS, json!({"metadata": {"name": "train"}, "spec": {"podGroups": groups}}));
    for group in ["ps", "worker", "chief"] {
        run.bare(
            &format!("{group}-0"),
            json!({"app": "train", "quorate.dev/workload": "train", "quorate.dev/pod-group": group,
                "quorate.dev/pod-group-replica": "0"}),
        );
    }
    run.budget(json!({"selector": {"matchLabels": {"app": "train"}}, "maxUnavailable": 1,
        "budgetScope": "Workload"}))
        .at(200.0)
}

/// PodGroups g0, g1 and g2 of a template, with three pods each.
fn pod_groups(run: &mut Run, minimum: u32, mode: Value) {
    for group in 0..3 {
        let name = format!("g{group}");
        run.put(
            POD_GROUPS,
            json!({"metadata": {"name": name}, "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}},
                "disruptionMode": mode, "workloadRef": {"workloadName": "w", "templateName": "t"}}}),
        );
        for number in 0..3 {
            let pod = format!("{name}-{number}");
            run.bare(&pod, json!({"app": "gang"}));
            run.edit("pods", &pod, |pod| pod["spec"]["schedulingGroup"] = json!({"podGroupName": name}));
        }
    }
    run.budget(json!({"selector": {"matchLabels": {"app": "gang"}}, "maxUnavailable": 1,
        "budgetScope": "PodGroup"}))
        .at(200.0);
}

/// A fourth pod group, which has a pod for ten seconds only.
fn short_lived(run: &mut Run) {
    run.edit(OWN_WORKLOADS, "train", |it| {
        let group = json!({"name": "eval", "replicas": 1, "policy": {"gang": {"minCount": 1}}});
        it["spec"]["podGroups"].as_array_mut().unwrap().push(group);
    });
    run.bare(
        "eval-0",
        json!({"app": "train", "quorate.dev/workload": "train", "quorate.dev/pod-group": "eval",
            "quorate.dev/pod-group-replica": "0"}),
    );
    run.at(210.0).evict("eval-0").at(211.0).remove("pods", "eval-0");
}

#[test]
fn an_admission_beyond_the_groups_that_may_be_down_is_a_violation() {
    play_all(&[
        Scenario {
            name: "a group that its LeaderWorkerSet does not want any more goes, whatever else is down",
            play: |run| {
                lws(run, "llm", 3, "");
                run.budget(by_index(1)).at(200.0).ready("llm-0-0", false);
                run.scale(LWS, "llm", 2).at(400.0).evict("llm-2-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a group that its LeaderWorkerSet still wants does not go while another is down",
            play: |run| {
                lws(run, "llm", 3, "");
                run.budget(by_index(1)).at(200.0).ready("llm-0-0", false);
                run.at(400.0).evict("llm-2-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a group is charged once, and its second pod is free",
            play: |run| {
                shards(run).evict("a-0").evict("a-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a second group",
            play: |run| {
                shards(run).evict("a-0").evict("b-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a pod of a group that is down already",
            play: |run| {
                shards(run).ready("a-0", false).ready("b-0", false).at(400.0).evict("a-1").evict("b-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a claim of a group that has recovered does not make its other pods free",
            play: |run| {
                shards(run).ready("b-0", false);
                let (first, second) = (run.uid("pods", "a-0"), run.uid("pods", "a-1"));
                run.ledger().claim(&first, "a-0").claim(&second, "a-1");
                run.at(400.0).evict("a-1");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a group with a pod to spare",
            play: |run| {
                shards(run).bare("b-2", json!({"app": "db", "shard": "b"})).evict("a-0").evict("b-0");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a group with a pod to spare, twice",
            play: |run| {
                shards(run).bare("b-2", json!({"app": "db", "shard": "b"})).evict("a-0");
                run.evict("b-0").evict("b-1");
            },
            violations: 1,
            judged: 3,
        },
        Scenario {
            name: "the next group after the first is whole again",
            play: |run| {
                shards(run).evict("a-0").at(201.0).remove("pods", "a-0");
                run.bare("a-0", json!({"app": "db", "shard": "a"})).evict("b-0");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "an observed group that vanished stays expected",
            play: |run| {
                shards(run).evict("a-0").evict("a-1").at(201.0).remove("pods", "a-0").remove("pods", "a-1");
                run.at(800.0).evict("b-0");
            },
            violations: 1,
            judged: 3,
        },
        Scenario {
            name: "an observed group that comes back with an unready pod stays expected",
            play: |run| {
                shards(run).evict("a-0").evict("a-1").at(201.0).remove("pods", "a-0").remove("pods", "a-1");
                run.at(230.0)
                    .put("pods", json!({"metadata": {"name": "a-9", "labels": {"app": "db", "shard": "a"}}}));
                run.at(240.0).evict("b-0");
            },
            violations: 1,
            judged: 3,
        },
        Scenario {
            name: "an observed group stays expected while the budget is written",
            play: |run| {
                shards(run).evict("a-0").evict("a-1").at(201.0).remove("pods", "a-0").remove("pods", "a-1");
                run.at(300.0).respec(|spec| spec["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow"));
                run.enforce(DBU).at(800.0).evict("b-0");
            },
            violations: 1,
            judged: 3,
        },
        Scenario {
            name: "an observed group is forgotten when the budget covers other pods",
            play: |run| {
                shards(run).evict("a-0").evict("a-1").at(201.0).remove("pods", "a-0").remove("pods", "a-1");
                run.at(300.0).respec(|spec| spec["selector"] = json!({})).enforce(DBU).at(800.0).evict("b-0");
            },
            violations: 0,
            judged: 3,
        },
        Scenario {
            name: "an observed group is forgotten after 15 minutes",
            play: |run| {
                shards(run).evict("a-0").evict("a-1").at(201.0).remove("pods", "a-0").remove("pods", "a-1");
                run.at(1200.0).evict("b-0");
            },
            violations: 0,
            judged: 3,
        },
        Scenario {
            name: "a group that has completed is neither expected nor down",
            play: |run| {
                shards(run);
                for pod in ["a-0", "a-1"] {
                    run.edit("pods", pod, |pod| pod["status"] = json!({"phase": "Succeeded"}));
                    run.remove("pods", pod);
                }
                run.at(400.0).evict("b-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "expectedReplicas",
            play: |run| {
                shards(run).respec(|spec| spec["expectedReplicas"] = json!(4)).enforce(DBU);
                run.evict("a-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "pods without a group are counted by themselves",
            play: |run| {
                shards(run).bare("x", json!({"app": "db"})).bare("y", json!({"app": "db"})).at(400.0);
                run.evict("a-0").evict("x").evict("y");
            },
            violations: 1,
            judged: 3,
        },
        Scenario {
            name: "groups by owner",
            play: |run| {
                for job in ["one", "two"] {
                    run.put("jobgroups.batch.example.com", json!({"metadata": {"name": job}}));
                    let uid = run.uid("jobgroups.batch.example.com", job);
                    run.bare(&format!("{job}-0"), json!({"app": "training"}));
                    run.edit("pods", &format!("{job}-0"), |pod| {
                        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch.example.com/v2",
                            "kind": "JobGroup", "name": job, "uid": uid}]);
                    });
                }
                run.budget(json!({"selector": {}, "maxUnavailable": 1, "podGroupPolicy":
                    {"groupOwner": {"apiVersion": "batch.example.com/v1", "kind": "JobGroup"}}}));
                run.at(200.0).evict("one-0").evict("two-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a LeaderWorkerSet: a group needs all its pods, whatever minReadyReplicas says",
            play: |run| {
                lws(run, "llm", 3, "RecreateGroupOnPodRestart");
                run.budget(by_index(1)).at(200.0).evict("llm-0-1").evict("llm-1-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a LeaderWorkerSet whose groups do not fall whole follows minReadyReplicas",
            play: |run| {
                lws(run, "llm", 3, "None");
                run.budget(by_index(1)).at(200.0).evict("llm-0-1").evict("llm-1-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "two LeaderWorkerSets share the indexes, not the groups",
            play: |run| {
                lws(run, "x", 1, "RecreateGroupOnPodRestart");
                lws(run, "y", 1, "RecreateGroupOnPodRestart");
                run.budget(by_index(1)).at(200.0).evict("x-0-0").evict("y-0-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a LeaderWorkerSet without pods stays expected",
            play: |run| {
                lws(run, "x", 1, "RecreateGroupOnPodRestart");
                lws(run, "y", 1, "RecreateGroupOnPodRestart");
                run.budget(by_index(1)).at(200.0).evict("x-0-0").evict("x-0-1").at(201.0);
                run.remove("pods", "x-0-0").remove("pods", "x-0-1").at(3000.0).evict("y-0-0");
            },
            violations: 1,
            judged: 3,
        },
        Scenario {
            name: "a LeaderWorkerSet as target",
            play: |run| {
                lws(run, "llm", 3, "RecreateGroupOnPodRestart");
                let mut spec = by_index(1);
                spec.as_object_mut().unwrap().remove("selector");
                spec["targetRef"] = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "llm"});
                run.budget(spec).at(200.0).evict("llm-0-1").evict("llm-0-0").evict("llm-1-1");
            },
            violations: 1,
            judged: 3,
        },
        Scenario {
            name: "a scale-down of a LeaderWorkerSet by its controllers",
            play: |run| {
                lws(run, "llm", 3, "RecreateGroupOnPodRestart");
                let mut spec = by_index(0);
                spec["operations"] = json!(["Evict", "Delete"]);
                run.budget(spec).at(200.0).scale(LWS, "llm", 1).at(400.0);
                run.delete("system:serviceaccount:kube-system:statefulset-controller", "llm-2-0");
                run.delete("system:serviceaccount:kube-system:statefulset-controller", "llm-1-0");
                run.evict("llm-0-0");
            },
            violations: 1,
            judged: 3,
        },
        Scenario {
            name: "a Workload: one pod group may be down",
            play: |run| {
                workload(run).evict("ps-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a Workload: a pod group without pods stays expected",
            play: |run| {
                workload(run).evict("ps-0").at(201.0).remove("pods", "ps-0").at(900.0).evict("worker-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a Workload: a pod group that servers may have missed",
            play: |run| {
                workload(run);
                short_lived(run);
                run.at(400.0).evict("worker-0");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a Workload: a short-lived pod group that the status remembers",
            play: |run| {
                workload(run);
                short_lived(run);
                let uid = run.uid(OWN_WORKLOADS, "train");
                run.edit(DBU, "b", |it| it["status"]["sources"] = json!([{"uid": uid, "part": "eval"}]));
                run.at(400.0).evict("worker-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a Workload that is gone is not expected",
            play: |run| {
                workload(run).evict("ps-0").at(201.0).remove("pods", "ps-0");
                run.edit(OWN_WORKLOADS, "train", |it| {
                    it["spec"]["podGroups"].as_array_mut().unwrap().remove(0);
                });
                run.at(900.0).evict("worker-0");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a pod that names no workload counts as unhealthy",
            play: |run| {
                workload(run).bare("stray", json!({"app": "train"})).evict("ps-0").evict("stray");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "workloadRef of 1.35",
            play: |run| {
                run.put(
                    "workloads.scheduling.k8s.io",
                    json!({"metadata": {"name": "w"},
                    "spec": {"podGroups": [{"name": "g", "policy": {"gang": {"minCount": 1}}}]}}),
                );
                for replica in ["0", "1"] {
                    let name = format!("w-{replica}");
                    run.bare(&name, json!({"app": "gang"}));
                    run.edit("pods", &name, |pod| {
                        pod["spec"]["workloadRef"] =
                            json!({"name": "w", "podGroup": "g", "podGroupReplicaKey": replica});
                    });
                }
                run.budget(json!({"selector": {}, "maxUnavailable": 1, "budgetScope": "Workload"})).at(200.0);
                run.evict("w-0").evict("w-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "PodGroups have pods to spare",
            play: |run| {
                pod_groups(run, 2, json!({"single": {}}));
                run.evict("g0-0").evict("g1-0").evict("g1-1").evict("g1-2");
            },
            violations: 0,
            judged: 4,
        },
        Scenario {
            name: "PodGroups that fall whole have none to spare",
            play: |run| {
                pod_groups(run, 2, json!({"all": {}}));
                run.evict("g0-0").evict("g1-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a PodGroup has just gone: servers may count its pods and not expect it",
            play: |run| {
                pod_groups(run, 3, json!("Pod"));
                run.evict("g0-0").at(201.0).remove(POD_GROUPS, "g2").evict("g1-0");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a PodGroup less is desired once its object is gone",
            play: |run| {
                pod_groups(run, 3, json!("Pod"));
                for number in 0..3 {
                    run.remove("pods", &format!("g2-{number}"));
                }
                run.remove(POD_GROUPS, "g2").at(400.0).evict("g0-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a PodGroup that is there without pods is desired",
            play: |run| {
                pod_groups(run, 3, json!("Pod"));
                for number in 0..3 {
                    run.remove("pods", &format!("g2-{number}"));
                }
                run.at(400.0).evict("g0-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "PodGroups without a template count one by one",
            play: |run| {
                pod_groups(run, 3, json!("Pod"));
                for group in 0..3 {
                    run.edit(POD_GROUPS, &format!("g{group}"), |it| it["spec"]["workloadRef"] = json!(null));
                }
                run.at(400.0).evict("g0-0").evict("g1-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "PodGroups without pods stay expected",
            play: |run| {
                pod_groups(run, 1, json!("Pod"));
                run.evict("g0-0").evict("g0-1").evict("g0-2").at(201.0);
                run.remove("pods", "g0-0").remove("pods", "g0-1").remove("pods", "g0-2").at(1500.0);
                run.evict("g1-0").evict("g1-1").evict("g1-2");
            },
            violations: 1,
            judged: 6,
        },
        Scenario {
            name: "a minCount that was lowered less than 90 s ago, and raised again",
            play: |run| {
                pod_groups(run, 3, json!("Pod"));
                run.edit(POD_GROUPS, "g1", |it| {
                    it["spec"]["schedulingPolicy"]["gang"]["minCount"] = json!(2);
                });
                run.at(201.0);
                run.edit(POD_GROUPS, "g1", |it| {
                    it["spec"]["schedulingPolicy"]["gang"]["minCount"] = json!(3);
                });
                run.at(250.0).evict("g0-0").evict("g1-0").at(300.0).evict("g2-0");
            },
            violations: 1,
            judged: 3,
        },
        Scenario {
            name: "a group that was down until its minCount was lowered less than 90 s ago",
            play: |run| {
                pod_groups(run, 3, json!("Pod"));
                run.ready("g0-0", false).ready("g1-0", false).at(400.0);
                run.edit(POD_GROUPS, "g1", |it| {
                    it["spec"]["schedulingPolicy"]["gang"]["minCount"] = json!(2);
                });
                run.at(450.0).evict("g1-1");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a group that a StatefulSet ends by scaling down",
            play: |run| {
                for shard in ["a", "b"] {
                    run.put(
                        "statefulsets.apps",
                        json!({"metadata": {"name": shard}, "spec": {"replicas": 1}}),
                    );
                    let labels = json!({"app": "db", "shard": shard});
                    run.owned(&format!("{shard}-0"), labels, ("statefulsets.apps", "StatefulSet", shard));
                }
                run.budget(json!({"selector": {}, "maxUnavailable": 0, "operations": ["Delete"],
                    "podGroupPolicy": {"groupLabelKey": "shard"}}));
                run.at(200.0).scale("statefulsets.apps", "a", 0).at(201.0);
                run.delete("system:serviceaccount:kube-system:statefulset-controller", "a-0");
                run.delete(RS_CONTROLLER, "b-0");
            },
            violations: 1,
            judged: 2,
        },
    ]);
}
