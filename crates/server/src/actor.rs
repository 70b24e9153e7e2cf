//! The actor: the only task that owns the replica.
//!
//! Every event reaches the actor as a message, in order. The actor starts the calls of the replica, and their replies
//! come back as messages too. So there is no lock, and no task sees an incomplete step.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use quorate_engine::basics::{ObjectKey, Text, Time};
use quorate_engine::decision::{Decision, Denial, DenialReason};
use quorate_engine::facts::{Budget, BudgetKey, Input};
use quorate_engine::ledger::{
    Admission, Call, Event, Output, Replica, Reply, RequestId, Settings, WriteOutcome,
};
use quorate_engine::request::Request;
use quorate_engine::status::Status;
use quorate_engine::{Engine, Gates, Snapshot};
use quorate_intake::kruise::Neighbour;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::debug;

use crate::calls::{ApiCall, Calls};
use crate::clock;
use crate::events::Events;
use crate::metrics::{Gauges, Metrics};
use crate::namespaces::Enforcing;
use crate::replicas::Acknowledgement;
use crate::status::{Changed, StatusChange};

/// Tick interval while a request is pending: short compared with `Settings::patience`.
const BUSY_TICK: Duration = Duration::from_millis(50);

/// Tick interval otherwise: short enough to open budgets, expire claims and forget old admissions.
const IDLE_TICK: Duration = Duration::from_millis(250);

/// Capacity of the message channel. A watch that is faster than the actor waits.
const QUEUE: usize = 1024;

pub(crate) enum Message {
    Event(Event),
    Request { request: Box<Request>, deadline: Time, answer: oneshot::Sender<Decision> },
    Status { budget: BudgetKey, answer: oneshot::Sender<Option<Status>> },
    Preview { budget: Box<Budget>, answer: oneshot::Sender<Option<Status>> },
    Neighbours { of: BudgetKey, answer: oneshot::Sender<Vec<Neighbour>> },
    Gauges { answer: oneshot::Sender<Gauges> },
    AdmittedRecently { answer: oneshot::Sender<Option<Vec<Admission>>> },
    RecentAdmissions { answer: oneshot::Sender<Vec<(Time, Admission)>> },
}

/// Sends messages to the actor. Clones reach the same actor.
#[derive(Clone, Debug)]
pub struct ReplicaHandle {
    messages: mpsc::Sender<Message>,
}

impl ReplicaHandle {
    /// A handle without an actor: the caller receives the messages.
    pub(crate) fn listening() -> (Self, mpsc::Receiver<Message>) {
        let (messages, inbox) = mpsc::channel(QUEUE);
        (Self { messages }, inbox)
    }

    /// Sends an event. Ignored once the actor has ended: the process is ending then.
    pub(crate) async fn send(&self, event: Event) {
        let _ = self.messages.send(Message::Event(event)).await;
    }

    /// Requests the decision whether a pod may be disrupted, and waits for it until `deadline`.
    pub async fn decide(&self, request: Request, deadline: Time) -> Decision {
        let (answer, receiver) = oneshot::channel();
        let message = Message::Request { request: Box::new(request), deadline, answer };
        let left = deadline.since(clock::now());
        let answered = async {
            self.messages.send(message).await.ok()?;
            receiver.await.ok()
        };
        match tokio::time::timeout(left, answered).await {
            Ok(Some(decision)) => decision,
            // `Ok(None)`: the actor has ended. `Err`: the actor was too busy to answer in time.
            Ok(None) => refuse(DenialReason::NotServing),
            Err(_) => refuse(DenialReason::Deadline),
        }
    }

    /// The status of a budget as it should be written now.
    pub(crate) async fn status(&self, budget: BudgetKey) -> Option<Status> {
        let (answer, receiver) = oneshot::channel();
        self.messages.send(Message::Status { budget, answer }).await.ok()?;
        receiver.await.ok()?
    }

    /// The status that a budget would have if it existed now. Changes nothing.
    pub(crate) async fn preview(&self, budget: Budget) -> Option<Status> {
        let (answer, receiver) = oneshot::channel();
        self.messages.send(Message::Preview { budget: Box::new(budget), answer }).await.ok()?;
        receiver.await.ok()?
    }

