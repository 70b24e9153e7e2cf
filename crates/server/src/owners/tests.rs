//! Owners from an API server that serves the objects of the test.

#![allow(clippy::needless_pass_by_value, reason = "json!(…) is written where it is used")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use k8s_openapi::ByteString;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::raw_budgets::RawBudgets;

const GROUPS: &str = "/apis/example.com/v1/namespaces/lab/jobgroups";
const JOB: &str = "/apis/batch/v1/namespaces/lab/jobs/etl";

#[derive(Clone, Default)]
struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    served: BTreeMap<String, (u16, Value)>,
    silent: Option<String>,
    requests: Vec<String>,
    events: Vec<Value>,
    may_block: bool,
}

impl FakeApi {
    /// With the Job etl, whose template names these owners, and the JobGroup nightly.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass json!(…) directly")]
    fn with_job(template: Value) -> Self {
        let api = Self::default();
        let kind = |name: &str, kind: &str, namespaced: bool| json!({"name": name, "kind": kind, "namespaced": namespaced, "singularName": "", "verbs": ["get"]});
        let list = |group: &str, kinds: Value| json!({"kind": "APIResourceList", "groupVersion": group, "resources": kinds});
        let jobs = json!([kind("jobs/status", "Job", true), kind("jobs", "Job", true)]);
        api.serve("/apis/batch/v1", 200, list("batch/v1", jobs));
        let groups = json!([kind("jobgroups", "JobGroup", true), kind("teams", "Team", false)]);
        api.serve("/apis/example.com/v1", 200, list("example.com/v1", groups));
        api.serve(
            JOB,
            200,
            json!({"metadata": {"name": "etl", "uid": "j"}, "spec": {"template": {"metadata": template}}}),
        );
        api.serve(&format!("{GROUPS}/nightly"), 200, json!({"metadata": {"name": "nightly", "uid": "g"}}));
        api
    }

    fn serve(&self, path: &str, code: u16, body: Value) {
        self.0.lock().served.insert(path.to_owned(), (code, body));
    }

    fn client(&self) -> Client {
        let state = self.0.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let state = state.clone();
            async move {
                let (head, body) = request.into_parts();
                let path = head.uri.path().to_owned();
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let silent = state.lock().silent.as_ref() == Some(&path);
                if silent {
                    std::future::pending::<()>().await;
                }
                let mut state = state.lock();
                state.requests.push(path.clone());
                let (code, answer) = if path.ends_with("/subjectaccessreviews") {
                    let mut review: Value = serde_json::from_slice(&body).unwrap();
                    state.served.insert("the last review".to_owned(), (201, review.clone()));
                    review["status"] = json!({"allowed": state.may_block});
                    (201, review)
                } else if path.contains("/events") {
                    let event: Value = serde_json::from_slice(&body).unwrap();
                    state.events.push(event.clone());
                    (201, event)
                } else {
                    let missing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                        "reason": "NotFound", "message": "not found"});
                    state.served.get(&path).cloned().unwrap_or((404, missing))
                };
                let answer =
                    Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        Client::new(service, "default")
    }

    fn owners(&self) -> Owners {
        let client = self.client();
        let events = Events::start(client.clone(), "test".to_owned(), Arc::new(RawBudgets::default()));
        Owners::new(client, events)
    }

    /// The owners that are added to a pod of the Job etl, and the notes about the others.
    async fn outcome(&self, annotation: Option<&str>) -> (Vec<OwnerReference>, Vec<String>) {
        let review = review(annotation, false);
        let creation = reviews::read(review.as_bytes(), 1 << 20).unwrap().creation().unwrap().unwrap();
        // Only a request without an answer needs to be given up soon.
        let timeout = if self.0.lock().silent.is_some() { 500 } else { 30_000 };
        let outcome = self.owners().find(&creation, Instant::now() + Duration::from_millis(timeout)).await;
        (outcome.added, outcome.left_out.into_iter().map(|(_, note)| note).collect())
    }
}

fn review(annotation: Option<&str>, dry_run: bool) -> String {
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "etl", "uid": "j", "controller": true});
    let mut pod = json!({"metadata": {"generateName": "etl-", "ownerReferences": [job]}});
    if let Some(annotation) = annotation {
        pod["metadata"]["annotations"] = json!({"quorate.dev/owner-references": annotation});
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "r", "operation": "CREATE", "namespace": "lab", "object": pod, "dryRun": dry_run,
        "userInfo": {"username": "job-controller", "groups": ["system:authenticated"]},
        "resource": {"group": "", "version": "v1", "resource": "pods"}}})
    .to_string()
}

