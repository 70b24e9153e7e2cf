//! Requests in flight: from an admission review to its answer.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use crate::basics::{Text, Time, Uid};
use crate::claims::{Token, TokenId};
use crate::coverage::Coverage;
use crate::decision::AllowReason;
use crate::facts::{BudgetKey, Pod};
use crate::ledger::messages::RequestId;
use crate::request::Request;

/// A budget has the token of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    /// The UID of the budget: one that was created anew under the same name does not have the token.
    pub(super) budget: Uid,
    /// The pod that the token is for: a successor of the same name is not covered by it.
    pub(super) pod: Uid,
    /// Why the budget agreed.
    pub(super) reason: AllowReason,
}

/// The reason is reported with the answer and nothing else rests on it, so a search need not distinguish states by it.
impl Hash for Agreement {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.budget, &self.pod).hash(state);
    }
}

/// What the budgets of a pod said when a request was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    /// All budgets that cover the pod, and what each covered then.
    pub(super) consulted: BTreeMap<BudgetKey, Option<Coverage>>,
    /// Those of them that do not protect against the operation or only observe, and why the request passes them.
    pub(super) observing: BTreeMap<BudgetKey, AllowReason>,
    /// The budgets that must have the token, in the order in which they get it.
    pub(super) must_agree: Vec<BudgetKey>,
}

/// The longest name of a user in a token, in bytes. Every token is stored in the status of a budget, and the name is only
/// shown to readers of the status.
const MAX_USER: usize = 256;

/// The beginning of a user's name.
fn beginning(user: &Text) -> Text {
    match user.len() {
        0..=MAX_USER => user.clone(),
        _ => user[..user.floor_char_boundary(MAX_USER)].into(),
    }
}

/// A request that has not been answered yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingRequest {
    request: Request,
    deadline: Time,
    /// When it arrived, by the replica's own count.
    arrived: u64,
    /// The pod that is meant, once that is known.
    uid: Option<Uid>,
    /// The pod was read after the request arrived: what is known here is no older than the request.
    was_read: bool,
    token: TokenId,
    plan: Plan,
    agreed: BTreeMap<BudgetKey, Agreement>,
}

impl PendingRequest {
    pub(super) fn request(&self) -> &Request {
        &self.request
    }

    pub(super) fn arrived(&self) -> u64 {
        self.arrived
    }

    pub(super) fn uid(&self) -> Option<&Uid> {
        self.uid.as_ref()
    }

    pub(super) fn token_id(&self) -> &TokenId {
        &self.token
    }

    /// The token as a budget gets it now.
    pub(super) fn token(&self, now: Time) -> Token {
        Token {
            operation: self.request.operation,
            by: beginning(&self.request.caller.user),
            at: now,
            target: self.request.target.clone(),
        }
    }

    /// The pod that is meant, as this replica knows it: what the review says about it does not count.
    pub(super) fn set_pod(&mut self, pod: &Pod) {
        self.request.target = self.request.target.of_pod(pod);
    }

    /// The pod was read after the request arrived.
    pub(super) fn set_read(&mut self) {
        self.was_read = true;
    }

    pub(super) fn was_read(&self) -> bool {
        self.was_read
    }

    /// The request is decided for this pod.
    pub(super) fn set_plan(&mut self, uid: Uid, plan: Plan) {
        self.uid = Some(uid);
        self.plan = plan;
    }

    /// No budget covers this pod.
    pub(super) fn set_not_covered(&mut self, uid: Uid) {
        self.uid = Some(uid);
    }

    pub(super) fn agree(&mut self, budget: BudgetKey, agreement: Agreement) {
        self.agreed.insert(budget, agreement);
    }

    pub(super) fn agreement(&self, budget: &BudgetKey) -> Option<&Agreement> {
        self.agreed.get(budget)
    }

    /// The next budget that must get the token.
    pub(super) fn next_budget(&self, has_token: impl Fn(&BudgetKey) -> bool) -> Option<&BudgetKey> {
        self.plan.must_agree.iter().find(|key| !has_token(key))
    }

    /// Whether a budget was consulted when it covered this.
    pub(super) fn was_consulted(&self, budget: &BudgetKey, coverage: Option<Coverage>) -> bool {
        self.plan.consulted.get(budget) == Some(&coverage)
    }

    /// The budgets that get the token without the request waiting for it.
    pub(super) fn observing(&self) -> impl Iterator<Item = &BudgetKey> {
        self.plan.observing.keys()
    }

    /// Why each budget lets the request pass, in the order of their names.
    pub(super) fn reasons(&self) -> Vec<(BudgetKey, AllowReason)> {
        let agreed = self.agreed.iter().filter(|(key, _)| self.plan.must_agree.contains(key));
        let agreed = agreed.map(|(key, agreement)| (key.clone(), agreement.reason));
        let observing = self.plan.observing.iter().map(|(key, reason)| (key.clone(), *reason));
        agreed.chain(observing).collect::<BTreeMap<_, _>>().into_iter().collect()
    }

