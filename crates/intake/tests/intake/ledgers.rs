//! The ledger, from a status and back into it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quorate_engine::basics::{Time, Version};
use quorate_engine::claims::{Claim, ContainerChange, Ledger, Target, Token};
use quorate_engine::facts::{BudgetKey, BudgetKind, Operation};
use quorate_engine::ledger::{Admission, LedgerPatch, Step};
use quorate_intake::budget::{self, MissingFields};
use serde_json::{Value, json};

use crate::budgets::any as stored_budget;
use crate::data::{TEN, before_ten, load, random_cases, with};

fn ledger(value: Value) -> Ledger {
    budget::budget(&stored_budget(value)).unwrap().ledger
}

#[test]
fn a_stored_ledger_is_read() {
    let ledger = ledger(load("budget.json"));
    assert_eq!((ledger.number, ledger.settled, ledger.protocol), (17, Version(48000), Some(1)));
    assert_eq!(ledger.enforced, Some(quorate_engine::Coverage(0xdead_beef)));
    assert_eq!(ledger.claims.len(), 2);
    let claim = &ledger.claims["5f1d0c52-7f0e-4a53-9d2e-0d5b9d3b1a01"];
    assert_eq!(&*claim.pod, "llm-1-3");
    let token = &claim.tokens["t-1"];
    assert_eq!((token.operation, &*token.by), (Operation::Evict, "alice"));
    assert_eq!(token.at, Time(before_ten(20).0 + 250));
    let change = &ledger.claims["u-2"].tokens["t-2"].target.containers[0];
    assert_eq!(
        (&*change.name, change.image, change.replaces, change.resources),
        ("server", Some(10), Some(11), None)
    );
}

#[test]
fn a_new_budget_has_an_empty_ledger() {
    for status in [json!(null), json!({}), json!({ "settledVersion": "", "protocol": 0, "claims": {} })] {
        let budget = budget::budget(&stored_budget(with(load("budget.json"), "/status", status))).unwrap();
        assert_eq!(budget.ledger, Ledger::default());
        assert!(budget.spec.is_ok());
    }
}

/// A claim that is not read would be granted twice.
#[test]
fn a_ledger_that_cannot_be_read_breaks_the_budget() {
    let uid = "5f1d0c52-7f0e-4a53-9d2e-0d5b9d3b1a01";
    let token = format!("/status/claims/{uid}/tokens/t-1");
    let cases = [
        ("/status/ledger".to_owned(), json!(-1)),
        ("/status/ledger".to_owned(), json!("17")),
        ("/status/settledVersion".to_owned(), json!("-5")),
        ("/status/settledVersion".to_owned(), json!(48000)),
        ("/status/protocol".to_owned(), json!("1")),
        ("/status/claims".to_owned(), json!([])),
        (format!("/status/claims/{uid}"), json!("held")),
        (format!("/status/claims/{uid}/tokens"), json!(["t-1"])),
        ("/status".to_owned(), json!("none")),
        (format!("{token}/target"), json!("server")),
        (format!("{token}/target"), json!({ "containers": { "server": "v2" } })),
        (format!("{token}/operation"), json!("Nap")),
        (format!("{token}/operation"), json!(null)),
        (format!("{token}/at"), json!("yesterday")),
        (format!("{token}/target"), json!({ "containers": { "server": { "image": "10" } } })),
    ];
    for (pointer, value) in cases {
        let budget =
            budget::budget(&stored_budget(with(load("budget.json"), &pointer, value.clone()))).unwrap();
        let broken = budget.spec.expect_err(&format!("{pointer} = {value}"));
        assert!(broken.why.starts_with("status"), "{}", broken.why);
    }
    // An unreadable coverage only closes the budget.
    let unopened = with(load("budget.json"), "/status/openedFor", json!("all"));
    assert_eq!(ledger(with(unopened, "/status/opened", json!("all"))).enforced, None);
}

