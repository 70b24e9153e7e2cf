//! OpenKruise's budgets, and its annotations on pods.

use quorate_api::budget::StoredBudget;
use quorate_engine::basics::{GroupKind, Quantity};
use quorate_engine::facts::{
    BudgetKind, Covers, HealthRule, Operation, Operations, Rules, UnhealthyPolicy, Units,
};
use quorate_engine::selector::Selector;
use quorate_intake::budget;
use quorate_intake::kruise::{self, Neighbour};
use quorate_intake::objects;
use serde_json::{Value, json};

use crate::data::{load, object, pod, with};

#[expect(clippy::needless_pass_by_value, reason = "what is written in place is given away")]
fn stored(annotations: Value, spec: Value) -> Value {
    json!({
        "apiVersion": "policy.kruise.io/v1alpha1", "kind": "PodUnavailableBudget",
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 2,
            "annotations": annotations,
        },
        "spec": spec,
    })
}

fn fact(annotations: Value, spec: Value) -> quorate_engine::facts::Budget {
    budget::fact(BudgetKind::PodUnavailableBudget, &object::<StoredBudget>(stored(annotations, spec)))
        .unwrap()
}

fn rules(annotations: Value, spec: Value) -> Rules {
    fact(annotations, spec).spec.unwrap_or_else(|broken| panic!("{}", broken.why))
}

fn web() -> Value {
    json!({ "selector": { "matchLabels": { "app": "web" } }, "maxUnavailable": "25%" })
}

#[test]
fn a_minimal_budget_has_the_defaults_of_openkruise() {
    let budget = fact(json!({}), web());
    assert_eq!((budget.key.kind, &*budget.key.object.name), (BudgetKind::PodUnavailableBudget, "web"));
    let expected = Rules {
        covers: Covers::Selector(Selector::labels([("app", "web")])),
        min_available: None,
        max_unavailable: Some(Quantity::Percent(25)),
        units: Units::Pods,
        expected: None,
        unhealthy: UnhealthyPolicy::AlwaysAllow,
        operations: Operations::of(&[
            Operation::Evict,
            Operation::Delete,
            Operation::Update,
            Operation::Resize,
        ]),
        observe: false,
        health: HealthRule::Strict,
        waivable: true,
    };
    assert_eq!(budget.spec, Ok(expected));
}

#[test]
fn a_group_needs_one_ready_pod_unless_the_policy_sets_more() {
    let with_policy = |policy: Value| {
        let mut spec = web();
        spec["podGroupPolicy"] = policy;
        spec["minAvailable"] = json!(2);
        rules(json!({}), spec)
    };
    let read = with_policy(json!({ "groupLabelKey": "shard" }));
    assert_eq!(read.units, Units::Label { key: "shard".into(), min_ready: Some(1) });
    assert_eq!(
        (read.min_available, read.max_unavailable),
        (Some(Quantity::Count(2)), Some(Quantity::Percent(25))),
        "both hold"
    );
    let read = with_policy(json!({ "groupLabelKey": "shard", "minReadyReplicas": 3 }));
    assert_eq!(read.units, Units::Label { key: "shard".into(), min_ready: Some(3) });
}

#[test]
fn annotations_set_the_operations_and_the_total() {
    let protects = |text: &str| rules(json!({ "kruise.io/pub-protect-operations": text }), web()).operations;
    use Operation::{Delete, Evict, Relabel, Resize, Update};
    for (text, expected) in [
        ("DELETE", vec![Delete]),
        ("EVICT,DELETE", vec![Evict, Delete]),
        (" EVICT , RESIZE ,", vec![Evict, Resize]),
        ("UPDATE", vec![Update, Resize]),
        ("DELETE,RELABEL", vec![Delete, Relabel]),
        ("", vec![Evict, Delete, Update, Resize]),
    ] {
        assert_eq!(protects(text), Operations::of(&expected), "{text:?}");
    }
    let total = rules(json!({ "pub.kruise.io/protect-total-replicas": "15" }), web()).expected;
    assert_eq!(total, Some(15));
    for (name, text, message) in [
        ("kruise.io/pub-protect-operations", "BOGUS", "\"BOGUS\" is not an operation"),
        ("pub.kruise.io/protect-total-replicas", "%%", "must be a whole number from 1 to 2147483647"),
        ("pub.kruise.io/protect-total-replicas", "0", "must be a whole number from 1 to 2147483647"),
    ] {
        let broken = fact(json!({ name: text }), web()).spec.unwrap_err();
        assert!(broken.why.starts_with(&format!("metadata.annotations[{name}]: ")), "{}", broken.why);
        assert!(broken.why.contains(message), "{}", broken.why);
        assert_eq!(broken.operations, protects(""), "what cannot be read protects against everything");
    }
}

