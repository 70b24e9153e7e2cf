//! Disruption probes, and the agents whose results count.

use serde_json::json;

use crate::pods::keeps;
use crate::run::{Run, Scenario, play_all};

const LEASES: &str = "leases.coordination.k8s.io";

/// The pod has a probe with this result, on a node of its own: `web-0` is on `n0`.
fn probed(run: &mut Run, pod: &str, result: &str) {
    let node = pod.replace("web-", "n");
    run.edit("pods", pod, |pod| {
        pod["metadata"]["annotations"] = json!({"quorate.dev/disruption-probe.main": "{}"});
        pod["spec"]["nodeName"] = json!(node);
        pod["status"]["containerStatuses"][0]["state"] =
            json!({"running": {"startedAt": "2030-01-01T00:00:01Z"}});
        let ready = pod["status"]["conditions"][0].clone();
        pod["status"]["conditions"] = json!([ready, {"type": "Disruptable", "status": result,
            "lastProbeTime": "2030-01-01T00:00:09Z"}]);
    });
}

/// A Deployment of three under a budget that keeps two. All of its probes say yes.
fn three(run: &mut Run) -> &mut Run {
    run.deployment("web", 3).pods("web", 0..3).budget(keeps(2));
    for number in 0..3 {
        probed(run, &format!("web-{number}"), "True");
        node(run, number, "True");
    }
    run
}

/// Agents renew their Leases every 10 s. They began in this second.
fn renew(run: &mut Run, nodes: &[u32], began: &str, seconds: std::ops::RangeInclusive<u32>) {
    for second in seconds.step_by(10) {
        run.at(f64::from(second));
        for node in nodes {
            run.put(
                LEASES,
                json!({"metadata": {"name": format!("quorate-agent-n{node}")},
                    "spec": {"holderIdentity": format!("n{node}"), "leaseDurationSeconds": 40,
                        "acquireTime": format!("2030-01-01T00:00:{began}.000000Z"),
                        "renewTime": format!("{second}")}}),
            );
        }
    }
}

fn node(run: &mut Run, number: u32, ready: &str) {
    let name = format!("n{number}");
    run.put(
        "nodes",
        json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}),
    );
}

#[test]
fn an_admission_that_the_probes_do_not_allow_is_a_violation() {
    play_all(&[
        Scenario {
            name: "all probes say yes, and all agents live",
            play: |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=400);
                run.evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "one pod too many",
            play: |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=400);
                run.evict("web-0").evict("web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a pod that says no for longer than a server can have missed",
            play: |run| {
                probed(three(run), "web-0", "False");
                renew(run, &[0, 1, 2], "05", 10..=400);
                run.evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a pod that has not said anything",
            play: |run| {
                probed(three(run), "web-0", "Unknown");
                renew(run, &[0, 1, 2], "05", 10..=400);
                run.evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a pod that says no and is not ready",
            play: |run| {
                probed(three(run), "web-0", "False");
                run.ready("web-0", false);
                renew(run, &[0, 1, 2], "05", 10..=400);
                run.evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a pod that says no is deleted by its controller",
            play: |run| {
                probed(three(run), "web-0", "False");
                run.respec(|spec| spec["operations"] = json!(["Delete"])).enforce(crate::run::DBU);
                renew(run, &[0, 1, 2], "05", 10..=400);
                run.scale("deployments.apps", "web", 2).delete(crate::run::RS_CONTROLLER, "web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a pod that says no does not count",
            play: |run| {
                probed(three(run), "web-0", "False");
                renew(run, &[0, 1, 2], "05", 10..=400);
                run.evict("web-1");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "an agent died, and servers may have heard of it for the last time 130 s ago",
            play: |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=400);
                renew(run, &[1, 2], "05", 410..=530);
                run.evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "an agent died, and no server can believe it",
            play: |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=400);
                renew(run, &[1, 2], "05", 410..=540);
                run.evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "the pod of a dead agent does not count",
            play: |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=400);
                renew(run, &[1, 2], "05", 410..=540);
                run.evict("web-1");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "the pod of a dead agent may have counted",
            play: |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=400);
                renew(run, &[1, 2], "05", 410..=520);
                run.evict("web-1");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "an agent that came back a moment ago",
            play: |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=200);
                renew(run, &[1, 2], "05", 210..=590);
                renew(run, &[0, 1, 2], "05", 600..=600);
                run.evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a node whose agent never had a Lease",
            play: |run| {
                renew(three(run), &[1, 2], "05", 10..=400);
                run.evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "an agent began after the probe, as servers may not have heard",
            play: |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=400);
                renew(run, &[0, 1, 2], "30", 410..=500);
                run.evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "an agent began after the probe, as all servers have heard",
            play: |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=400);
                renew(run, &[0], "30", 410..=540);
                renew(run, &[1, 2], "05", 541..=541);
                run.evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a container started after the probe",
            play: |run| {
                three(run).edit("pods", "web-0", |pod| {
                    pod["status"]["containerStatuses"][0]["state"] =
                        json!({"running": {"startedAt": "2030-01-01T00:00:20Z"}});
                });
                renew(run, &[0, 1, 2], "05", 10..=400);
                run.evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a node was lost, which servers may not have seen",
            play: |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=400);
                node(run, 0, "Unknown");
                renew(run, &[0, 1, 2], "05", 410..=480);
                run.evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a node was lost long ago",
            play: |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=400);
                node(run, 0, "Unknown");
                renew(run, &[0, 1, 2], "05", 410..=500);
                run.evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a pod with a probe needs a claim as well",
            play: |run| {
                three(run).respec(|spec| spec["minAvailable"] = json!(1)).enforce(crate::run::DBU).ledger();
                renew(run, &[0, 1, 2], "05", 10..=400);
                run.evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a history without Leases says nothing about agents",
            play: |run| {
                three(run).at(400.0).evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
    ]);
}

#[test]
fn a_denial_after_three_minutes_of_good_probes_is_stuck() {
    type Case = (&'static str, fn(&mut Run), usize);
    let cases: &[Case] = &[
        (
            "all probes said yes for three minutes",
            |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=400);
                run.denied("web-0");
            },
            1,
        ),
        (
            "the pod said no for a moment",
            |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=300);
                probed(run, "web-0", "False");
                probed(run, "web-0", "True");
                renew(run, &[0, 1, 2], "05", 310..=400);
                run.denied("web-0");
            },
            0,
        ),
        (
            "another pod said no for a moment",
            |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=300);
                probed(run, "web-1", "False");
                probed(run, "web-1", "True");
                renew(run, &[0, 1, 2], "05", 310..=400);
                run.denied("web-0");
            },
            0,
        ),
        (
            "an agent was late once",
            |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=300);
                renew(run, &[0, 1], "05", 310..=320);
                renew(run, &[0, 1, 2], "05", 330..=400);
                run.denied("web-0");
            },
            0,
        ),
        (
            "an agent was replaced",
            |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=300);
                renew(run, &[0, 1, 2], "10", 310..=400);
                run.denied("web-0");
            },
            0,
        ),
        (
            "a node was lost for a moment",
            |run| {
                renew(three(run), &[0, 1, 2], "05", 10..=300);
                node(run, 1, "Unknown");
                node(run, 1, "True");
                renew(run, &[0, 1, 2], "05", 310..=400);
                run.denied("web-0");
            },
            0,
        ),
    ];
    for (name, play, stuck) in cases {
        let mut run = Run::default();
        play(&mut run);
        let report = run.check();
        assert_eq!(report.stuck.len(), *stuck, "{name}:\n{report}");
    }
}
