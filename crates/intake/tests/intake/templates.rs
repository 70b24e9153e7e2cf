//! The owners that a pod template names.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use proptest::prelude::*;
use quorate_intake::template::{Flaw, annotated, sort};
use serde_json::json;

use crate::data::random_cases;

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
        let sorted = sort(&named, std::slice::from_ref(&job));
        assert_eq!(uids(&sorted.added), added, "{rule}");
        assert!(sorted.added.iter().all(|kept| named.contains(kept)), "{rule}: as the template has them");
        let owners = [vec![job.clone()], sorted.added].concat();
        assert_eq!(sort(&named, &owners).added, [], "{rule}: the second time, nothing is added");

        let alone = sort(&named, &[]).added;
        assert!(alone.iter().all(|owner| owner.controller != Some(true)), "{rule}: without a controller");
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
    fn each_added_owner_is_valid_and_added_once(named in prop::collection::vec(any_owner(), 0..8), managed: bool) {
        let present: Vec<OwnerReference> = managed.then(|| owner("Job", "j", Some(true))).into_iter().collect();
        let added = sort(&named, &present).added;
        prop_assert!(added.iter().all(|owner| owner.controller != Some(true) && !owner.name.is_empty()));
        let owners = [present, added.clone()].concat();
        let mut once = uids(&owners);
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), owners.len(), "each owner once");
        let mut rest = named.iter();
        for owner in &added {
            prop_assert!(rest.any(|other| other == owner), "in the template's order, as they are there");
        }
    }
}
