//! Tests of validating webhooks: the reviews they receive, and the effect of their responses.

use quorate_testbed::{Cluster, Patch, Reply, User, Webhook, eventually, stories};
use serde_json::{Value, json};

use crate::fixtures::{TestNamespace, config_map, pod, pod_on, text};

stories!(ApiServer:
    a_denial_reaches_the_client_unchanged,
    a_denial_can_set_retry_after,
    a_denial_without_a_code_is_a_403,
    a_warning_reaches_the_client,
    the_review_of_a_create_names_the_user,
    the_review_of_an_update_has_the_old_and_the_new_object,
    the_review_of_a_deletion_has_the_old_object,
    the_review_of_an_eviction_does_not_have_the_pod,
    the_review_of_an_eviction_precedes_the_lookup_of_the_pod,
    an_eviction_is_denied_before_the_budget_is_checked,
    an_eviction_does_not_match_rules_for_deletions,
    the_review_has_the_dry_run_flag,
    the_review_of_an_eviction_is_a_dry_run_only_by_its_query,
    every_object_of_a_collection_is_reviewed,
    a_v1beta1_eviction_is_reviewed_as_v1,
    one_denial_of_two_webhooks_denies,
);

/// The name of the probe requests that show when the API server starts to call the webhook.
const PROBE: &str = "is-the-webhook-there";

/// An active webhook configuration for one namespace.
pub(crate) struct Installed {
    hook: Webhook,
    path: String,
    ns: TestNamespace,
}

impl Installed {
    /// Starts a webhook with `rules`, sets `more` in its configuration, and waits until it is called.
    ///
    /// `kind` is Validating or Mutating.
    pub(crate) async fn new(
        cluster: &Cluster,
        kind: &str,
        rules: Value,
        more: Value,
        decide: impl Fn(&Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let ns = TestNamespace::new(cluster, "hooked").await;
        let hook = Webhook::start(move |request| match text(request, "/name") {
            PROBE => Reply::Allow,
            _ => decide(request),
        })
        .await
        .expect("a webhook");
        let mut entry = entry("pods.example.com", &ns, &hook, &rules);
        for (key, value) in more.as_object().into_iter().flatten() {
            entry[key] = value.clone();
        }
        // All webhooks of one configuration become active at the same time.
        let probed = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["configmaps"]}]);
        let mut probe = self::entry("probe.example.com", &ns, &hook, &probed);
        probe["matchConditions"] =
            json!([{"name": "probe", "expression": format!("request.name == '{PROBE}'")}]);
        let resource = format!("{}webhookconfigurations", kind.to_lowercase());
        let path = format!("/apis/admissionregistration.k8s.io/v1/{resource}");
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1",
            "kind": format!("{kind}WebhookConfiguration"), "metadata": {"name": ns.name},
            "webhooks": [entry, probe]});
        ns.wire.post(&path, &configuration).await.expect(201);
        let installed = Self { path: format!("{path}/{}", ns.name), hook, ns };
        eventually("the webhook is called", || async {
            let path = installed.ns.core("configmaps?dryRun=All");
            let answer = installed.ns.wire.post(&path, &config_map(PROBE, json!({}))).await;
            if installed.hook.seen().is_empty() { Err(answer) } else { Ok(()) }
        })
        .await;
        installed
    }

    pub(crate) fn ns(&self) -> &TestNamespace {
        &self.ns
    }

    /// The requests that the webhook received, without the probe.
    pub(crate) fn seen(&self) -> Vec<Value> {
        self.hook.seen().into_iter().filter(|request| text(request, "/name") != PROBE).collect()
    }

    /// The only request that the webhook received.
    #[track_caller]
    pub(crate) fn seen_once(&self) -> Value {
        let mut seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:#?}");
        seen.remove(0)
    }

    /// Removes the configuration, so that the API server does not call a webhook that no longer runs.
    pub(crate) async fn remove(self) {
        self.ns.wire.delete(&self.path, &json!({})).await.expect(200);
    }
}