    /// The other budgets of the same kind and namespace, and what they cover.
    pub(crate) async fn neighbours(&self, of: BudgetKey) -> Vec<Neighbour> {
        let (answer, receiver) = oneshot::channel();
        match self.messages.send(Message::Neighbours { of, answer }).await {
            Ok(()) => receiver.await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// What this process admitted recently and a new budget would have to know; `None` if that is not certain, because
    /// a caller still waits for an answer. Nothing is admitted after a call that no caller waits for.
    pub(crate) async fn admitted_recently(&self) -> Option<Vec<Admission>> {
        let (answer, receiver) = oneshot::channel();
        self.messages.send(Message::AdmittedRecently { answer }).await.ok()?;
        receiver.await.ok()?
    }

    /// What this process admitted recently, for its next life.
    pub(crate) async fn recent_admissions(&self) -> Vec<(Time, Admission)> {
        let (answer, receiver) = oneshot::channel();
        match self.messages.send(Message::RecentAdmissions { answer }).await {
            Ok(()) => receiver.await.unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// The current values of the gauges.
    pub(crate) async fn gauges(&self) -> Option<Gauges> {
        let (answer, receiver) = oneshot::channel();
        self.messages.send(Message::Gauges { answer }).await.ok()?;
        receiver.await.ok()
    }
}

fn neighbours(engine: &Engine, of: &BudgetKey) -> Vec<Neighbour> {
    let (namespace, name) = (&of.object.namespace, &of.object.name);
    let alike = engine.budgets().filter(|budget| {
        let object = &budget.key.object;
        budget.key.kind == of.kind && object.namespace == *namespace && object.name != *name
    });
    // A budget that cannot be read may cover the whole namespace, so a comparison with it is meaningless.
    let covers = |budget: &Budget| budget.spec.as_ref().ok().map(|rules| rules.covers.clone());
    alike
        .filter_map(|budget| {
            Some(Neighbour { name: budget.key.object.name.clone(), covers: covers(budget)? })
        })
        .collect()
}

fn refuse(reason: DenialReason) -> Decision {
    Decision::Deny(vec![Denial { budget: None, reason }])
}

/// Channels from the actor to the other tasks.
pub(crate) struct ActorOutputs {
    /// Budgets whose status may have changed, or was written by a commit.
    pub(crate) statuses: mpsc::UnboundedSender<StatusChange>,
    /// The version up to which this process knows every budget.
    pub(crate) acknowledged: watch::Sender<Acknowledgement>,
    /// Whether the initial sync is complete.
    pub(crate) synced: watch::Sender<bool>,
    /// How long the pod watch has been silent, if that is too long to decide anything.
    pub(crate) stale: watch::Sender<Option<Duration>>,
    /// The namespaces in which a budget enforces.
    pub(crate) enforcing: watch::Sender<BTreeSet<Text>>,
    /// Events for users.
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
}

/// Starts the actor of a replica. It ends when all its handles are dropped. `recent` is what an earlier life of the
/// process admitted recently.
pub(crate) fn start(
    settings: Settings,
    gates: Gates,
    calls: Arc<Calls>,
    outbox: ActorOutputs,
    recent: Vec<(Time, Admission)>,
) -> ReplicaHandle {
    let (messages, inbox) = mpsc::channel(QUEUE);
    // The calls themselves bound the number of replies, and a reply must not wait behind watch events.
    let (replies, returned) = mpsc::unbounded_channel();
    let mut replica = Replica::new(settings, gates);
    replica.remember(recent);
    let task = ReplicaActor {
        replica,
        calls,
        outbox,
        replies,
        pending: HashMap::new(),
        next_request: 0,
        enforcing: Enforcing::default(),
    };
    tokio::spawn(task.run(inbox, returned));
    ReplicaHandle { messages }
}

struct Waiter {
    pod: ObjectKey,
    answer: oneshot::Sender<Decision>,
}

struct ReplicaActor {
    replica: Replica,
    calls: Arc<Calls>,
    outbox: ActorOutputs,
    replies: mpsc::UnboundedSender<Event>,
    pending: HashMap<RequestId, Waiter>,
    next_request: RequestId,
    enforcing: Enforcing,
}

impl ReplicaActor {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>, mut returned: mpsc::UnboundedReceiver<Event>) {
        let mut ticked = Instant::now();
        loop {
            let mut next = ticked + if self.pending.is_empty() { IDLE_TICK } else { BUSY_TICK };
            if let Some(wake) = self.replica.wakes_at() {
                next = next.min(Instant::now() + wake.since(clock::now()));
            }
            tokio::select! {
                biased;
                Some(event) = returned.recv() => self.step(event),
                () = tokio::time::sleep_until(next) => {
                    ticked = Instant::now();
                    self.step(Event::Tick);
                    let stale = self.replica.stale_for(clock::now());
                    self.outbox.stale.send_if_modified(|current| std::mem::replace(current, stale) != stale);
                }
                message = inbox.recv() => match message {
                    Some(message) => self.take(message),
                    None => return,
                },
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Event(event) => self.step(event),
            Message::Request { request, deadline, answer } => {
                let id = self.next_request;
                self.next_request += 1;
                self.pending.insert(id, Waiter { pod: request.pod.clone(), answer });
                self.step(Event::Request { id, request, deadline });
            }
            Message::Status { budget, answer } => {
                let _ = answer.send(self.replica.status(&budget, clock::now()));
            }
            Message::Preview { budget, answer } => {
                let _ = answer.send(self.replica.preview(*budget, clock::now()));
            }
            Message::Neighbours { of, answer } => {
                let _ = answer.send(neighbours(self.replica.engine(), &of));
            }
            Message::AdmittedRecently { answer } => {
                let waits = self.pending.values().any(|waiter| !waiter.answer.is_closed());
                let _ = answer.send((!waits).then(|| self.replica.admitted_recently()));
            }
            Message::RecentAdmissions { answer } => {
                let _ = answer.send(self.replica.recent_admissions());
            }
            Message::Gauges { answer } => {
                let _ = answer.send(Gauges::of(&self.replica));
            }
        }
    }

    fn step(&mut self, event: Event) {
        let Affected { budgets, all } = Affected::of(&event);
        if matches!(event, Event::Synced) {
            self.outbox.synced.send_replace(true);
        }
        for output in self.replica.step(event, clock::now()) {
            match output {
                Output::Answer(id, decision) => self.answer(id, decision),
                Output::Call(id, call) => {
                    self.outbox.metrics.calling(&call);
                    let api_call = self.api_call(call);
                    let change = api_call.status_change();
                    let (calls, replies) = (self.calls.clone(), self.replies.clone());
                    let statuses = self.outbox.statuses.clone();
                    tokio::spawn(async move {
                        let reply = calls.perform(api_call).await;
                        if let (Some(change), Reply::Written(WriteOutcome::Done(_))) = (change, &reply) {
                            let _ = statuses.send(change);
                        }
                        let _ = replies.send(Event::Reply(id, reply));
                    });
                }
                Output::Acknowledge(known) => {
                    let awaited = self.replica.has_closed_budgets();
                    self.outbox.acknowledged.send_replace(Acknowledgement { known, awaited });
                }
                Output::Note(note) => {
                    self.outbox.metrics.noted(&note);
                    self.outbox.events.noted(note);
                }
            }
        }
        self.report_changes(&budgets, all);
    }

    /// Reports the budgets whose status may have changed. Not before the initial sync: the counts are incomplete until
    /// then, and no reader should see them.
    fn report_changes(&mut self, budgets: &BTreeSet<BudgetKey>, all: bool) {
        let mut changed = self.replica.take_changes().budgets;
        let mut moved = false;
        if all {
            changed = self.replica.engine().budgets().map(|budget| budget.key.clone()).collect();
            // A list does not name the budgets that are gone, so start from nothing.
            self.enforcing = Enforcing::default();
            moved = true;
        }
        for key in changed.iter().chain(budgets) {
            moved |= self.enforcing.note(key, self.replica.engine().budget(key));
        }
        if moved {
            self.outbox.enforcing.send_replace(self.enforcing.namespaces());
        }
        if *self.outbox.synced.borrow() && !changed.is_empty() {
            let unsettled = |key: &BudgetKey| self.replica.has_claims(key);
            let changed = changed.into_iter().map(|budget| Changed { unsettled: unsettled(&budget), budget });
            let _ = self.outbox.statuses.send(StatusChange::Changed(changed.collect()));
        }
    }

    /// The call, with the data that it needs from the replica.
    fn api_call(&mut self, call: Call) -> ApiCall {
        match call {
            Call::Patch(patch) => {
                let status = self.replica.status_with(&patch, clock::now());
                ApiCall::Patch(patch, status.map(Box::new))
            }
            Call::GetBudget(key) => ApiCall::GetBudget(key),
            Call::GetPod(key) => ApiCall::GetPod(key),
            Call::GetController(kind, key) => ApiCall::GetController(kind, key),
            Call::ListPods(key) => {
                let covers = self.replica.engine().budget(&key).map(|budget| match &budget.spec {
                    Ok(rules) => rules.covers.clone(),
                    Err(broken) => broken.covers.clone(),
                });
                ApiCall::ListPods(key, covers)
            }
            Call::PodsVersion => ApiCall::PodsVersion,
            Call::ListReplicas => ApiCall::ListReplicas,
        }
    }

    fn answer(&mut self, id: RequestId, decision: Decision) {
        let Some(Waiter { pod, answer }) = self.pending.remove(&id) else { return };
        debug!(%pod, ?decision, "answered");
        // The caller may have gone away. Then the claim that was written for it expires.
        let _ = answer.send(decision);
    }
}

/// The budgets that an event concerns, besides those whose status it changes.
struct Affected {
    budgets: BTreeSet<BudgetKey>,
    /// The event concerns all budgets.
    all: bool,
}

impl Affected {
    fn of(event: &Event) -> Self {
        let mut affected = Self { budgets: BTreeSet::new(), all: false };
        match event {
            Event::Fact(input) => match &**input {
                Input::Budget(budget) => drop(affected.budgets.insert(budget.key.clone())),
                Input::BudgetGone(key) => drop(affected.budgets.insert(key.clone())),
                _ => {}
            },
            // A new leader writes what the previous leader may have left unwritten.
            Event::Synced
            | Event::Leader(true)
            | Event::List(Snapshot::Budgets(..))
            | Event::Unwatched(_) => {
                affected.all = true;
            }
            _ => {}
        }
        affected
    }
}
