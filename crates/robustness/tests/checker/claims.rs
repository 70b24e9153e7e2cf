//! Every admitted disruption has a claim in the budgets that are enforced.

use serde_json::{Value, json};

use crate::groups::shards;
use crate::pods::{keeps, three};
use crate::run::{DBU, Run, Scenario, play_all};

/// A Deployment of three under a budget that keeps one, whose ledger the servers write.
fn recorded(run: &mut Run) -> &mut Run {
    three(run).respec(|spec| spec["minAvailable"] = json!(1)).enforce(DBU).ledger()
}

/// Shards of which one more than allowed must not go. Returns the UIDs of the pods of another shard.
fn one_shard_down(run: &mut Run) -> (String, String) {
    shards(run).ledger();
    let uid = run.uid("pods", "a-0");
    run.evict_with("a-0", |run| run.claim(&uid, "a-0"));
    (run.uid("pods", "b-0"), run.uid("pods", "b-1"))
}

/// Shards of which one may be down, whatever the operation. Returns the UIDs of a pod of one shard, and of another.
fn shards_decided_late(run: &mut Run) -> [String; 2] {
    shards(run).respec(|spec| spec["operations"] = json!(["Evict", "Delete"])).enforce(DBU).ledger();
    ["a-0", "b-1"].map(|pod| run.uid("pods", pod))
}

fn claim_of(pod: &str) -> Value {
    json!({"pod": pod, "tokens": {"t": {"operation": "Evict"}}})
}

impl Run {
    /// Servers write the ledger of the budget.
    pub(crate) fn ledger(&mut self) -> &mut Self {
        self.edit(DBU, "b", |budget| budget["status"]["protocol"] = json!(1))
    }

    /// A server writes a claim.
    pub(crate) fn claim(&mut self, uid: &str, pod: &str) -> &mut Self {
        self.edit(DBU, "b", |budget| budget["status"]["claims"][uid] = claim_of(pod))
    }

    /// A user evicts a pod, and something happens before it is terminated.
    fn evict_with(&mut self, pod: &str, meanwhile: impl FnOnce(&mut Self) -> &mut Self) -> &mut Self {
        let open = self.receive("alice", "create", "eviction", pod);
        meanwhile(self);
        self.terminate(pod).done(open)
    }
}

#[test]
fn an_admission_without_a_claim_is_a_violation() {
    play_all(&[
        Scenario {
            name: "a claim is written, and removed once the pod is terminating",
            play: |run| {
                let uid = recorded(run).uid("pods", "web-0");
                run.evict_with("web-0", |run| run.claim(&uid, "web-0"));
                run.edit(DBU, "b", |budget| budget["status"]["claims"] = json!(null));
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "no claim, although there is room",
            play: |run| {
                recorded(run).evict("web-0");
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "a claim of another pod that had this name",
            play: |run| {
                recorded(run).evict_with("web-0", |run| run.claim("uid-before", "web-0"));
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "admitted before the budget was enforced, carried out after that",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3).at(200.0);
                run.put(DBU, json!({"metadata": {"name": "b", "generation": 1}, "spec": keeps(1)}));
                run.evict_with("web-0", |run| run.enforce(DBU).ledger());
            },
            violations: 1,
            judged: 0,
        },
        Scenario {
            name: "the same, with its claim",
            play: |run| {
                run.deployment("web", 3).pods("web", 0..3).at(200.0);
                run.put(DBU, json!({"metadata": {"name": "b", "generation": 1}, "spec": keeps(1)}));
                let uid = run.uid("pods", "web-0");
                run.evict_with("web-0", |run| run.claim(&uid, "web-0").enforce(DBU).ledger());
            },
            violations: 0,
            judged: 0,
        },
        Scenario {
            name: "a pod that was not ready when the request was received, and is ready when it goes",
            play: |run| {
                recorded(run).ready("web-0", false);
                run.evict_with("web-0", |run| run.ready("web-0", true));
            },
            violations: 1,
            judged: 1,
        },
        Scenario {
            name: "the same, with its claim",
            play: |run| {
                let uid = recorded(run).ready("web-0", false).uid("pods", "web-0");
                run.evict_with("web-0", |run| run.claim(&uid, "web-0").ready("web-0", true));
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a pod that is not ready when it goes",
            play: |run| {
                recorded(run).ready("web-0", false).evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a pod that the budget covers since a minute",
            play: |run| {
                recorded(run).edit("pods", "web-0", |pod| {
                    pod["metadata"]["labels"]["app"] = json!("other");
                });
                run.at(240.0).edit("pods", "web-0", |pod| pod["metadata"]["labels"]["app"] = json!("web"));
                run.at(300.0).evict("web-0");
            },
            violations: 0,
            judged: 1,
        },
        Scenario {
            name: "a group with another claim, of which nothing has come",
            play: |run| {
                let (first, second) = one_shard_down(run);
                run.claim(&first, "b-0").evict_with("b-1", |run| run.claim(&second, "b-1"));
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "a group without another claim",
            play: |run| {
                let (_, second) = one_shard_down(run);
                run.evict_with("b-1", |run| run.claim(&second, "b-1"));
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "decided while there was room, and carried out after another group broke by itself and was removed",
            play: |run| {
                let [first, other] = shards_decided_late(run);
                let open = run.receive("alice", "create", "eviction", "a-0");
                run.claim(&first, "a-0").ready("b-0", false);
                let second = run.receive("bob", "delete", "", "b-1");
                run.claim(&other, "b-1").terminate("b-1").done(second).terminate("a-0").done(open);
            },
            violations: 0,
            judged: 2,
        },
        Scenario {
            name: "decided after another claim that is carried out last",
            play: |run| {
                let [first, other] = shards_decided_late(run);
                let open = run.receive("alice", "create", "eviction", "a-0");
                run.claim(&first, "a-0").evict_with("b-1", |run| run.claim(&other, "b-1"));
                run.terminate("a-0").done(open);
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "two claims in one write",
            play: |run| {
                let [first, other] = shards_decided_late(run);
                let open = run.receive("alice", "create", "eviction", "a-0");
                let second = run.receive("bob", "create", "eviction", "b-1");
                run.edit(DBU, "b", |budget| {
                    for (uid, pod) in [(&first, "a-0"), (&other, "b-1")] {
                        budget["status"]["claims"][uid] = claim_of(pod);
                    }
                });
                run.terminate("b-1").terminate("a-0").done(open).done(second);
            },
            violations: 1,
            judged: 2,
        },
        Scenario {
            name: "an operation that the budget does not protect against",
            play: |run| {
                recorded(run).delete("bob", "web-0");
            },
            violations: 0,
            judged: 0,
        },
        Scenario {
            name: "an administrator overwrote the claims",
            play: |run| {
                recorded(run).pardon(150, 300).evict("web-0");
            },
            violations: 0,
            judged: 0,
        },
    ]);
}
