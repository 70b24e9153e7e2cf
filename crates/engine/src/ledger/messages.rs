//! What goes into a replica and what comes out: events, answers, calls to the API server and their replies.

use crate::basics::{GroupKind, ObjectKey, Text, Time, Uid, Version};
use crate::claims::{Token, TokenId};
use crate::decision::Decision;
use crate::engine::Snapshot;
use crate::facts::{Budget, BudgetKey, BudgetKind, Controller, Input, Pod};
use crate::ledger::patch::LedgerPatch;
use crate::request::Request;

/// Names a request while it is in flight.
pub type RequestId = u64;

/// Names a call to the API server while it is in flight.
pub type CallId = u64;

/// An input of a replica.
#[derive(Clone, Debug)]
pub enum Event {
    /// A watch shows a change.
    Fact(Box<Input>),
    /// A watch has listed everything.
    List(Snapshot),
    /// The watch of a kind showed an event or a bookmark at this time, or requested then the list that it showed. For
    /// pods, every [`Event::Fact`] says so too.
    Heard(GroupKind, Time),
    /// The API server seems not to serve a kind any more: what is known of it is stale, until the kind is heard of again
    /// or not watched any more.
    Doubted(GroupKind),
    /// A kind is not watched any more: it has no age. Its objects are removed by an empty list before.
    Forgotten(GroupKind),
    /// The watch of one kind of budgets has shown everything up to this version. It comes after a list, and before a
    /// budget is gone: from then on, replies to earlier calls are of before.
    BudgetsAt(BudgetKind, Version),
    /// One kind of budgets is not watched any more: these budgets are unknown from now on.
    Unwatched(BudgetKind),
    /// All watches have shown their first list.
    Synced,
    /// Whether this process may answer: its own Lease is written and renewed.
    Serving(bool),
    /// Whether this process leads: it settles, expires and opens.
    Leader(bool),
    /// A request arrives.
    Request {
        /// Names the request.
        id: RequestId,
        /// The request.
        request: Box<Request>,
        /// The answer must be sent before this time.
        deadline: Time,
    },
    /// A call came back.
    Reply(CallId, Reply),
    /// Time passed.
    Tick,
}

/// An output of a replica.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// The answer to a request.
    Answer(RequestId, Decision),
    /// A call to the API server.
    Call(CallId, Call),
    /// This replica knows every budget up to this version, and each has the tokens of its recent admissions.
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
    /// Read, consistently, how far the store of pods has come.
    PodsVersion,
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
    /// The version that a consistent list of pods has.
    PodsVersion(Version),
    /// All replicas.
    Replicas(Vec<ReplicaLease>),
    /// No answer came. A write may have happened, or may still happen.
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

/// Up to which version a replica knows the budgets of each kind. Each kind has a watch of its own, so the progress of one
/// says nothing about the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Acknowledged {
    /// `DisruptionBudget`s.
    pub budgets: Version,
    /// `PodUnavailableBudget`s. 0 if they are not watched.
    pub unavailable_budgets: Version,
}

impl Acknowledged {
    /// The version of one kind.
    pub fn of(self, kind: BudgetKind) -> Version {
        match kind {
            BudgetKind::DisruptionBudget => self.budgets,
            BudgetKind::PodUnavailableBudget => self.unavailable_budgets,
        }
    }

    /// The same, with another version for one kind.
    pub fn with(mut self, kind: BudgetKind, version: Version) -> Self {
        match kind {
            BudgetKind::DisruptionBudget => self.budgets = version,
            BudgetKind::PodUnavailableBudget => self.unavailable_budgets = version,
        }
        self
    }
}

/// A replica, as its Lease shows it: also one that died, until its Lease is removed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaLease {
    /// The process.
    pub name: Text,
    /// It knows every budget up to this version.
    pub acknowledged: Acknowledged,
    /// Whether it may admit requests. One that has not begun to, or has ended, has nothing to acknowledge.
    pub serves: bool,
    /// What it admitted recently, if it has ended and handed that over.
    pub admitted: Vec<Admission>,
}

/// An admission of a replica that a new budget would have to know.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Admission {
    /// The UID of the pod.
    pub uid: Uid,
    /// The name of the pod.
    pub pod: Text,
    /// The token of the request.
    pub token: TokenId,
    /// What was admitted.
    pub what: Token,
}

/// Something worth an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A disruption was admitted and did not happen.
    NotDisrupted {
        /// The budget.
        budget: BudgetKey,
        /// The pod.
        pod: Text,
    },
    /// A budget is enforced from now on.
    Opened(BudgetKey),
    /// The installed CustomResourceDefinition drops what is written to the budget, so it cannot be enforced.
    NothingSticks(BudgetKey),
}
