//! Free passes in a storm: three replicas, 2,000 pods of which a tenth is unready, and 16 clients that evict them all.
//!
//! A free pass that rests on something being down needs a consistent list, and the list counts only for the ledger number
//! that it was sent for. Where others write all the time, such lists are void when they arrive. The rule behind it:
//! `docs/ledger.md#fresh-lists`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use quorate_engine::basics::{Labels, ObjectKey, Text, Time, Version};
use quorate_engine::decision::{Allow, AllowReason, Decision, Denial, DenialReason};
use quorate_engine::facts::{Budget, BudgetKind, Input, Operation, Phase, Pod, Rules, UnhealthyPolicy};
use quorate_engine::ledger::{Call, CallId, Event, Output, PodRead, Replica, Reply, Settings, WriteOutcome};
use quorate_engine::{Gates, Snapshot};

use super::alone::{open, request};
use super::scenarios::{ALL, keeps};
use super::world::NAMESPACE;
use crate::plain;

const REPLICAS: usize = 3;
const PODS: usize = 2_000;
const CLIENTS: usize = 16;
/// How long the API server takes for a list of 2,000 pods, and for anything else.
const LIST: i64 = 300;
const CALL: i64 = 10;
/// How long a change takes to reach a watch.
const LAG: i64 = 8;
const DEADLINE: Duration = Duration::from_secs(9);

/// Something that happens at a time.
enum Due {
    /// A client sends the eviction that it is at.
    Send(usize),
    Deliver(usize, Event),
    Tick(usize),
    /// A call arrives at the API server.
    Arrive(usize, CallId, Call),
    /// An admitted eviction is carried out, and then the pod is gone.
    Evict(Text),
    Gone(Text),
}

/// What came of it.
#[derive(Debug, Default)]
struct Tally {
    lists: usize,
    free_passes: usize,
    charges: usize,
    /// Free passes that the replicas could not decide in time.
    late: usize,
    /// When the last unready pod was let go, in seconds.
    seconds: i64,
}

struct Storm {
    replicas: Vec<Replica>,
    budget: Budget,
    pods: BTreeMap<Text, Pod>,
    /// The pods that each client still has to evict, the next one last.
    plans: Vec<Vec<Text>>,
    due: BinaryHeap<Reverse<(i64, u64)>>,
    events: BTreeMap<u64, Due>,
    sequence: u64,
    version: u64,
    tally: Tally,
    unready: BTreeSet<Text>,
}

impl Storm {
    fn new(keep: u32) -> Self {
        let rules = Rules { unhealthy: UnhealthyPolicy::AlwaysAllow, ..keeps(keep, ALL) };
        let pod = |n: usize| Pod {
            labels: Labels::new([ALL]),
            phase: Phase::Running,
            ready: !n.is_multiple_of(10),
            ..plain::pod(ObjectKey::new(NAMESPACE, format!("p{n}")), format!("p{n}").into(), Version(1))
        };
        let pods: BTreeMap<Text, Pod> = (0..PODS).map(pod).map(|pod| (pod.uid.clone(), pod)).collect();
        let budget = open(rules);
        let plans = (0..CLIENTS)
            .map(|client| (client..PODS).step_by(CLIENTS).map(|n| Text::from(format!("p{n}"))).collect())
            .collect();
        let unready = pods.values().filter(|pod| !pod.ready).map(|pod| pod.uid.clone()).collect();
        let mut storm = Self {
            replicas: Vec::new(),
            budget,
            plans,
            due: BinaryHeap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            version: 10,
            tally: Tally::default(),
            unready,
            pods,
        };
        for index in 0..REPLICAS {
            let settings = Settings { opens_unguarded: true, ..Settings::new(format!("r{index}")) };
            storm.replicas.push(Replica::new(settings, Gates::default()));
            for event in [
                Event::List(Snapshot::Pods(storm.pods.values().cloned().collect(), Version(1))),
                Event::List(Snapshot::Budgets(BudgetKind::DisruptionBudget, vec![storm.budget.clone()])),
                Event::Synced,
                Event::Serving(true),
                Event::Leader(index == 0),
            ] {
                storm.deliver(index, event, 0);
            }
            storm.at(index as i64, Due::Tick(index));
        }
        (0..CLIENTS).for_each(|client| storm.at(client as i64, Due::Send(client)));
        storm
    }

    fn at(&mut self, time: i64, what: Due) {
        self.sequence += 1;
        self.events.insert(self.sequence, what);
        self.due.push(Reverse((time, self.sequence)));
    }

    fn show(&mut self, input: &Input, now: i64) {
        for index in 0..REPLICAS {
            self.at(now + LAG, Due::Deliver(index, Event::Fact(Box::new(input.clone()))));
        }
    }

    fn deliver(&mut self, index: usize, event: Event, now: i64) {
        for output in self.replicas[index].step(event, Time(now)) {
            match output {
                Output::Call(id, call) => self.at(now + 1, Due::Arrive(index, id, call)),
                Output::Answer(client, decision) => self.answered(client as usize, &decision, now),
                Output::Acknowledge(_) | Output::Note(_) => {}
            }
        }
        self.replicas[index].take_changes();
        if let Some(wake) = self.replicas[index].wakes_at() {
            self.at(wake.0.max(now + 1), Due::Deliver(index, Event::Tick));
        }
    }

