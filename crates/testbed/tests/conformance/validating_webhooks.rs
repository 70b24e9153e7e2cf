//! Validating webhooks: what they are asked, and what becomes of their answers.

use quorate_testbed::{Cluster, Patch, Reply, User, Webhook, eventually, stories};
use serde_json::{Value, json};

use crate::fixtures::{Space, config_map, pod, pod_on, text};

stories!(ApiServer:
    a_denial_reaches_the_client_as_it_is,
    a_denial_may_say_when_to_come_back,
    a_denial_without_a_code_is_a_forbidden_one,
    a_warning_reaches_the_client,
    a_creation_is_shown_with_who_asks,
    an_update_is_shown_with_before_and_after,
    a_deletion_is_shown_with_what_was,
    an_eviction_is_shown_without_the_pod,
    an_eviction_is_shown_before_the_pod_is_looked_for,
    an_eviction_is_denied_before_the_budget_is_asked,
    an_eviction_is_no_deletion_to_a_webhook,
    a_dry_run_is_told,
    a_dry_eviction_is_told_in_one_of_two_places,
    every_object_of_a_collection_is_shown,
    an_older_eviction_is_shown_as_a_newer_one,
    one_no_of_two_is_a_no,
);

/// The request that the API server sends while nobody knows yet whether it knows the webhook.
const PROBE: &str = "is-the-webhook-there";

/// A webhook configuration in force for one namespace.
pub(crate) struct Installed {
    hook: Webhook,
    path: String,
    space: Space,
}

impl Installed {
    /// Starts a webhook with `rules`, sets `more` in its configuration, and waits until it is asked.
    ///
    /// `kind` is Validating or Mutating.
    pub(crate) async fn new(
        cluster: &Cluster,
        kind: &str,
        rules: Value,
        more: Value,
        decide: impl Fn(&Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let space = Space::new(cluster, "hooked").await;
        let hook = Webhook::start(move |request| match text(request, "/name") {
            PROBE => Reply::Allow,
            _ => decide(request),
        })
        .await
        .expect("a webhook");
        let mut entry = entry("pods.example.com", &space, &hook, &rules);
        for (key, value) in more.as_object().into_iter().flatten() {
            entry[key] = value.clone();
        }
        // Entries of one configuration come into force at the same time.
        let probed = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["configmaps"]}]);
        let mut probe = self::entry("probe.example.com", &space, &hook, &probed);
        probe["matchConditions"] =
            json!([{"name": "probe", "expression": format!("request.name == '{PROBE}'")}]);
        let resource = format!("{}webhookconfigurations", kind.to_lowercase());
        let path = format!("/apis/admissionregistration.k8s.io/v1/{resource}");
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1",
            "kind": format!("{kind}WebhookConfiguration"), "metadata": {"name": space.name},
            "webhooks": [entry, probe]});
        space.wire.post(&path, &configuration).await.expect(201);
        let installed = Self { path: format!("{path}/{}", space.name), hook, space };
        eventually("the webhook is asked", || async {
            let path = installed.space.core("configmaps?dryRun=All");
            let answer = installed.space.wire.post(&path, &config_map(PROBE, json!({}))).await;
            if installed.hook.seen().is_empty() { Err(answer) } else { Ok(()) }
        })
        .await;
        installed
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    /// What it was asked, without the probe.
    pub(crate) fn seen(&self) -> Vec<Value> {
        self.hook.seen().into_iter().filter(|request| text(request, "/name") != PROBE).collect()
    }

    /// The only thing it was asked.
    #[track_caller]
    pub(crate) fn seen_once(&self) -> Value {
        let mut seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:#?}");
        seen.remove(0)
    }

    /// Takes the configuration away, so that a webhook that is gone is no longer asked.
    pub(crate) async fn remove(self) {
        self.space.wire.delete(&self.path, &json!({})).await.expect(200);
    }
}

