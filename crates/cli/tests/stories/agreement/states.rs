//! Random states: a namespace with a part for each kind of budget and each source of pods, no two alike.
//!
//! No controller runs, so nothing changes that the story does not change.

use futures::StreamExt as _;
use quorate_testbed::Patch;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::nodes;
use crate::fixture::{BUDGETS, PDBS, TestNamespace, UNAVAILABLE_BUDGETS, has_condition, spec_for_app};

/// More workloads than a budget can remember.
const TOO_MANY_SOURCES: usize = 260;

const WORKLOADS: &str = "scheduling.quorate.dev/v1alpha1";
const SETS: &str = "leaderworkerset.x-k8s.io/v1";

/// The health of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Ready,
    Unready,
    Pending,
    Failed,
    Terminating,
}

/// A random state.
pub(super) struct State {
    pub(super) ns: TestNamespace,
    random: ChaCha8Rng,
    /// Its number: what one state leaves to chance, the first or the second has for certain.
    number: usize,
    /// Whether budgets may decide relabels. Where none does, a server admits them whatever it knows.
    relabels: bool,
    /// The budgets that open.
    opens: Vec<(&'static str, String)>,
}

impl State {
    /// What a server would reject: it is stored before one runs.
    pub(super) async fn before_servers(ns: TestNamespace, random: ChaCha8Rng, number: usize) -> Self {
        let state = Self { ns, random, number, relabels: true, opens: Vec::new() };
        state.create_account().await;
        state.pod("odd-0", json!({"app": "odd"}), Health::Ready).await;
        let odd = json!({"kruise.io/pub-protect-operations": "EVERYTHING"});
        state.ns.create_pub("odd", odd, spec_for_app("odd", "minAvailable", 0)).await.expect(201);
        let probe = json!({"quorate.dev/disruption-probe.main": "{\"httpGet\":{\"port\":99999}}"});
        let malformed = json!({"metadata": {"annotations": probe}, "spec": {"nodeName": nodes::ALIVE}});
        state.pod_with("malformed-0", json!({"app": "probed"}), Health::Ready, malformed).await;
        state
    }

    /// Everything else.
    pub(super) async fn fill(&mut self) {
        for part in 0..3 {
            self.plain(&format!("plain{part}")).await;
        }
        self.label_groups().await;
        self.workloads().await;
        self.leader_worker_set().await;
        self.deployment().await;
        self.dangling_owner().await;
        self.unknown_scales().await;
        self.native().await;
        self.twin().await;
        self.unavailable_budget().await;
        self.probes().await;
        self.pod("alone-0", json!({"app": "alone"}), Health::Ready).await;
        self.opened().await;
        for part in 0..3 {
            self.claim(&format!("plain{part}")).await;
        }
        self.odd_ledgers().await;
    }

    /// A few pods: of a Deployment, with probes, and in groups. With `relabels`, budgets decide relabels.
    pub(super) async fn small(ns: TestNamespace, random: ChaCha8Rng, relabels: bool) -> Self {
        let mut state = Self { ns, random, number: 0, relabels, opens: Vec::new() };
        state.create_account().await;
        let set = state.replica_set("web", 3).await;
        for number in 0..3 {
            let more = json!({"metadata": {"ownerReferences": [owner(&set)]}});
            state.pod_with(&format!("web-{number}"), json!({"app": "web"}), Health::Ready, more).await;
        }
        let mut spec = spec_for_app("web", "maxUnavailable", 1);
        spec["operations"] = state.operations(&["Evict", "Delete", "Update", "Resize", "Relabel"]);
        state.ns.create_enforced_budget("web", spec).await;
        state.plain("plain").await;
        state.label_groups().await;
        state.probes().await;
        state.opened().await;
        state
    }

