//! Budgets that count pods.

use serde_json::json;

use crate::run::{Run, Scenario, play_all};

/// A Deployment of three under a budget that keeps two.
pub(crate) fn three(run: &mut Run) -> &mut Run {
    run.deployment("web", 3).pods("web", 0..3).budget(keeps(2)).at(200.0)
}

pub(crate) fn keeps(min: u32) -> serde_json::Value {
    json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": min})
}

fn loses(max: serde_json::Value) -> serde_json::Value {
    json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": max})
}

/// A Job with five completions, and two pods that are ready.
fn job_of_five<'a>(run: &'a mut Run, mode: &str, failed: &str) -> &'a mut Run {
    let spec = json!({"parallelism": 5, "completions": 5, "completionMode": mode, "backoffLimitPerIndex": 0});
    let job = json!({"metadata": {"name": "j"}, "spec": spec, "status": {"failedIndexes": failed}});
    run.put("jobs.batch", job);
    for name in ["j-1", "j-4"] {
        run.owned(name, json!({"app": "web"}), ("jobs.batch", "Job", "j"));
    }
    run
}

#[test]
fn an_admission_beyond_the_pods_that_may_be_down_is_a_violation() {
    play_all(&[
        Scenario {
            name: "exactly what is allowed",
            play: |run| {
                three(run).evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "one pod too many",
            play: |run| {
                three(run).evict("web-0").evict("web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a concurrent pair",
            play: |run| {
                three(run);
                let one = run.receive("alice", "create", "eviction", "web-0");
                let two = run.receive("bob", "create", "eviction", "web-1");
                run.terminate("web-0").terminate("web-1").done(two).done(one);
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "the next one after the first is replaced and ready",
            play: |run| {
                three(run).evict("web-0").at(210.0).remove("pods", "web-0");
                run.pods("web", 3..4).at(211.0).evict("web-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "the next one while the replacement is not ready",
            play: |run| {
                three(run).evict("web-0").at(210.0).remove("pods", "web-0");
                run.pods("web", 3..4).ready("web-3", false).at(300.0).evict("web-1");
            },
            // The replacement was ready for an instant, 90 s before.
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "the same, long after that instant",
            play: |run| {
                three(run).evict("web-0").at(210.0).remove("pods", "web-0");
                run.pods("web", 3..4).ready("web-3", false).at(302.0).evict("web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a crash 60 s ago may not have been seen",
            play: |run| {
                three(run).ready("web-0", false).at(260.0).evict("web-1");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a crash 91 s ago was seen",
            play: |run| {
                three(run).ready("web-0", false).at(291.0).evict("web-1");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a crash long ago that was made good",
            play: |run| {
                three(run).ready("web-0", false).at(250.0).ready("web-0", true);
                run.at(291.0).evict("web-1");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "an eviction 60 s ago was seen: servers know what they admit",
            play: |run| {
                three(run).evict("web-0").at(260.0).evict("web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "an unready pod costs nothing",
            play: |run| {
                three(run).ready("web-0", false).at(400.0).evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a pod that became unready while the request was under way costs nothing",
            play: |run| {
                three(run).ready("web-0", false).at(400.0);
                let open = run.receive("alice", "create", "eviction", "web-1");
                run.ready("web-1", false).at(400.5).ready("web-1", true).terminate("web-1").done(open);
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a Pending pod costs nothing",
            play: |run| {
                three(run).ready("web-0", false).at(400.0);
                run.edit("pods", "web-1", |pod| pod["status"] = json!({"phase": "Pending"})).evict("web-1");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "two evictions of one pod cost as much as one",
            play: |run| {
                three(run);
                let one = run.receive("alice", "create", "eviction", "web-0");
                let two = run.receive("bob", "create", "eviction", "web-0");
                run.terminate("web-0").done(two).done(one);
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "scaled from 3 to 10 less than 90 s ago",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3).budget(loses(json!(1))).at(200.0);
                run.scale("deployments.apps", "web", 10).at(289.0).evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "scaled and rolled out less than 90 s ago: the Deployment may be seen later than its new ReplicaSet",
            play: |run| {
                three(run);
                run.scale("deployments.apps", "web", 10).at(250.0);
                let mut set = run.get("replicasets.apps", "web-rs");
                set["metadata"]["name"] = json!("web-2");
                set["metadata"]["uid"] = json!("web-2");
                run.put("replicasets.apps", set);
                let owner = ("replicasets.apps", "ReplicaSet", "web-2");
                run.owned("web-2-0", json!({"app": "web"}), owner).at(289.0).evict("web-2-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "scaled from 3 to 10 more than 90 s ago",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3).budget(loses(json!(1))).at(200.0);
                run.scale("deployments.apps", "web", 10).at(291.0).evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "maxUnavailable 34% of 3 rounds up to 2",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3).budget(loses(json!("34%"))).at(200.0);
                run.evict("web-0").evict("web-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "maxUnavailable 33% of 3 rounds up to 1",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3).budget(loses(json!("33%"))).at(200.0);
                run.evict("web-0").evict("web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "minAvailable 50% of 3 rounds up to 2",
            play: |run| {
                let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": "50%"});
                run.deployment("web", 3).pods("web", 0..3).budget(spec).at(200.0);
                run.evict("web-0").evict("web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "both numbers hold",
            play: |run| {
                let mut spec = loses(json!(2));
                spec["minAvailable"] = json!(2);
                run.deployment("web", 3).pods("web", 0..3).budget(spec).at(200.0);
                run.evict("web-0").evict("web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a targetRef reaches pods through their ReplicaSet",
            play: |run| {
                let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
                run.deployment("web", 3).pods("web", 0..3).deployment("db", 1).pods("db", 0..1);
                run.budget(json!({"targetRef": target, "maxUnavailable": 1})).at(200.0);
                run.evict("db-0").evict("web-0").evict("web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a Deployment without pods stays expected",
            play: |run| {
                let spec = json!({"selector": {}, "maxUnavailable": 1});
                run.deployment("a", 1).pods("a", 0..1).deployment("b", 1).pods("b", 0..1).budget(spec);
                run.at(200.0).evict("a-0").at(201.0).remove("pods", "a-0").at(400.0).evict("b-0");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a Deployment that is gone is not expected",
            play: |run| {
                let spec = json!({"selector": {}, "maxUnavailable": 1});
                run.deployment("a", 1).pods("a", 0..1).deployment("b", 1).pods("b", 0..1).budget(spec);
                run.at(200.0).evict("a-0").at(201.0).remove("pods", "a-0");
                run.remove("deployments.apps", "a").remove("replicasets.apps", "a-rs").at(400.0).evict("b-0");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a Job wants what it has left to do",
            play: |run| {
                run.put(
                    "jobs.batch",
                    json!({"metadata": {"name": "j"},
                    "spec": {"parallelism": 3, "completions": 5}, "status": {"succeeded": 3}}),
                );
                for name in ["j-0", "j-1"] {
                    run.owned(name, json!({"app": "web"}), ("jobs.batch", "Job", "j"));
                }
                run.budget(loses(json!(1))).at(200.0).evict("j-0").evict("j-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a Job does not want its failed indexes",
            play: |run| {
                job_of_five(run, "Indexed", "0,2-3").budget(loses(json!(1)));
                run.at(200.0).evict("j-1").evict("j-4");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a Job that was made smaller has failed indexes that do not count",
            play: |run| {
                job_of_five(run, "Indexed", "0-2,5,8-9").budget(loses(json!(1)));
                run.at(200.0).evict("j-1").evict("j-4");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a Job wants all indexes if it is not clear which have failed",
            play: |run| {
                job_of_five(run, "Indexed", "0,3-2").budget(loses(json!(4)));
                run.at(200.0).evict("j-1").evict("j-4");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "no index fails in a Job without indexes",
            play: |run| {
                job_of_five(run, "NonIndexed", "0,2-3").budget(loses(json!(4)));
                run.at(200.0).evict("j-1").evict("j-4");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a Job that is suspended wants nothing",
            play: |run| {
                run.put(
                    "jobs.batch",
                    json!({"metadata": {"name": "j"}, "spec": {"parallelism": 2, "suspend": true}}),
                );
                for name in ["j-0", "j-1"] {
                    run.owned(name, json!({"app": "web"}), ("jobs.batch", "Job", "j"));
                }
                run.budget(loses(json!(1))).at(200.0).evict("j-0").evict("j-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a target that is being deleted wants nothing",
            play: |run| {
                let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
                run.deployment("web", 3).pods("web", 0..3);
                run.budget(json!({"targetRef": target, "maxUnavailable": 1})).at(200.0);
                run.edit("deployments.apps", "web", |it| {
                    it["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
                });
                run.at(400.0).evict("web-0").evict("web-1");
            },
            violations: 0,
            judged: 2,
        },
    ]);
}

#[test]
fn a_violation_says_what_happened() {
    let mut run = Run::default();
    three(&mut run).evict("web-0").at(210.0).evict("web-1");
    let report = run.check();
    let violation = report.violations.first().unwrap().to_string();
    assert_eq!(
        violation,
        "at 210.003s: alice evicted shop/web-1, but DisruptionBudget shop/b did not allow it: since 120.000s, \
         without this pod, at most 1 pod was healthy at once (at 210.001s), and at least 2 had to be (3 expected, \
         at 210.001s); outstanding: web-0 since 200.001s (alice evicted)"
    );
    assert_eq!(
        report.summary.to_string(),
        "admissions: 2, of which judged: 2; denials: 0; violations: 1; stuck: 0"
    );
}