#[test]
fn a_budget_is_opened_for_a_coverage_and_a_generation() {
    let (seven, nine) = ("0000000000000007", "0000000000000009");
    let opened = |coverage: &str, generation| json!({ "coverage": coverage, "generation": generation });
    for (before, named, coverage, generation, why) in [
        (json!(seven), json!(null), Some(7), None, "opened by the release before"),
        (json!(seven), opened(seven, 4), Some(7), Some(4), "opened by this release"),
        (
            json!(null),
            opened(seven, 4),
            Some(7),
            Some(4),
            "opened by a release that does not write openedFor",
        ),
        (json!(nine), opened(seven, 4), Some(9), None, "opened again by the release before"),
        (json!(null), json!(null), None, None, "not opened"),
        (json!(null), json!("all"), None, None, "cannot be read"),
        (json!(seven), json!({ "coverage": seven }), Some(7), None, "without a generation"),
    ] {
        let stored = with(load("budget.json"), "/status/openedFor", before);
        let found = ledger(with(stored, "/status/opened", named));
        let coverage = coverage.map(quorate_engine::Coverage);
        assert_eq!((found.enforced, found.enforced_generation), (coverage, generation), "{why}");
    }
}

#[test]
fn admissions_that_are_handed_over_are_read_back() {
    let claims = ledger(load("budget.json")).claims;
    let admissions: Vec<Admission> = claims
        .iter()
        .flat_map(|(uid, claim)| claim.tokens.iter().map(move |(token, what)| (uid, claim, token, what)))
        .map(|(uid, claim, token, what)| Admission {
            uid: uid.clone(),
            pod: claim.pod.clone(),
            token: token.clone(),
            what: what.clone(),
        })
        .collect();
    assert!(admissions.len() > 1);
    let json = budget::admissions_to_json(&admissions);
    assert_eq!(budget::read_admissions(&json), Some(admissions));
    for (pointer, value) in [
        ("/0/uid", json!(null)),
        ("/0/token", json!(7)),
        ("/0/what", json!({})),
        ("/0/what/operation", json!("Nap")),
        ("/0/what/at", json!("yesterday")),
        ("/1", json!("t-1")),
    ] {
        let broken = with(json.clone(), pointer, value.clone());
        assert_eq!(budget::read_admissions(&broken), None, "{pointer} = {value}");
    }
    assert_eq!(budget::read_admissions(&json!({})), None);
}

fn claim(by: &str) -> Claim {
    let token = Token { operation: Operation::Evict, by: by.into(), at: TEN, target: Target::default() };
    Claim { pod: "llm-1-3".into(), tokens: BTreeMap::from([("t".into(), token)]) }
}

fn patch(steps: Vec<Step>) -> LedgerPatch {
    let key = stored_budget(load("budget.json")).metadata;
    let object = quorate_engine::basics::ObjectKey::new(key.namespace.unwrap(), key.name.unwrap());
    LedgerPatch { budget: BudgetKey { object, kind: BudgetKind::DisruptionBudget }, steps }
}

fn steps_of(json: Value) -> json_patch::Patch {
    serde_json::from_value(json).unwrap()
}