#[test]
fn a_stored_budget_that_validation_rejects_is_still_read() {
    let mut both = web();
    both["minAvailable"] = json!(2);
    let read = rules(json!({}), both.clone());
    assert_eq!((read.max_unavailable, read.min_available), (Some(Quantity::Percent(25)), None));
    let mut twice = web();
    twice["targetRef"] = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" });
    let read = rules(json!({}), twice.clone());
    assert_eq!(read.covers, Covers::Target(GroupKind::new("apps", "Deployment"), "web".into()));
    let mut empty = web();
    empty["selector"] = json!({});
    assert_eq!(rules(json!({}), empty.clone()).covers, Covers::Selector(Selector::default()));
    for spec in [both, twice, empty] {
        assert_eq!(kruise::validate_new(&stored(json!({}), spec.clone()), &[]).len(), 1, "{spec}");
    }
}

fn refused(spec: Value, neighbours: &[(&str, Value)]) -> Vec<String> {
    let neighbours: Vec<Neighbour> = neighbours
        .iter()
        .map(|(name, spec)| Neighbour { name: (*name).into(), covers: rules(json!({}), spec.clone()).covers })
        .collect();
    let problems = kruise::validate_new(&stored(json!({}), spec), &neighbours);
    problems.iter().map(ToString::to_string).collect()
}

#[expect(clippy::needless_pass_by_value, reason = "what is written in place is given away")]
fn labels(labels: Value) -> Value {
    json!({ "selector": { "matchLabels": labels }, "maxUnavailable": 1 })
}

#[test]
fn budgets_with_overlapping_selectors_or_the_same_target_are_rejected() {
    let server = labels(json!({ "app": "webserver" }));
    assert_eq!(
        refused(server.clone(), &[("first", server.clone())]),
        [
            "spec.selector: overlaps with that of PodUnavailableBudget first: a pod can have the labels of both. \
             Use values that exclude each other, or delete first"
        ]
    );
    assert_eq!(refused(server.clone(), &[("db", labels(json!({ "app": "db" })))]), [""; 0]);
    assert_eq!(refused(server.clone(), &[("backend", labels(json!({ "backend": "true" })))]), [""; 0]);
    let more = labels(json!({ "app": "webserver", "tier": "web" }));
    assert_eq!(refused(server.clone(), &[("more", more)]), [""; 0], "not the same labels");
    let target = |name: &str, version: &str| json!({ "targetRef": { "apiVersion": version, "kind": "Deployment", "name": name }, "maxUnavailable": 1 });
    assert_eq!(
        refused(target("web", "apps/v1"), &[("first", target("web", "apps/v1beta1"))]),
        [
            "spec.targetRef: is the target of PodUnavailableBudget first already: change that one, or delete it"
        ]
    );
    assert_eq!(refused(target("web", "apps/v1"), &[("first", target("db", "apps/v1"))]), [""; 0]);
    assert_eq!(refused(target("web", "apps/v1"), &[("first", server)]), [""; 0]);
}

#[test]
fn selectors_overlap_if_one_pod_can_match_both() {
    let with_expression = |operator: &str, values: &[&str]| {
        let expression = match values {
            [] => json!({ "key": "a", "operator": operator }),
            values => json!({ "key": "a", "operator": operator, "values": values }),
        };
        json!({ "selector": { "matchExpressions": [expression] }, "maxUnavailable": 1 })
    };
    let in_b = || with_expression("In", &["b"]);
    for (ours, theirs, overlap) in [
        (in_b(), with_expression("Exists", &[]), true),
        (in_b(), with_expression("In", &["b", "c"]), true),
        (in_b(), with_expression("In", &["c"]), false),
        (in_b(), with_expression("NotIn", &["b", "c"]), false),
        (with_expression("In", &["b", "d"]), with_expression("NotIn", &["b", "c"]), true),
        (with_expression("NotIn", &["b"]), with_expression("In", &["b", "c"]), true),
        (with_expression("NotIn", &["b"]), in_b(), false),
        (with_expression("NotIn", &["b"]), with_expression("NotIn", &["c"]), true),
        (with_expression("NotIn", &["b"]), with_expression("DoesNotExist", &[]), true),
        (with_expression("Exists", &[]), with_expression("DoesNotExist", &[]), false),
        (with_expression("Exists", &[]), with_expression("Exists", &[]), true),
        (in_b(), with_expression("DoesNotExist", &[]), false),
        (in_b(), labels(json!({ "a": "b" })), true),
    ] {
        for (ours, theirs) in [(&ours, &theirs), (&theirs, &ours)] {
            let problems = refused(ours.clone(), &[("other", theirs.clone())]);
            assert_eq!(!problems.is_empty(), overlap, "{ours} and {theirs}: {problems:?}");
        }
    }
}

