//! Metrics of the server.
//!
//! Labels are a namespace and a budget, a kind, or words of a fixed list. Gauges are read from the state at each
//! scrape, so they are never stale.

use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use quorate_engine::condition_reason::ConditionReason;
use quorate_engine::decision::{Allow, AllowReason, Decision, DenialReason, Numbers, Unresolved};
use quorate_engine::facts::{BudgetKey, BudgetKind, Operation, Units};
use quorate_engine::ledger::{Call, Note, Replica, Step};
use quorate_engine::status::Scope;

use crate::watches::WatchedKind;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    namespace: String,
    budget: String,
}

impl Of {
    fn budget(key: &BudgetKey) -> Self {
        let name = &key.object.name;
        let budget = match key.kind {
            BudgetKind::DisruptionBudget => name.to_string(),
            // There may be a DisruptionBudget with the same name.
            BudgetKind::PodUnavailableBudget => format!("podunavailablebudget/{name}"),
        };
        Self { namespace: key.object.namespace.to_string(), budget }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    operation: &'static str,
    result: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Denied {
    namespace: String,
    budget: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct By {
    mode: Mode,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: String,
}

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "as the label shows it")]
enum Mode {
    individual,
    pod_groups,
}

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<Answered, Counter>,
    denials: Family<Denied, Counter>,
    decisions: Histogram,
    commits: Histogram,
    batches: Histogram,
    conflicts: Counter,
    expired: Family<Of, Counter>,
    left: Family<Of, Counter>,
    reconciliations: Family<By, Counter>,
    misconfigured: Counter,
    grouping: Gauge,
    claims: Family<Of, Gauge>,
    expected: Family<Of, Gauge>,
    available: Family<Of, Gauge>,
    allowed: Family<Of, Gauge>,
    pods: Gauge,
    watch_age: Family<Kind, Seconds>,
    unreadable: Family<Kind, Seconds>,
}