fn entry(name: &str, space: &Space, hook: &Webhook, rules: &Value) -> Value {
    json!({"name": name, "rules": rules, "clientConfig": hook.client_config(), "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.name}}})
}

/// One rule for these operations on these core resources.
pub(crate) fn rule(operations: &[&str], resources: &[&str]) -> Value {
    json!([{"operations": operations, "apiGroups": [""], "apiVersions": ["v1"], "resources": resources}])
}

pub(crate) fn not_now() -> Value {
    json!({"code": 429, "reason": "TooManyRequests", "message": "not now",
        "details": {"causes": [{"reason": "DisruptionBudget", "message": "budget a/b", "field": "x"}]}})
}

async fn evictions(cluster: &Cluster, reply: Reply) -> Installed {
    let rules = rule(&["CREATE"], &["pods/eviction"]);
    Installed::new(cluster, "Validating", rules, json!({}), move |_| reply.clone()).await
}

async fn a_denial_reaches_the_client_as_it_is(cluster: Cluster) {
    let rules = rule(&["DELETE"], &["pods"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Deny(not_now())).await;
    let space = hook.space();
    space.create("pods", &pod("one")).await;
    let answer = space.wire.delete(&space.core("pods/one"), &json!({})).await;
    let message = "admission webhook \"pods.example.com\" denied the request: not now";
    assert_eq!(answer.failure(), (429, "TooManyRequests", message));
    assert_eq!(answer.body["status"], "Failure");
    assert_eq!(answer.body["details"]["causes"], not_now()["details"]["causes"]);
    assert_eq!(answer.retry_after, None);
    assert_eq!(space.code(&space.core("pods/one")).await, 200);
    hook.remove().await;
}

async fn a_denial_may_say_when_to_come_back(cluster: Cluster) {
    let mut status = not_now();
    status["details"]["retryAfterSeconds"] = json!(7);
    let hook = evictions(&cluster, Reply::Deny(status)).await;
    let answer = hook.space().evict("one").await;
    assert_eq!((answer.code, answer.retry_after.as_deref()), (429, Some("7")));
    hook.remove().await;
}

async fn a_denial_without_a_code_is_a_forbidden_one(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["configmaps"]);
    let hook =
        Installed::new(&cluster, "Validating", rules, json!({}), |request| match text(request, "/name") {
            "bare" => Reply::Deny(json!(null)),
            _ => Reply::Deny(json!({"message": "no"})),
        })
        .await;
    let space = hook.space();
    for (name, said) in [
        ("one", "admission webhook \"pods.example.com\" denied the request: no"),
        ("bare", "admission webhook \"pods.example.com\" denied the request without explanation"),
    ] {
        let answer = space.wire.post(&space.core("configmaps"), &config_map(name, json!({}))).await;
        assert_eq!((answer.code, answer.message()), (400, said));
    }
    hook.remove().await;
}

async fn a_warning_reaches_the_client(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["configmaps"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| {
        Reply::Warn("this is too tight".to_owned())
    })
    .await;
    let space = hook.space();
    let answer = space.wire.post(&space.core("configmaps"), &config_map("one", json!({}))).await;
    assert_eq!(answer.code, 201);
    assert_eq!(answer.warnings, ["299 - \"this is too tight\""]);
    hook.remove().await;
}

async fn a_creation_is_shown_with_who_asks(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["pods"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Allow).await;
    let space = hook.space();
    let somebody = User::named("jane").in_group("writers").in_group("system:masters");
    let wire = quorate_testbed::Wire::new(cluster.client(&somebody));
    wire.post(&space.core("pods"), &pod("one")).await.expect(201);
    let request = hook.seen_once();
    assert_eq!(request["operation"], "CREATE");
    assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": "Pod"}));
    assert_eq!(request["resource"], json!({"group": "", "version": "v1", "resource": "pods"}));
    assert_eq!((&request["name"], &request["namespace"]), (&json!("one"), &json!(space.name)));
    assert_eq!(request["userInfo"]["username"], "jane");
    let groups = request["userInfo"]["groups"].as_array().expect("groups");
    for group in ["writers", "system:masters", "system:authenticated"] {
        assert!(groups.contains(&json!(group)), "{group}");
    }
    assert_eq!(request["object"]["spec"]["restartPolicy"], "Always", "with its defaults");
    assert_eq!((&request["oldObject"], &request["dryRun"]), (&json!(null), &json!(false)));
    assert_eq!(request.get("subResource"), None);
    hook.remove().await;
}

async fn an_update_is_shown_with_before_and_after(cluster: Cluster) {
    let rules = rule(&["UPDATE"], &["pods", "pods/status", "pods/resize"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Allow).await;
    let space = hook.space();
    space.create("pods", &pod("one")).await;
    let patch = json!({"metadata": {"labels": {"b": "true"}}});
    space.wire.patch(&space.core("pods/one"), Patch::Merge, &patch).await.expect(200);
    space.set_phase("one", "Running", Some(true)).await;
    let seen = hook.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0]["operation"], "UPDATE");
    assert_eq!(seen[0]["object"]["metadata"]["labels"], json!({"a": "true", "b": "true"}));
    assert_eq!(seen[0]["oldObject"]["metadata"]["labels"], json!({"a": "true"}));
    assert_eq!(seen[1]["subResource"], "status");
    assert_eq!(seen[1]["oldObject"]["status"]["phase"], "Pending");
    assert_eq!(seen[1]["object"]["status"]["phase"], "Running");
    hook.remove().await;
}

async fn a_deletion_is_shown_with_what_was(cluster: Cluster) {
    let rules = rule(&["DELETE"], &["pods"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Allow).await;
    let space = hook.space();
    space.create("pods", &pod_on("one", "some-node")).await;
    space.settle("pods/one").await;
    let options = json!({"gracePeriodSeconds": 5});
    space.wire.delete(&space.core("pods/one"), &options).await.expect(200);
    let request = hook.seen_once();
    assert_eq!((&request["operation"], &request["name"]), (&json!("DELETE"), &json!("one")));
    assert_eq!(request["object"], json!(null));
    assert_eq!(request["oldObject"]["spec"]["nodeName"], "some-node");
    assert_eq!(request["options"]["gracePeriodSeconds"], 5);
    assert_eq!(request["options"]["kind"], "DeleteOptions");

    // The kubelet's last word: the pod is shown as one that is ending.
    space.wire.delete(&space.core("pods/one"), &json!({"gracePeriodSeconds": 0})).await.expect(200);
    let last = hook.seen().pop().expect("a request");
    assert!(last["oldObject"]["metadata"]["deletionTimestamp"].is_string(), "{last:#}");
    hook.remove().await;
}

async fn an_eviction_is_shown_without_the_pod(cluster: Cluster) {
    let hook = evictions(&cluster, Reply::Allow).await;
    let space = hook.space();
    space.pod("one", "Running", Some(true)).await;
    let options = json!({"deleteOptions": {"gracePeriodSeconds": 4}});
    space.evict_with("one", options).await.expect(201);
    let request = hook.seen_once();
    assert_eq!((&request["operation"], &request["subResource"]), (&json!("CREATE"), &json!("eviction")));
    assert_eq!(request["kind"], json!({"group": "policy", "version": "v1", "kind": "Eviction"}));
    assert_eq!(request["resource"]["resource"], "pods");
    assert_eq!((&request["name"], &request["namespace"]), (&json!("one"), &json!(space.name)));
    assert_eq!(request["object"]["kind"], "Eviction");
    assert_eq!(request["object"]["deleteOptions"]["gracePeriodSeconds"], 4);
    assert_eq!(request["oldObject"], json!(null));
    hook.remove().await;
}

async fn an_eviction_is_shown_before_the_pod_is_looked_for(cluster: Cluster) {
    let hook = evictions(&cluster, Reply::Allow).await;
    assert_eq!(hook.space().evict("none").await.code, 404);
    assert_eq!(hook.seen_once()["name"], "none");
    hook.remove().await;
}

async fn an_eviction_is_denied_before_the_budget_is_asked(cluster: Cluster) {
    let hook = evictions(&cluster, Reply::Deny(not_now())).await;
    let space = hook.space();
    space.pod("one", "Running", Some(true)).await;
    space.budget("foo", json!({}), crate::eviction::counted(1, 3, 2)).await;
    let answer = space.evict("one").await;
    assert_eq!(answer.message(), "admission webhook \"pods.example.com\" denied the request: not now");
    let budget = space.wire.get(&space.budgets("/foo")).await.expect(200);
    assert_eq!(budget["status"]["disruptionsAllowed"], 1);
    hook.remove().await;
}

async fn an_eviction_is_no_deletion_to_a_webhook(cluster: Cluster) {
    let rules = rule(&["DELETE", "UPDATE"], &["pods", "pods/status"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |request| {
        match text(request, "/operation") {
            "DELETE" => Reply::Deny(not_now()),
            _ => Reply::Allow,
        }
    })
    .await;
    let space = hook.space();
    space.pod("one", "Running", Some(true)).await;
    let before = hook.seen().len();
    space.evict("one").await.expect(201);
    assert_eq!(hook.seen().len(), before);
    hook.remove().await;
}

async fn a_dry_run_is_told(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["configmaps"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Allow).await;
    let space = hook.space();
    let path = space.core("configmaps?dryRun=All");
    space.wire.post(&path, &config_map("one", json!({}))).await.expect(201);
    assert_eq!(hook.seen_once()["dryRun"], true);
    hook.remove().await;
}

async fn a_dry_eviction_is_told_in_one_of_two_places(cluster: Cluster) {
    let hook = evictions(&cluster, Reply::Allow).await;
    let space = hook.space();
    space.pod("one", "Running", Some(true)).await;
    space.evict_with("one", json!({"deleteOptions": {"dryRun": ["All"]}})).await.expect(201);
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one"}});
    space.wire.post(&space.core("pods/one/eviction?dryRun=All"), &body).await.expect(201);
    let seen = hook.seen();
    assert_eq!(seen[0]["dryRun"], false, "kubectl drain --dry-run=server asks in this way");
    assert_eq!(seen[0]["object"]["deleteOptions"]["dryRun"], json!(["All"]));
    assert_eq!(seen[1]["dryRun"], true);
    hook.remove().await;
}

async fn every_object_of_a_collection_is_shown(cluster: Cluster) {
    let rules = rule(&["DELETE"], &["pods"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Allow).await;
    let space = hook.space();
    for name in ["a", "b"] {
        space.create("pods", &pod_on(name, "some-node")).await;
        space.settle(&format!("pods/{name}")).await;
    }
    space.wire.delete(&space.core("pods"), &json!({})).await.expect(200);
    let seen = hook.seen();
    let mut names: Vec<&str> = seen.iter().map(|request| text(request, "/oldObject/metadata/name")).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
    assert!(seen.iter().all(|request| request.get("name").is_none()), "a collection has no name");
    hook.remove().await;
}

async fn an_older_eviction_is_shown_as_a_newer_one(cluster: Cluster) {
    let hook = evictions(&cluster, Reply::Allow).await;
    let space = hook.space();
    space.pod("one", "Running", Some(true)).await;
    space.evict_with("one", json!({"apiVersion": "policy/v1beta1"})).await.expect(201);
    let request = hook.seen_once();
    assert_eq!(request["kind"]["version"], "v1");
    assert_eq!(request["object"]["apiVersion"], "policy/v1");
    hook.remove().await;
}

async fn one_no_of_two_is_a_no(cluster: Cluster) {
    let rules = rule(&["DELETE"], &["configmaps"]);
    let yes = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Allow).await;
    let space = yes.space();
    // The second one lives in the same namespace.
    let no = Webhook::start(|_| Reply::Deny(not_now())).await.expect("a webhook");
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let name = format!("{}-no", space.name);
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration", "metadata": {"name": name},
        "webhooks": [entry("no.example.com", space, &no, &rule(&["DELETE"], &["configmaps"]))]});
    space.wire.post(path, &configuration).await.expect(201);
    space.config_map("one", json!({})).await;
    eventually("the second one is asked", || async {
        let answer = space.wire.delete(&space.core("configmaps/one"), &json!({"dryRun": ["All"]})).await;
        if answer.code == 429 { Ok(()) } else { Err(answer) }
    })
    .await;
    space.wire.delete(&format!("{path}/{name}"), &json!({})).await.expect(200);
    yes.remove().await;
}
