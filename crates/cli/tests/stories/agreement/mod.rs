//! `quorate explain` says what the servers say: both are asked about every pod, by every operation, in random states and
//! in outages in which every reason to deny a request occurs.

mod nodes;
mod outages;
mod reasons;
mod started;
mod states;

use std::collections::BTreeMap;

use quorate_devcluster::actors::install_leader_worker_sets;
use quorate_testbed::{Backend, Cluster, Options, Patch, Setup, User, WireResponse, eventually, run_story};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::explain;
use crate::fixture::TestNamespace;
use crate::quorate::{Quorate, install, install_workloads};
use reasons::Reached;
use states::State;

const OPERATIONS: [&str; 5] = ["evict", "delete", "update", "resize", "relabel"];

#[test]
fn explain_agrees_with_the_server_in_random_states_of_the_embedded_cluster() {
    run_story(Backend::Embedded, Setup::Private(Options::default()), async |cluster| {
        let tally = random_states(&cluster, 18, 2).await;
        reasons::assert_all_reached(Reached::States, &tally.reasons);
    });
}

#[test]
fn explain_agrees_with_the_server_in_random_states_of_a_real_cluster() {
    run_story(Backend::Real, Setup::Private(Options::default()), async |cluster| {
        random_states(&cluster, 1018, 1).await;
    });
}

#[test]
fn explain_agrees_with_the_server_on_more_workloads_than_a_budget_remembers() {
    run_story(Backend::Embedded, Setup::Private(Options::default()), async |cluster| {
        prepare(&cluster).await;
        let ns = TestNamespace::with_manual_pods(&cluster, "many").await;
        let mut server = Quorate::start_with(&cluster, |_| {}).await;
        let state = State::of_many_workloads(ns).await;
        let mut tally = Tally::default();
        compare(&state.ns, &["evict"], &mut tally).await;
        // A server that starts later knows only what the status remembers.
        server.end().await;
        server = Quorate::start_with(&cluster, |_| {}).await;
        compare(&state.ns, &["evict"], &mut tally).await;
        reasons::assert_all_reached(Reached::Sources, &tally.reasons);
        assert_eq!(tally.admitted, 0);
        server.end().await;
    });
}

/// Requests and their answers.
#[derive(Debug, Default)]
struct Tally {
    requests: usize,
    admitted: usize,
    /// Requests that the API server rejects as invalid.
    rejected: usize,
    /// Requests whose answer only a server can know.
    only_a_server: usize,
    /// Denials by reason.
    reasons: BTreeMap<&'static str, usize>,
}

async fn random_states(cluster: &Cluster, seed: u64, count: usize) -> Tally {
    let seed = std::env::var("AGREEMENT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(seed);
    println!("seed {seed}: set AGREEMENT_SEED to repeat it");
    prepare(cluster).await;
    let _agents = nodes::create(&cluster.wire()).await;
    let mut states = Vec::new();
    for number in 0..count {
        let random = ChaCha8Rng::seed_from_u64(seed + number as u64);
        let ns = TestNamespace::with_manual_pods(cluster, "random").await;
        states.push(State::before_servers(ns, random, number).await);
    }
    let server = Quorate::start_with(cluster, |_| {}).await;
    let mut tally = Tally::default();
    for state in &mut states {
        state.fill().await;
        compare(&state.ns, &OPERATIONS, &mut tally).await;
        nodes::killed_server(&state.ns.wire).await;
        state.closed().await;
        compare(&state.ns, &["evict", "relabel"], &mut tally).await;
        nodes::forget_killed_server(&state.ns.wire).await;
    }
    server.end().await;
    println!("{} requests, {} admitted, {} rejected", tally.requests, tally.admitted, tally.rejected);
    tally
}

/// Installs everything, and the kinds that the states use.
async fn prepare(cluster: &Cluster) {
    install(cluster).await;
    install_workloads(cluster).await;
    install_leader_worker_sets(&cluster.admin()).await.expect("a definition");
    let wire = cluster.wire();
    let numbers = json!({"type": "object", "properties": {"ships": {"type": "integer"}}});
    let fleets = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "fleets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Fleet", "plural": "fleets", "singular": "fleet", "listKind": "FleetList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"scale": {"specReplicasPath": ".spec.ships", "statusReplicasPath": ".status.ships"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": numbers, "status": numbers}}},
            }],
        },
    });
    wire.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &fleets).await.expect(201);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "fleets", "labels": {"rbac.quorate.dev/aggregate-to-server": "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["fleets"], "verbs": ["get", "list", "watch"]}],
    });
    wire.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await.expect(201);
    crate::quorate::established(cluster).await;
}