fn group(name: &str, uid: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "JobGroup", "name": name, "uid": uid})
}

fn team(uid: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Team", "name": "blue", "uid": uid})
}

fn uids(owners: &[OwnerReference]) -> Vec<&str> {
    owners.iter().map(|owner| owner.uid.as_str()).collect()
}

#[tokio::test]
async fn an_owner_that_exists_is_added() {
    let api = FakeApi::with_job(json!({"ownerReferences": [team("t"), group("nightly", "g")]}));
    api.serve("/apis/example.com/v1/teams/blue", 200, json!({"metadata": {"uid": "t"}}));
    let (added, left_out) = api.outcome(None).await;
    assert_eq!(
        (uids(&added), left_out),
        (vec!["t", "g"], vec![]),
        "one is cluster-scoped, one is namespaced"
    );
}

#[tokio::test]
async fn the_resource_of_a_kind_is_discovered_once() {
    let api = FakeApi::with_job(json!({"ownerReferences": [group("nightly", "g")]}));
    let owners = api.owners();
    for _ in 0..3 {
        owners.answer(review(None, false).as_bytes(), 1 << 20).await.unwrap();
    }
    let count = |path: &str| api.0.lock().requests.iter().filter(|request| *request == path).count();
    assert_eq!((count("/apis/batch/v1"), count("/apis/example.com/v1")), (1, 1));
    assert_eq!((count(JOB), count(&format!("{GROUPS}/nightly"))), (3, 3), "objects are read each time");
}