    /// The budgets that have the token.
    pub(super) fn into_agreed(self) -> impl Iterator<Item = BudgetKey> {
        self.agreed.into_keys()
    }
}

/// All requests in flight.
#[derive(Clone, Debug, Hash)]
pub(super) struct PendingRequests {
    /// The name of this process: tokens carry it.
    replica: Text,
    requests: BTreeMap<RequestId, PendingRequest>,
    /// How many requests have arrived. Reads are stamped with it, to show whether one was sent after a request arrived.
    arrived: u64,
    tokens: u64,
}

impl PendingRequests {
    pub(super) fn new(replica: Text) -> Self {
        Self { replica, requests: BTreeMap::new(), arrived: 0, tokens: 0 }
    }

    pub(super) fn add(&mut self, id: RequestId, request: Request, deadline: Time) {
        self.arrived += 1;
        self.tokens += 1;
        let pending = PendingRequest {
            request,
            deadline,
            arrived: self.arrived,
            uid: None,
            was_read: false,
            token: format!("{}-{}", self.replica, self.tokens).into(),
            plan: Plan::default(),
            agreed: BTreeMap::new(),
        };
        self.requests.insert(id, pending);
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&PendingRequest> {
        self.requests.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut PendingRequest> {
        self.requests.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<PendingRequest> {
        self.requests.remove(&id)
    }

    pub(super) fn contains(&self, id: RequestId) -> bool {
        self.requests.contains_key(&id)
    }

    /// How many requests have arrived.
    pub(super) fn arrived(&self) -> u64 {
        self.arrived
    }

    /// When the first of those in flight arrived.
    pub(super) fn first_arrived(&self) -> Option<u64> {
        self.requests.values().map(|pending| pending.arrived).min()
    }

    /// The requests whose deadline has passed.
    pub(super) fn late(&self, now: Time) -> Vec<RequestId> {
        self.requests.iter().filter(|(_, pending)| now >= pending.deadline).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::ObjectKey;
    use crate::callers::Caller;
    use crate::claims::Target;
    use crate::facts::{BudgetKind, Operation};

    fn request() -> Request {
        Request {
            operation: Operation::Evict,
            pod: ObjectKey::new("shop", "web-0"),
            object: None,
            precondition: None,
            dry_run: false,
            caller: Caller::named("drain"),
            target: Target::default(),
            placement: None,
        }
    }

    fn budget(name: &str) -> BudgetKey {
        BudgetKey { object: ObjectKey::new("shop", name), kind: BudgetKind::DisruptionBudget }
    }

    fn agreement(reason: AllowReason) -> Agreement {
        Agreement { budget: "u1".into(), pod: "x".into(), reason }
    }

    #[test]
    fn each_request_has_a_token_of_its_own() {
        let mut requests = PendingRequests::new("r0".into());
        requests.add(7, request(), Time(10));
        requests.add(8, request(), Time(20));
        let token = |id| requests.get(id).map(|pending| pending.token_id().to_string());
        assert_eq!((token(7), token(8)), (Some("r0-1".to_owned()), Some("r0-2".to_owned())));
        assert_eq!(requests.arrived(), 2);
        assert_eq!(requests.first_arrived(), Some(1));
        assert_eq!(requests.late(Time(10)), [7]);
    }

    #[test]
    fn a_request_goes_to_every_budget_that_must_agree_and_reports_all_reasons() {
        let mut requests = PendingRequests::new("r0".into());
        requests.add(7, request(), Time(10));
        let pending = requests.get_mut(7).expect("it is in flight");
        let plan = Plan {
            consulted: [
                (budget("a"), Some(Coverage(1))),
                (budget("b"), Some(Coverage(2))),
                (budget("c"), None),
            ]
            .into(),
            observing: [(budget("b"), AllowReason::PassesBy)].into(),
            must_agree: vec![budget("c"), budget("a")],
        };
        pending.set_plan("x".into(), plan);
        assert!(pending.was_consulted(&budget("a"), Some(Coverage(1))));
        assert!(!pending.was_consulted(&budget("a"), Some(Coverage(9))), "it covers other pods now");
        assert!(!pending.was_consulted(&budget("d"), None), "a new budget");
        let has = |pending: &PendingRequest, key: &BudgetKey| pending.agreement(key).is_some();
        assert_eq!(pending.next_budget(|key| has(pending, key)), Some(&budget("c")));
        pending.agree(budget("c"), agreement(AllowReason::Charged));
        assert_eq!(pending.next_budget(|key| has(pending, key)), Some(&budget("a")));
        pending.agree(budget("a"), agreement(AllowReason::Surplus));
        assert_eq!(pending.next_budget(|key| has(pending, key)), None);
        let reasons = [
            (budget("a"), AllowReason::Surplus),
            (budget("b"), AllowReason::PassesBy),
            (budget("c"), AllowReason::Charged),
        ];
        assert_eq!(pending.reasons(), reasons);
    }
}
