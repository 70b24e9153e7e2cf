//! What does not go on although nothing is in its way.

use serde_json::json;

use crate::run::{DBU, Run};

/// A Deployment of three under a budget that keeps two.
fn three(run: &mut Run) -> &mut Run {
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2});
    run.deployment("web", 3).pods("web", 0..3).budget(spec)
}

fn claim(run: &mut Run, operation: &str) {
    let uid = run.uid("pods", "web-2");
    run.edit(DBU, "b", |budget| {
        budget["status"]["claims"] =
            json!({uid: {"pod": "web-2", "tokens": {"t1": {"operation": operation}}}});
    });
}

/// A scenario, and a word of each thing that is stuck.
type Case = (&'static str, fn(&mut Run), &'static [&'static str]);

#[test]
fn a_denial_or_budget_that_nothing_explains_is_stuck() {
    let cases: &[Case] = &[
        (
            "a denial of what was allowed for three minutes",
            |run| {
                three(run).at(200.0).denied("web-0");
            },
            &["alice was denied shop/web-0"],
        ),
        (
            "a denial in the first three minutes",
            |run| {
                three(run).at(170.0).denied("web-0");
            },
            &[],
        ),
        (
            "a denial with a fault in the last three minutes",
            |run| {
                three(run).fault(10, 50).at(200.0).denied("web-0");
            },
            &[],
        ),
        (
            "a denial with a fault before the last three minutes",
            |run| {
                three(run).fault(10, 15).at(200.0).denied("web-0");
            },
            &["alice was denied shop/web-0"],
        ),
        (
            "a denial because a pod was down for a moment",
            |run| {
                three(run).at(100.0).ready("web-2", false).at(101.0).ready("web-2", true);
                run.at(200.0).denied("web-0");
            },
            &[],
        ),
        (
            "a denial because of a claim",
            |run| {
                three(run).at(100.0);
                claim(run, "Evict");
                run.at(200.0).denied("web-0");
            },
            &[],
        ),
        (
            "a denial while another request takes the room",
            |run| {
                let other = three(run).at(200.0).receive("bob", "create", "eviction", "web-2");
                run.denied("web-0");
                claim(run, "Evict");
                run.terminate("web-2").done(other);
            },
            &[],
        ),
        (
            "a denial while another request fails",
            |run| {
                let mut other = three(run).at(200.0).receive("bob", "create", "eviction", "web-2");
                other.request.code = 409;
                run.denied("web-0").done(other);
            },
            &["alice was denied shop/web-0"],
        ),
        (
            "a denial while another request takes a part of the room",
            |run| {
                three(run).respec(|spec| spec["minAvailable"] = json!(1)).enforce(DBU);
                let other = run.at(200.0).receive("bob", "create", "eviction", "web-2");
                run.denied("web-0");
                claim(run, "Evict");
                run.terminate("web-2").done(other);
            },
            &["shop/b had room for 2"],
        ),
        (
            "a denial after an edit",
            |run| {
                three(run).at(100.0).respec(|spec| spec["minAvailable"] = json!(1)).enforce(DBU);
                run.at(200.0).denied("web-0");
            },
            &[],
        ),
        (
            "a denial of a pod that is not healthy",
            |run| {
                three(run).ready("web-0", false).at(200.0).denied("web-0");
            },
            &[],
        ),
        (
            "a denial that a budget of unknown size explains",
            |run| {
                three(run).respec(|spec| *spec = json!({"selector": {}, "maxUnavailable": 1})).enforce(DBU);
                run.bare("stray", json!({})).at(200.0).denied("web-0");
            },
            &[],
        ),
        (
            "a denial under a budget of a number, which needs no sizes",
            |run| {
                let spec = json!({"selector": {}, "minAvailable": 1});
                run.bare("one", json!({})).bare("two", json!({})).budget(spec).at(200.0).denied("one");
            },
            &["shop/b had room for 1"],
        ),
        (
            "a denial that no budget explains",
            |run| {
                run.bare("stray", json!({})).at(200.0).denied("stray");
            },
            &["no budget covered the pod"],
        ),
        (
            "a denial of a group that may go",
            |run| {
                for shard in ["a", "b", "c"] {
                    run.bare(shard, json!({"shard": shard}));
                }
                run.budget(json!({"selector": {}, "maxUnavailable": 1, "podGroupPolicy": {"groupLabelKey": "shard"}}));
                run.at(200.0).denied("a");
            },
            &["shop/b had room for 1"],
        ),
        (
            "a denial because a group that one source does not want replaces none of another",
            |run| {
                let parts = json!([{"name": "worker", "replicas": 1, "policy": {"gang": {"minCount": 1}}},
                    {"name": "eval", "replicas": 2, "policy": {"gang": {"minCount": 1}}}]);
                run.put(
                    "workloads.scheduling.quorate.dev",
                    json!({"metadata": {"name": "train"}, "spec": {"podGroups": parts}}),
                );
                for (name, part, replica) in
                    [("w0", "worker", "0"), ("e0", "eval", "0"), ("w1", "worker", "1")]
                {
                    run.bare(
                        name,
                        json!({"quorate.dev/workload": "train", "quorate.dev/pod-group": part,
                        "quorate.dev/pod-group-replica": replica}),
                    );
                }
                run.budget(json!({"selector": {}, "maxUnavailable": 1, "budgetScope": "Workload"}));
                run.at(200.0).denied("w0");
            },
            &[],
        ),
        (
            "a denial because a surge group buys nothing",
            |run| {
                run.put(
                    "leaderworkersets.leaderworkerset.x-k8s.io",
                    json!({"metadata": {"name": "x"}, "spec": {"replicas": 2}}),
                );
                for index in ["0", "1", "2"] {
                    run.bare(
                        index,
                        json!({"leaderworkerset.sigs.k8s.io/name": "x",
                        "leaderworkerset.sigs.k8s.io/group-index": index}),
                    );
                }
                run.budget(json!({"selector": {}, "maxUnavailable": 0, "podGroupPolicy":
                    {"groupLabelKey": "leaderworkerset.sigs.k8s.io/group-index"}}));
                run.at(200.0).denied("0");
            },
            &[],
        ),
        (
            "a budget that is closed at the end",
            |run| {
                three(run).at(10.0).respec(|spec| spec["minAvailable"] = json!(1)).at(300.0);
            },
            &["DisruptionBudget shop/b is not Enforced"],
        ),
        (
            "a budget that is closed at the end, soon after a fault",
            |run| {
                three(run).at(10.0).respec(|spec| spec["minAvailable"] = json!(1)).fault(50, 100).at(300.0);
            },
            &[],
        ),
        (
            "a budget that was edited lately",
            |run| {
                three(run).at(200.0).respec(|spec| spec["minAvailable"] = json!(1)).at(300.0);
            },
            &[],
        ),
        (
            "an invalid budget is closed for good",
            |run| {
                three(run).at(10.0).respec(|spec| *spec = json!({"selector": {}})).at(300.0);
            },
            &[],
        ),
        (
            "a claim that is old at the end",
            |run| {
                three(run).at(60.0);
                claim(run, "Evict");
                run.at(300.0);
            },
            &["holds token t1 of web-2 since 60.000s"],
        ),
        (
            "a claim that is young at the end",
            |run| {
                three(run).at(200.0);
                claim(run, "Evict");
                run.at(300.0);
            },
            &[],
        ),
        (
            "a claim of an update that is not over",
            |run| {
                three(run).at(60.0);
                claim(run, "Update");
                run.ready("web-2", false).at(300.0);
            },
            &[],
        ),
        (
            "a claim of an update that is over",
            |run| {
                three(run).at(60.0);
                claim(run, "Update");
                run.at(300.0);
            },
            &["holds token t1"],
        ),
        (
            "a claim of a relabel: it ends with the next change of the pod, whether that is ready or not",
            |run| {
                three(run).at(60.0);
                claim(run, "Update");
                run.edit(DBU, "b", |budget| {
                    let claims = budget["status"]["claims"].as_object_mut().unwrap();
                    for claim in claims.values_mut() {
                        claim["tokens"]["t1"]["target"] =
                            json!({"base": "7", "label": "quorate.dev/relabelled"});
                    }
                });
                run.ready("web-2", false).at(300.0);
            },
            &["holds token t1"],
        ),
        (
            "a claim that was there and is gone",
            |run| {
                three(run).at(60.0);
                claim(run, "Evict");
                run.at(70.0).edit(DBU, "b", |budget| budget["status"]["claims"] = json!({})).at(300.0);
            },
            &[],
        ),
    ];
    let mut failures = String::new();
    for (name, play, expected) in cases {
        let mut run = Run::default();
        play(&mut run);
        let report = run.check();
        let found: Vec<String> = report.stuck.iter().map(ToString::to_string).collect();
        let same = found.len() == expected.len()
            && found.iter().zip(*expected).all(|(found, expected)| found.contains(expected));
        if !same || !report.violations.is_empty() {
            failures += &format!("{name}: expected {expected:?}:\n{report}\n\n");
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

#[test]
fn denials_are_counted() {
    let mut run = Run::default();
    three(&mut run).at(10.0).denied("web-0").denied("web-1");
    assert_eq!(run.check().summary.denials, 2);
}
