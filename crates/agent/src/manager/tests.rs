//! A node and its agent, step by step.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{ConditionWrite, DueProbe, LeaseAction, PatchOutcome, ProbeManager};
use crate::clock::Now;
use crate::container_probe::ProbeResult;
use crate::pod_view::{PodCondition, PodView};

/// The wall clock at the start of a test, in seconds since 1970.
const DAY: i64 = 1_000_000;

/// One pod `db`, with a container `main` that is probed every ten seconds unless the test sets another period.
struct Node {
    manager: ProbeManager,
    now: Now,
    version: u64,
    probe: Value,
    /// The run of the container, and when it started; `None` while it does not run.
    run: Option<(u32, i64)>,
    condition: Option<PodCondition>,
    ready: &'static str,
    due: Vec<DueProbe>,
}

impl Node {
    fn new(probe: Value) -> Self {
        let now = Now { steady: Duration::ZERO, wall: DAY * 1000 };
        Self {
            manager: ProbeManager::new(false, now),
            now,
            version: 1,
            probe,
            run: Some((1, DAY - 100_000)),
            condition: None,
            ready: "True",
            due: Vec::new(),
        }
    }

    /// A node whose pods the agent has listed.
    fn watched(probe: Value) -> Self {
        let mut node = Self::new(probe);
        node.list();
        node
    }

    fn pod(&self) -> PodView {
        let running = |(run, started): (u32, i64)| {
            let at = k8s_openapi::jiff::Timestamp::from_second(started).unwrap().to_string();
            json!([{"name": "main", "containerID": format!("c://{run}"), "state": {"running": {"startedAt": at}}}])
        };
        let waiting = json!([{"name": "main", "containerID": "c://0", "state": {"waiting": {}}}]);
        let annotations = match &self.probe {
            Value::Null => json!({}),
            Value::String(text) => json!({"quorate.dev/disruption-probe.main": text}),
            probe => json!({"quorate.dev/disruption-probe.main": probe.to_string()}),
        };
        let pod = json!({
            "metadata": {"namespace": "d", "name": "db", "uid": "u", "resourceVersion": self.version.to_string(),
                "annotations": annotations},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"podIP": "10.0.0.1", "containerStatuses": self.run.map_or(waiting, running),
                "conditions": [{"type": "Ready", "status": self.ready}]},
        });
        let mut pod = PodView::read(&pod.to_string()).unwrap();
        pod.condition.clone_from(&self.condition);
        pod
    }

    fn list(&mut self) {
        self.manager.list(vec![self.pod()], &BTreeSet::new(), self.now);
    }

    /// Changes the pod and delivers the new version to the agent.
    fn change(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        self.version += 1;
        self.manager.observe(self.pod(), self.now);
    }

    /// Time passes, and the agent runs every second.
    fn advance(&mut self, millis: u64) {
        (0..millis / 1000).for_each(|_| self.pause(1000));
        self.pause(millis % 1000);
    }

    /// Time passes, and the agent does not run meanwhile.
    fn pause(&mut self, millis: u64) {
        self.now.steady += Duration::from_millis(millis);
        self.now.wall += i64::try_from(millis).unwrap();
        self.manager.tick(self.now);
        self.due.extend(self.manager.due(self.now));
    }

    /// Waits for the next probe. Returns how long that took, in seconds, rounded up.
    fn await_probe(&mut self) -> u64 {
        let start = self.now.steady;
        while self.due.is_empty() {
            self.advance(100);
            assert!(self.now.steady < start + Duration::from_secs(1000), "no probe is due");
        }
        (self.now.steady - start).as_millis().div_ceil(1000).try_into().unwrap()
    }

    fn answer(&mut self, answer: ProbeResult) {
        let due = self.due.pop().unwrap();
        self.manager.answer(due.id, answer, self.now);
    }

    /// Answers the next probes: `+` passes, `-` fails.
    fn answers(&mut self, answers: &str) {
        for answer in answers.chars() {
            self.await_probe();
            self.answer(if answer == '+' { ProbeResult::Passed } else { no() });
        }
    }

    fn next_write(&mut self) -> Option<ConditionWrite> {
        let mut writes = self.manager.writes(1, self.now);
        writes.pop()
    }

    /// Performs the next write and delivers the new version to the agent.
    fn write(&mut self) -> Option<PodCondition> {
        let write = self.next_write()?;
        let condition = write.condition.clone();
        self.version += 1;
        self.condition = Some(condition.clone());
        self.manager.wrote(write, PatchOutcome::Done(self.version), self.now);
        self.manager.observe(self.pod(), self.now);
        Some(condition)
    }

    /// Performs the next write and returns it in short.
    fn write_summary(&mut self) -> Option<String> {
        self.write().map(|condition| {
            format!("{} {} {}", condition.status, condition.reason, condition.message).trim().to_owned()
        })
    }

    fn lease_action(&self) -> LeaseAction {
        self.manager.lease_action(self.now)
    }
}