/// Asks both about each pod of a namespace, by these operations, until they agree: a server may not have seen the last
/// change yet.
async fn compare(ns: &TestNamespace, operations: &[&str], tally: &mut Tally) {
    for operation in operations {
        let answers = eventually(&format!("both agree, by {operation}"), || async {
            let explained = explained(ns, operation).await;
            let (mut answers, mut differences) = (Vec::new(), Vec::new());
            for pod in &explained {
                let name = pod["name"].as_str().expect("a name");
                let served = Answer::of(&request(ns, name, operation).await);
                let ours = Answer::explained(pod);
                if !served.agrees_with(&ours) {
                    differences.push(format!("{name}: the server: {served:?}; explain: {ours:?}"));
                }
                answers.push(served);
            }
            if differences.is_empty() { Ok(answers) } else { Err(differences) }
        })
        .await;
        for answer in answers {
            tally.take(&answer);
        }
    }
}

impl Tally {
    fn take(&mut self, answer: &Answer) {
        self.requests += 1;
        match answer {
            Answer::Admitted => self.admitted += 1,
            Answer::Rejected(code) => {
                assert!(matches!(code, 400 | 422), "{code}");
                self.rejected += 1;
            }
            Answer::Denied(sentence) => *self.reasons.entry(reasons::of(sentence)).or_default() += 1,
        }
    }
}

/// The answers of `explain` about each pod of a namespace.
async fn explained(ns: &TestNamespace, operation: &str) -> Vec<Value> {
    let args = ["pods", "-n", &ns.name, "--operation", operation, "-o", "json"];
    let output = explain::explain(&ns.cluster, &User::admin(), &args).await;
    assert!(matches!(output.code, 0 | 2), "{}", output.err);
    let data: Value = serde_json::from_str(&output.out).expect("JSON");
    data["pods"].as_array().expect("pods").clone()
}

/// A dry run of an operation on a pod.
async fn request(ns: &TestNamespace, pod: &str, operation: &str) -> WireResponse {
    let container = |more: Value| json!({"spec": {"containers": [more]}});
    let image = container(json!({"name": "main", "image": "main:2"}));
    let memory = json!({"requests": {"memory": "2Mi"}, "limits": {"memory": "2Mi"}});
    let memory = container(json!({"name": "main", "resources": memory}));
    let patch = |path: String, patch: Value| async move {
        ns.wire.patch(&ns.pod_path(&path), Patch::Strategic, &patch).await
    };
    // The pod leaves each budget that covers it, whether by its labels or by its owners.
    let nowhere = json!({"metadata": {"labels": null, "ownerReferences": null}});
    match operation {
        "evict" => ns.evict_with(pod, json!({"dryRun": ["All"]}), "?dryRun=All").await,
        "delete" => ns.wire.delete(&ns.pod_path(pod), &json!({"dryRun": ["All"]})).await,
        "update" => patch(format!("{pod}?dryRun=All"), image).await,
        "resize" => patch(format!("{pod}/resize?dryRun=All"), memory).await,
        "relabel" => ns.patch_pod(&format!("{pod}?dryRun=All"), &nowhere).await,
        _ => panic!("{operation}"),
    }
}

/// The answer to a request.
#[derive(Debug)]
enum Answer {
    Admitted,
    /// Denied by Quorate.
    Denied(String),
    /// By the API server, with this code.
    Rejected(u16),
}

impl Answer {
    fn of(response: &WireResponse) -> Self {
        let message = response.message();
        match (response.code, message.split_once(" denied the request: ")) {
            (200..300, _) => Self::Admitted,
            (429, Some((_, sentence))) => Self::Denied(without_spans(sentence)),
            (code, _) => Self::Rejected(code),
        }
    }

    /// As `explain` answers.
    fn explained(pod: &Value) -> Self {
        if pod["allowed"] == true {
            return Self::Admitted;
        }
        let denies = pod["budgets"].as_array().into_iter().flatten().find(|budget| budget["agrees"] == false);
        let why = denies.map_or(&pod["why"], |budget| &budget["why"]);
        Self::Denied(without_spans(why.as_str().unwrap_or("for no reason")))
    }

    /// A server may add that other budgets deny too.
    fn agrees_with(&self, explained: &Self) -> bool {
        match (self, explained) {
            (Self::Admitted, Self::Admitted) | (Self::Rejected(400 | 422), _) => true,
            (Self::Denied(served), Self::Denied(explained)) => {
                let end = explained.trim_end_matches('…').trim_end_matches('.');
                served.starts_with(end)
            }
            _ => false,
        }
    }
}

/// Without durations, which change every second.
fn without_spans(sentence: &str) -> String {
    let is_span = |word: &str| {
        let word = word.trim_end_matches([',', '.', ')']);
        let number = word.trim_end_matches(['s', 'm', 'h', 'd']);
        number.len() + 1 == word.len()
            && !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let words = sentence.split(' ').map(|word| if is_span(word) { "…" } else { word });
    words.collect::<Vec<_>>().join(" ")
}