#[test]
fn selector_and_target_are_immutable() {
    let old = stored(json!({}), web());
    let change = |new: &Value| -> Vec<String> {
        kruise::validate_change(&old, new).iter().map(ToString::to_string).collect()
    };
    let fixed = "is immutable: create another budget, and delete this one once the new one is enforced";
    assert_eq!(change(&with(old.clone(), "/spec/maxUnavailable", json!(2))), [""; 0]);
    let operations = "/metadata/annotations/kruise.io~1pub-protect-operations";
    assert_eq!(change(&with(old.clone(), operations, json!("EVICT"))), [""; 0]);
    assert_eq!(change(&with(old.clone(), operations, json!("BOGUS"))).len(), 1);
    let other = with(old.clone(), "/spec/selector/matchLabels/app", json!("db"));
    assert_eq!(change(&other), [format!("spec.selector: {fixed}")]);
    let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" });
    let moved = with(with(old.clone(), "/spec/selector", json!(null)), "/spec/targetRef", target);
    assert_eq!(change(&moved), [format!("spec.selector: {fixed}"), format!("spec.targetRef: {fixed}")]);
    // An invalid budget that was stored without validation may lose a finalizer.
    let bad = stored(json!({}), json!({}));
    assert_eq!(kruise::validate_change(&bad, &with(bad.clone(), "/metadata/labels", json!({}))), []);
}

fn is_consistent(value: Value) -> bool {
    objects::pod(&pod(value)).unwrap().consistent
}

#[test]
fn an_in_place_update_is_over_when_its_containers_are_new() {
    let started = with(
        load("pod.json"),
        "/status/containerStatuses/0/state",
        json!({ "running": { "startedAt": "2026-11-15T10:00:00Z" } }),
    );
    let image = started["spec"]["containers"][0]["image"].clone();
    let started = with(started, "/spec/containers/0/image", json!("llm:2"));
    let runs = started["status"]["containerStatuses"][0]["imageID"].as_str().unwrap().to_owned();
    let name = started["status"]["containerStatuses"][0]["name"].as_str().unwrap().to_owned();
    let last = |id: &str, at: &str| json!({ "updateTimestamp": at, "lastContainerStatuses": { name.as_str(): { "imageID": id } } });
    let (early, late) = ("2026-11-15T09:00:00Z", "2026-11-15T11:00:00Z");
    let next = json!({ "nextContainerImages": { "server": "llm:3" } });
    let main = |state: &Value| {
        let text = json!(state.to_string());
        with(started.clone(), "/metadata/annotations/apps.kruise.io~1inplace-update-state", text)
    };
    let sidecar = |state: &Value| {
        let text = json!(json!({ "mesh": state }).to_string());
        with(started.clone(), "/metadata/annotations/kruise.io~1sidecarset-inplace-update-state", text)
    };
    for (state, over) in [
        (last("another", late), true),
        (last(&runs, late), false),
        (last(&runs, early), true),
        (next, false),
        (json!({ "nextContainerImages": {} }), true),
        (json!({}), true),
        (json!([1]), false),
    ] {
        assert_eq!(is_consistent(main(&state)), over, "{state}");
        assert_eq!(is_consistent(sidecar(&state)), over, "of a SidecarSet: {state}");
    }
    // Reverted before the kubelet acted: no container will be replaced.
    let reverted = with(main(&last(&runs, late)), "/spec/containers/0/image", image);
    assert!(is_consistent(reverted.clone()));
    let unnamed = with(reverted, "/status/containerStatuses/0/image", json!(null));
    assert!(!is_consistent(unnamed), "which image runs is not known");
    assert!(is_consistent(started.clone()));
    let garbage = with(started, "/metadata/annotations/apps.kruise.io~1inplace-update-state", json!("{"));
    assert!(!is_consistent(garbage));
}

#[test]
fn a_digest_counts_only_if_the_status_shows_an_image_digest() {
    let wanted = with(load("pod.json"), "/spec/containers/0/image", json!("llm@sha256:abc"));
    let runs = |id: &str| with(wanted.clone(), "/status/containerStatuses/0/imageID", json!(id));
    assert!(is_consistent(runs("docker.io/library/llm@sha256:abc")));
    assert!(!is_consistent(runs("docker.io/library/llm@sha256:def")), "another one runs");
    // The digest of the configuration shows nothing about the digest of the image.
    assert!(is_consistent(runs("sha256:def")));
    let fact = objects::pod(&pod(with(
        runs("sha256:def"),
        "/status/containerStatuses/0/image",
        json!("sha256:def"),
    )))
    .unwrap();
    assert_eq!(fact.containers[0].image, fact.containers[0].spec_image, "an update to it comes to its end");
}

#[test]
fn a_pod_with_no_protect_waives_the_budget() {
    let waives = |text: &str| {
        let value = with(load("pod.json"), "/metadata/annotations/pub.kruise.io~1no-protect", json!(text));
        objects::pod(&pod(value)).unwrap().waives
    };
    for (text, expected) in [("true", true), ("1", true), ("T", true), ("false", false), ("yes", false)] {
        assert_eq!(waives(text), expected, "{text}");
    }
}