fn no() -> ProbeResult {
    ProbeResult::Failed("HTTP 503".to_owned())
}

fn probe() -> Value {
    json!({"httpGet": {"port": 80}, "periodSeconds": 10, "failureThreshold": 2})
}

const YES: Option<&str> = Some("True ProbeSucceeded");
const NO: Option<&str> = Some("False ProbeFailed main: HTTP 503");

#[test]
fn the_first_result_is_written_and_then_only_changes() {
    let mut node = Node::watched(probe());
    assert_eq!(node.write_summary(), None, "no probe has run");
    for (answers, expected) in [("+", YES), ("++", None), ("-", None), ("-", NO), ("---", None), ("+", YES)] {
        node.answers(answers);
        assert_eq!(node.write_summary().as_deref(), expected, "{answers}");
    }
}

#[test]
fn a_condition_has_its_probe_time_and_transition_time() {
    let mut node = Node::watched(probe());
    node.answers("+");
    let first = node.write().unwrap();
    // Surely later than the agent's start, though both are in whole seconds.
    assert!(first.probed.unwrap() > DAY, "{first:?}");
    node.advance(50_000);
    node.due.clear();
    node.answers("--");
    let second = node.write().unwrap();
    assert_eq!(second.probed, Some(node.now.second()));
    assert_eq!(second.since, Some(node.now.second()));
}

#[test]
fn probes_keep_to_their_schedule() {
    let mut node = Node::watched(probe());
    assert!(node.await_probe() <= 5, "first probes are spread over five seconds");
    let first = node.now.steady;
    for number in 1..=20 {
        // The time that a probe takes does not matter. The test checks every tenth of a second.
        node.advance(number * 307);
        node.answer(ProbeResult::Passed);
        node.await_probe();
        let off = (node.now.steady - first).as_millis() % 10_000;
        assert!(off.min(10_000 - off) <= 100, "{off} ms off");
    }
    // A hanging container is not probed again meanwhile, and missed probes are skipped.
    let running = node.due.len();
    node.advance(25_000);
    assert_eq!(node.due.len(), running);
    node.answer(ProbeResult::TimedOut(Duration::from_secs(1)));
    node.await_probe();
    assert_eq!(node.due.len(), 1);
    assert!(node.due[0].hangs);
    // A lost probe counts as timed out. Otherwise the last result would stay.
    node.answer(ProbeResult::Passed);
    assert_eq!(node.write_summary().as_deref(), YES);
    for lost in [false, true] {
        node.await_probe();
        node.due.clear();
        node.advance(25_000);
        assert!(node.due.is_empty());
        node.advance(15_000);
        assert_eq!(node.due.len(), 1);
        let expected = lost.then_some("False ProbeFailed main: no answer within 1 s");
        assert_eq!(node.write_summary().as_deref(), expected);
        node.due.clear();
        node.advance(25_000);
    }
}

