//! A node under an agent, moment by moment.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{ConditionWrite, DueProbe, LeaseAction, ProbeManager, WriteOutcome};
use crate::clock::Now;
use crate::container_probe::ProbeResult;
use crate::pod_view::{PodCondition, PodView};

/// The time of day when a story begins.
const DAY: i64 = 1_000_000;

/// One pod `db`, with a container `main` that is probed every ten seconds unless told otherwise.
struct Node {
    manager: ProbeManager,
    now: Now,
    version: u64,
    probe: Value,
    /// The run of the container, and when it started; none while it does not run.
    run: Option<(u32, i64)>,
    condition: Option<PodCondition>,
    ready: &'static str,
    asks: Vec<DueProbe>,
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
            asks: Vec::new(),
        }
    }

    /// Under an agent that has seen it.
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

    /// The pod changes, and is seen.
    fn change(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        self.version += 1;
        self.manager.observe(self.pod(), self.now);
    }

    /// Time passes as it should.
    fn pass(&mut self, millis: u64) {
        (0..millis / 1000).for_each(|_| self.stand_still(1000));
        self.stand_still(millis % 1000);
    }

    /// Time passes, and the agent does nothing meanwhile.
    fn stand_still(&mut self, millis: u64) {
        self.now.steady += Duration::from_millis(millis);
        self.now.wall += i64::try_from(millis).unwrap();
        self.manager.tick(self.now);
        self.asks.extend(self.manager.due(self.now));
    }

    /// Until the next question; how long that took, in seconds, rounded up.
    fn until_asked(&mut self) -> u64 {
        let start = self.now.steady;
        while self.asks.is_empty() {
            self.pass(100);
            assert!(self.now.steady < start + Duration::from_secs(1000), "nobody is asked");
        }
        (self.now.steady - start).as_millis().div_ceil(1000).try_into().unwrap()
    }

    fn answer(&mut self, answer: ProbeResult) {
        let ask = self.asks.pop().unwrap();
        self.manager.answer(ask.id, answer, self.now);
    }

    /// Answers with yes or no, whenever it is asked.
    fn answers(&mut self, answers: &str) {
        for answer in answers.chars() {
            self.until_asked();
            self.answer(if answer == '+' { ProbeResult::Passed } else { no() });
        }
    }

    fn next_write(&mut self) -> Option<ConditionWrite> {
        let mut writes = self.manager.writes(1, self.now);
        writes.pop()
    }

    /// What is to be written is written, and seen.
    fn write(&mut self) -> Option<PodCondition> {
        let write = self.next_write()?;
        let condition = write.condition.clone();
        self.version += 1;
        self.condition = Some(condition.clone());
        self.manager.wrote(write, WriteOutcome::Done(self.version), self.now);
        self.manager.observe(self.pod(), self.now);
        Some(condition)
    }

    /// What is to be written, in short.
    fn told(&mut self) -> Option<String> {
        self.write().map(|condition| {
            format!("{} {} {}", condition.status, condition.reason, condition.message).trim().to_owned()
        })
    }

    fn beat(&self) -> LeaseAction {
        self.manager.beat(self.now)
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
fn the_first_verdict_is_told_and_then_changes_only() {
    let mut node = Node::watched(probe());
    assert_eq!(node.told(), None, "nobody has been asked");
    for (answers, expected) in [("+", YES), ("++", None), ("-", None), ("-", NO), ("---", None), ("+", YES)] {
        node.answers(answers);
        assert_eq!(node.told().as_deref(), expected, "{answers}");
    }
}

#[test]
fn a_condition_tells_when_it_was_probed_and_since_when_it_holds() {
    let mut node = Node::watched(probe());
    node.answers("+");
    let first = node.write().unwrap();
    // Later than the agent's start for sure, though both are told in whole seconds.
    assert!(first.probed.unwrap() > DAY, "{first:?}");
    node.pass(50_000);
    node.asks.clear();
    node.answers("--");
    let second = node.write().unwrap();
    assert_eq!(second.probed, Some(node.now.second()));
    assert_eq!(second.since, Some(node.now.second()));
}

#[test]
fn questions_keep_to_their_schedule() {
    let mut node = Node::watched(probe());
    assert!(node.until_asked() <= 5, "the first one is spread over five seconds");
    let first = node.now.steady;
    for number in 1..=20 {
        // However long an answer takes; it is looked at every tenth of a second.
        node.pass(number * 307);
        node.answer(ProbeResult::Passed);
        node.until_asked();
        let off = (node.now.steady - first).as_millis() % 10_000;
        assert!(off.min(10_000 - off) <= 100, "{off} ms off");
    }
    // One that hangs is not asked again meanwhile, and what was missed is not made up for.
    let asked = node.asks.len();
    node.pass(25_000);
    assert_eq!(node.asks.len(), asked);
    node.answer(ProbeResult::TimedOut(Duration::from_secs(1)));
    node.until_asked();
    assert_eq!(node.asks.len(), 1);
    assert!(node.asks[0].hangs);
    // An answer that never comes is not waited for for ever: that would leave the last verdict standing.
    node.answer(ProbeResult::Passed);
    assert_eq!(node.told().as_deref(), YES);
    for lost in [false, true] {
        node.until_asked();
        node.asks.clear();
        node.pass(25_000);
        assert!(node.asks.is_empty());
        node.pass(15_000);
        assert_eq!(node.asks.len(), 1);
        let expected = lost.then_some("False ProbeFailed main: no answer within 1 s");
        assert_eq!(node.told().as_deref(), expected);
        node.asks.clear();
        node.pass(25_000);
    }
}

#[test]
fn a_new_container_is_left_in_peace_at_first() {
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
        let asked = node.until_asked();
        assert!((at_least..=at_most).contains(&asked), "{asked} s; started {}, delay {delay}", started - DAY);
    }
}