    fn answered(&mut self, client: usize, decision: &Decision, now: i64) {
        match decision {
            Decision::Allow(allow) => {
                if let (Allow::Agreed { reasons, .. }, Some(uid)) = (allow, self.plans[client].pop()) {
                    let free = reasons.iter().any(|(_, reason)| *reason == AllowReason::Unhealthy);
                    *(if free { &mut self.tally.free_passes } else { &mut self.tally.charges }) += 1;
                    self.at(now + 2, Due::Evict(uid));
                }
                self.at(now + 5, Due::Send(client));
            }
            Decision::Deny(denials) => {
                let is_late = |denial: &Denial| denial.reason == DenialReason::Deadline;
                self.tally.late += usize::from(denials.iter().any(is_late));
                // It goes on with another pod, as a drain does, and comes back to this one.
                self.plans[client].rotate_right(1);
                self.at(now + 200, Due::Send(client));
            }
        }
    }

    fn reply(&mut self, call: &Call, now: i64) -> (Reply, i64) {
        match call {
            Call::Patch(patch) => {
                if !patch.apply(&mut self.budget) {
                    return (Reply::Written(WriteOutcome::Refused), CALL);
                }
                self.version += 1;
                self.budget.version = Version(self.version);
                self.show(&Input::Budget(self.budget.clone()), now);
                (Reply::Written(WriteOutcome::Done(Box::new(self.budget.clone()))), CALL)
            }
            Call::GetBudget(_) => (Reply::Budget(Some(Box::new(self.budget.clone()))), CALL),
            Call::GetPod(key) => match self.pods.get(&key.name) {
                Some(pod) => (Reply::Pod(PodRead::There(Box::new(pod.clone()))), CALL),
                None => (Reply::Pod(PodRead::Gone), CALL),
            },
            Call::ListPods(_) => {
                self.tally.lists += 1;
                (Reply::Pods(self.pods.values().cloned().collect(), Version(self.version)), LIST)
            }
            Call::GetController(..) | Call::ListReplicas | Call::PodsVersion => {
                unreachable!("nothing needs it here")
            }
        }
    }

    fn happen(&mut self, what: Due, now: i64) {
        match what {
            Due::Send(client) => {
                let Some(uid) = self.plans[client].last() else { return };
                let Some(pod) = self.pods.get(uid) else { return };
                let request = Box::new(request(Operation::Evict, pod));
                let deadline = Time(now).after(DEADLINE);
                let event = Event::Request { id: client as u64, request, deadline };
                self.deliver((client + now as usize) % REPLICAS, event, now);
            }
            Due::Deliver(index, event) => self.deliver(index, event, now),
            Due::Tick(index) => {
                self.deliver(index, Event::Tick, now);
                self.at(now + 50, Due::Tick(index));
            }
            Due::Arrive(index, id, call) => {
                let (reply, takes) = self.reply(&call, now);
                self.at(now + takes, Due::Deliver(index, Event::Reply(id, reply)));
            }
            Due::Evict(uid) => {
                self.version += 1;
                let Some(pod) = self.pods.get_mut(&uid) else { return };
                pod.terminating = true;
                pod.version = Version(self.version);
                let shown = Input::Pod(pod.clone());
                if self.unready.remove(&uid) {
                    self.tally.seconds = now / 1_000;
                }
                self.show(&shown, now);
                self.at(now + 50, Due::Gone(uid));
            }
            Due::Gone(uid) => {
                self.version += 1;
                self.pods.remove(&uid);
                self.show(&Input::PodGone(uid, Version(self.version)), now);
            }
        }
    }

    /// Runs until every unready pod was let go, or for so many seconds.
    fn run(mut self, seconds: i64) -> Tally {
        while let Some(Reverse((now, id))) = self.due.pop() {
            if now > seconds * 1_000 || self.unready.is_empty() {
                break;
            }
            if let Some(what) = self.events.remove(&id) {
                self.happen(what, now);
            }
        }
        self.tally
    }
}

/// Half of the pods must stay. Others are charged all the time, at another replica.
#[test]
fn free_passes_do_not_starve_while_others_are_charged() {
    let tally = Storm::new(1_000).run(120);
    println!("{tally:?}, {:.2} lists per free pass", tally.lists as f64 / tally.free_passes as f64);
    assert_eq!((tally.free_passes, tally.late, tally.lists), (PODS / 10, 0, 0), "{tally:?}");
    assert!(tally.charges > 500, "{tally:?}");
}

/// More must stay than there are, so each free pass rests on a list.
#[test]
fn free_passes_of_a_budget_that_is_short_come_in_time() {
    let tally = Storm::new(1_900).run(120);
    println!("{tally:?}, {:.2} lists per free pass", tally.lists as f64 / tally.free_passes as f64);
    assert_eq!((tally.free_passes, tally.late), (PODS / 10, 0), "{tally:?}");
    assert!(tally.lists < 2 * tally.free_passes, "most lists are of use: {tally:?}");
}
