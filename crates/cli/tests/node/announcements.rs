//! The status of pods, as kubelets write it all the time and a controller once in a while.

use quorate_testbed::eventually;
use serde_json::Value;

use crate::ground::{Ground, tell};

#[test]
fn no_status_that_a_kubelet_writes_reaches_a_server() {
    tell(counted);
}

/// Counted by the API server itself: a container that is ready by turns makes its kubelet write; the readiness gate of the
/// same pod, which a controller closes, is the one write that a server hears of.
async fn counted(ground: Ground) {
    ground.gated_pod("web").await;
    ground.budget_of(1, &["Evict", "Update"]).await;
    ground.gate("web", "True").await.expect(200);
    ground.run(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]).await;
    let closes = async || ground.gate("web", "False").await;
    // From here on the API server knows that this namespace is protected.
    eventually("the gate is not to be closed", || async {
        let answer = closes().await;
        if answer.code == 429 {
            return Ok(());
        }
        ground.gate("web", "True").await.expect(200);
        ground.run(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]).await;
        Err(answer.body)
    })
    .await;

    let before = Counts::of(&ground).await;
    for _ in 0..3 {
        ground.inside("web", &["touch", "/tmp/busy"]).await;
        ground.run(&["wait", "--for=condition=Ready=False", "pod/web", "--timeout=60s"]).await;
        ground.inside("web", &["rm", "/tmp/busy"]).await;
        ground.run(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]).await;
    }
    let after = Counts::of(&ground).await;
    assert!(after.writes >= before.writes + 6.0, "{before:?} {after:?}");
    assert!(
        after.kept_out >= before.kept_out + 6.0,
        "they are looked at, and let pass: {before:?} {after:?}"
    );
    assert_eq!(after.asked, before.asked, "{before:?} {after:?}");

    assert_eq!(closes().await.code, 429);
    let refused = Counts::of(&ground).await;
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
    async fn of(ground: &Ground) -> Self {
        let metrics = ground.api_server_metrics().await;
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
