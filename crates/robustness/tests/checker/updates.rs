//! PodUnavailableBudgets, updates in place, and probes.

use serde_json::{Value, json};

use crate::run::{DBU, PUB, Run, Scenario, play_all};

const KRUISE: &str = "system:serviceaccount:kruise-system:kruise-manager";

/// A Deployment of three under a PodUnavailableBudget that lets one go.
fn three(run: &mut Run) -> &mut Run {
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
    run.deployment("web", 3).pods("web", 0..3).kruise_budget(spec).at(200.0)
}

fn update(run: &mut Run, pod: &str, image: &str) {
    let open = run.receive(KRUISE, "patch", "", pod);
    run.edit("pods", pod, |pod| pod["spec"]["containers"][0]["image"] = json!(image)).done(open);
}

/// The kubelet has started the new container.
fn restart(run: &mut Run, pod: &str, image: &str) {
    run.edit("pods", pod, |pod| {
        let status = &mut pod["status"]["containerStatuses"][0];
        status["image"] = json!(image);
        status["containerID"] = json!(format!("c-{image}"));
    });
}

/// Sets the second condition of a pod.
fn condition(pod: &mut Value, kind: &str, status: &str) {
    let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
    conditions.truncate(1);
    conditions.push(json!({"type": kind, "status": status}));
}

fn gate(run: &mut Run, pod: &str, status: &str) {
    run.edit("pods", pod, |pod| {
        pod["spec"]["readinessGates"] = json!([{"conditionType": "InPlaceUpdateReady"}]);
        condition(pod, "InPlaceUpdateReady", status);
    });
}

/// The pod has a probe with this result.
fn probed(run: &mut Run, pod: &str, result: &str) {
    run.edit("pods", pod, |pod| {
        pod["metadata"]["annotations"] = json!({"quorate.dev/disruption-probe.main": "{}"});
        condition(pod, "Disruptable", result);
    });
}

fn label(pod: &mut Value) {
    pod["metadata"]["labels"]["unavailable-pod.kruise.io/maintenance"] = json!("true");
}