type Seconds = Gauge<f64, std::sync::atomic::AtomicU64>;

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 2.0, 16))
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Mutex::new(Registry::default()),
            requests: Family::default(),
            denials: Family::default(),
            decisions: seconds(),
            commits: seconds(),
            batches: Histogram::new(exponential_buckets(1.0, 2.0, 9)),
            conflicts: Counter::default(),
            expired: Family::default(),
            left: Family::default(),
            reconciliations: Family::default(),
            misconfigured: Counter::default(),
            grouping: Gauge::default(),
            claims: Family::default(),
            expected: Family::default(),
            available: Family::default(),
            allowed: Family::default(),
            pods: Gauge::default(),
            watch_age: Family::default(),
            unreadable: Family::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&self) {
        let mut registry = self.registry.lock();
        let proposed = registry.sub_registry_with_prefix("disruption_controller");
        proposed.register("pdbs_using_pod_grouping", "Budgets that count groups", self.grouping.clone());
        proposed.register(
            "reconciliations",
            "Status writes, by what the budget counts",
            self.reconciliations.clone(),
        );
        proposed.register(
            "pdb_grouping_misconfig",
            "Times a budget that counts groups started to cover pods without a group",
            self.misconfigured.clone(),
        );
        let ours = registry.sub_registry_with_prefix("quorate");
        ours.register("requests", "Requests to disrupt a pod, by result and reason", self.requests.clone());
        ours.register("denials", "Denials, by budget and reason", self.denials.clone());
        ours.register_with_unit(
            "decision",
            "Time from a request to its answer",
            Unit::Seconds,
            self.decisions.clone(),
        );
        ours.register_with_unit(
            "commit",
            "Duration of a write to a budget's ledger",
            Unit::Seconds,
            self.commits.clone(),
        );
        ours.register("commit_batch_size", "Claims in one write", self.batches.clone());
        ours.register("commit_conflicts", "Writes that lost a race", self.conflicts.clone());
        ours.register("claims_expired", "Claims that expired without a disruption", self.expired.clone());
        ours.register(
            "pods_left",
            "Pods that left a budget, or a group of it, by a change that the budget does not decide",
            self.left.clone(),
        );
        ours.register("claims", "Claims that the pods do not show yet", self.claims.clone());
        ours.register("units_expected", "Expected pods or groups", self.expected.clone());
        ours.register("units_available", "Healthy pods or groups", self.available.clone());
        ours.register(
            "disruptions_allowed",
            "Pods or groups that may be disrupted now",
            self.allowed.clone(),
        );
        ours.register("pods", "Watched pods", self.pods.clone());
        ours.register_with_unit(
            "watch_age",
            "Time since the watch of a kind last received something",
            Unit::Seconds,
            self.watch_age.clone(),
        );
        ours.register_with_unit(
            "watch_unreadable",
            "Time since a kind became unreadable; 0 while it can be read",
            Unit::Seconds,
            self.unreadable.clone(),
        );
    }

    /// Records the answer to a request.
    pub(crate) fn answered(&self, operation: Operation, decision: &Decision, took: Duration) {
        let (result, reason) = match decision {
            Decision::Allow(allow) => ("admitted", admission(allow)),
            Decision::Deny(denials) => {
                for denial in denials {
                    if let Some(key) = &denial.budget {
                        let Of { namespace, budget } = Of::budget(key);
                        let labels = Denied { namespace, budget, reason: refusal(&denial.reason) };
                        self.denials.get_or_create(&labels).inc();
                    }
                }
                ("denied", denials.first().map_or("Unknown", |denial| refusal(&denial.reason)))
            }
        };
        let operation = operation.name();
        self.requests.get_or_create(&Answered { operation, result, reason }).inc();
        self.decisions.observe(took.as_secs_f64());
    }

    /// Records that a pod leaves a budget that does not decide it.
    pub(crate) fn pod_left(&self, budget: &BudgetKey) {
        self.left.get_or_create(&Of::budget(budget)).inc();
    }

    /// Records a call that is about to be made.
    pub(crate) fn calling(&self, call: &Call) {
        let Call::Patch(patch) = call else { return };
        let claims = patch.steps.iter().filter(|step| matches!(step, Step::PutClaim(..))).count();
        if claims > 0 {
            self.batches.observe(u32::try_from(claims).unwrap_or(u32::MAX).into());
        }
    }

    /// Records the outcome of a write to a ledger.
    pub(crate) fn wrote(&self, took: Duration, refused: bool) {
        self.commits.observe(took.as_secs_f64());
        if refused {
            self.conflicts.inc();
        }
    }

    /// Records a note of the replica.
    pub(crate) fn noted(&self, note: &Note) {
        if let Note::NotDisrupted { budget, .. } = note {
            self.expired.get_or_create(&Of::budget(budget)).inc();
        }
    }

    /// Records a write of the status of a budget.
    pub(crate) fn reconciled(&self, scope: Scope, newly_misconfigured: bool) {
        let mode = match scope {
            Scope::Pod => Mode::individual,
            Scope::Group | Scope::Workload => Mode::pod_groups,
        };
        self.reconciliations.get_or_create(&By { mode }).inc();
        if newly_misconfigured {
            self.misconfigured.inc();
        }
    }

    /// All metrics, as text.
    pub(crate) fn show(&self, reading: Option<Gauges>, watched: &[WatchedKind]) -> String {
        self.unreadable.clear();
        self.watch_age.clear();
        for WatchedKind { kind, age, failing } in watched {
            let label = Kind { kind: kind.clone() };
            let since = failing.as_ref().map_or(0.0, |failing| failing.since.elapsed().as_secs_f64());
            self.unreadable.get_or_create(&label).set(since);
            if let Some(age) = age {
                self.watch_age.get_or_create(&label).set(age.as_secs_f64());
            }
        }
        if let Some(reading) = reading {
            self.take(&reading);
        }
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry.lock());
        text
    }

    fn take(&self, reading: &Gauges) {
        let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        for family in [&self.claims, &self.expected, &self.available, &self.allowed] {
            family.clear();
        }
        let mut grouping = 0;
        for budget in &reading.budgets {
            let labels = Of::budget(&budget.key);
            grouping += i64::from(budget.groups);
            self.claims.get_or_create(&labels).set(gauge(budget.claims as u64));
            if let Some(numbers) = budget.numbers {
                self.expected.get_or_create(&labels).set(numbers.expected.into());
                self.available.get_or_create(&labels).set(numbers.current.into());
                self.allowed.get_or_create(&labels).set(numbers.allowed.into());
            }
        }
        self.grouping.set(grouping);
        self.pods.set(gauge(reading.pods as u64));
    }
}

