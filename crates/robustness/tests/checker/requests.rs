//! Which requests and which budgets are judged.

use serde_json::json;

use crate::pods::{keeps, three};
use crate::run::{DBU, RS_CONTROLLER, Scenario, play_all};

#[test]
fn only_requests_that_an_enforced_budget_decides_are_judged() {
    play_all(&[
        Scenario {
            name: "a delete under a budget that protects against evictions only",
            play: |run| {
                three(run).evict("web-0").delete("bob", "web-1");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a delete under a budget that protects against it",
            play: |run| {
                three(run).respec(|spec| spec["operations"] = json!(["Evict", "Delete"])).enforce(DBU);
                run.evict("web-0").delete("bob", "web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a delete that only passes by counts like a crash",
            play: |run| {
                three(run).delete("bob", "web-1").at(260.0).evict("web-0");
                run.at(261.0).pods("web", 4..5).at(400.0).delete("bob", "web-2").at(491.0).evict("web-4");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a budget that observes",
            play: |run| {
                three(run).respec(|spec| spec["enforcement"] = json!("Observe")).enforce(DBU);
                run.evict("web-0").evict("web-1");
            },
            violations: 0,
            judged: 0,
        },
        Scenario {
            name: "a budget that is not yet enforced",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3);
                run.put(DBU, json!({"metadata": {"name": "b", "generation": 1}, "spec": keeps(2)}));
                run.at(200.0).evict("web-0").evict("web-1");
            },
            violations: 0,
            judged: 0,
        },
        Scenario {
            name: "a budget becomes enforced: what was admitted before counts",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3);
                run.put(DBU, json!({"metadata": {"name": "b", "generation": 1}, "spec": keeps(2)}));
                run.at(200.0).evict("web-0").enforce(DBU).evict("web-1");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "an edited budget is judged once its generation is enforced",
            play: |run| {
                three(run).respec(|spec| spec["minAvailable"] = json!(3));
                run.evict("web-0").enforce(DBU).evict("web-1");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a budget that is loosened while the request is under way",
            play: |run| {
                three(run).evict("web-0");
                let open = run.receive("alice", "create", "eviction", "web-1");
                run.respec(|spec| spec["minAvailable"] = json!(1)).terminate("web-1").done(open);
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a budget that is deleted while the request is under way",
            play: |run| {
                three(run).evict("web-0");
                let open = run.receive("alice", "create", "eviction", "web-1");
                run.remove(DBU, "b").terminate("web-1").done(open);
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a dry run",
            play: |run| {
                three(run).evict("web-0").dry("web-1");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "callers that always pass, and are not counted exactly",
            play: |run| {
                three(run).respec(|spec| spec["operations"] = json!(["Evict", "Delete"])).enforce(DBU);
                run.delete("system:serviceaccount:kube-system:taint-eviction-controller", "web-0");
                run.delete("system:node:n1", "web-1").at(260.0).evict("web-2");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "an eviction beside a garbage collection of the same pod",
            play: |run| {
                three(run).respec(|spec| spec["operations"] = json!(["Evict", "Delete"])).enforce(DBU);
                run.evict("web-0");
                let gc = "system:serviceaccount:kube-system:generic-garbage-collector";
                let one = run.receive(gc, "delete", "", "web-1");
                let two = run.receive("bob", "create", "eviction", "web-1");
                run.terminate("web-1").done(one).done(two);
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a scale-down by the controller of the pods",
            play: |run| {
                three(run).respec(|spec| spec["operations"] = json!(["Evict", "Delete"])).enforce(DBU);
                run.scale("deployments.apps", "web", 1).scale("replicasets.apps", "web-rs", 1).at(400.0);
                run.delete(RS_CONTROLLER, "web-0").delete(RS_CONTROLLER, "web-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a rollout by the controller of the pods is judged",
            play: |run| {
                three(run).respec(|spec| spec["operations"] = json!(["Evict", "Delete"])).enforce(DBU);
                run.at(400.0).delete(RS_CONTROLLER, "web-0").delete(RS_CONTROLLER, "web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a Deployment that is recreated",
            play: |run| {
                three(run).respec(|spec| spec["operations"] = json!(["Evict", "Delete"])).enforce(DBU);
                run.edit("deployments.apps", "web", |it| it["spec"]["strategy"]["type"] = json!("Recreate"));
                run.at(400.0).delete(RS_CONTROLLER, "web-0").delete(RS_CONTROLLER, "web-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a deletecollection that is denied at the third pod",
            play: |run| {
                three(run).respec(|spec| spec["operations"] = json!(["Evict", "Delete"])).enforce(DBU);
                let mut open = run.receive("bob", "deletecollection", "", "");
                open.request.code = 429;
                run.terminate("web-0").terminate("web-1").done(open);
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a deletecollection that is denied after the first pod: that one counts",
            play: |run| {
                three(run).respec(|spec| spec["operations"] = json!(["Evict", "Delete"])).enforce(DBU);
                let mut open = run.receive("bob", "deletecollection", "", "");
                open.request.code = 429;
                run.terminate("web-0").done(open).evict("web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "an eviction that timed out and was carried out",
            play: |run| {
                three(run).evict("web-0");
                let mut open = run.receive("alice", "create", "eviction", "web-1");
                open.request.code = 504;
                run.terminate("web-1").done(open);
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a deletecollection",
            play: |run| {
                three(run).respec(|spec| spec["operations"] = json!(["Delete"])).enforce(DBU);
                let open = run.receive("bob", "deletecollection", "", "");
                run.terminate("web-0").terminate("web-1").terminate("web-2").done(open);
            },
            violations: 2,
            judged: 3,
        },
        Scenario {
            name: "a budget that is pardoned",
            play: |run| {
                three(run).pardon(190, 210).evict("web-0").evict("web-1");
            },
            violations: 0,
            judged: 0,
        },
        Scenario {
            name: "a pod that was relabelled into the budget a minute ago",
            play: |run| {
                three(run).ready("web-0", false).ready("web-1", false);
                run.bare("extra", json!({"app": "other"})).at(400.0);
                run.edit("pods", "extra", |pod| pod["metadata"]["labels"]["app"] = json!("web"));
                run.at(460.0).evict("extra");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "the same more than 90 s ago",
            play: |run| {
                three(run).ready("web-0", false).ready("web-1", false);
                run.bare("extra", json!({"app": "other"})).at(400.0);
                run.edit("pods", "extra", |pod| pod["metadata"]["labels"]["app"] = json!("web"));
                run.at(491.0).evict("extra");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a namespace that is being deleted",
            play: |run| {
                three(run).evict("web-0").put(
                    "namespaces",
                    json!({"metadata": {"name": "shop", "labels": {"quorate.dev/enforced": "true"},
                        "deletionTimestamp": "2030-01-01T00:00:00Z"}}),
                );
                run.evict("web-1");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "another pod in another place",
            play: |run| {
                three(run).evict("web-0").bare("other", json!({"app": "other"})).evict("other");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a namespace where requests pass while no server answers",
            play: |run| {
                run.put("namespaces", json!({"metadata": {"name": "shop"}}));
                three(run).fault(190, 210).evict("web-0").evict("web-1");
            },
            violations: 0,
            judged: 0,
        },
    ]);
}