#[test]
fn an_update_counts_as_a_disruption_until_it_is_over() {
    play_all(&[
        Scenario {
            name: "an update, then a delete while the old container still runs and is ready",
            play: |run| {
                three(run);
                update(run, "web-0", "app:2");
                run.delete("bob", "web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "an update that is not over after minutes",
            play: |run| {
                three(run);
                update(run, "web-0", "app:2");
                run.at(500.0).delete("bob", "web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "an update that is over: new container, ready",
            play: |run| {
                three(run);
                update(run, "web-0", "app:2");
                restart(run, "web-0", "app:2");
                run.delete("bob", "web-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "an update whose new container is not ready",
            play: |run| {
                three(run);
                update(run, "web-0", "app:2");
                run.ready("web-0", false);
                restart(run, "web-0", "app:2");
                run.at(300.0).delete("bob", "web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "an update that was taken back",
            play: |run| {
                three(run);
                update(run, "web-0", "app:2");
                update(run, "web-0", "app:1");
                run.delete("bob", "web-1");
            },
            violations: 0,
            judged: 3,
        },
        Scenario {
            name: "two updates at once",
            play: |run| {
                three(run);
                update(run, "web-0", "app:2");
                update(run, "web-1", "app:2");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a second update of the same pod costs nothing more",
            play: |run| {
                three(run);
                update(run, "web-0", "app:2");
                update(run, "web-0", "app:3");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a change of an annotation is no update",
            play: |run| {
                three(run).evict("web-0");
                let open = run.receive(KRUISE, "patch", "", "web-1");
                run.edit("pods", "web-1", |pod| pod["metadata"]["annotations"] = json!({"a": "b"}))
                    .done(open);
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "an announcement is the disruption, and the update that follows is free",
            play: |run| {
                three(run);
                gate(run, "web-0", "True");
                gate(run, "web-1", "True");
                let open = run.receive(KRUISE, "patch", "status", "web-0");
                gate(run, "web-0", "False");
                run.done(open).ready("web-0", false);
                update(run, "web-0", "app:2");
                let open = run.receive(KRUISE, "patch", "status", "web-1");
                gate(run, "web-1", "False");
                run.done(open);
            },
            violations: 1,
            judged: 3,
        },
        Scenario {
            name: "an update that had begun before the budget was enforced",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3).at(200.0);
                update(run, "web-0", "app:2");
                let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
                run.kruise_budget(spec).delete("bob", "web-1").delete("bob", "web-2");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a second update after another pod crashed takes nothing more",
            play: |run| {
                three(run);
                update(run, "web-0", "app:2");
                run.ready("web-1", false).at(400.0);
                update(run, "web-0", "app:3");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "an update whose claim an administrator overwrote",
            play: |run| {
                three(run);
                update(run, "web-0", "app:2");
                run.pardon(205, 210).at(300.0).delete("bob", "web-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "KruisePodReady is an announcement too",
            play: |run| {
                three(run).evict("web-0");
                for status in ["True", "False"] {
                    let open = run.receive(KRUISE, "patch", "status", "web-1");
                    run.edit("pods", "web-1", |pod| {
                        pod["spec"]["readinessGates"] = json!([{"conditionType": "KruisePodReady"}]);
                        condition(pod, "KruisePodReady", status);
                    });
                    run.done(open);
                }
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a kubelet reports a gate",
            play: |run| {
                three(run).evict("web-0");
                gate(run, "web-1", "True");
                let open = run.receive("system:node:n1", "patch", "status", "web-1");
                gate(run, "web-1", "False");
                run.done(open);
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "operations of the annotation",
            play: |run| {
                three(run).edit(PUB, "b", |budget| {
                    budget["metadata"]["annotations"] = json!({"kruise.io/pub-protect-operations": "EVICT"});
                });
                run.at(400.0).delete("bob", "web-0").delete("bob", "web-1").at(401.0).evict("web-2");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "operations of an annotation that was removed less than 90 s ago",
            play: |run| {
                three(run).edit(PUB, "b", |budget| {
                    budget["metadata"]["annotations"] = json!({"kruise.io/pub-protect-operations": "EVICT"});
                });
                run.at(400.0).edit(PUB, "b", |budget| budget["metadata"]["annotations"] = json!({}));
                run.at(430.0).delete("bob", "web-0").delete("bob", "web-1");
            },
            violations: 0,
            judged: 0,
        },
        Scenario {
            name: "the total of the annotation",
            play: |run| {
                three(run).edit(PUB, "b", |budget| {
                    budget["metadata"]["annotations"] = json!({"pub.kruise.io/protect-total-replicas": "4"});
                });
                run.at(400.0).evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a pod that is not protected passes, and is recorded",
            play: |run| {
                three(run).edit("pods", "web-0", |pod| {
                    pod["metadata"]["annotations"] = json!({"pub.kruise.io/no-protect": "true"});
                });
                run.evict("web-0").evict("web-1");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a label that makes a pod unavailable is an update",
            play: |run| {
                three(run).evict("web-0");
                let open = run.receive("bob", "patch", "", "web-1");
                run.edit("pods", "web-1", label).done(open);
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "an update under a DisruptionBudget that does not protect against it",
            play: |run| {
                let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
                run.deployment("web", 3).pods("web", 0..3).budget(spec).at(200.0).evict("web-0");
                update(run, "web-1", "app:2");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "an update under a DisruptionBudget that protects against it",
            play: |run| {
                let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
                run.deployment("web", 3).pods("web", 0..3).budget(spec).at(200.0);
                run.respec(|spec| spec["operations"] = json!(["Evict", "Update"]))
                    .enforce(DBU)
                    .evict("web-0");
                update(run, "web-1", "app:2");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a probe replaces Ready",
            play: |run| {
                three(run);
                probed(run, "web-0", "False");
                run.at(400.0).evict("web-1");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a pod that says no for longer than a server can have missed",
            play: |run| {
                three(run);
                probed(run, "web-0", "False");
                run.at(400.0).evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a pod that said yes a minute ago",
            play: |run| {
                three(run);
                probed(run, "web-0", "True");
                run.at(400.0);
                probed(run, "web-0", "False");
                run.at(460.0).evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
    ]);
}
