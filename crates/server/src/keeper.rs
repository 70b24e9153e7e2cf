//! The keeper: the one task that owns the replica.
//!
//! Everything that happens reaches it as a message, in order; what the replica wants done is started here and comes back
//! as a message too. So there is no lock, and nobody sees half a step.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use quorate_engine::Gates;
use quorate_engine::basics::{ObjectKey, Time, Version};
use quorate_engine::facts::BudgetKey;
use quorate_engine::ledger::{AskId, Call, Event, Output, Replica, Settings};
use quorate_engine::request::Request;
use quorate_engine::status::Status;
use quorate_engine::verdict::{Block, Reason, Verdict};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{debug, info};

use crate::calls::{Calls, Errand};
use crate::clock;

/// While somebody waits for an answer, time passes in steps of this: short against the patience of the protocol.
const BUSY: Duration = Duration::from_millis(50);

/// Otherwise it is enough for openings, expiries and what is forgotten.
const IDLE: Duration = Duration::from_millis(250);

/// Messages under way; a watch that is faster than the keeper waits.
const QUEUE: usize = 1024;

pub(crate) enum Message {
    Event(Event),
    Ask { request: Box<Request>, deadline: Time, answer: oneshot::Sender<Verdict> },
    Status { budget: BudgetKey, answer: oneshot::Sender<Option<Status>> },
}

/// Reaches the keeper. Clones reach the same one.
#[derive(Clone, Debug)]
pub struct Keeper {
    messages: mpsc::Sender<Message>,
}

impl Keeper {
    /// A keeper that does nothing but show what it is told.
    #[cfg(test)]
    pub(crate) fn listening() -> (Self, mpsc::Receiver<Message>) {
        let (messages, inbox) = mpsc::channel(QUEUE);
        (Self { messages }, inbox)
    }

    /// Tells what happened. Silently ignored once the keeper has ended: then everything has.
    pub(crate) async fn tell(&self, event: Event) {
        let _ = self.messages.send(Message::Event(event)).await;
    }

    /// Asks whether a pod may be disrupted, and waits for the answer until `deadline`.
    pub async fn ask(&self, request: Request, deadline: Time) -> Verdict {
        let (answer, receiver) = oneshot::channel();
        let message = Message::Ask { request: Box::new(request), deadline, answer };
        let left = deadline.since(clock::now());
        let answered = async {
            self.messages.send(message).await.ok()?;
            receiver.await.ok()
        };
        match tokio::time::timeout(left, answered).await {
            Ok(Some(verdict)) => verdict,
            // Ending, or too busy to be reached in time.
            Ok(None) => refuse(Reason::NotSynced),
            Err(_) => refuse(Reason::Deadline),
        }
    }

    /// The status of a budget as it should be written now.
    pub(crate) async fn status(&self, budget: BudgetKey) -> Option<Status> {
        let (answer, receiver) = oneshot::channel();
        self.messages.send(Message::Status { budget, answer }).await.ok()?;
        receiver.await.ok()?
    }
}

fn refuse(reason: Reason) -> Verdict {
    Verdict::Deny(vec![Block { budget: None, reason }])
}

/// What the keeper tells others.
pub(crate) struct Outbox {
    /// Budgets whose status may have changed.
    pub(crate) changed: mpsc::UnboundedSender<BTreeSet<BudgetKey>>,
    /// Up to which version every budget is known here.
    pub(crate) acknowledged: watch::Sender<Version>,
}

/// Starts the keeper of a replica by that name. It ends when nobody can reach it any more.
pub(crate) fn start(name: &str, calls: Arc<Calls>, outbox: Outbox) -> Keeper {
    let (messages, inbox) = mpsc::channel(QUEUE);
    // What the calls bring back is bounded by the calls themselves, and must not wait behind the watches.
    let (replies, returned) = mpsc::unbounded_channel();
    let task = Task {
        replica: Replica::new(Settings::new(name), Gates::default()),
        calls,
        outbox,
        replies,
        pending: HashMap::new(),
        next_ask: 0,
        synced: false,
    };
    tokio::spawn(task.run(inbox, returned));
    Keeper { messages }
}

struct Pending {
    pod: ObjectKey,
    answer: oneshot::Sender<Verdict>,
}

struct Task {
    replica: Replica,
    calls: Arc<Calls>,
    outbox: Outbox,
    replies: mpsc::UnboundedSender<Event>,
    pending: HashMap<AskId, Pending>,
    next_ask: AskId,
    synced: bool,
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>, mut returned: mpsc::UnboundedReceiver<Event>) {
        let mut ticked = Instant::now();
        loop {
            let next = ticked + if self.pending.is_empty() { IDLE } else { BUSY };
            tokio::select! {
                biased;
                Some(event) = returned.recv() => self.step(event),
                () = tokio::time::sleep_until(next) => {
                    ticked = Instant::now();
                    self.step(Event::Tick);
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
            Message::Ask { request, deadline, answer } => {
                let id = self.next_ask;
                self.next_ask += 1;
                self.pending.insert(id, Pending { pod: request.pod.clone(), answer });
                self.step(Event::Ask { id, request, deadline });
            }
            Message::Status { budget, answer } => {
                let _ = answer.send(self.replica.status(&budget, clock::now()));
            }
        }
    }

    fn step(&mut self, event: Event) {
        let syncs = matches!(event, Event::Synced);
        for output in self.replica.step(event, clock::now()) {
            match output {
                Output::Answer(id, verdict) => self.answer(id, verdict),
                Output::Call(id, call) => {
                    let errand = self.errand(call);
                    let (calls, replies) = (self.calls.clone(), self.replies.clone());
                    tokio::spawn(async move {
                        let reply = calls.perform(errand).await;
                        let _ = replies.send(Event::Reply(id, reply));
                    });
                }
                Output::Acknowledge(version) => {
                    self.outbox.acknowledged.send_replace(version);
                }
                Output::Note(note) => info!(?note, "noted"),
            }
        }
        self.tell_changes(syncs);
    }

    /// Before everything was seen the counts are of a part, and no reader should see them.
    fn tell_changes(&mut self, syncs: bool) {
        let mut changed = self.replica.take_changes().budgets;
        if syncs {
            self.synced = true;
            changed = self.replica.engine().budgets().map(|budget| budget.key.clone()).collect();
        }
        if self.synced && !changed.is_empty() {
            let _ = self.outbox.changed.send(changed);
        }
    }

    /// A call, with what it needs of what is known here.
    fn errand(&self, call: Call) -> Errand {
        match call {
            Call::Patch(patch) => Errand::Patch(patch),
            Call::GetBudget(key) => Errand::GetBudget(key),
            Call::GetPod(key) => Errand::GetPod(key),
            Call::ListPods(key) => {
                let covers = self.replica.engine().budget(&key).map(|budget| match &budget.spec {
                    Ok(rules) => rules.covers.clone(),
                    Err(broken) => broken.covers.clone(),
                });
                Errand::ListPods(key, covers)
            }
            Call::ListReplicas => Errand::ListReplicas,
        }
    }

    fn answer(&mut self, id: AskId, verdict: Verdict) {
        let Some(Pending { pod, answer }) = self.pending.remove(&id) else { return };
        debug!(%pod, ?verdict, "answered");
        // Whoever asked may have gone away; what was written for it expires.
        let _ = answer.send(verdict);
    }
}