/// The values of the gauges, read from the state.
#[derive(Debug)]
pub(crate) struct Gauges {
    budgets: Vec<BudgetGauges>,
    pods: usize,
}

#[derive(Debug)]
struct BudgetGauges {
    key: BudgetKey,
    groups: bool,
    claims: usize,
    numbers: Option<Numbers>,
}

impl Gauges {
    pub(crate) fn of(replica: &Replica) -> Self {
        let engine = replica.engine();
        let budgets = engine.budgets().map(|budget| BudgetGauges {
            key: budget.key.clone(),
            groups: budget.spec.as_ref().is_ok_and(|rules| rules.units != Units::Pods),
            claims: budget.ledger.claims.len(),
            numbers: engine.numbers(&budget.key),
        });
        Self { budgets: budgets.collect(), pods: engine.pod_count() }
    }
}

/// Why a request was admitted, in one word.
fn admission(allow: &Allow) -> &'static str {
    match allow {
        Allow::Exempt(_) => "Exempt",
        Allow::NoEffect { .. } => "Moot",
        Allow::NotCovered { .. } => "NotCovered",
        // The reason with the highest cost counts.
        Allow::Agreed { reasons, .. } => {
            let has = |wanted: AllowReason| reasons.iter().any(|(_, reason)| *reason == wanted);
            let order = [
                (AllowReason::Charged, "Charged"),
                (AllowReason::Surplus, "Surplus"),
                (AllowReason::Surge, "Surplus"),
                (AllowReason::Broken, "GroupBroken"),
                (AllowReason::Unhealthy, "PodUnhealthy"),
                (AllowReason::Pending, "PodPending"),
                (AllowReason::Recreate, "Recreate"),
                (AllowReason::Observed, "Observed"),
                (AllowReason::Leaves, "NotProtected"),
                (AllowReason::PassesBy, "NotProtected"),
            ];
            order.into_iter().find(|(reason, _)| has(*reason)).map_or("NotCovered", |(_, word)| word)
        }
    }
}