fn entry(name: &str, ns: &TestNamespace, hook: &Webhook, rules: &Value) -> Value {
    json!({"name": name, "rules": rules, "clientConfig": hook.client_config(), "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ns.name}}})
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

async fn a_denial_reaches_the_client_unchanged(cluster: Cluster) {
    let rules = rule(&["DELETE"], &["pods"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Deny(not_now())).await;
    let ns = hook.ns();
    ns.create("pods", &pod("one")).await;
    let answer = ns.wire.delete(&ns.core("pods/one"), &json!({})).await;
    let message = "admission webhook \"pods.example.com\" denied the request: not now";
    assert_eq!(answer.failure(), (429, "TooManyRequests", message));
    assert_eq!(answer.body["status"], "Failure");
    assert_eq!(answer.body["details"]["causes"], not_now()["details"]["causes"]);
    assert_eq!(answer.retry_after, None);
    assert_eq!(ns.code(&ns.core("pods/one")).await, 200);
    hook.remove().await;
}

async fn a_denial_can_set_retry_after(cluster: Cluster) {
    let mut status = not_now();
    status["details"]["retryAfterSeconds"] = json!(7);
    let hook = evictions(&cluster, Reply::Deny(status)).await;
    let answer = hook.ns().evict("one").await;
    assert_eq!((answer.code, answer.retry_after.as_deref()), (429, Some("7")));
    hook.remove().await;
}

async fn a_denial_without_a_code_is_a_403(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["configmaps"]);
    let hook =
        Installed::new(&cluster, "Validating", rules, json!({}), |request| match text(request, "/name") {
            "bare" => Reply::Deny(json!(null)),
            _ => Reply::Deny(json!({"message": "no"})),
        })
        .await;
    let ns = hook.ns();
    for (name, expected) in [
        ("one", "admission webhook \"pods.example.com\" denied the request: no"),
        ("bare", "admission webhook \"pods.example.com\" denied the request without explanation"),
    ] {
        let answer = ns.wire.post(&ns.core("configmaps"), &config_map(name, json!({}))).await;
        assert_eq!((answer.code, answer.message()), (400, expected));
    }
    hook.remove().await;
}

async fn a_warning_reaches_the_client(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["configmaps"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| {
        Reply::Warn("this is too tight".to_owned())
    })
    .await;
    let ns = hook.ns();
    let answer = ns.wire.post(&ns.core("configmaps"), &config_map("one", json!({}))).await;
    assert_eq!(answer.code, 201);
    assert_eq!(answer.warnings, ["299 - \"this is too tight\""]);
    hook.remove().await;
}

async fn the_review_of_a_create_names_the_user(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["pods"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Allow).await;
    let ns = hook.ns();
    let user = User::named("jane").in_group("writers").in_group("system:masters");
    let wire = quorate_testbed::Wire::new(cluster.client(&user));
    wire.post(&ns.core("pods"), &pod("one")).await.expect(201);
    let request = hook.seen_once();
    assert_eq!(request["operation"], "CREATE");
    assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": "Pod"}));
    assert_eq!(request["resource"], json!({"group": "", "version": "v1", "resource": "pods"}));
    assert_eq!((&request["name"], &request["namespace"]), (&json!("one"), &json!(ns.name)));
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

async fn the_review_of_an_update_has_the_old_and_the_new_object(cluster: Cluster) {
    let rules = rule(&["UPDATE"], &["pods", "pods/status", "pods/resize"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Allow).await;
    let ns = hook.ns();
    ns.create("pods", &pod("one")).await;
    let patch = json!({"metadata": {"labels": {"b": "true"}}});
    ns.wire.patch(&ns.core("pods/one"), Patch::Merge, &patch).await.expect(200);
    ns.set_phase("one", "Running", Some(true)).await;
    let seen = hook.seen();
    // An API server whose cache is behind calls a webhook again for the same request.
    let (status, pods): (Vec<_>, Vec<_>) = seen.iter().partition(|review| review["subResource"] == "status");
    assert_eq!((pods.len(), seen[0] == *pods[0]), (1, true), "{seen:#?}");
    assert_eq!(pods[0]["operation"], "UPDATE");
    assert_eq!(pods[0]["object"]["metadata"]["labels"], json!({"a": "true", "b": "true"}));
    assert_eq!(pods[0]["oldObject"]["metadata"]["labels"], json!({"a": "true"}));
    let status = status.last().expect("a review of the status");
    assert_eq!(status["oldObject"]["status"]["phase"], "Pending");
    assert_eq!(status["object"]["status"]["phase"], "Running");
    hook.remove().await;
}

async fn the_review_of_a_deletion_has_the_old_object(cluster: Cluster) {
    let rules = rule(&["DELETE"], &["pods"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Allow).await;
    let ns = hook.ns();
    ns.create("pods", &pod_on("one", "some-node")).await;
    ns.settle("pods/one").await;
    let options = json!({"gracePeriodSeconds": 5});
    ns.wire.delete(&ns.core("pods/one"), &options).await.expect(200);
    let request = hook.seen_once();
    assert_eq!((&request["operation"], &request["name"]), (&json!("DELETE"), &json!("one")));
    assert_eq!(request["object"], json!(null));
    assert_eq!(request["oldObject"]["spec"]["nodeName"], "some-node");
    assert_eq!(request["options"]["gracePeriodSeconds"], 5);
    assert_eq!(request["options"]["kind"], "DeleteOptions");

    // The final deletion by the kubelet: the review has the terminating pod.
    ns.wire.delete(&ns.core("pods/one"), &json!({"gracePeriodSeconds": 0})).await.expect(200);
    let last = hook.seen().pop().expect("a request");
    assert!(last["oldObject"]["metadata"]["deletionTimestamp"].is_string(), "{last:#}");
    hook.remove().await;
}

async fn the_review_of_an_eviction_does_not_have_the_pod(cluster: Cluster) {
    let hook = evictions(&cluster, Reply::Allow).await;
    let ns = hook.ns();
    ns.pod("one", "Running", Some(true)).await;
    let options = json!({"deleteOptions": {"gracePeriodSeconds": 4}});
    ns.evict_with("one", options).await.expect(201);
    let request = hook.seen_once();
    assert_eq!((&request["operation"], &request["subResource"]), (&json!("CREATE"), &json!("eviction")));
    assert_eq!(request["kind"], json!({"group": "policy", "version": "v1", "kind": "Eviction"}));
    assert_eq!(request["resource"]["resource"], "pods");
    assert_eq!((&request["name"], &request["namespace"]), (&json!("one"), &json!(ns.name)));
    assert_eq!(request["object"]["kind"], "Eviction");
    assert_eq!(request["object"]["deleteOptions"]["gracePeriodSeconds"], 4);
    assert_eq!(request["oldObject"], json!(null));
    hook.remove().await;
}

async fn the_review_of_an_eviction_precedes_the_lookup_of_the_pod(cluster: Cluster) {
    let hook = evictions(&cluster, Reply::Allow).await;
    assert_eq!(hook.ns().evict("none").await.code, 404);
    assert_eq!(hook.seen_once()["name"], "none");
    hook.remove().await;
}

async fn an_eviction_is_denied_before_the_budget_is_checked(cluster: Cluster) {
    let hook = evictions(&cluster, Reply::Deny(not_now())).await;
    let ns = hook.ns();
    ns.pod("one", "Running", Some(true)).await;
    ns.budget("foo", json!({}), crate::eviction::counted(1, 3, 2)).await;
    let answer = ns.evict("one").await;
    assert_eq!(answer.message(), "admission webhook \"pods.example.com\" denied the request: not now");
    let budget = ns.wire.get(&ns.budgets("/foo")).await.expect(200);
    assert_eq!(budget["status"]["disruptionsAllowed"], 1);
    hook.remove().await;
}

async fn an_eviction_does_not_match_rules_for_deletions(cluster: Cluster) {
    let rules = rule(&["DELETE", "UPDATE"], &["pods", "pods/status"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |request| {
        match text(request, "/operation") {
            "DELETE" => Reply::Deny(not_now()),
            _ => Reply::Allow,
        }
    })
    .await;
    let ns = hook.ns();
    ns.pod("one", "Running", Some(true)).await;
    let before = hook.seen().len();
    ns.evict("one").await.expect(201);
    assert_eq!(hook.seen().len(), before);
    hook.remove().await;
}

async fn the_review_has_the_dry_run_flag(cluster: Cluster) {
    let rules = rule(&["CREATE"], &["configmaps"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Allow).await;
    let ns = hook.ns();
    let path = ns.core("configmaps?dryRun=All");
    ns.wire.post(&path, &config_map("one", json!({}))).await.expect(201);
    assert_eq!(hook.seen_once()["dryRun"], true);
    hook.remove().await;
}

async fn the_review_of_an_eviction_is_a_dry_run_only_by_its_query(cluster: Cluster) {
    let hook = evictions(&cluster, Reply::Allow).await;
    let ns = hook.ns();
    ns.pod("one", "Running", Some(true)).await;
    ns.evict_with("one", json!({"deleteOptions": {"dryRun": ["All"]}})).await.expect(201);
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one"}});
    ns.wire.post(&ns.core("pods/one/eviction?dryRun=All"), &body).await.expect(201);
    let seen = hook.seen();
    assert_eq!(seen[0]["dryRun"], false, "kubectl drain --dry-run=server requests it in this way");
    assert_eq!(seen[0]["object"]["deleteOptions"]["dryRun"], json!(["All"]));
    assert_eq!(seen[1]["dryRun"], true);
    hook.remove().await;
}

async fn every_object_of_a_collection_is_reviewed(cluster: Cluster) {
    let rules = rule(&["DELETE"], &["pods"]);
    let hook = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Allow).await;
    let ns = hook.ns();
    for name in ["a", "b"] {
        ns.create("pods", &pod_on(name, "some-node")).await;
        ns.settle(&format!("pods/{name}")).await;
    }
    ns.wire.delete(&ns.core("pods"), &json!({})).await.expect(200);
    let seen = hook.seen();
    let mut names: Vec<&str> = seen.iter().map(|request| text(request, "/oldObject/metadata/name")).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b"]);
    assert!(seen.iter().all(|request| request.get("name").is_none()), "a collection has no name");
    hook.remove().await;
}

async fn a_v1beta1_eviction_is_reviewed_as_v1(cluster: Cluster) {
    let hook = evictions(&cluster, Reply::Allow).await;
    let ns = hook.ns();
    ns.pod("one", "Running", Some(true)).await;
    ns.evict_with("one", json!({"apiVersion": "policy/v1beta1"})).await.expect(201);
    let request = hook.seen_once();
    assert_eq!(request["kind"]["version"], "v1");
    assert_eq!(request["object"]["apiVersion"], "policy/v1");
    hook.remove().await;
}

async fn one_denial_of_two_webhooks_denies(cluster: Cluster) {
    let rules = rule(&["DELETE"], &["configmaps"]);
    let yes = Installed::new(&cluster, "Validating", rules, json!({}), |_| Reply::Allow).await;
    let ns = yes.ns();
    // The second webhook is for the same namespace.
    let no = Webhook::start(|_| Reply::Deny(not_now())).await.expect("a webhook");
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let name = format!("{}-no", ns.name);
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration", "metadata": {"name": name},
        "webhooks": [entry("no.example.com", ns, &no, &rule(&["DELETE"], &["configmaps"]))]});
    ns.wire.post(path, &configuration).await.expect(201);
    ns.config_map("one", json!({})).await;
    eventually("the second webhook is called", || async {
        let answer = ns.wire.delete(&ns.core("configmaps/one"), &json!({"dryRun": ["All"]})).await;
        if answer.code == 429 { Ok(()) } else { Err(answer) }
    })
    .await;
    ns.wire.delete(&format!("{path}/{name}"), &json!({})).await.expect(200);
    yes.remove().await;
}