#[tokio::test]
async fn the_annotation_works_for_every_kind() {
    let text = json!([group("nightly", "g")]).to_string();
    let both = json!({"ownerReferences": [group("nightly", "g")], "annotations": {"quorate.dev/owner-references": text}});
    assert_eq!(
        uids(&FakeApi::with_job(both).outcome(Some(&text)).await.0),
        ["g"],
        "named three times, added once"
    );
    let template_only = json!({"annotations": {"quorate.dev/owner-references": text}});
    assert_eq!(uids(&FakeApi::with_job(template_only).outcome(None).await.0), ["g"]);

    // Quorate cannot read the controller: the copy in the pod is enough.
    let api = FakeApi::with_job(json!({}));
    api.serve(JOB, 403, json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden"}));
    assert_eq!(uids(&api.outcome(Some(&text)).await.0), ["g"]);
}

#[tokio::test]
async fn an_owner_that_cannot_be_used_is_left_out_and_reported() {
    let api = FakeApi::with_job(json!({"ownerReferences": [
        group("missing", "m"), group("nightly", "old"), group("ending", "e"), group("secret", "s"), team("gone"),
        {"apiVersion": "example.com/v1", "kind": "Nothing", "name": "n", "uid": "n"},
        {"apiVersion": "absent.example.com/v1", "kind": "Any", "name": "a", "uid": "a"},
        {"apiVersion": "example.com/v1", "kind": "JobGroup", "name": "nightly", "uid": "c", "controller": true},
        group("nightly", "g"),
    ]}));
    let ending = json!({"metadata": {"uid": "e", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    api.serve(&format!("{GROUPS}/ending"), 200, ending);
    let forbidden = json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden"});
    api.serve(&format!("{GROUPS}/secret"), 403, forbidden);
    let (added, left_out) = api.outcome(Some("nonsense")).await;
    assert_eq!(uids(&added), ["g"], "the only valid owner");
    for part in [
        "quorate.dev/owner-references of the pod template cannot be read",
        "JobGroup nightly is left out as an owner of the pods: it has controller: true",
        "JobGroup missing is left out as an owner of the pods: it does not exist in namespace lab. ",
        "has another UID, g. ",
        "JobGroup ending is left out as an owner of the pods: it is being deleted. ",
        "Quorate may not read jobgroups.example.com. ",
        "Team blue is left out as an owner of the pods: it does not exist in the cluster. ",
        "example.com/v1 has no kind Nothing. ",
        "absent.example.com/v1 has no kind Any. ",
    ] {
        assert_eq!(left_out.iter().filter(|note| note.contains(part)).count(), 1, "{part} in {left_out:#?}");
    }
    assert_eq!(left_out.len(), 9, "{left_out:#?}");
}

#[tokio::test]
async fn a_controller_with_another_uid_is_ignored() {
    let api = FakeApi::with_job(json!({"ownerReferences": [group("nightly", "g")]}));
    api.serve(JOB, 200, json!({"metadata": {"uid": "other"}, "spec": {"template": {"metadata": {"ownerReferences": [group("nightly", "g")]}}}}));
    assert_eq!(api.outcome(None).await, (vec![], vec![]));
}

#[tokio::test]
async fn blocking_a_deletion_needs_the_permission() {
    let mut blocking = group("nightly", "g");
    blocking["blockOwnerDeletion"] = json!(true);
    let api = FakeApi::with_job(json!({"ownerReferences": [blocking]}));
    assert_eq!(
        api.outcome(None).await.0[0].block_owner_deletion,
        Some(false),
        "the owner is added, and its deletion is not blocked"
    );
    let review = api.0.lock().served["the last review"].1["spec"].clone();
    assert_eq!(
        (&review["user"], &review["groups"]),
        (&json!("job-controller"), &json!(["system:authenticated"]))
    );
    assert_eq!(
        review["resourceAttributes"],
        json!({"group": "example.com", "version": "v1", "resource": "jobgroups",
        "subresource": "finalizers", "verb": "update", "name": "nightly", "namespace": "lab"})
    );
    api.0.lock().may_block = true;
    assert_eq!(api.outcome(None).await.0[0].block_owner_deletion, Some(true));
}

#[tokio::test]
async fn no_pod_waits_for_an_api_server_that_does_not_answer() {
    let api = FakeApi::with_job(json!({"ownerReferences": [group("nightly", "g")]}));
    api.0.lock().silent = Some(format!("{GROUPS}/nightly"));
    let (added, left_out) = api.outcome(None).await;
    assert_eq!(added, []);
    assert!(left_out[0].contains("it could not be looked up (no answer in time)"), "{left_out:?}");
    api.0.lock().silent = Some(JOB.to_owned());
    assert_eq!(api.outcome(None).await, (vec![], vec![]), "the template is unknown");
}

#[tokio::test]
async fn only_a_limited_number_of_owners_is_looked_up() {
    let many: Vec<Value> = (0..MAX_LOOKUPS + 3).map(|i| group("nightly", &format!("g{i}"))).collect();
    let api = FakeApi::with_job(json!({"ownerReferences": many}));
    let (_, left_out) = api.outcome(None).await;
    assert_eq!(left_out.iter().filter(|note| note.contains("names more than 32 owners")).count(), 3);
}

/// The API server may call again after another webhook changed the pod.
#[tokio::test]
async fn a_second_call_adds_nothing() {
    let api = FakeApi::with_job(json!({"ownerReferences": [group("nightly", "g")]}));
    let mut again: Value = serde_json::from_str(&review(None, false)).unwrap();
    let owners = again["request"]["object"]["metadata"]["ownerReferences"].as_array_mut().unwrap();
    owners.push(group("nightly", "g"));
    let answer = api.owners().answer(again.to_string().as_bytes(), 1 << 20).await.unwrap();
    assert_eq!(answer["response"], json!({"uid": "r", "allowed": true}));
}

/// The answer as the API server gets it, and the Event: once per server, with the same name on every server.
#[tokio::test]
async fn added_owners_are_a_patch_and_the_others_an_event() {
    let api = FakeApi::with_job(json!({"ownerReferences": [group("missing", "m"), group("nightly", "g")]}));
    let owners = api.owners();
    for dry_run in [true, false, false] {
        let answer = owners.answer(review(None, dry_run).as_bytes(), 1 << 20).await.unwrap();
        assert_eq!(answer["response"]["allowed"], true);
        let patch: ByteString = serde_json::from_value(answer["response"]["patch"].clone()).unwrap();
        let patch: Value = serde_json::from_slice(&patch.0).unwrap();
        assert_eq!(
            patch,
            json!([{"op": "add", "path": "/metadata/ownerReferences/-", "value": group("nightly", "g")}])
        );
    }
    api.owners().answer(review(None, false).as_bytes(), 1 << 20).await.unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while api.0.lock().events.len() < 2 {
        assert!(Instant::now() < until, "no event");
        tokio::task::yield_now().await;
    }
    let events = api.0.lock().events.clone();
    assert_eq!(events.len(), 2, "one from each server: {events:#?}");
    assert_eq!(events[0]["metadata"]["name"], events[1]["metadata"]["name"], "the API server stores one");
    assert_eq!((&events[0]["type"], &events[0]["reason"]), (&json!("Warning"), &json!("OwnerLeftOut")));
    assert_eq!(
        events[0]["regarding"],
        json!({"apiVersion": "batch/v1", "kind": "Job", "namespace": "lab", "name": "etl", "uid": "j"})
    );
}