/// Why a request was denied, in one word.
pub(crate) fn refusal(reason: &DenialReason) -> &'static str {
    match reason {
        DenialReason::NotSynced => "NotSynced",
        DenialReason::NotServing => "NotServing",
        DenialReason::NotFresh { .. } => "NotFresh",
        DenialReason::Stale { .. } => "StaleKind",
        DenialReason::Deadline => "Deadline",
        DenialReason::Invalid(_) => ConditionReason::Invalid.name(),
        // What is also the reason of a condition has the same word there.
        DenialReason::Unresolved(Unresolved::Group { .. }) => {
            ConditionReason::WorkloadResolutionFailed.name()
        }
        DenialReason::Unresolved(_) => ConditionReason::SyncFailed.name(),
        DenialReason::NotOpen => ConditionReason::JustCreated.name(),
        DenialReason::Protocol(_) => "OtherProtocol",
        DenialReason::OutdatedDefinition => "OutdatedDefinition",
        DenialReason::TooManyClaims => "TooManyClaims",
        DenialReason::Probe { .. } => "NotDisruptable",
        DenialReason::NoGroup { .. } => ConditionReason::MissingWorkloadReference.name(),
        DenialReason::Exhausted(_) => "Exhausted",
        DenialReason::Native { .. } => "NativeBudget",
        DenialReason::SeveralNative { .. } => "SeveralNativeBudgets",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_engine::Gates;
    use quorate_engine::basics::{GroupKind, ObjectKey};
    use quorate_engine::decision::Denial;
    use quorate_engine::ledger::Settings;
    use quorate_kit::watch::{Failing, Why};

    #[test]
    fn a_missing_group_and_an_unknown_scale_are_counted_apart() {
        let text = |words: &str| words.into();
        let cases = [
            (Unresolved::Group { pod: text("p"), name: text("g") }, "WorkloadResolutionFailed"),
            (Unresolved::Scale { kind: text("DaemonSet"), name: text("d") }, "SyncFailed"),
            (Unresolved::Controller { pod: text("p"), kind: text("Job"), name: text("j") }, "SyncFailed"),
            (Unresolved::Owner { pod: text("p"), kind: text("Job"), name: text("j") }, "SyncFailed"),
            (Unresolved::Unread { kind: GroupKind::new("a.io", "Game"), name: text("g") }, "SyncFailed"),
            (Unresolved::Sources { count: 300 }, "SyncFailed"),
        ];
        for (unresolved, expected) in cases {
            assert_eq!(refusal(&DenialReason::Unresolved(unresolved)), expected);
        }
    }

    #[test]
    fn a_scrape_shows_the_metrics() {
        let metrics = Metrics::default();
        let key =
            BudgetKey { object: ObjectKey::new("inference", "llm"), kind: BudgetKind::DisruptionBudget };
        let left = BudgetKey { kind: BudgetKind::PodUnavailableBudget, ..key.clone() };
        let decision =
            Decision::Deny(vec![Denial { budget: Some(key.clone()), reason: DenialReason::NotOpen }]);
        metrics.answered(Operation::Evict, &decision, Duration::from_millis(3));
        metrics.noted(&Note::NotDisrupted { budget: key, pod: "llm-0".into() });
        metrics.pod_left(&left);
        metrics.wrote(Duration::from_millis(5), true);
        metrics.reconciled(Scope::Workload, true);
        metrics.reconciled(Scope::Group, false);
        metrics.reconciled(Scope::Pod, false);
        let replica = Replica::new(Settings::new("test"), Gates::default());
        let text = metrics.show(Some(Gauges::of(&replica)), &[]);
        let failing = Failing { since: tokio::time::Instant::now(), why: Why::NotServed };
        let watched = |kind: &str, age, failing| WatchedKind { kind: kind.to_owned(), age, failing };
        let kinds = [
            watched("Pod", Some(Duration::from_millis(1500)), None),
            watched("Workload.scheduling.k8s.io", None, Some(failing)),
        ];
        let shown = metrics.show(None, &kinds);
        assert!(shown.contains("quorate_watch_unreadable_seconds{kind=\"Pod\"} 0.0\n"), "{shown}");
        assert!(shown.contains("quorate_watch_age_seconds{kind=\"Pod\"} 1.5\n"), "{shown}");
        assert!(!shown.contains("quorate_watch_age_seconds{kind=\"Workload"), "it was never read: {shown}");
        let unreadable = "quorate_watch_unreadable_seconds{kind=\"Workload.scheduling.k8s.io\"} ";
        assert!(!shown.contains(&format!("{unreadable}0.0\n")) && shown.contains(unreadable), "{shown}");
        for line in [
            r#"quorate_requests_total{operation="Evict",result="denied",reason="JustCreated"} 1"#,
            r#"quorate_denials_total{namespace="inference",budget="llm",reason="JustCreated"} 1"#,
            r#"quorate_claims_expired_total{namespace="inference",budget="llm"} 1"#,
            r#"quorate_pods_left_total{namespace="inference",budget="podunavailablebudget/llm"} 1"#,
            "quorate_commit_conflicts_total 1",
            r#"disruption_controller_reconciliations_total{mode="pod_groups"} 2"#,
            r#"disruption_controller_reconciliations_total{mode="individual"} 1"#,
            "disruption_controller_pdb_grouping_misconfig_total 1",
            "disruption_controller_pdbs_using_pod_grouping 0",
            "quorate_decision_seconds_count 1",
            "quorate_pods 0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is missing in:\n{text}");
        }
    }
}
