//! What evictions cost besides time: writes to budgets, and the servers' processor time.

use std::time::Duration;

use quorate_testbed::Wire;

use crate::replicas::Replicas;

/// What was spent so far.
pub(crate) struct Spent {
    /// Writes to the status of budgets, as the API server counts them.
    writes: u64,
    /// Those of them that came too late.
    refused: u64,
    /// What all servers together took of the processors.
    processor: Duration,
}

/// What was spent on each of some evictions.
pub(crate) struct Cost {
    pub(crate) writes: f64,
    pub(crate) refused: f64,
    pub(crate) processor: Duration,
}

impl Spent {
    pub(crate) async fn by_now(wire: &Wire, replicas: &Replicas) -> Self {
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
        Self { writes: writes as u64, refused: refused as u64, processor: replicas.processor_time() }
    }

    /// What each of so many evictions has cost since.
    pub(crate) fn each(&self, now: &Self, evictions: usize) -> Cost {
        let each = |before: u64, after: u64| (after - before) as f64 / evictions as f64;
        Cost {
            writes: each(self.writes, now.writes),
            refused: each(self.refused, now.refused),
            processor: (now.processor - self.processor) / u32::try_from(evictions).unwrap_or(u32::MAX),
        }
    }
}