#[test]
fn a_container_that_restarts_starts_over() {
    let mut node = Node::watched(probe());
    node.answers("+");
    assert_eq!(node.told().as_deref(), YES);
    node.until_asked();
    // The answer of the container before is not heard.
    let now = node.now.second();
    node.change(|node| node.run = Some((2, now)));
    node.answer(ProbeResult::Passed);
    let told = node.write().unwrap();
    assert_eq!((told.status.as_str(), told.reason.as_str()), ("False", "ProbePending"));
    assert_eq!(told.message, "main has not answered since it started");
    node.answers("+");
    let told = node.write().unwrap();
    assert_eq!(told.status, "True");
    assert!(told.probed.unwrap() > now, "later than the start of the container, for sure");
    // A crash, and a loop of them.
    node.change(|node| node.run = None);
    let crashed = Some("False ContainerNotRunning main: the container does not run");
    assert_eq!(node.told().as_deref(), crashed);
    node.pass(60_000);
    assert!(node.asks.is_empty(), "there is nobody to ask");
    let now = node.now.second();
    node.change(|node| node.run = Some((3, now)));
    assert_eq!(node.told(), None, "a no stays a no");
    node.answers("+");
    assert_eq!(node.told().as_deref(), YES);
}

#[test]
fn a_probe_that_changes_starts_over() {
    let mut node = Node::watched(probe());
    node.answers("+");
    assert_eq!(node.told().as_deref(), YES);
    node.change(|node| node.probe = json!({"httpGet": {"port": 81}}));
    assert_eq!(node.told().as_deref(), Some("False ProbePending main has not answered since it started"));
    node.change(|node| node.probe = json!("{\"httpGet\":{\"port\":0}}"));
    let told = node.told().unwrap();
    assert!(
        told.starts_with("False ProbeMalformed metadata.annotations[quorate.dev/disruption-probe.main]"),
        "{told}"
    );
    assert!(told.ends_with("must be a whole number from 1 to 65535"), "{told}");
    node.change(|node| node.probe = Value::Null);
    node.pass(60_000);
    assert!(node.asks.is_empty() && node.told().is_none(), "without a probe nothing is said");
    assert_eq!(node.beat(), LeaseAction::Idle);
}