    /// One more pod of the Deployment.
    pub(super) async fn one_more(&mut self) {
        let set = self.ns.get("apps/v1", "replicasets", "web-1").await.expect(200);
        let more = json!({"metadata": {"ownerReferences": [owner(&set)]}});
        self.pod_with("web-new", json!({"app": "web"}), Health::Ready, more).await;
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn health(&mut self) -> Health {
        match self.random.random_range(0..100) {
            0..60 => Health::Ready,
            60..78 => Health::Unready,
            78..86 => Health::Pending,
            86..93 => Health::Failed,
            _ => Health::Terminating,
        }
    }

    /// A pod with more fields in its metadata and spec.
    async fn pod_with(&self, name: &str, labels: Value, health: Health, more: Value) {
        let container = json!({
            "name": "main", "image": "main:1",
            "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"memory": "1Mi"}},
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
        });
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"nodeName": "by-hand", "terminationGracePeriodSeconds": 0, "containers": [container]},
        });
        for part in ["metadata", "spec"] {
            for (field, value) in more[part].as_object().into_iter().flatten() {
                pod[part][field] = value.clone();
            }
        }
        if health == Health::Terminating {
            pod["metadata"]["finalizers"] = json!(["example.com/kept"]);
        }
        self.ns.wire.post(&self.ns.path("v1", "pods"), &pod).await.expect(201);
        let (phase, ready) = match health {
            Health::Ready | Health::Terminating => ("Running", "True"),
            Health::Unready => ("Running", "False"),
            Health::Pending => ("Pending", "False"),
            Health::Failed => ("Failed", "False"),
        };
        self.status(name, json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]})).await;
        if health == Health::Terminating {
            self.ns.delete_pod(name).await.expect(200);
        }
    }

    async fn status(&self, pod: &str, status: Value) {
        let path = self.ns.pod_path(&format!("{pod}/status"));
        self.ns.wire.patch(&path, Patch::Merge, &json!({"status": status})).await.expect(200);
    }

    async fn pod(&self, name: &str, labels: Value, health: Health) {
        self.pod_with(name, labels, health, json!({})).await;
    }

    async fn object(&self, version: &str, kind: &str, name: &str, object: Value) -> Value {
        let mut object = object;
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        object["metadata"]["name"] = json!(name);
        self.ns.create(version, &format!("{}s", kind.to_lowercase()), &object).await
    }

    /// Creates a budget with random operations, enforcement and policy, and with what is given.
    async fn budget(&mut self, name: &str, mut spec: Value) {
        let operations: [&[&str]; 4] = [
            &["Evict"],
            &["Evict", "Delete", "Relabel"],
            &["Evict", "Delete", "Update", "Resize"],
            &["Evict", "Delete", "Update", "Resize", "Relabel"],
        ];
        let chosen = operations.choose(&mut self.random).expect("operations");
        spec["operations"] = self.operations(chosen);
        if self.chance(10) {
            spec["enforcement"] = json!("Observe");
        }
        if self.chance(40) {
            spec["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
        }
        self.ns.create_budget(name, spec).await.expect(201);
        self.opens.push((BUDGETS.1, name.to_owned()));
    }

    /// These operations, as far as the state has them.
    fn operations(&self, all: &[&str]) -> Value {
        all.iter().copied().filter(|operation| self.relabels || *operation != "Relabel").collect()
    }

    /// How many may be missing, or must stay, out of `all`.
    fn rule(&mut self, all: usize) -> (&'static str, Value) {
        let count = self.random.random_range(0..=all);
        match self.random.random_range(0..4) {
            0 => ("maxUnavailable", json!(count)),
            1 => ("maxUnavailable", json!(format!("{}%", 100 * count / all))),
            2 => ("minAvailable", json!(format!("{}%", 100 * count / all))),
            _ => ("minAvailable", json!(count)),
        }
    }

    async fn plain(&mut self, app: &str) {
        let count = self.random.random_range(2..5);
        for number in 0..count {
            let health = self.health();
            self.pod(&format!("{app}-{number}"), json!({"app": app}), health).await;
        }
        let (rule, amount) = self.rule(count);
        let mut spec = spec_for_app(app, rule, amount);
        let more = self.random.random_range(0..2);
        spec["expectedReplicas"] = json!(count + more);
        if self.chance(10) || (self.number == 0 && app == "plain0") {
            spec["expectedReplicas"] = json!(0);
        }
        self.budget(app, spec).await;
        // A second budget over some of the same pods.
        if self.chance(30) {
            self.budget(&format!("{app}-too"), spec_for_app(app, "minAvailable", 1)).await;
        }
    }

    async fn label_groups(&mut self) {
        let groups = self.random.random_range(2..4);
        for group in 0..groups {
            for number in 0..2 {
                let health = self.health();
                let labels = json!({"app": "shard", "group": format!("g{group}")});
                self.pod(&format!("shard-{group}-{number}"), labels, health).await;
            }
        }
        let (rule, amount) = self.rule(groups);
        let mut spec = spec_for_app("shard", rule, amount);
        let needs = self.random.random_range(1..3);
        spec["podGroupPolicy"] = json!({"groupLabelKey": "group", "minReadyReplicas": needs});
        spec["expectedReplicas"] = json!(groups);
        self.budget("shard", spec).await;
    }

    /// Groups of a Workload, sometimes one that names a Workload that is not there; and a pod that names none.
    async fn workloads(&mut self) {
        let group = json!({"name": "worker", "replicas": 2, "policy": {"gang": {"minCount": 2}}});
        self.object(WORKLOADS, "Workload", "train", json!({"spec": {"podGroups": [group]}})).await;
        let missing = self.number == 1 || self.chance(40);
        for replica in 0..3 {
            for number in 0..2 {
                let workload = if replica == 2 && missing { "gone" } else { "train" };
                let labels = json!({"app": "train", "quorate.dev/workload": workload,
                    "quorate.dev/pod-group": "worker", "quorate.dev/pod-group-replica": replica.to_string()});
                let health = self.health();
                self.pod(&format!("train-{replica}-{number}"), labels, health).await;
            }
        }
        let (rule, amount) = self.rule(2);
        let mut spec = spec_for_app("train", rule, amount);
        spec["budgetScope"] = json!("Workload");
        self.budget("train", spec).await;
        self.pod("ungrouped-0", json!({"app": "ungrouped"}), Health::Ready).await;
        let mut spec = spec_for_app("ungrouped", "maxUnavailable", 1);
        spec["budgetScope"] = json!("Workload");
        self.ns.create_enforced_budget("ungrouped", spec).await;
    }

    /// Groups of a LeaderWorkerSet, one more than it wants.
    async fn leader_worker_set(&mut self) {
        let template = json!({"metadata": {"labels": {"app": "llm"}},
            "spec": {"containers": [{"name": "main", "image": "main:1"}]}});
        let spec = json!({"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}});
        let set = self.object(SETS, "LeaderWorkerSet", "llm", json!({"spec": spec})).await;
        for index in 0..3 {
            for worker in 0..2 {
                let labels = json!({"app": "llm", "leaderworkerset.sigs.k8s.io/name": "llm",
                    "leaderworkerset.sigs.k8s.io/group-index": index.to_string(),
                    "leaderworkerset.sigs.k8s.io/worker-index": worker.to_string()});
                let more = json!({"metadata": {"ownerReferences": [owner(&set)],
                    "annotations": {"leaderworkerset.sigs.k8s.io/size": "2"}}});
                let health = self.health();
                self.pod_with(&format!("llm-{index}-{worker}"), labels, health, more).await;
            }
        }
        let (rule, amount) = self.rule(2);
        let mut spec = spec_for_app("llm", rule, amount);
        spec["podGroupPolicy"] = json!({"groupLabelKey": "leaderworkerset.sigs.k8s.io/group-index"});
        self.budget("llm", spec).await;
    }

    async fn deployment(&mut self) {
        let replicas = self.random.random_range(0..4);
        let set = self.replica_set("web", replicas).await;
        for number in 0..3 {
            let more = json!({"metadata": {"ownerReferences": [owner(&set)]}});
            let health = self.health();
            self.pod_with(&format!("web-{number}"), json!({"app": "web"}), health, more).await;
        }
        let (rule, amount) = self.rule(3);
        self.budget("web", spec_for_app("web", rule, amount)).await;
    }

    /// A Deployment, and its ReplicaSet.
    async fn replica_set(&self, name: &str, replicas: usize) -> Value {
        let template = json!({"metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "main", "image": "main:1"}]}});
        let spec =
            json!({"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template});
        let deployment = self.object("apps/v1", "Deployment", name, json!({"spec": spec})).await;
        let set = json!({"metadata": {"ownerReferences": [owner(&deployment)]}, "spec": spec});
        self.object("apps/v1", "ReplicaSet", &format!("{name}-1"), set).await
    }

    /// A budget that names its Deployment, and a pod whose ReplicaSet is gone.
    async fn dangling_owner(&mut self) {
        let set = self.replica_set("shop", 2).await;
        for number in 0..2 {
            let more = json!({"metadata": {"ownerReferences": [owner(&set)]}});
            let health = self.health();
            self.pod_with(&format!("shop-{number}"), json!({"app": "shop"}), health, more).await;
        }
        let mut gone = owner(&set);
        gone["name"] = json!("shop-0");
        gone["uid"] = json!("5f1d0c52-7f0e-4a53-9d2e-000000000000");
        let more = json!({"metadata": {"ownerReferences": [gone]}});
        self.pod_with("shop-gone", json!({"app": "shop"}), Health::Ready, more).await;
        let mut spec = json!({"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "shop"}});
        let (rule, amount) = self.rule(2);
        spec[rule] = amount;
        self.budget("shop", spec).await;
    }

    /// Pods of a kind that no server knows, and of one whose scale is not set.
    async fn unknown_scales(&mut self) {
        let fleet = self.object("example.com/v1", "Fleet", "red", json!({"spec": {}})).await;
        let mut ghost = owner(&fleet);
        ghost["kind"] = json!("Ghost");
        ghost["uid"] = json!("5f1d0c52-7f0e-4a53-9d2e-000000000001");
        for (app, owner) in [("fleet", owner(&fleet)), ("ghost", ghost)] {
            let more = json!({"metadata": {"ownerReferences": [owner]}});
            let health = self.health();
            self.pod_with(&format!("{app}-0"), json!({"app": app}), Health::Ready, more.clone()).await;
            self.pod_with(&format!("{app}-1"), json!({"app": app}), health, more).await;
            let (rule, amount) = self.rule(2);
            self.budget(app, spec_for_app(app, rule, amount)).await;
        }
    }

    /// One or two PodDisruptionBudgets over the pods of a budget that allows everything.
    async fn native(&mut self) {
        self.pod("native-0", json!({"app": "native"}), Health::Ready).await;
        let health = self.health();
        self.pod("native-1", json!({"app": "native"}), health).await;
        let count = 1 + self.number % 2;
        for number in 0..count {
            let allowed = self.random.random_range(0..2) * self.number.min(1) as u32;
            self.native_budget(&format!("native-{number}"), "native", json!({}), allowed).await;
        }
        self.budget("native", spec_for_app("native", "minAvailable", 0)).await;
    }

    async fn native_budget(&self, name: &str, app: &str, annotations: Value, allowed: u32) {
        let made = self
            .object(
                PDBS.0,
                "PodDisruptionBudget",
                name,
                json!({
            "metadata": {"annotations": annotations}, "spec": spec_for_app(app, "minAvailable", 1)}),
            )
            .await;
        let status = json!({"status": {
            "observedGeneration": made["metadata"]["generation"], "disruptionsAllowed": allowed,
            "currentHealthy": 1 + allowed, "desiredHealthy": 1, "expectedPods": 2,
            "conditions": [{"type": "DisruptionAllowed", "status": if allowed > 0 { "True" } else { "False" },
                "reason": "SufficientPods", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let path = self.ns.path(PDBS.0, &format!("{}/{name}/status", PDBS.1));
        self.ns.wire.patch(&path, Patch::Merge, &status).await.expect(200);
    }

    /// A PodDisruptionBudget that counts groups, and so has a twin.
    async fn twin(&mut self) {
        for group in 0..3 {
            let labels = json!({"app": "twin", "group": group.to_string()});
            let health = self.health();
            self.pod(&format!("twin-{group}"), labels, health).await;
        }
        let stay = self.random.random_range(0..4);
        let annotations =
            json!({"quorate.dev/group-label-key": "group", "quorate.dev/min-available": stay.to_string()});
        let allowed = self.random.random_range(0..2);
        self.native_budget("twin", "twin", annotations, allowed).await;
        self.opens.push((BUDGETS.1, "twin".to_owned()));
    }

    async fn unavailable_budget(&mut self) {
        for number in 0..3 {
            let free = if self.chance(20) { json!({"pub.kruise.io/no-protect": "true"}) } else { json!({}) };
            let health = self.health();
            let more = json!({"metadata": {"annotations": free}});
            self.pod_with(&format!("kruise-{number}"), json!({"app": "kruise"}), health, more).await;
        }
        let mut annotations = json!({"pub.kruise.io/protect-total-replicas": "3"});
        if self.number % 2 == 1 {
            annotations["kruise.io/pub-protect-operations"] = json!("DELETE,UPDATE,EVICT,RELABEL");
        }
        let (rule, amount) = self.rule(3);
        self.ns.create_pub("kruise", annotations, spec_for_app("kruise", rule, amount)).await.expect(201);
        self.opens.push((UNAVAILABLE_BUDGETS.1, "kruise".to_owned()));
    }

    /// Pods whose probes are believed, and pods whose probes are not, for each reason.
    async fn probes(&mut self) {
        let now = nodes::time(0);
        let before = "2025-01-01T00:00:00Z";
        let cases = [
            ("yes", nodes::ALIVE, json!({"status": "True", "lastProbeTime": now})),
            ("too", nodes::ALIVE, json!({"status": "True", "lastProbeTime": now})),
            (
                "no",
                nodes::ALIVE,
                json!({"status": "False", "lastProbeTime": now, "message": "main: syncing"}),
            ),
            ("silent", nodes::ALIVE, Value::Null),
            ("outdated", nodes::ALIVE, json!({"status": "True", "lastProbeTime": before})),
            ("unrenewed", nodes::SILENT, json!({"status": "True", "lastProbeTime": now})),
            ("bare", nodes::BARE, json!({"status": "True", "lastProbeTime": now})),
            ("lost", nodes::LOST, json!({"status": "True", "lastProbeTime": now})),
        ];
        for (name, node, condition) in cases {
            if self.number > 0 && self.chance(25) {
                continue;
            }
            let pod = format!("probed-{name}");
            let probe =
                json!({"quorate.dev/disruption-probe.main": "{\"httpGet\":{\"path\":\"/\",\"port\":80}}"});
            let more = json!({"metadata": {"annotations": probe}, "spec": {"nodeName": node}});
            self.pod_with(&pod, json!({"app": "probed"}), Health::Ready, more).await;
            let mut conditions = vec![json!({"type": "Ready", "status": "True"})];
            if let Some(fields) = condition.as_object() {
                let mut condition = json!({"type": "Disruptable"});
                condition.as_object_mut().expect("an object").extend(fields.clone());
                conditions.push(condition);
            }
            let container = json!({"name": "main", "image": "main:1", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}});
            let status =
                json!({"phase": "Running", "conditions": conditions, "containerStatuses": [container]});
            self.status(&pod, status).await;
        }
        let stay = self.random.random_range(0..3);
        self.budget("probed", spec_for_app("probed", "minAvailable", stay)).await;
    }

    /// More workloads whose pods are gone than a budget can remember.
    pub(super) async fn of_many_workloads(ns: TestNamespace) -> Self {
        let random = ChaCha8Rng::seed_from_u64(0);
        let state = Self { ns, random, number: 0, relabels: true, opens: Vec::new() };
        state.create_account().await;
        state.many_workloads().await;
        state
    }

    /// No controller creates it.
    async fn create_account(&self) {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        let made = self.ns.wire.post(&self.ns.path("v1", "serviceaccounts"), &account).await;
        assert!(matches!(made.code, 201 | 409), "{}", made.body);
    }

    async fn many_workloads(&self) {
        let group = json!({"name": "worker", "replicas": 1, "policy": {"basic": {}}});
        let spec = json!({"podGroups": [group]});
        let create = async |number: usize| {
            let name = format!("many-{number}");
            self.object(WORKLOADS, "Workload", &name, json!({"spec": spec})).await;
            let labels = json!({"app": "many", "quorate.dev/workload": name, "quorate.dev/pod-group": "worker",
                "quorate.dev/pod-group-replica": "0"});
            self.pod(&name, labels, Health::Ready).await;
        };
        // A few at a time: the server shares the machine.
        futures::stream::iter(0..=TOO_MANY_SOURCES).for_each_concurrent(4, create).await;
        let mut spec = spec_for_app("many", "maxUnavailable", 1);
        spec["budgetScope"] = json!("Workload");
        self.ns.create_enforced_budget("many", spec).await;
        let counted = |status: &Value| status["currentHealthyReplicas"] == TOO_MANY_SOURCES + 1;
        self.ns.await_status("many", "it counts all of them", counted).await;
        // The budget does not protect against deletes.
        let delete =
            async |number: usize| drop(self.ns.delete_pod(&format!("many-{number}")).await.expect(200));
        futures::stream::iter(0..TOO_MANY_SOURCES).for_each_concurrent(4, delete).await;
    }

    async fn opened(&self) {
        for (plural, name) in &self.opens {
            match *plural {
                "disruptionbudgets" => self.ns.await_enforced(name).await,
                _ => {
                    let enforced = |status: &Value| has_condition(status, "Enforced", "True");
                    self.ns.await_pub_status(name, "it is enforced", enforced).await;
                }
            }
        }
    }

    /// An eviction that Quorate may admit and the API server rejects: then its claim stays.
    async fn claim(&mut self, app: &str) {
        let later = json!({"preconditions": {"resourceVersion": "1"}});
        let answer = self.ns.evict_with(&format!("{app}-0"), later, "").await;
        assert!(matches!(answer.code, 201 | 409 | 429), "{}", answer.body);
    }

    /// A budget that servers of another protocol write, and one with more claims than fit.
    async fn odd_ledgers(&mut self) {
        for app in ["future", "full"] {
            self.pod(&format!("{app}-0"), json!({"app": app}), Health::Ready).await;
            self.pod(&format!("{app}-1"), json!({"app": app}), Health::Ready).await;
            self.ns.create_enforced_budget(app, spec_for_app(app, "minAvailable", 0)).await;
        }
        self.budget_status("future", json!({"protocol": 99})).await;
        let uid = self.ns.get("v1", "pods", "full-0").await.body["metadata"]["uid"].clone();
        let token = json!({"operation": "Evict", "by": "x".repeat(900), "at": nodes::micro_time(0)});
        let tokens: serde_json::Map<String, Value> =
            (0..1100).map(|number| (format!("t-{number}"), token.clone())).collect();
        let claims = json!({uid.as_str().expect("a UID"): {"pod": "full-0", "tokens": tokens}});
        self.budget_status("full", json!({"claims": claims})).await;
    }

    async fn budget_status(&self, name: &str, status: Value) {
        let path = self.ns.path(BUDGETS.0, &format!("{}/{name}/status", BUDGETS.1));
        self.ns.wire.patch(&path, Patch::Merge, &json!({"status": status})).await.expect(200);
    }

    /// A budget that stays closed while a server lives that does not acknowledge it.
    pub(super) async fn closed(&mut self) {
        self.pod("closed-0", json!({"app": "closed"}), Health::Ready).await;
        self.ns.create_budget("closed", spec_for_app("closed", "minAvailable", 0)).await.expect(201);
    }
}

fn owner(object: &Value) -> Value {
    json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "controller": true})
}