#[test]
fn the_first_probe_waits_for_the_initial_delay() {
    for (started, delay, at_least, at_most) in [
        (DAY, 0, 0, 5),
        (DAY, 60, 60, 65),
        (DAY - 50, 60, 10, 15),
        (DAY - 70, 60, 0, 5),
        (DAY + 500, 60, 60, 65),
    ] {
        let mut node = Node::new(json!({"tcpSocket": {"port": 1}, "initialDelaySeconds": delay}));
        node.run = Some((1, started));
        node.list();
        let waited = node.await_probe();
        assert!(
            (at_least..=at_most).contains(&waited),
            "{waited} s; started {}, delay {delay}",
            started - DAY
        );
    }
}

#[test]
fn the_probe_of_a_restarted_container_starts_over() {
    let mut node = Node::watched(probe());
    node.answers("+");
    assert_eq!(node.write_summary().as_deref(), YES);
    node.await_probe();
    // The result of the previous run is dropped.
    let now = node.now.second();
    node.change(|node| node.run = Some((2, now)));
    node.answer(ProbeResult::Passed);
    let condition = node.write().unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "ProbePending"));
    assert_eq!(condition.message, "main has not answered since it started");
    node.answers("+");
    let condition = node.write().unwrap();
    assert_eq!(condition.status, "True");
    assert!(condition.probed.unwrap() > now, "surely later than the start of the container");
    // A crash, then the next restart.
    node.change(|node| node.run = None);
    let crashed = Some("False ContainerNotRunning main: the container is not running");
    assert_eq!(node.write_summary().as_deref(), crashed);
    node.advance(60_000);
    assert!(node.due.is_empty(), "no container runs, so no probe is due");
    let now = node.now.second();
    node.change(|node| node.run = Some((3, now)));
    assert_eq!(node.write_summary(), None, "the condition stays False");
    node.answers("+");
    assert_eq!(node.write_summary().as_deref(), YES);
}

#[test]
fn a_changed_probe_starts_over() {
    let mut node = Node::watched(probe());
    node.answers("+");
    assert_eq!(node.write_summary().as_deref(), YES);
    node.change(|node| node.probe = json!({"httpGet": {"port": 81}}));
    assert_eq!(
        node.write_summary().as_deref(),
        Some("False ProbePending main has not answered since it started")
    );
    node.change(|node| node.probe = json!("{\"httpGet\":{\"port\":0}}"));
    let condition = node.write_summary().unwrap();
    assert!(
        condition.starts_with("False ProbeMalformed metadata.annotations[quorate.dev/disruption-probe.main]"),
        "{condition}"
    );
    assert!(condition.ends_with("must be a whole number from 1 to 65535"), "{condition}");
    node.change(|node| node.probe = Value::Null);
    node.advance(60_000);
    assert!(node.due.is_empty() && node.write_summary().is_none(), "without a probe no condition is written");
    assert_eq!(node.lease_action(), LeaseAction::Idle);
}

#[test]
fn a_changed_message_alone_is_written_once_a_minute() {
    let mut node = Node::watched(probe());
    node.answers("-");
    assert_eq!(node.write_summary().as_deref(), NO);
    let start = node.now.steady;
    let mut written = Vec::new();
    for number in 0..30 {
        node.await_probe();
        node.answer(ProbeResult::Failed(format!("{number} % done")));
        if node.write_summary().is_some() {
            written.push((node.now.steady - start).as_secs());
        }
    }
    assert_eq!(written, [60, 120, 180, 240, 300]);
}

#[test]
fn a_failed_write_is_retried() {
    let mut node = Node::watched(probe());
    node.answers("+");
    assert_eq!(node.write_summary().as_deref(), YES);
    assert_eq!(node.lease_action(), LeaseAction::Renew(DAY));
    node.answers("--");
    let mut waits = Vec::new();
    for _ in 0..8 {
        let write = node.next_write().unwrap();
        assert_eq!(write.condition.status, "False");
        assert_eq!(node.lease_action(), LeaseAction::Hold, "the pod still has True");
        assert_eq!(node.next_write(), None, "one write at a time");
        node.manager.wrote(write, PatchOutcome::Failed, node.now);
        assert_eq!(node.next_write(), None, "no retry at once");
        let again = node.manager.later.first().unwrap().0;
        waits.push((again - node.now.steady).as_millis());
        node.advance(waits[waits.len() - 1].try_into().unwrap());
    }
    assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
    assert_eq!(node.write_summary().as_deref(), NO);
    assert_eq!(node.lease_action(), LeaseAction::Renew(DAY));
}

