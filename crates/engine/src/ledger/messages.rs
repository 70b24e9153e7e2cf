//! What goes into a replica and what comes out: events, answers, calls to the API server and their replies.

use crate::basics::{GroupKind, ObjectKey, Text, Time, Version};
use crate::decision::Decision;
use crate::engine::Snapshot;
use crate::facts::{Budget, BudgetKey, BudgetKind, Controller, Input, Pod};
use crate::ledger::patch::LedgerPatch;
use crate::request::Request;

/// Names a request while it is under way.
pub type RequestId = u64;

/// Names a call to the API server while it is under way.
pub type CallId = u64;

/// Something that happens to a replica.
#[derive(Clone, Debug)]
pub enum Event {
    /// A watch shows a change.
    Fact(Box<Input>),
    /// A watch was started over: this is everything.
    List(Snapshot),
    /// The watch of the budgets of one front has shown everything up to here.
    BudgetsAt(BudgetKind, Version),
    /// The budgets of one front are not watched any more: what is known of them is not known from now on.
    Unwatched(BudgetKind),
    /// All watches have shown everything once.
    Synced,
    /// This process may answer: its own Lease is written and renewed.
    Serving(bool),
    /// This process holds, or lost, the lease that makes it tend the budgets.
    Leader(bool),
    /// Somebody asks.
    Request {
        /// Names the request.
        id: RequestId,
        /// What is asked.
        request: Box<Request>,
        /// When an answer must be there.
        deadline: Time,
    },
    /// A call came back.
    Reply(CallId, Reply),
    /// Time passed.
    Tick,
}

/// Something a replica wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// The answer to a request.
    Answer(RequestId, Decision),
    /// A call to the API server.
    Call(CallId, Call),
    /// Every budget up to this version is known here, and has been told of what was admitted before.
    Acknowledge(Acknowledged),
    /// Something worth an Event.
    Note(Note),
}

/// A call to the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Write.
    Patch(LedgerPatch),
    /// Read a budget.
    GetBudget(BudgetKey),
    /// Read a pod, consistently.
    GetPod(ObjectKey),
    /// Read a controller, consistently.
    GetController(GroupKind, ObjectKey),
    /// List the pods of a budget, consistently.
    ListPods(BudgetKey),
    /// List the Leases of all replicas, consistently.
    ListReplicas,
}

/// What a call came back with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The outcome of a write.
    Written(WriteOutcome),
    /// The budget as it is, or none.
    Budget(Option<Box<Budget>>),
    /// The pod as it is.
    Pod(PodRead),
    /// The controller as it is, or none.
    Controller(Option<Box<Controller>>),
    /// The pods of a budget, and the version of the list.
    Pods(Vec<Pod>, Version),
    /// All replicas.
    Replicas(Vec<ReplicaLease>),
    /// Nobody knows: no answer came. A write may have happened, or may still.
    Lost,
}

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WriteOutcome {
    /// Written; this is the budget now.
    Done(Box<Budget>),
    /// A test failed: nothing was written.
    Refused,
    /// There is no such budget.
    Gone,
}

/// What a consistent read of a pod shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PodRead {
    /// The pod.
    There(Box<Pod>),
    /// There is none of that name.
    Gone,
}

/// Up to which version the budgets of each front are known. Each kind of object has a watch of its own, so how far one
/// has come says nothing of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Acknowledged {
    /// `DisruptionBudget`s.
    pub budgets: Version,
    /// `PodUnavailableBudget`s. 0 where they are not looked at.
    pub unavailable_budgets: Version,
}

impl Acknowledged {
    /// Those of one front.
    pub fn of(self, kind: BudgetKind) -> Version {
        match kind {
            BudgetKind::DisruptionBudget => self.budgets,
            BudgetKind::PodUnavailableBudget => self.unavailable_budgets,
        }
    }

    /// The same, with another version for one front.
    pub fn with(mut self, kind: BudgetKind, version: Version) -> Self {
        match kind {
            BudgetKind::DisruptionBudget => self.budgets = version,
            BudgetKind::PodUnavailableBudget => self.unavailable_budgets = version,
        }
        self
    }
}

/// A replica, as its Lease shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaLease {
    /// The process.
    pub name: Text,
    /// It acknowledged every budget up to here.
    pub acknowledged: Acknowledged,
    /// Its Lease ran out. It counts until it is removed, since nobody can ask it what it admitted.
    pub vanished: bool,
}

/// Something worth an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A pod was admitted for disruption and nothing happened to it.
    NotDisrupted {
        /// The budget.
        budget: BudgetKey,
        /// The pod.
        pod: Text,
    },
    /// A budget is enforced from now on.
    Opened(BudgetKey),
    /// What is written to a budget does not stay there, so it cannot be enforced and allows nothing.
    NothingSticks(BudgetKey),
}
