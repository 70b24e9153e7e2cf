//! Outages: what a server answers depends on what it receives. Only the embedded cluster can have them, and only a short
//! limit makes this story short.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PatchParams};
use quorate_devcluster::apiserver::{Fault, FaultGuard, RequestFilter, WatchFault};
use quorate_testbed::{Backend, Cluster, Options, Setup, eventually, run_story};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::reasons::{self, Reached};
use super::states::State;
use super::{Answer, OPERATIONS, Tally, compare, explained, nodes, prepare, request};
use crate::fixture::{TestNamespace, spec_for_app};
use crate::quorate::{Quorate, service_account};

/// Longer than two intervals of bookmarks, so that other kinds stay fresh on a busy machine.
const FRESH_FOR: Duration = Duration::from_secs(25);

/// Of so many answers, at most so many may depend on what only a server can know.
const ONLY_A_SERVER: (usize, usize) = (100, 5);

#[test]
fn explain_agrees_with_the_server_in_outages() {
    run_story(Backend::Embedded, Setup::Private(Options::default()), outages);
}

/// The requests of the server for a resource.
fn of_server(resource: &str) -> RequestFilter {
    RequestFilter::any().user(service_account().name()).resource(resource)
}

/// Delays the events of a resource to the server until the guard is dropped.
fn hold(cluster: &Cluster, resource: &str) -> FaultGuard {
    cluster.embedded().expect("the embedded cluster").faults().watches(of_server(resource), WatchFault::Hold)
}

fn fail(cluster: &Cluster, which: RequestFilter, fault: Fault) -> FaultGuard {
    cluster.embedded().expect("the embedded cluster").faults().requests(which, fault)
}

/// Waits until the server denies the eviction of a pod for this reason, or admits it if none is given.
async fn until(ns: &TestNamespace, pod: &str, reason: Option<&str>) {
    eventually(&format!("{pod}: {reason:?}"), || async {
        let answer = Answer::of(&request(ns, pod, "evict").await);
        let is = match &answer {
            Answer::Denied(sentence) => Some(reasons::of(sentence)) == reason,
            _ => reason.is_none(),
        };
        if is { Ok(()) } else { Err(answer) }
    })
    .await;
}

/// Fails if an outage has ended, and so the answers of servers without one were compared.
async fn assert_still(ns: &TestNamespace, pod: &str, reason: &str) {
    let answer = Answer::of(&request(ns, pod, "evict").await);
    let is = matches!(&answer, Answer::Denied(sentence) if reasons::of(sentence) == reason);
    assert!(is, "{reason} is over: {answer:?}");
}