#[test]
fn a_condition_of_another_writer_is_overwritten() {
    let condition = |status: &str, reason: &str, probed| {
        Some(PodCondition {
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: String::new(),
            probed: Some(probed),
            since: None,
        })
    };
    let mut node = Node::watched(probe());
    node.answers("-");
    assert_eq!(node.write_summary().as_deref(), NO);
    for lie in [condition("True", "Lie", DAY + 900), None, condition("False", "ProbeFailed", DAY - 900)] {
        node.change(|node| node.condition = lie.clone());
        assert_eq!(node.lease_action() == LeaseAction::Hold, lie.is_some_and(|lie| lie.status == "True"));
        assert_eq!(node.write_summary(), None, "not at once: two agents must not write in a loop");
        node.advance(6_000);
        node.due.clear();
        assert_eq!(node.write_summary().as_deref(), NO);
        assert_eq!(node.lease_action(), LeaseAction::Renew(DAY));
    }
    // Before the first result, the agent overwrites only the status True.
    let mut node = Node::watched(probe());
    node.change(|node| node.condition = condition("False", "Lie", DAY + 900));
    assert_eq!(node.write_summary(), None);
    node.change(|node| node.condition = condition("True", "Lie", DAY + 900));
    assert_eq!(node.lease_action(), LeaseAction::Hold);
    assert_eq!(
        node.write_summary().as_deref(),
        Some("False ProbePending main has not answered since it started")
    );
    assert_eq!(node.lease_action(), LeaseAction::Renew(DAY));
}

/// A pod that had the status True before the agent began.
fn inherited(probe: Value) -> Node {
    let mut node = Node::new(probe);
    node.condition = Some(PodCondition {
        status: "True".to_owned(),
        reason: "ProbeSucceeded".to_owned(),
        message: String::new(),
        probed: Some(DAY - 50),
        since: Some(DAY - 90),
    });
    node.list();
    node
}

#[test]
fn a_restarted_agent_writes_conditions_before_it_renews_the_lease() {
    let mut node = inherited(probe());
    assert_eq!(node.lease_action(), LeaseAction::Hold);
    assert_eq!(node.write_summary(), None, "the condition stays");
    node.answers("+");
    assert_eq!(node.lease_action(), LeaseAction::Hold, "the result must be written first");
    let condition = node.write().unwrap();
    assert_eq!(
        (condition.status.as_str(), condition.since),
        ("True", Some(DAY - 90)),
        "status and transition time stay the same"
    );
    assert!(condition.probed.unwrap() > DAY);
    assert_eq!(node.lease_action(), LeaseAction::Renew(DAY));

    let mut node = inherited(probe());
    node.answers("-");
    assert_eq!(node.write_summary().as_deref(), NO, "an old True is not taken for a success");

    // Without a new result in time, the agent renews the Lease anyway, and the old condition is no longer trusted.
    let mut node = inherited(json!({"tcpSocket": {"port": 1}, "successThreshold": 3}));
    node.answers("+");
    node.advance(9_000);
    assert_eq!(node.write_summary(), None);
    node.due.clear();
    node.advance(1_000);
    assert_eq!((node.write_summary(), node.lease_action()), (None, LeaseAction::Renew(DAY)));
}

#[test]
fn a_stopped_agent_begins_anew() {
    let mut node = Node::watched(probe());
    node.answers("+");
    assert_eq!(node.write_summary().as_deref(), YES);
    node.await_probe();
    // The process is stopped for a minute; the result of the last probe was there all the time.
    let late = node.due.pop().unwrap();
    node.pause(60_000);
    node.manager.answer(late.id, ProbeResult::Passed, node.now);
    assert_eq!(node.lease_action(), LeaseAction::Hold);
    assert_eq!(node.write_summary(), None);
    node.due.clear();
    node.answers("+");
    let began = node.now.second() - 6..=node.now.second();
    assert!(node.write().is_some_and(|condition| condition.status == "True"));
    assert!(matches!(node.lease_action(), LeaseAction::Renew(second) if began.contains(&second)));
    // A shorter pause, as on a busy machine, is no stop.
    node.pause(19_000);
    assert!(matches!(node.lease_action(), LeaseAction::Renew(_)));
}