/// Applies a write as JSON Patch and as the engine predicts it, and compares.
fn write(stored: &Value, steps: Vec<Step>) -> Result<Value, String> {
    let seen = stored_budget(stored.clone());
    let patch = patch(steps);
    let json = budget::json_patch(&patch, &MissingFields::of(BudgetKind::DisruptionBudget, &seen));
    let mut written = stored.clone();
    let outcome = json_patch::patch(&mut written, &steps_of(json));
    let mut fact = budget::budget(&seen).unwrap();
    let holds = patch.apply(&mut fact);
    assert_eq!(outcome.is_ok(), holds, "{outcome:?}");
    match outcome {
        Ok(()) => {
            assert_eq!(ledger(written.clone()), fact.ledger);
            Ok(written)
        }
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_write_that_requires_a_version_is_refused_once_the_budget_has_changed() {
    let stored = load("budget.json");
    let version = budget::budget(&stored_budget(stored.clone())).unwrap().version;
    let steps = |version| vec![Step::TestVersion(version), Step::SetSettled(Version(47000))];
    let written = write(&stored, steps(version)).unwrap();
    assert_eq!(ledger(written).settled, Version(47000), "lower than before");
    assert!(write(&stored, steps(Version(version.0 - 1))).is_err());
}

#[test]
fn a_commit_is_written_as_a_json_patch() {
    let stored = load("budget.json");
    let steps = vec![
        Step::TestUid("b-1".into()),
        Step::TestGeneration(4),
        Step::TestNumber(17),
        Step::SetNumber(18),
        Step::TestSettled(Version(48000)),
        Step::SetSettled(Version(48100)),
        Step::RemoveClaim("u-2".into()),
        Step::PutClaim("a/b~c".into(), claim("carol")),
        Step::SetEnforced(quorate_engine::Coverage(7), 4),
        Step::SetProtocol(1),
    ];
    let written = write(&stored, steps).unwrap();
    assert_eq!(written["status"]["ledger"], json!(18));
    assert_eq!(written["status"]["openedFor"], json!("0000000000000007"));
    assert_eq!(written["status"]["opened"], json!({ "coverage": "0000000000000007", "generation": 4 }));
    assert_eq!(written["status"]["conditions"], stored["status"]["conditions"]);
    assert!(written["status"]["claims"].get("a/b~c").is_some());
    insta::assert_snapshot!(written["status"]["claims"]["a/b~c"], @r#"{"pod":"llm-1-3","tokens":{"t":{"at":"2026-11-15T10:00:00.000000Z","by":"carol","operation":"Evict"}}}"#);
}

#[test]
fn a_commit_on_an_outdated_state_fails() {
    for step in [
        Step::TestUid("b-2".into()),
        Step::TestGeneration(5),
        Step::TestNumber(16),
        Step::TestSettled(Version(47999)),
        Step::RemoveClaim("u-9".into()),
    ] {
        assert!(write(&load("budget.json"), vec![step.clone()]).is_err(), "{step:?}");
    }
}

#[test]
fn the_first_write_adds_missing_fields() {
    let steps = || {
        vec![
            Step::TestUid("b-1".into()),
            Step::TestNumber(0),
            Step::SetNumber(1),
            Step::TestSettled(Version(0)),
            Step::PutClaim("u-1".into(), claim("carol")),
        ]
    };
    let counted = json!({ "disruptionsAllowed": 1 });
    for status in
        [json!(null), json!({}), counted, json!({ "ledger": 0, "claims": {}, "settledVersion": "" })]
    {
        let stored = with(load("budget.json"), "/status", status);
        write(&stored, steps()).unwrap();
        // It must not overwrite what another writer began in the meantime.
        let missing = MissingFields::of(BudgetKind::DisruptionBudget, &stored_budget(stored.clone()));
        let patch = steps_of(budget::json_patch(&patch(steps()), &missing));
        let mut newer = with(stored, "/metadata/resourceVersion", json!("101"));
        assert!(json_patch::patch(&mut newer, &patch).is_err());
    }
    let whole = budget::json_patch(
        &patch(steps()),
        &MissingFields::of(BudgetKind::DisruptionBudget, &stored_budget(load("budget.json"))),
    );
    assert_eq!(whole.as_array().unwrap().len(), steps().len(), "counters may change under a commit");
}

/// The release before could not read an operation that it does not know, and its leader would drop the claim.
#[test]
fn a_relabel_is_stored_as_an_update_that_the_release_before_can_read() {
    let target = Target { base: Some(Version(7)), ..Target::default() };
    let token = Token { operation: Operation::Relabel, by: "alice".into(), at: Time(0), target };
    let claim = Claim { pod: "web-0".into(), tokens: [("t".into(), token)].into() };
    let stored = &budget::claim_to_json(&claim)["tokens"]["t"];
    assert_eq!(stored["operation"], json!("Update"));
    assert_eq!(stored["target"], json!({ "containers": {}, "label": "quorate.dev/relabelled", "base": "7" }));
}

fn tokens() -> impl Strategy<Value = Token> {
    let operation = prop_oneof![
        Just(Operation::Evict),
        Just(Operation::Delete),
        Just(Operation::Update),
        Just(Operation::Resize),
        Just(Operation::Relabel)
    ];
    let change = ("[a-z]{1,8}", any::<Option<u64>>(), any::<Option<u64>>(), any::<Option<u64>>());
    let changes = proptest::collection::vec(change, 0..3);
    let label = proptest::option::of("[a-z/.]{1,9}");
    let base = any::<Option<u64>>();
    let deadline = any::<Option<u32>>();
    (operation, ".*", 0..4_000_000_000_000i64, changes, label, base, deadline).prop_map(
        |(operation, by, at, changes, label, base, deadline)| {
            // A relabel waits for no label.
            let label = label.filter(|_| operation != Operation::Relabel).map(|label| label.as_str().into());
            let changes: BTreeMap<String, ContainerChange> = changes
                .into_iter()
                .map(|(name, replaces, image, resources)| {
                    let change = ContainerChange { name: name.as_str().into(), replaces, image, resources };
                    (name, change)
                })
                .collect();
            Token {
                operation,
                by: by.into(),
                at: Time(at),
                target: Target {
                    base: base.map(Version),
                    containers: changes.into_values().collect(),
                    label,
                    deadline,
                },
            }
        },
    )
}

proptest! {
    #![proptest_config(random_cases(256))]

    /// A replica must read back what it predicted as the result of its write.
    #[test]
    fn a_claim_reads_back_as_it_was_written(
        pod in ".*", tokens in proptest::collection::btree_map("[^ ]{1,5}", tokens(), 0..3)
    ) {
        let tokens = tokens.into_iter().map(|(id, token)| (id.into(), token)).collect();
        let claim = Claim { pod: pod.into(), tokens };
        let json = budget::claim_to_json(&claim);
        let stored = with(load("budget.json"), "/status/claims", json!({ "u": json }));
        let read = ledger(stored);
        prop_assert_eq!(&read.claims["u"], &claim);
        prop_assert_eq!(budget::claim_to_json(&read.claims["u"]), json);
    }
}

/// The value is stored in the status of budgets: every release must compute the same value for an object.
#[test]
fn the_coverage_hash_of_a_stored_budget_never_changes() {
    let of = |kind, object: &Value| {
        let budget = budget::fact(kind, &serde_json::from_value(object.clone()).unwrap()).unwrap();
        format!("{:016x}", quorate_engine::Coverage::of(&budget.uid, budget.spec.as_ref().unwrap()).0)
    };
    let object = |spec: Value| {
        json!({"metadata": {"namespace": "shop", "name": "web", "uid": "u-1", "generation": 1,
            "resourceVersion": "1"}, "spec": spec})
    };
    let expressions = json!([
        {"key": "tier", "operator": "NotIn", "values": ["dev"]}, {"key": "gpu", "operator": "Exists"},
        {"key": "canary", "operator": "DoesNotExist"}, {"key": "zone", "operator": "In", "values": ["a", "b"]},
    ]);
    let selector = json!({"matchLabels": {"app": "web"}, "matchExpressions": expressions});
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let own = BudgetKind::DisruptionBudget;
    let kruise = BudgetKind::PodUnavailableBudget;
    assert_eq!(of(own, &object(json!({"selector": selector, "maxUnavailable": 1}))), "db3e8fc9cf253b39");
    assert_eq!(of(own, &object(json!({"targetRef": target, "minAvailable": "50%"}))), "cb8da30a08ed79c7");
    assert_eq!(of(kruise, &object(json!({"selector": selector, "maxUnavailable": 1}))), "db6e23c9cf4da777");
    assert_eq!(of(kruise, &object(json!({"targetRef": target, "minAvailable": "50%"}))), "cb5e0f0a08c50d89");
}

/// An announcement is written so that it is kept where its base is lost: by the definition of the release before, or by a
/// server of it.
#[test]
fn an_announcement_that_loses_its_base_stays_until_it_expires() {
    let target = Target { base: Some(Version(7)), ..Target::default() };
    let token = Token { operation: Operation::Update, by: "kruise".into(), at: Time(0), target };
    let claim = Claim { pod: "p".into(), tokens: [("t".into(), token)].into() };
    let mut json = budget::claim_to_json(&claim);
    assert_eq!(
        json["tokens"]["t"]["target"],
        json!({"containers": {}, "label": "InPlaceUpdateReady", "base": "7"})
    );
    json["tokens"]["t"]["target"].as_object_mut().unwrap().remove("base");
    let read = ledger(with(load("budget.json"), "/status/claims", json!({ "u": json })));
    let target = &read.claims["u"].tokens["t"].target;
    let pod = quorate_intake::objects::pod(&crate::data::pod(load("pod.json"))).unwrap();
    assert!(!target.is_reached(&pod) && !target.is_stored(&pod), "it expires, and is not over before");
}
