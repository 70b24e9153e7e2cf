//! Pods from templates.

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use proptest::prelude::*;
use quorate_intake::template::{Flaw, annotated, pod_from_template, sort};
use serde_json::{Value, json};

use crate::data::{object, random_cases};

fn owner(kind: &str, uid: &str, controller: Option<bool>) -> OwnerReference {
    OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: kind.to_owned(),
        name: format!("{kind}-{uid}").to_lowercase(),
        uid: uid.to_owned(),
        controller,
        block_owner_deletion: None,
    }
}

fn template(owners: &[OwnerReference]) -> PodTemplateSpec {
    object(json!({
        "metadata": {
            "name": "ignored", "namespace": "ignored", "uid": "ignored",
            "labels": { "app": "etl" }, "annotations": { "a": "b" }, "finalizers": ["example.com/f"],
            "ownerReferences": owners,
        },
        "spec": { "containers": [{ "name": "main", "image": "etl:1" }] },
    }))
}

fn owners(pod: &Pod) -> Vec<(String, Option<bool>)> {
    pod.metadata
        .owner_references
        .iter()
        .flatten()
        .map(|owner| (owner.uid.clone(), owner.controller))
        .collect()
}

/// The example of the proposal.
#[test]
fn a_job_group_is_added_after_the_job() {
    let job = owner("Job", "xyz-789", Some(true));
    let template = template(&[owner("JobGroup", "abcd-1234", Some(false))]);
    let pod = pod_from_template(&template, Some(&job), true);
    assert_eq!(owners(&pod), [("xyz-789".to_owned(), Some(true)), ("abcd-1234".to_owned(), Some(false))]);
    assert_eq!(
        owners(&pod_from_template(&template, Some(&job), false)),
        [("xyz-789".to_owned(), Some(true))]
    );
}

#[test]
fn metadata_and_spec_of_the_template_are_kept() {
    let pod = pod_from_template(&template(&[]), None, true);
    let expected: Value = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "labels": { "app": "etl" }, "annotations": { "a": "b" }, "finalizers": ["example.com/f"] },
        "spec": { "containers": [{ "name": "main", "image": "etl:1" }] },
    });
    assert_eq!(json!(pod), expected);
    assert_eq!(pod_from_template(&PodTemplateSpec::default(), None, true), Pod::default());
}

fn uids(owners: &[OwnerReference]) -> Vec<&str> {
    owners.iter().map(|owner| owner.uid.as_str()).collect()
}

/// One row for each rule: what the template names, and what is added behind the Job `j`.
#[test]
fn each_rule_for_added_owners_holds() {
    let job = owner("Job", "j", Some(true));
    let plain = |uid: &str| owner("JobGroup", uid, None);
    let explicit = |uid: &str| owner("JobGroup", uid, Some(false));
    let blocking = OwnerReference { block_owner_deletion: Some(true), ..plain("g") };
    for (rule, named, added) in [
        ("nothing is named", vec![], vec![]),
        ("controller: false", vec![explicit("g")], vec!["g"]),
        ("controller is not set", vec![plain("g")], vec!["g"]),
        ("a controller is dropped", vec![owner("Other", "o", Some(true))], vec![]),
        ("and the others are not", vec![owner("Other", "o", Some(true)), plain("g")], vec!["g"]),
        ("the same twice", vec![plain("g"), explicit("g")], vec!["g"]),
        ("the controller again", vec![owner("Job", "j", Some(false)), plain("g")], vec!["g"]),
        ("in the order of the template", vec![plain("z"), plain("a"), plain("m")], vec!["z", "a", "m"]),
        (
            "dropped as a controller, named as an owner",
            vec![owner("X", "x", Some(true)), plain("x")],
            vec!["x"],
        ),
        ("blockOwnerDeletion is not checked here", vec![blocking], vec!["g"]),
    ] {
        let pod = pod_from_template(&template(&named), Some(&job), true);
        let owners = pod.metadata.owner_references.unwrap();
        assert_eq!(owners[0], job, "{rule}: the controller comes first, as it is");
        assert_eq!(uids(&owners[1..]), added, "{rule}");
        let kept: Vec<&OwnerReference> = owners[1..].iter().collect();
        assert!(kept.iter().all(|kept| named.contains(kept)), "{rule}: as the template has them");
        assert_eq!(sort(&named, &owners).added, [], "{rule}: the second time, nothing is added");

        let alone = pod_from_template(&template(&named), None, true).metadata.owner_references;
        assert!(
            alone.iter().flatten().all(|owner| owner.controller != Some(true)),
            "{rule}: without a controller"
        );
    }
}