#[test]
fn setting_the_clock_does_not_renew_old_conditions() {
    let mut node = Node::watched(probe());
    node.answers("+");
    assert_eq!(node.write_summary().as_deref(), YES);
    // Set back by an hour: the written condition is in the future of the new clock.
    node.now.wall -= 3_600_000;
    node.advance(100);
    assert_eq!(node.lease_action(), LeaseAction::Hold);
    assert_eq!(node.write_summary(), None, "a condition that may be confirmed stays");
    node.answers("+");
    let condition = node.write().unwrap();
    assert!(condition.probed.unwrap() < DAY - 3_000, "by the clock after the change");
    assert!(matches!(node.lease_action(), LeaseAction::Renew(second) if second < DAY - 3_000));
    // The container's start is in the future of the new clock, and the condition is trusted all the same.
    let mut node = Node::watched(probe());
    node.change(|node| node.run = Some((2, DAY)));
    node.now.wall -= 3_600_000;
    node.advance(100);
    node.answers("+");
    assert_eq!(node.write().unwrap().probed, Some(DAY + 1));
    // Without a new result in time, the condition becomes False before a renewed Lease would make it trusted.
    let mut node =
        Node::watched(json!({"tcpSocket": {"port": 1}, "successThreshold": 2, "periodSeconds": 100}));
    node.answers("++");
    assert_eq!(node.write_summary().as_deref(), YES);
    node.now.wall -= 3_600_000;
    node.advance(100);
    node.advance(11_000);
    assert_eq!(node.lease_action(), LeaseAction::Hold);
    assert!(node.write_summary().is_some_and(|condition| condition.starts_with("False ProbePending")));
    // A small correction changes nothing; a clock set ahead makes the agent begin anew.
    let mut node = Node::watched(probe());
    node.answers("+");
    assert_eq!(node.write_summary().as_deref(), YES);
    node.now.wall -= 500;
    node.advance(100);
    assert_eq!((node.write_summary(), node.lease_action()), (None, LeaseAction::Renew(DAY)));
    node.now.wall += 3_600_000;
    node.advance(100);
    node.answers("+");
    assert!(node.write().is_some_and(|condition| condition.status == "True"));
    assert!(matches!(node.lease_action(), LeaseAction::Renew(second) if second > DAY + 3_500));
}

#[test]
fn the_lease_is_renewed_only_while_a_pod_is_probed() {
    let mut node = Node::watched(Value::Null);
    assert_eq!(node.lease_action(), LeaseAction::Idle);
    node.change(|node| node.probe = probe());
    assert_eq!(node.lease_action(), LeaseAction::Renew(DAY));
    node.manager.forget("u");
    assert_eq!(node.lease_action(), LeaseAction::Idle);
}

#[test]
fn ready_is_mirrored_if_enabled() {
    let mut node = Node::new(Value::Null);
    node.manager = ProbeManager::new(true, node.now);
    node.list();
    assert_eq!(node.write_summary().as_deref(), Some("True MirrorsReady"));
    assert_eq!(node.write_summary(), None);
    node.change(|node| node.ready = "False");
    assert_eq!(node.write_summary().as_deref(), Some("False MirrorsReady"));
    assert_eq!(node.lease_action(), LeaseAction::Idle, "a mirrored condition needs no Lease");
    // The next agent finds the right condition and writes nothing.
    node.manager = ProbeManager::new(true, node.now);
    node.list();
    assert_eq!(node.write_summary(), None);
    node.change(|node| node.probe = probe());
    node.answers("+");
    assert_eq!(node.write_summary().as_deref(), YES);
}
