//! Writes of the pod status: kubelets write it often, controllers rarely.

use quorate_testbed::eventually;
use serde_json::Value;

use crate::fixture::{NodeFixture, with_node};

#[test]
fn status_writes_of_a_kubelet_do_not_call_the_webhook() {
    with_node(status_writes);
}

/// The metrics of the API server count the calls. The kubelet writes each time the container becomes ready or unready;
/// a controller closes the readiness gate of the same pod. Only the second write calls the webhook.
async fn status_writes(fixture: NodeFixture) {
    fixture.gated_pod("web").await;
    fixture.budget_of(1, &["Evict", "Update"]).await;
    fixture.gate("web", "True").await.expect(200);
    fixture.run(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]).await;
    let close_gate = async || fixture.gate("web", "False").await;
    // Wait until the API server calls the webhook for this namespace.
    eventually("closing the gate is denied", || async {
        let answer = close_gate().await;
        if answer.code == 429 {
            return Ok(());
        }
        fixture.gate("web", "True").await.expect(200);
        fixture.run(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]).await;
        Err(answer.body)
    })
    .await;

    let before = Counts::of(&fixture).await;
    for _ in 0..3 {
        fixture.inside("web", &["touch", "/tmp/busy"]).await;
        fixture.run(&["wait", "--for=condition=Ready=False", "pod/web", "--timeout=60s"]).await;
        fixture.inside("web", &["rm", "/tmp/busy"]).await;
        fixture.run(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]).await;
    }
    let after = Counts::of(&fixture).await;
    assert!(after.writes >= before.writes + 6.0, "{before:?} {after:?}");
    assert!(after.excluded >= before.excluded + 6.0, "match conditions exclude them: {before:?} {after:?}");
    assert_eq!(after.webhook_calls, before.webhook_calls, "{before:?} {after:?}");

    assert_eq!(close_gate().await.code, 429);
    let denied = Counts::of(&fixture).await;
    // An API server whose cache is behind calls the webhook again.
    assert!(denied.webhook_calls > after.webhook_calls, "{after:?} {denied:?}");
}

/// Counts of the API server.
#[derive(Debug)]
struct Counts {
    /// Writes of the pod status.
    writes: f64,
    /// Calls of the webhook for such writes.
    webhook_calls: f64,
    /// Writes that the match conditions excluded.
    excluded: f64,
}

impl Counts {
    async fn of(fixture: &NodeFixture) -> Self {
        let metrics = fixture.api_server_metrics().await;
        let Value::String(metrics) = metrics else { panic!("metrics are text: {metrics}") };
        let sum = |name: &str, labels: &[&str]| -> f64 {
            let lines = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{")));
            let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        let webhook = r#"name="pod-status.quorate.dev""#;
        Self {
            writes: sum(
                "apiserver_request_total",
                &[r#"resource="pods""#, r#"subresource="status""#, r#"verb="PATCH""#],
            ),
            webhook_calls: sum("apiserver_admission_webhook_request_total", &[webhook]),
            excluded: sum("apiserver_admission_match_condition_exclusions_total", &[webhook]),
        }
    }
}
