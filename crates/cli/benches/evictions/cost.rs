//! What evictions cost besides time: writes to budgets, and processor time of the API server and of our servers.

use std::time::Duration;

use quorate_testbed::Wire;

use crate::replicas::Replicas;

/// What was spent so far.
pub(crate) struct Spent {
    /// Writes to the status of budgets, as the API server counts them.
    writes: u64,
    /// Those of them that came too late.
    refused: u64,
    /// What the API server took of the processors.
    api_server: Duration,
    /// What all our servers together took of them.
    processor: Duration,
}

/// What was spent on each of some evictions.
pub(crate) struct Cost {
    pub(crate) writes: f64,
    pub(crate) refused: f64,
    pub(crate) api_server: Duration,
    pub(crate) processor: Duration,
}

impl Spent {
    pub(crate) async fn by_now(wire: &Wire, replicas: Option<&Replicas>) -> Self {
        let metrics = wire.get("/metrics").await.expect(200);
        let text = metrics.as_str().expect("metrics are text");
        let is_write = |line: &&str| {
            line.starts_with("apiserver_request_total{")
                && line.contains(r#"resource="disruptionbudgets""#)
                && line.contains(r#"subresource="status""#)
        };
        let count =
            |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        let all = text.lines().filter(is_write);
        let (mut writes, mut refused) = (0.0, 0.0);
        for line in all {
            writes += count(line);
            if !line.contains(r#"code="200""#) {
                refused += count(line);
            }
        }
        let seconds: f64 =
            text.lines().filter(|line| line.starts_with("process_cpu_seconds_total ")).map(count).sum();
        Self {
            writes: writes as u64,
            refused: refused as u64,
            api_server: Duration::from_secs_f64(seconds),
            processor: replicas.map(Replicas::processor_time).unwrap_or_default(),
        }
    }

    /// What each of so many evictions has cost since.
    pub(crate) fn each(&self, now: &Self, evictions: usize) -> Cost {
        let each = |before: u64, after: u64| (after - before) as f64 / evictions as f64;
        let evictions = u32::try_from(evictions).unwrap_or(u32::MAX);
        Cost {
            writes: each(self.writes, now.writes),
            refused: each(self.refused, now.refused),
            api_server: (now.api_server - self.api_server) / evictions,
            processor: (now.processor - self.processor) / evictions,
        }
    }
}