/// With any of these, the API server would reject the pod, or the owner could not be looked up.
#[test]
fn an_owner_that_no_pod_can_have_is_left_out() {
    let good = owner("JobGroup", "g", None);
    let with = |change: fn(&mut OwnerReference)| {
        let mut owner = good.clone();
        change(&mut owner);
        owner
    };
    for (owner, flaw) in [
        (with(|o| o.uid.clear()), Flaw::Lacks("uid")),
        (with(|o| o.name.clear()), Flaw::Lacks("name")),
        (with(|o| o.kind.clear()), Flaw::Lacks("kind")),
        (with(|o| o.api_version.clear()), Flaw::Lacks("apiVersion")),
        (with(|o| o.api_version = "a/b/c".to_owned()), Flaw::ApiVersion),
        (with(|o| o.api_version = "../v1".to_owned()), Flaw::ApiVersion),
        (with(|o| o.name = "a/scale".to_owned()), Flaw::Name),
        (with(|o| o.name = "..".to_owned()), Flaw::Name),
        (with(|o| o.name = "a?b".to_owned()), Flaw::Name),
        (with(|o| (o.api_version, o.kind) = ("v1".to_owned(), "Event".to_owned())), Flaw::Event),
        (with(|o| o.controller = Some(true)), Flaw::Controller),
    ] {
        let sorted = sort(&[owner.clone(), owner.clone()], &[]);
        assert_eq!(
            (sorted.added.len(), sorted.flawed),
            (0, vec![(owner, flaw)]),
            "reported once, and left out"
        );
    }
    let odd = with(|o| (o.api_version, o.name) = ("x.example/stable".to_owned(), "system:x.1".to_owned()));
    assert_eq!(sort(std::slice::from_ref(&odd), &[]).added, [odd], "odd, and allowed");
}

#[test]
fn the_annotation_has_the_same_content() {
    let group = owner("JobGroup", "g", Some(false));
    assert_eq!(annotated(&json!([group]).to_string()), Ok(vec![group]));
    assert_eq!(annotated("[]"), Ok(vec![]));
    for text in ["", "{}", "- kind: JobGroup", "[1]", "null"] {
        assert!(annotated(text).is_err(), "{text}");
    }
}

fn any_owner() -> impl Strategy<Value = OwnerReference> {
    (0..5u8, prop_oneof![Just(None), Just(Some(false)), Just(Some(true))], any::<Option<bool>>(), 0..4u8)
        .prop_map(|(uid, controller, block_owner_deletion, lacks)| {
            let mut owner = owner("Group", &uid.to_string(), controller);
            owner.block_owner_deletion = block_owner_deletion;
            if lacks == 0 {
                owner.name.clear();
            }
            owner
        })
}

proptest! {
    #![proptest_config(random_cases(256))]

    /// Whatever a template names.
    #[test]
    fn only_the_owners_of_a_pod_change(named in prop::collection::vec(any_owner(), 0..8), managed: bool) {
        let job = owner("Job", "j", Some(true));
        let controller = managed.then_some(&job);
        let template = template(&named);
        let on = pod_from_template(&template, controller, true);
        let off = pod_from_template(&template, controller, false);
        let bare = pod_from_template(&PodTemplateSpec {
            metadata: template.metadata.clone().map(|mut meta| { meta.owner_references = None; meta }),
            ..template
        }, controller, false);
        prop_assert_eq!(json!(off).to_string(), json!(bare).to_string(), "off: byte for byte as before");

        let owners = on.metadata.owner_references.clone().unwrap_or_default();
        prop_assert_eq!(owners.iter().filter(|owner| owner.controller == Some(true)).count(), usize::from(managed));
        let mut once = uids(&owners);
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), owners.len(), "each owner once");
        prop_assert!(owners.iter().all(|owner| !owner.name.is_empty()));
        let mut rest = named.iter();
        for owner in owners.iter().skip(usize::from(managed)) {
            prop_assert!(rest.any(|other| other == owner), "in the template's order, as they are there");
        }
        let mut without = on;
        without.metadata.owner_references = off.metadata.owner_references.clone();
        prop_assert_eq!(without, off, "nothing else differs");
    }
}