#[test]
fn words_alone_are_told_once_a_minute() {
    let mut node = Node::watched(probe());
    node.answers("-");
    assert_eq!(node.told().as_deref(), NO);
    let start = node.now.steady;
    let mut told = Vec::new();
    for number in 0..30 {
        node.until_asked();
        node.answer(ProbeResult::Failed(format!("{number} % done")));
        if node.told().is_some() {
            told.push((node.now.steady - start).as_secs());
        }
    }
    assert_eq!(told, [60, 120, 180, 240, 300]);
}

#[test]
fn what_cannot_be_written_is_tried_again() {
    let mut node = Node::watched(probe());
    node.answers("+");
    assert_eq!(node.told().as_deref(), YES);
    assert_eq!(node.beat(), LeaseAction::Renew(DAY));
    node.answers("--");
    let mut waits = Vec::new();
    for _ in 0..8 {
        let write = node.next_write().unwrap();
        assert_eq!(write.condition.status, "False");
        assert_eq!(node.beat(), LeaseAction::Hold, "the pod shows a yes that is none any more");
        assert_eq!(node.next_write(), None, "one at a time");
        node.manager.wrote(write, WriteOutcome::Failed, node.now);
        assert_eq!(node.next_write(), None, "not at once");
        let again = node.manager.later.first().unwrap().0;
        waits.push((again - node.now.steady).as_millis());
        node.pass(waits[waits.len() - 1].try_into().unwrap());
    }
    assert_eq!(waits, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
    assert_eq!(node.told().as_deref(), NO);
    assert_eq!(node.beat(), LeaseAction::Renew(DAY));
}

#[test]
fn what_somebody_else_writes_is_put_right() {
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
    assert_eq!(node.told().as_deref(), NO);
    for lie in [condition("True", "Lie", DAY + 900), None, condition("False", "ProbeFailed", DAY - 900)] {
        node.change(|node| node.condition = lie.clone());
        assert_eq!(node.beat() == LeaseAction::Hold, lie.is_some_and(|lie| lie.status == "True"));
        assert_eq!(node.told(), None, "not at once: two agents must not write without end");
        node.pass(6_000);
        node.asks.clear();
        assert_eq!(node.told().as_deref(), NO);
        assert_eq!(node.beat(), LeaseAction::Renew(DAY));
    }
    // Before the first verdict there is nothing to put right but a yes.
    let mut node = Node::watched(probe());
    node.change(|node| node.condition = condition("False", "Lie", DAY + 900));
    assert_eq!(node.told(), None);
    node.change(|node| node.condition = condition("True", "Lie", DAY + 900));
    assert_eq!(node.beat(), LeaseAction::Hold);
    assert_eq!(node.told().as_deref(), Some("False ProbePending main has not answered since it started"));
    assert_eq!(node.beat(), LeaseAction::Renew(DAY));
}

/// A pod that showed a yes before the agent began.
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
fn an_agent_that_comes_back_speaks_before_it_takes_the_lease() {
    let mut node = inherited(probe());
    assert_eq!(node.beat(), LeaseAction::Hold);
    assert_eq!(node.told(), None, "the condition stays");
    node.answers("+");
    assert_eq!(node.beat(), LeaseAction::Hold, "not before it is written");
    let told = node.write().unwrap();
    assert_eq!(
        (told.status.as_str(), told.since),
        ("True", Some(DAY - 90)),
        "nothing has changed for readers"
    );
    assert!(told.probed.unwrap() > DAY);
    assert_eq!(node.beat(), LeaseAction::Renew(DAY));

    let mut node = inherited(probe());
    node.answers("-");
    assert_eq!(node.told().as_deref(), NO, "a yes is not inherited");

    // A verdict that does not come: the Lease is taken all the same, and with it the old one counts no more.
    let mut node = inherited(json!({"tcpSocket": {"port": 1}, "successThreshold": 3}));
    node.answers("+");
    node.pass(9_000);
    assert_eq!(node.told(), None);
    node.asks.clear();
    node.pass(1_000);
    assert_eq!((node.told(), node.beat()), (None, LeaseAction::Renew(DAY)));
}

#[test]
fn an_agent_that_was_stopped_begins_anew() {
    let mut node = Node::watched(probe());
    node.answers("+");
    assert_eq!(node.told().as_deref(), YES);
    node.until_asked();
    // It stands still for a minute; the answer to the last question was there all the time.
    let late = node.asks.pop().unwrap();
    node.stand_still(60_000);
    node.manager.answer(late.id, ProbeResult::Passed, node.now);
    assert_eq!(node.beat(), LeaseAction::Hold);
    assert_eq!(node.told(), None);
    node.asks.clear();
    node.answers("+");
    let began = node.now.second() - 6..=node.now.second();
    assert!(node.write().is_some_and(|told| told.status == "True"));
    assert!(matches!(node.beat(), LeaseAction::Renew(second) if began.contains(&second)));
    // A busy machine is not stopped.
    node.stand_still(19_000);
    assert!(matches!(node.beat(), LeaseAction::Renew(_)));
}

#[test]
fn a_clock_that_is_set_does_not_make_old_verdicts_young() {
    let mut node = Node::watched(probe());
    node.answers("+");
    assert_eq!(node.told().as_deref(), YES);
    // Set back by an hour: what was written lies ahead of everything that will happen.
    node.now.wall -= 3_600_000;
    node.pass(100);
    assert_eq!(node.beat(), LeaseAction::Hold);
    assert_eq!(node.told(), None, "nothing is taken back that will be confirmed");
    node.answers("+");
    let told = node.write().unwrap();
    assert!(told.probed.unwrap() < DAY - 3_000, "told by the clock as it is now");
    assert!(matches!(node.beat(), LeaseAction::Renew(second) if second < DAY - 3_000));
    // The container started by the clock of before, and may be believed all the same.
    let mut node = Node::watched(probe());
    node.change(|node| node.run = Some((2, DAY)));
    node.now.wall -= 3_600_000;
    node.pass(100);
    node.answers("+");
    assert_eq!(node.write().unwrap().probed, Some(DAY + 1));
    // Not confirmed in time: then it is taken back, before the Lease would make it believed.
    let mut node =
        Node::watched(json!({"tcpSocket": {"port": 1}, "successThreshold": 2, "periodSeconds": 100}));
    node.answers("++");
    assert_eq!(node.told().as_deref(), YES);
    node.now.wall -= 3_600_000;
    node.pass(100);
    node.pass(11_000);
    assert_eq!(node.beat(), LeaseAction::Hold);
    assert!(node.told().is_some_and(|told| told.starts_with("False ProbePending")));
    // Set ahead, or corrected a little: nothing happens that matters.
    let mut node = Node::watched(probe());
    node.answers("+");
    assert_eq!(node.told().as_deref(), YES);
    node.now.wall -= 500;
    node.pass(100);
    assert_eq!((node.told(), node.beat()), (None, LeaseAction::Renew(DAY)));
    node.now.wall += 3_600_000;
    node.pass(100);
    node.answers("+");
    assert!(node.write().is_some_and(|told| told.status == "True"));
    assert!(matches!(node.beat(), LeaseAction::Renew(second) if second > DAY + 3_500));
}

#[test]
fn the_lease_is_for_those_who_are_probed() {
    let mut node = Node::watched(Value::Null);
    assert_eq!(node.beat(), LeaseAction::Idle);
    node.change(|node| node.probe = probe());
    assert_eq!(node.beat(), LeaseAction::Renew(DAY));
    node.manager.forget("u");
    assert_eq!(node.beat(), LeaseAction::Idle);
}

#[test]
fn ready_is_mirrored_where_that_is_asked_for() {
    let mut node = Node::new(Value::Null);
    node.manager = ProbeManager::new(true, node.now);
    node.list();
    assert_eq!(node.told().as_deref(), Some("True MirrorsReady"));
    assert_eq!(node.told(), None);
    node.change(|node| node.ready = "False");
    assert_eq!(node.told().as_deref(), Some("False MirrorsReady"));
    assert_eq!(node.beat(), LeaseAction::Idle, "that is no probe");
    // Another agent goes on where this one ends, without a word.
    node.manager = ProbeManager::new(true, node.now);
    node.list();
    assert_eq!(node.told(), None);
    node.change(|node| node.probe = probe());
    node.answers("+");
    assert_eq!(node.told().as_deref(), YES);
}
