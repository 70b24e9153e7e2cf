//! Pods that leave a budget or a group by a change of their labels or owners.

use serde_json::{Value, json};

use crate::groups::shards;
use crate::pods::three;
use crate::run::{DBU, RS_CONTROLLER, Run, Scenario, play_all};

impl Run {
    /// A user changes labels of a pod. `null` removes one.
    fn relabel(&mut self, user: &str, pod: &str, labels: Value) -> &mut Self {
        self.relabel_with(user, pod, labels, |_, _| {})
    }

    /// The same, and something happens before the API server stores the change. It may change the request, too.
    fn relabel_with(
        &mut self,
        user: &str,
        pod: &str,
        labels: Value,
        meanwhile: impl FnOnce(&mut Self, &mut crate::run::Open),
    ) -> &mut Self {
        let mut open = self.receive(user, "patch", "", pod);
        meanwhile(self, &mut open);
        self.edit("pods", pod, |pod| {
            let all = pod["metadata"]["labels"].as_object_mut().unwrap();
            all.extend(labels.as_object().unwrap().clone());
            all.retain(|_, value| !value.is_null());
        });
        self.done(open)
    }

    /// A user takes a pod out of its ReplicaSet.
    fn disown(&mut self, user: &str, pod: &str) -> &mut Self {
        let open = self.receive(user, "patch", "", pod);
        self.edit("pods", pod, |pod| pod["metadata"]["ownerReferences"] = json!(null)).done(open)
    }
}

/// The budget decides relabels from now on.
fn decides(run: &mut Run) -> &mut Run {
    run.respec(|spec| spec["operations"] = json!(["Evict", "Delete", "Relabel"])).enforce(DBU)
}

/// A Deployment of three under a budget that keeps two, and decides relabels.
fn decided(run: &mut Run) -> &mut Run {
    decides(three(run))
}

/// The same, and the budget covers what belongs to the Deployment.
fn targeted(run: &mut Run) -> &mut Run {
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    run.deployment("web", 3).pods("web", 0..3);
    decides(run.budget(json!({"targetRef": target, "minAvailable": 2}))).at(200.0)
}

fn elsewhere() -> Value {
    json!({"app": "debug"})
}

