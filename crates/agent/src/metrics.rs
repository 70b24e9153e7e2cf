//! The agent's metrics.

use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::container_probe::ProbeResult;
use crate::manager::PatchOutcome;
use crate::target::Kind;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProbeLabels {
    kind: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    result: &'static str,
}

/// All metrics of the agent.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    probes: Family<ProbeLabels, Counter>,
    latency: Family<KindLabels, Histogram>,
    writes: Family<OutcomeLabels, Counter>,
    pods: Gauge,
    lease_age: Gauge<f64, std::sync::atomic::AtomicU64>,
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 2.0, 16))
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Mutex::new(Registry::with_prefix("quorate_agent")),
            probes: Family::default(),
            latency: Family::new_with_constructor(seconds),
            writes: Family::default(),
            pods: Gauge::default(),
            lease_age: Gauge::default(),
        };
        let mut registry = metrics.registry.lock();
        registry.register("probes", "Probes by kind and result", metrics.probes.clone());
        registry.register_with_unit(
            "probe",
            "Time from a probe request to its result",
            Unit::Seconds,
            metrics.latency.clone(),
        );
        registry.register("condition_writes", "Condition writes by result", metrics.writes.clone());
        registry.register("pods", "Pods with a disruption probe", metrics.pods.clone());
        registry.register_with_unit(
            "lease_age",
            "Time since the last renewal of the Lease; 0 if there is none",
            Unit::Seconds,
            metrics.lease_age.clone(),
        );
        drop(registry);
        metrics
    }
}

impl Metrics {
    pub(crate) fn probed(&self, kind: Kind, answer: &ProbeResult, took: Duration) {
        let kind = match kind {
            Kind::Http => "http",
            Kind::Tcp => "tcp",
            Kind::Grpc => "grpc",
            Kind::Exec => "exec",
        };
        let result = match answer {
            ProbeResult::Passed => "success",
            ProbeResult::Failed(_) => "failure",
            ProbeResult::TimedOut(_) => "timeout",
        };
        self.probes.get_or_create(&ProbeLabels { kind, result }).inc();
        self.latency.get_or_create(&KindLabels { kind }).observe(took.as_secs_f64());
    }

    pub(crate) fn wrote(&self, wrote: PatchOutcome) {
        let result = match wrote {
            PatchOutcome::Done(_) => "written",
            PatchOutcome::Gone => "gone",
            PatchOutcome::Failed => "failed",
        };
        self.writes.get_or_create(&OutcomeLabels { result }).inc();
    }

    /// Sets the number of pods that have a probe.
    pub(crate) fn pods(&self, count: usize) {
        self.pods.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// All metrics as text; `lease_age` is the time since the last renewal of the Lease.
    pub(crate) fn show(&self, lease_age: Duration) -> String {
        self.lease_age.set(lease_age.as_secs_f64());
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry.lock());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_shows_all_metrics() {
        let metrics = Metrics::default();
        metrics.probed(Kind::Grpc, &ProbeResult::Passed, Duration::from_millis(3));
        metrics.probed(Kind::Http, &ProbeResult::TimedOut(Duration::from_secs(1)), Duration::from_secs(1));
        metrics.wrote(PatchOutcome::Done(1));
        metrics.pods(7);
        let text = metrics.show(Duration::from_secs(4));
        for line in [
            r#"quorate_agent_probes_total{kind="grpc",result="success"} 1"#,
            r#"quorate_agent_probes_total{kind="http",result="timeout"} 1"#,
            r#"quorate_agent_probe_seconds_count{kind="http"} 1"#,
            r#"quorate_agent_condition_writes_total{result="written"} 1"#,
            "quorate_agent_pods 7",
            "quorate_agent_lease_age_seconds 4.0",
        ] {
            assert!(text.lines().any(|condition| condition == line), "{line} is missing in:\n{text}");
        }
    }
}