async fn outages(cluster: Cluster) {
    prepare(&cluster).await;
    let _agents = nodes::create(&cluster.wire()).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "outage").await;
    let server = Quorate::start_with(&cluster, |options| options.fresh_for = FRESH_FOR).await;
    let mut state = State::small(ns, ChaCha8Rng::seed_from_u64(18), true).await;
    let free = TestNamespace::with_manual_pods(&cluster, "free").await;
    let free = State::small(free, ChaCha8Rng::seed_from_u64(18), false).await.ns;
    let mut tally = Tally::default();
    compare(&state.ns, &OPERATIONS, &mut tally).await;
    compare(&free, &OPERATIONS, &mut tally).await;
    let ns = &state.ns;

    // A silent watch is replaced by a list after a while, which would end the outage.
    let deployments = of_server("deployments").verb("list");
    let stale = (hold(&cluster, "deployments"), fail(&cluster, deployments, Fault::Unavailable));
    until(ns, "web-0", Some("Stale")).await;
    compare(ns, &OPERATIONS, &mut tally).await;
    compare(&free, &["relabel"], &mut tally).await;
    assert_still(ns, "web-0", "Stale").await;
    drop(stale);
    until(ns, "web-0", None).await;

    let unrenewed = fail(&cluster, of_server("leases").writes(), Fault::Unavailable);
    until(ns, "web-0", Some("NotServing")).await;
    compare(ns, &OPERATIONS, &mut tally).await;
    compare(&free, &["relabel"], &mut tally).await;
    assert_still(ns, "web-0", "NotServing").await;
    drop(unrenewed);
    until(ns, "web-0", None).await;

    // A pod that the server does not know, and cannot read. Only a server can know that.
    let held = hold(&cluster, "pods");
    let unread = fail(&cluster, of_server("pods").verb("get"), Fault::Hang);
    state.one_more().await;
    until(&state.ns, "web-new", Some("Deadline")).await;
    let pods = explained(&state.ns, "evict").await;
    let explained = pods.iter().find(|pod| pod["name"] == "web-new").expect("the pod");
    let served = Answer::of(&request(&state.ns, "web-new", "evict").await);
    tally.requests += 1;
    tally.only_a_server += usize::from(!served.agrees_with(&Answer::explained(explained)));
    *tally.reasons.entry("Deadline").or_default() += 1;
    drop(unread);
    until(&state.ns, "web-0", Some("NotFresh")).await;
    let unlisted = fail(&cluster, of_server("pods").verb("list"), Fault::Unavailable);
    compare(&state.ns, &OPERATIONS, &mut tally).await;
    compare(&free, &["relabel"], &mut tally).await;
    assert_still(&state.ns, "web-0", "NotFresh").await;
    drop((held, unlisted));
    until(&state.ns, "web-0", None).await;

    outdated_definition(&state.ns).await;
    until(&state.ns, "theirs-0", Some("OutdatedDefinition")).await;
    compare(&state.ns, &OPERATIONS, &mut tally).await;

    // A server that starts cannot read a kind that a budget remembers.
    remember_a_job(&state.ns).await;
    server.end().await;
    let unread = fail(&cluster, of_server("jobs"), Fault::Forbidden);
    let server = Quorate::start_with(&cluster, |options| options.fresh_for = FRESH_FOR).await;
    until(&state.ns, "night-0", Some("Unresolved.Unread")).await;
    compare(&state.ns, &OPERATIONS, &mut tally).await;
    assert_still(&state.ns, "night-0", "Unresolved.Unread").await;
    drop(unread);
    until(&state.ns, "night-0", None).await;

    server.end().await;
    let _unlisted = fail(&cluster, of_server("pods"), Fault::InternalError);
    let _unsynced = Quorate::start_unready(&cluster).await;
    until(&state.ns, "web-0", Some("NotSynced")).await;
    compare(&state.ns, &OPERATIONS, &mut tally).await;
    compare(&free, &["relabel"], &mut tally).await;
    assert_still(&state.ns, "web-0", "NotSynced").await;

    let Tally { requests, only_a_server, .. } = tally;
    println!("{requests} requests, {only_a_server} of which only a server can know the answer to");
    reasons::assert_all_reached(Reached::Outages, &tally.reasons);
    assert!(only_a_server * ONLY_A_SERVER.0 <= requests * ONLY_A_SERVER.1, "{only_a_server} of {requests}");
}

/// A budget that remembers the Job of its pods.
async fn remember_a_job(ns: &TestNamespace) {
    let labels = json!({"app": "night"});
    let template = json!({"metadata": {"labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "main:1"}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "night"},
        "spec": {"parallelism": 2, "completions": 2, "template": template}});
    let job = ns.create("batch/v1", "jobs", &job).await;
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "night", "uid": job["metadata"]["uid"],
        "controller": true});
    for name in ["night-0", "night-1"] {
        ns.create_pod(name, labels.clone()).await;
        ns.patch_pod(name, &json!({"metadata": {"ownerReferences": [owner]}})).await.expect(200);
    }
    ns.create_budget_allowing("night", spec_for_app("night", "maxUnavailable", 1), 1).await;
}

/// A definition that does not store what servers write, as that of OpenKruise, and a budget of its kind.
async fn outdated_definition(ns: &TestNamespace) {
    let fields = ["opened", "openedFor", "claims"];
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
    let removals = fields.map(|field| json!({"op": "remove", "path": format!("{path}/{field}")}));
    let patch: kube::api::Patch<()> =
        kube::api::Patch::Json(serde_json::from_value(json!(removals)).expect("a patch"));
    let definitions: Api<CustomResourceDefinition> = Api::all(ns.cluster.admin());
    let name = "podunavailablebudgets.policy.kruise.io";
    definitions.patch(name, &PatchParams::default(), &patch).await.expect("an older definition");
    ns.create_pod("theirs-0", json!({"app": "theirs"})).await;
    ns.create_pub("theirs", json!({}), spec_for_app("theirs", "minAvailable", 0)).await.expect(201);
}