#[test]
fn a_relabel_that_takes_too_many_pods_out_of_a_budget_is_a_violation() {
    play_all(&[
        Scenario {
            name: "exactly what is allowed",
            play: |run| {
                decided(run).relabel("bob", "web-0", elsewhere());
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "one pod too many",
            play: |run| {
                decided(run).relabel("bob", "web-0", elsewhere()).relabel(
                    "bob",
                    "web-1",
                    json!({"app": null}),
                );
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "one pod too many, by its status",
            play: |run| {
                decided(run).relabel("bob", "web-0", elsewhere());
                run.relabel_with("bob", "web-1", elsewhere(), |_, open| {
                    open.request.subresource = "status".to_owned();
                });
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a relabel 60 s ago was seen: servers know what they admit",
            play: |run| {
                decided(run).relabel("bob", "web-0", elsewhere()).at(260.0).evict("web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "an eviction, then a relabel",
            play: |run| {
                decided(run).evict("web-0").at(260.0).relabel("bob", "web-1", elsewhere());
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "labels that take the pod out of nothing",
            play: |run| {
                decided(run).evict("web-0").relabel("bob", "web-1", json!({"track": "canary"}));
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a pod that is not ready leaves for nothing",
            play: |run| {
                decided(run).ready("web-0", false).at(400.0).relabel("bob", "web-0", elsewhere());
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "the pod came back",
            play: |run| {
                decided(run).relabel("bob", "web-0", elsewhere()).at(210.0);
                run.relabel("bob", "web-0", json!({"app": "web"})).at(220.0).evict("web-1");
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "the pod came back, and leaves again after another",
            play: |run| {
                decided(run).relabel("bob", "web-0", elsewhere()).at(210.0);
                run.relabel("bob", "web-0", json!({"app": "web"})).at(220.0).evict("web-1");
                run.at(230.0).relabel("bob", "web-0", elsewhere());
            },
            violations: 1,
            judged: 3,
        },
        Scenario {
            name: "a budget that does not decide relabels: servers may have missed them for 90 s",
            play: |run| {
                three(run).relabel("bob", "web-0", elsewhere()).relabel("bob", "web-1", elsewhere());
                run.at(260.0).evict("web-2");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a budget that does not decide relabels, and then the pod is gone",
            play: |run| {
                three(run).relabel("bob", "web-0", elsewhere()).at(291.0).evict("web-1");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "no server answered, and the API server let the relabels pass",
            play: |run| {
                decided(run);
                for pod in ["web-0", "web-1"] {
                    run.relabel_with("bob", pod, elsewhere(), |_, open| open.request.failed_open = true);
                }
                run.at(260.0).evict("web-2");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "no server answered, and more than 90 s later the pods are gone",
            play: |run| {
                decided(run);
                run.relabel_with("bob", "web-0", elsewhere(), |_, open| open.request.failed_open = true);
                run.at(291.0).evict("web-1");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a pod leaves one of two budgets",
            play: |run| {
                decided(run).edit("pods", "web-0", |pod| pod["metadata"]["labels"]["tier"] = json!("front"));
                let spec = json!({"selector": {"matchLabels": {"tier": "front"}}, "minAvailable": 1,
                    "operations": ["Relabel"]});
                let wide = json!({"metadata": {"name": "front", "generation": 1}, "spec": spec,
                    "status": {"conditions": [{"type": "Enforced", "status": "True", "observedGeneration": 1}]}});
                run.put(DBU, wide).at(400.0).relabel("bob", "web-0", json!({"tier": null}));
                // The other budget has not lost it.
                run.at(401.0).evict("web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a pod moves between groups: the one that it leaves is charged",
            play: |run| {
                decides(shards(run)).evict("a-0").relabel("bob", "b-0", json!({"shard": "c"}));
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a pod moves out of a group that stays whole",
            play: |run| {
                decides(shards(run)).evict("a-0");
                run.respec(|spec| spec["podGroupPolicy"]["minReadyReplicas"] = json!(1))
                    .enforce(DBU)
                    .at(400.0);
                run.relabel("bob", "b-0", json!({"shard": "c"}));
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a user takes a pod out of its Deployment",
            play: |run| {
                targeted(run).evict("web-0").disown("bob", "web-1");
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a controller releases a pod, which servers may miss for 90 s",
            play: |run| {
                targeted(run).disown(RS_CONTROLLER, "web-0").disown(RS_CONTROLLER, "web-1");
                run.at(260.0).evict("web-2");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a controller of another kind releases a pod",
            play: |run| {
                let collector = "system:serviceaccount:kube-system:job-controller";
                targeted(run).evict("web-0").disown(collector, "web-1");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "the controller of the pod changes its labels",
            play: |run| {
                decided(run).evict("web-0").relabel(RS_CONTROLLER, "web-1", elsewhere());
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a controller of another kind changes its labels",
            play: |run| {
                let other = "system:serviceaccount:kube-system:job-controller";
                decided(run).evict("web-0").relabel(other, "web-1", elsewhere());
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a LeaderWorkerSet controller changes labels of pods that are not of a LeaderWorkerSet",
            play: |run| {
                let other = "system:serviceaccount:lws-system:lws-controller-manager";
                decided(run).evict("web-0").relabel(other, "web-1", elsewhere());
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a relabel without a claim",
            play: |run| {
                decided(run).ledger().relabel("bob", "web-0", elsewhere());
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a relabel with a claim",
            play: |run| {
                let uid = decided(run).ledger().uid("pods", "web-0");
                run.relabel_with("bob", "web-0", elsewhere(), |run, _| {
                    run.claim(&uid, "web-0");
                });
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a relabel that was under way when the budget was enforced, without a claim",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3).at(200.0);
                let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1,
                    "operations": ["Relabel"]});
                run.put(DBU, json!({"metadata": {"name": "b", "generation": 1}, "spec": spec}));
                run.relabel_with("bob", "web-0", elsewhere(), |run, _| {
                    run.enforce(DBU).ledger();
                });
            },
            violations: 1,
            judged: 0,
        },
        Scenario {
            name: "a pod enters the budget while its eviction is under way: the budget does not know of that",
            play: |run| {
                decided(run).bare("extra", elsewhere()).at(400.0).ready("web-0", false).at(500.0);
                let first = run.receive("alice", "create", "eviction", "extra");
                run.relabel("bob", "extra", json!({"app": "web"}));
                let second = run.receive("alice", "create", "eviction", "web-1");
                run.at(510.0).terminate("extra").done(first).at(511.0).terminate("web-1").done(second);
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "a pod that entered the budget long ago is evicted, and then another",
            play: |run| {
                decided(run).bare("extra", elsewhere()).at(400.0).ready("web-0", false);
                run.relabel("bob", "extra", json!({"app": "web"})).at(500.0);
                let first = run.receive("alice", "create", "eviction", "extra");
                let second = run.receive("alice", "create", "eviction", "web-1");
                run.at(510.0).terminate("extra").done(first).at(511.0).terminate("web-1").done(second);
            },
            violations: 1,
            judged: 2,
        },
    ]);
}
