//! A builder of histories.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate_robustness::checker::{Report, check};
use quorate_robustness::history::{Change, History, Pardon, Request, Span};
use serde_json::{Value, json};

pub(crate) const RS_CONTROLLER: &str = "system:serviceaccount:kube-system:replicaset-controller";
pub(crate) const DBU: &str = "disruptionbudgets.policy.quorate.dev";
pub(crate) const PUB: &str = "podunavailablebudgets.policy.kruise.io";

/// A history under construction. All objects are in the namespace `shop`.
#[derive(Default)]
pub(crate) struct Run {
    pub(crate) history: History,
    now: Duration,
    revision: u64,
    uids: u64,
    objects: BTreeMap<(String, String), Value>,
}

/// A request under way.
pub(crate) struct Open {
    pub(crate) request: Request,
}

/// A scenario and what the checker must find.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) play: fn(&mut Run),
    /// Violations, and admissions that an enforced budget protected against.
    pub(crate) violations: usize,
    pub(crate) judged: usize,
}

pub(crate) fn play_all(scenarios: &[Scenario]) {
    let mut failures = String::new();
    for scenario in scenarios {
        let mut run = Run::default();
        (scenario.play)(&mut run);
        let report = run.check();
        let found = (report.violations.len(), report.summary.judged);
        if found != (scenario.violations, scenario.judged) {
            let expected = (scenario.violations, scenario.judged);
            failures += &format!("{}: expected {expected:?}, found {found:?}:\n{report}\n\n", scenario.name);
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

impl Run {
    pub(crate) fn check(&mut self) -> Report {
        self.history.length = self.history.length.max(self.now);
        check(&self.history)
    }

    /// Goes to a time.
    pub(crate) fn at(&mut self, seconds: f64) -> &mut Self {
        let time = Duration::from_secs_f64(seconds);
        assert!(time >= self.now, "time goes back to {seconds}");
        self.now = time;
        self
    }

    fn tick(&mut self) {
        self.now += Duration::from_millis(1);
    }

    fn change(&mut self, resource: &str, object: &Value, deleted: bool) {
        self.revision += 1;
        self.history.changes.push(Change {
            revision: self.revision,
            at: self.now,
            resource: Arc::from(resource),
            deleted,
            object: Arc::new(object.clone()),
        });
    }

    /// Creates or replaces an object. A new one gets a UID.
    pub(crate) fn put(&mut self, resource: &str, mut object: Value) -> &mut Self {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let key = (resource.to_owned(), name);
        object["metadata"]["namespace"] = json!("shop");
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = match self.objects.get(&key) {
                Some(known) => known["metadata"]["uid"].clone(),
                None => {
                    self.uids += 1;
                    json!(format!("uid-{}", self.uids))
                }
            };
        }
        self.objects.insert(key, object.clone());
        self.change(resource, &object, false);
        self
    }

    pub(crate) fn get(&self, resource: &str, name: &str) -> Value {
        self.objects
            .get(&(resource.to_owned(), name.to_owned()))
            .unwrap_or_else(|| panic!("no {name}"))
            .clone()
    }

    /// Changes an object in place.
    pub(crate) fn edit(&mut self, resource: &str, name: &str, edit: impl FnOnce(&mut Value)) -> &mut Self {
        let mut object = self.get(resource, name);
        edit(&mut object);
        self.put(resource, object)
    }

    /// Deletes an object.
    pub(crate) fn remove(&mut self, resource: &str, name: &str) -> &mut Self {
        let object = self.objects.remove(&(resource.to_owned(), name.to_owned())).unwrap();
        self.change(resource, &object, true);
        self
    }

    pub(crate) fn uid(&self, resource: &str, name: &str) -> String {
        self.get(resource, name)["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    fn owner(&self, resource: &str, kind: &str, name: &str) -> Value {
        let group = resource.split_once('.').map_or("apps", |(_, group)| group);
        json!([{"apiVersion": format!("{group}/v1"), "kind": kind, "name": name,
            "uid": self.uid(resource, name), "controller": true}])
    }

    /// A Deployment `web` with a ReplicaSet `web-1`, which want this many pods.
    pub(crate) fn deployment(&mut self, name: &str, replicas: u32) -> &mut Self {
        let template = json!({"metadata": {"labels": {"app": name}}});
        self.put(
            "deployments.apps",
            json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "template": template}}),
        );
        let owners = self.owner("deployments.apps", "Deployment", name);
        let set = format!("{name}-rs");
        self.put(
            "replicasets.apps",
            json!({"metadata": {"name": set, "ownerReferences": owners},
                "spec": {"replicas": replicas, "template": template}}),
        )
    }

    pub(crate) fn scale(&mut self, resource: &str, name: &str, replicas: u32) -> &mut Self {
        self.edit(resource, name, |object| object["spec"]["replicas"] = json!(replicas))
    }

    /// A ready pod with labels, without a controller.
    pub(crate) fn bare(&mut self, name: &str, labels: Value) -> &mut Self {
        self.put(
            "pods",
            json!({"metadata": {"name": name, "labels": labels},
                "spec": {"containers": [{"name": "main", "image": "app:1"}]},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [{"name": "main", "image": "app:1", "containerID": format!("c-{name}-1")}]}}),
        )
    }

    /// A ready pod of a controller.
    pub(crate) fn owned(
        &mut self,
        name: &str,
        labels: Value,
        (resource, kind, owner): (&str, &str, &str),
    ) -> &mut Self {
        let owners = self.owner(resource, kind, owner);
        self.bare(name, labels);
        // The pod has never been without its owner.
        let last = self.history.changes.pop().unwrap();
        self.revision = last.revision - 1;
        self.edit("pods", name, |pod| pod["metadata"]["ownerReferences"] = owners)
    }

    /// Ready pods of a Deployment, `web-0` and so on.
    pub(crate) fn pods(&mut self, deployment: &str, numbers: std::ops::Range<u32>) -> &mut Self {
        let set = format!("{deployment}-rs");
        for number in numbers {
            let name = format!("{deployment}-{number}");
            self.owned(&name, json!({"app": deployment}), ("replicasets.apps", "ReplicaSet", &set));
        }
        self
    }

    pub(crate) fn ready(&mut self, pod: &str, ready: bool) -> &mut Self {
        let status = if ready { "True" } else { "False" };
        self.edit("pods", pod, |pod| pod["status"]["conditions"][0]["status"] = json!(status))
    }

    /// A budget of Quorate's kind, enforced.
    pub(crate) fn budget(&mut self, spec: Value) -> &mut Self {
        self.put(DBU, json!({"metadata": {"name": "b", "generation": 1}, "spec": spec})).enforce(DBU)
    }

    /// A budget of OpenKruise's kind, enforced.
    pub(crate) fn kruise_budget(&mut self, spec: Value) -> &mut Self {
        self.put(PUB, json!({"metadata": {"name": "b", "generation": 1}, "spec": spec})).enforce(PUB)
    }

    pub(crate) fn enforce(&mut self, resource: &str) -> &mut Self {
        self.edit(resource, "b", |budget| {
            let generation = budget["metadata"]["generation"].clone();
            budget["status"]["conditions"] =
                json!([{"type": "Enforced", "status": "True", "observedGeneration": generation}]);
        })
    }

    /// Changes the spec of the budget. It is a new generation then.
    pub(crate) fn respec(&mut self, edit: impl FnOnce(&mut Value)) -> &mut Self {
        self.edit(DBU, "b", |budget| {
            edit(&mut budget["spec"]);
            budget["metadata"]["generation"] = json!(budget["metadata"]["generation"].as_i64().unwrap() + 1);
        })
    }

    /// The API server receives a request.
    pub(crate) fn receive(&mut self, user: &str, verb: &str, subresource: &str, name: &str) -> Open {
        let request = Request {
            user: user.to_owned(),
            groups: Vec::new(),
            verb: verb.to_owned(),
            subresource: subresource.to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            dry_run: false,
            received: self.now,
            received_at: self.revision,
            ended: self.now,
            ended_at: self.revision,
            code: 200,
            message: String::new(),
            failed_open: false,
        };
        self.tick();
        Open { request }
    }

    /// The request is done.
    pub(crate) fn done(&mut self, open: Open) -> &mut Self {
        self.tick();
        self.history.requests.push(Request { ended: self.now, ended_at: self.revision, ..open.request });
        self
    }

    /// The pod gets its deletion timestamp.
    pub(crate) fn terminate(&mut self, pod: &str) -> &mut Self {
        self.edit("pods", pod, |pod| pod["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z"));
        self.tick();
        self
    }

    /// A user evicts a pod.
    pub(crate) fn evict(&mut self, pod: &str) -> &mut Self {
        let open = self.receive("alice", "create", "eviction", pod);
        self.terminate(pod).done(open)
    }

    /// A user deletes a pod.
    pub(crate) fn delete(&mut self, user: &str, pod: &str) -> &mut Self {
        let open = self.receive(user, "delete", "", pod);
        self.terminate(pod).done(open)
    }

    /// The eviction of a pod is denied.
    pub(crate) fn denied(&mut self, pod: &str) -> &mut Self {
        let mut open = self.receive("alice", "create", "eviction", pod);
        open.request.code = 429;
        open.request.message =
            "admission webhook \"evictions.quorate.dev\" denied the request: shop/b keeps 2 of 3 pods"
                .to_owned();
        self.done(open)
    }

    pub(crate) fn dry(&mut self, pod: &str) -> &mut Self {
        let mut open = self.receive("alice", "create", "eviction", pod);
        open.request.dry_run = true;
        self.done(open)
    }

    pub(crate) fn pardon(&mut self, from: u64, to: u64) -> &mut Self {
        let span = span(from, to);
        self.history.pardons.push(Pardon { namespace: "shop".to_owned(), name: "b".to_owned(), span });
        self
    }

    pub(crate) fn fault(&mut self, from: u64, to: u64) -> &mut Self {
        self.history.faults.push(span(from, to));
        self
    }
}

pub(crate) fn span(from: u64, to: u64) -> Span {
    Span { from: Duration::from_secs(from), to: Duration::from_secs(to) }
}
