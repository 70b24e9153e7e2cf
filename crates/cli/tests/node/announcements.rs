//! The status of pods, as kubelets write it all the time and a controller once in a while.

use quorate_testbed::eventually;
use serde_json::Value;

use crate::fixture::{NodeFixture, with_node};

#[test]
fn no_status_that_a_kubelet_writes_reaches_a_server() {
    with_node(counted);
}

/// Counted by the API server itself: a container that is ready by turns makes its kubelet write; the readiness gate of the
/// same pod, which a controller closes, is the one write that a server hears of.
async fn counted(fixture: NodeFixture) {
    fixture.gated_pod("web").await;
    fixture.budget_of(1, &["Evict", "Update"]).await;
    fixture.gate("web", "True").await.expect(200);
    fixture.run(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]).await;
    let closes = async || fixture.gate("web", "False").await;
    // From here on the API server knows that this namespace is protected.
    eventually("the gate is not to be closed", || async {
        let answer = closes().await;
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
    assert!(
        after.kept_out >= before.kept_out + 6.0,
        "they are looked at, and let pass: {before:?} {after:?}"
    );
    assert_eq!(after.asked, before.asked, "{before:?} {after:?}");

    assert_eq!(closes().await.code, 429);
    let refused = Counts::of(&fixture).await;
    assert_eq!(refused.asked, after.asked + 1.0, "{after:?} {refused:?}");
}

/// What the API server has counted.
#[derive(Debug)]
struct Counts {
    /// Writes of the status of pods.
    writes: f64,
    /// Those of them about which a server was asked.
    asked: f64,
    /// Those that the match conditions kept out.
    kept_out: f64,
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
            asked: sum("apiserver_admission_webhook_request_total", &[webhook]),
            kept_out: sum("apiserver_admission_match_condition_exclusions_total", &[webhook]),
        }
    }
}
