//! Servers that were started in another way than by default: `explain` knows it from their Leases.

use quorate_server::{Gates, ServePub};
use quorate_testbed::{Backend, Cluster, Options, Setup, User, run_story};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::states::State;
use super::{OPERATIONS, Tally, compare, nodes, prepare};
use crate::explain;
use crate::fixture::TestNamespace;
use crate::quorate::Quorate;

#[test]
fn explain_knows_how_the_servers_were_started() {
    run_story(Backend::Embedded, Setup::Private(Options::default()), started);
}

async fn started(cluster: Cluster) {
    prepare(&cluster).await;
    let _agents = nodes::create(&cluster.wire()).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "started").await;
    let mut state = State::before_servers(ns, ChaCha8Rng::seed_from_u64(7), 1).await;
    let mut server = Quorate::start_with(&cluster, |_| {}).await;
    state.fill().await;
    let ns = &state.ns;
    // With OpenKruise's own webhooks for pods, its budgets are served only with `always`.
    let theirs = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "kruise-validating-webhook-configuration"},
        "webhooks": [{"name": "vpod.kb.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore", "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["nothings"]}]}]});
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    ns.wire.post(path, &theirs).await.expect(201);
    let gates = |multi_pod_pdbs, disruption_probe| Gates { multi_pod_pdbs, disruption_probe };
    let mut tally = Tally::default();
    for (gates, serve_pub, note) in [
        (gates(true, true), ServePub::Always, "note: the servers run with --serve-pub=always\n"),
        (gates(true, true), ServePub::Auto, ""),
        (
            gates(false, false),
            ServePub::Never,
            "note: the servers run with --serve-pub=never --feature-gates=MultiPodPDBs=false,DisruptionProbe=false\n",
        ),
    ] {
        server.end().await;
        let change = |options: &mut quorate_server::Options| {
            options.gates = gates;
            options.serve_pub = serve_pub;
        };
        server = Quorate::start_with(&cluster, change).await;
        compare(ns, &OPERATIONS, &mut tally).await;
        let output = explain::explain(&cluster, &User::admin(), &["pod/alone-0", "-n", &ns.name]).await;
        assert_eq!((output.code, output.err.as_str()), (0, note));
    }
    server.end().await;
}
