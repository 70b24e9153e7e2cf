//! Decisions, computed in the order of the design.

use std::collections::BTreeSet;

use quorate_engine::basics::Uid;
use quorate_engine::decision::{Allow, AllowReason, Decision, DenialReason, Numbers, ProbeDoubt, Unresolved};
use quorate_engine::facts::{Budget, BudgetKey, Covers, Operation, Phase, Pod, UnhealthyPolicy, Units};
use quorate_engine::request::{Placement, Request};

use super::count::{Count, ExpectedFrom, Group, OfWorkload, asked, is_lone, place};
use super::{LWS, Oracle, Seen};

/// A decision without its text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExpectedDecision {
    Exempt,
    NoEffect(&'static str),
    NotCovered,
    Agreed(Vec<(String, AllowReason)>),
    Denied(Vec<(String, No)>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum No {
    Plain(&'static str),
    Unresolved(&'static str),
    Probe(&'static str),
    Exhausted { numbers: Numbers, is_down: bool },
}

impl ExpectedDecision {
    pub(crate) fn of(decision: &Decision) -> Self {
        match decision {
            Decision::Allow(Allow::Exempt(_)) => Self::Exempt,
            Decision::Allow(Allow::NoEffect { why, .. }) => {
                Self::NoEffect(match format!("{why:?}").as_str() {
                    "Gone" => "Gone",
                    "Terminal" => "Terminal",
                    "Terminating" => "Terminating",
                    "NamespaceTerminating" => "NamespaceTerminating",
                    _ => "OtherUid",
                })
            }
            Decision::Allow(Allow::NotCovered { .. }) => Self::NotCovered,
            Decision::Allow(Allow::Agreed { reasons, .. }) => Self::Agreed(
                reasons.iter().map(|(budget, reason)| (format!("{budget:?}"), *reason)).collect(),
            ),
            Decision::Deny(denials) => Self::Denied(
                denials.iter().map(|denial| (format!("{:?}", denial.budget), no(&denial.reason))).collect(),
            ),
        }
    }
}

fn no(reason: &DenialReason) -> No {
    match reason {
        DenialReason::Invalid(_) => No::Plain("Invalid"),
        DenialReason::Protocol(_) => No::Plain("Protocol"),
        DenialReason::NotOpen => No::Plain("NotOpen"),
        DenialReason::NoGroup { .. } => No::Plain("NoGroup"),
        DenialReason::Stale { .. } => No::Plain("Stale"),
        DenialReason::Native { .. } => No::Plain("Native"),
        DenialReason::SeveralNative { .. } => No::Plain("SeveralNative"),
        DenialReason::Unresolved(Unresolved::Group { .. }) => No::Unresolved("Group"),
        DenialReason::Unresolved(Unresolved::Controller { .. }) => No::Unresolved("Controller"),
        DenialReason::Unresolved(Unresolved::Owner { .. }) => No::Unresolved("Owner"),
        DenialReason::Unresolved(Unresolved::Scale { .. }) => No::Unresolved("Scale"),
        DenialReason::Unresolved(Unresolved::Unread { .. }) => No::Unresolved("Unread"),
        DenialReason::Unresolved(Unresolved::Sources { .. }) => No::Unresolved("Sources"),
        DenialReason::Probe { why, .. } => No::Probe(match why {
            ProbeDoubt::SaysNo(_) => "SaysNo",
            ProbeDoubt::Silent => "Silent",
            ProbeDoubt::Malformed(_) => "Malformed",
            ProbeDoubt::NoAgent => "NoAgent",
            ProbeDoubt::AgentStale => "AgentStale",
            ProbeDoubt::NodeNotReady => "NodeNotReady",
            ProbeDoubt::Outdated => "Outdated",
        }),
        DenialReason::Exhausted(why) => No::Exhausted { numbers: why.numbers, is_down: why.unit_is_down },
        other => panic!("the engine alone does not give this reason: {other:?}"),
    }
}

impl Oracle {
    /// The budgets that cover a pod, in the order in which they are checked.
    pub(crate) fn covering(&self, uid: &str) -> Vec<&Budget> {
        let Some(seen) = self.pods.get(uid) else { return Vec::new() };
        self.budgets.values().filter(|budget| self.covers(budget, &seen.pod)).collect()
    }

    /// The decision where no kind is stale.
    pub(crate) fn decide(&self, request: &Request) -> ExpectedDecision {
        self.decide_by_age(request, &BTreeSet::new())
    }

    /// The pod that a request is about, if it is known.
    pub(crate) fn meant(&self, request: &Request) -> Option<&Pod> {
        let found = match &request.object {
            Some(object) => self.pods.get(&object.uid),
            None => {
                let named = self.pods.values().filter(|seen| seen.pod.key == request.pod);
                named.max_by_key(|seen| (seen.absent.is_none(), seen.pod.version))
            }
        };
        found.filter(|seen| seen.absent.is_none()).map(|seen| &seen.pod)
    }

    /// The decision if these budgets depend on a stale kind.
    pub(crate) fn decide_by_age(&self, request: &Request, stale: &BTreeSet<BudgetKey>) -> ExpectedDecision {
        let user = &*request.caller.user;
        let deletes = request.operation == Operation::Delete;
        let precise = request.caller.names_uid || request.caller.no_grace;
        let adopts = request.operation == Operation::Relabel && request.caller.only_owners;
        let exempt = match user.strip_prefix("system:serviceaccount:kube-system:") {
            Some("generic-garbage-collector" | "namespace-controller" | "pod-garbage-collector") => true,
            Some("taint-eviction-controller" | "device-taint-eviction-controller" | "node-controller") => {
                deletes || adopts
            }
            Some(_) => adopts,
            None if user.starts_with("system:node:") => true,
            None if user == "system:kube-scheduler" => deletes,
            None => user == "system:kube-controller-manager" && ((deletes && precise) || adopts),
        };
        if exempt {
            return ExpectedDecision::Exempt;
        }
        if request.object.as_ref().is_some_and(|object| object.terminating) {
            return ExpectedDecision::NoEffect("Terminating");
        }
        if self.is_terminating(&request.pod.namespace) {
            return ExpectedDecision::NoEffect("NamespaceTerminating");
        }
        let Some(seen) = self.meant(request).map(|pod| &self.pods[&pod.uid]) else {
            return ExpectedDecision::NoEffect("Gone");
        };
        let pod = &seen.pod;
        match &request.precondition {
            Some(uid) if *uid != pod.uid => return ExpectedDecision::NoEffect("OtherUid"),
            _ if pod.terminating => return ExpectedDecision::NoEffect("Terminating"),
            _ if pod.phase.is_terminal() => return ExpectedDecision::NoEffect("Terminal"),
            _ => {}
        }
        // A budget with a `targetRef` may cover a pod whose owners are not all known.
        if self.has_unknown_owner(pod) {
            let may_cover = self.budgets.values().find(|budget| {
                let rules = self.rules(budget).0;
                budget.key.object.namespace == pod.key.namespace
                    && matches!(rules.covers, Covers::Target(..))
                    && rules.operations.contains(request.operation)
                    && !rules.observe
            });
            if let Some(budget) = may_cover {
                return ExpectedDecision::Denied(vec![(
                    format!("{:?}", Some(&budget.key)),
                    No::Unresolved("Owner"),
                )]);
            }
        }
        let (mut reasons, mut denials) = (Vec::new(), Vec::new());
        for budget in self.covering(&pod.uid).into_iter().filter(|budget| self.is_left(request, pod, budget))
        {
            let name = format!("{:?}", budget.key);
            match self.review(request, seen, budget, stale.contains(&budget.key)) {
                Ok(reason) => reasons.push((name, reason)),
                Err(_) if budget.spec.as_ref().is_ok_and(|rules| rules.observe) => {
                    reasons.push((name, AllowReason::Observed));
                }
                Err(no) => denials.push((format!("{:?}", Some(&budget.key)), no)),
            }
        }
        let evicts = request.operation == Operation::Evict && !reasons.is_empty();
        if denials.is_empty()
            && evicts
            && let Some(no) = self.native_refusal(pod)
        {
            denials.push((format!("{:?}", None::<BudgetKey>), No::Plain(no)));
        }
        match (reasons.is_empty(), denials.is_empty()) {
            (true, true) => ExpectedDecision::NotCovered,
            (_, true) => ExpectedDecision::Agreed(reasons),
            (_, false) => ExpectedDecision::Denied(denials),
        }
    }

    /// Whether the pod goes from a budget or from a group of it. Only a relabel says where it belongs afterwards.
    fn is_left(&self, request: &Request, pod: &Pod, budget: &Budget) -> bool {
        let placement = request.placement.as_ref().filter(|_| request.operation == Operation::Relabel);
        placement.is_none_or(|placement| {
            let after = moved(pod, placement);
            let rules = self.rules(budget).0;
            !self.covers(budget, &after) || place(&rules, &after) != place(&rules, pod)
        })
    }

    /// Why the API server would deny the eviction: it checks native budgets for every pod that has started and not
    /// finished, and does not evict a pod that two of them cover.
    fn native_refusal(&self, pod: &Pod) -> Option<&'static str> {
        let over = self.native_budgets_of(pod);
        if pod.phase == Phase::Pending || over.is_empty() {
            return None;
        }
        if over.len() > 1 {
            return Some("SeveralNative");
        }
        let native = over[0];
        let (healthy, desired) = native.healthy;
        let guarded = pod.ready || !(native.always_allow_unready || (healthy >= desired && desired > 0));
        (native.current && guarded && native.allowed <= 0).then_some("Native")
    }

    fn review(
        &self,
        request: &Request,
        seen: &Seen,
        budget: &Budget,
        is_stale: bool,
    ) -> Result<AllowReason, No> {
        let (operation, pod) = (request.operation, &seen.pod);
        let relabels = operation == Operation::Relabel;
        let after = request.placement.as_ref().map(|placement| moved(pod, placement));
        let moves = |pod: &Pod| is_controller(&request.caller.user, pod);
        if relabels && (moves(pod) || after.is_some_and(|after| moves(&after))) {
            return Ok(AllowReason::PassesBy);
        }
        if !self.operations(budget).contains(operation) {
            return Ok(if relabels { AllowReason::Leaves } else { AllowReason::PassesBy });
        }
        if pod.waives && self.rules(budget).0.waivable {
            return Ok(AllowReason::PassesBy);
        }
        let Ok(spec) = &budget.spec else { return Err(No::Plain("Invalid")) };
        if budget.ledger.protocol.is_some_and(|protocol| protocol != quorate_engine::claims::PROTOCOL) {
            return Err(No::Plain("Protocol"));
        }
        if budget.ledger.enforced != Some(quorate_engine::Coverage::of(&budget.uid, spec)) {
            return Err(No::Plain("NotOpen"));
        }
        if pod.phase == Phase::Pending && operation.removes() {
            return Ok(AllowReason::Pending);
        }
        if is_stale {
            return Err(No::Plain("Stale"));
        }
        // Counted as if the pod had no tokens of its own, and as if its agent and its node were alive: what is known of
        // these may be older than the pod.
        let trusting = self.trusting(std::slice::from_ref(&pod.uid));
        let count = trusting.count_without(budget, std::slice::from_ref(&pod.uid));
        if let Some(what) = count.unresolved {
            return Err(No::Unresolved(what));
        }
        let own = self.is_own_controller(request, seen);
        let asked = pod.ready && self.gates.disruption_probe && !(own && self.has_too_many(pod));
        if let Some(doubt) = self.doubt(pod).filter(|_| asked) {
            return Err(No::Probe(doubt));
        }
        let ungrouped = count.ungrouped.contains(&pod.uid);
        if ungrouped && operation == Operation::Evict {
            return Err(No::Plain("NoGroup"));
        }
        let scaled = pod.controller().and_then(|owner| self.scaled(&owner.uid));
        if own && scaled.is_some_and(|scaled| scaled.recreate) {
            return Ok(AllowReason::Recreate);
        }
        let group = count.groups.iter().find(|group| group.pods.contains(&pod.uid));
        if group.is_some_and(|group| group.surge) {
            return Ok(AllowReason::Surge);
        }
        let numbers = self.numbers(budget, &count, seen, group, own);
        let waits =
            operation == Operation::Evict && count.rules.unhealthy == UnhealthyPolicy::IfHealthyBudget;
        let met = numbers.current >= numbers.desired && numbers.expected > 0;
        let free = |reason| match waits && !met {
            true => Err(No::Exhausted { numbers, is_down: true }),
            false => Ok(reason),
        };
        if ungrouped || !trusting.is_available(seen, count.rules.health) {
            // Its group needs nothing of it.
            if group.is_some_and(Group::is_whole) {
                return Ok(AllowReason::Unhealthy);
            }
            return free(AllowReason::Unhealthy);
        }
        match group.map(|group| group.healthy.cmp(&group.min.unwrap())) {
            Some(std::cmp::Ordering::Less) => {
                // Claims alone do not make a group free: it goes down only if what they admitted really happens. Nor do
                // agents and nodes that seem to be gone.
                let pods = &group.unwrap().pods;
                let unclaimed = self.trusting(pods).count_without(budget, pods);
                let whole = unclaimed.groups.iter().find(|group| group.pods.contains(&pod.uid));
                if let Some(whole) = whole.filter(|whole| whole.healthy >= whole.min.unwrap()) {
                    let numbers = self.numbers(budget, &unclaimed, seen, Some(whole), own);
                    return match numbers.allowed {
                        0 => Err(No::Exhausted { numbers, is_down: false }),
                        _ => Ok(AllowReason::Broken),
                    };
                }
                // Its missing pods may be among those whose owners are not all known.
                let here = |seen: &&Seen| {
                    seen.pod.key.namespace == pod.key.namespace
                        && seen.absent.is_none()
                        && !seen.pod.terminating
                        && !seen.pod.phase.is_terminal()
                };
                let by_target = matches!(count.rules.covers, Covers::Target(..));
                if by_target && self.pods.values().filter(here).any(|seen| self.has_unknown_owner(&seen.pod))
                {
                    return Err(No::Unresolved("Owner"));
                }
                return free(AllowReason::Broken);
            }
            Some(std::cmp::Ordering::Greater) => return Ok(AllowReason::Surplus),
            Some(std::cmp::Ordering::Equal) | None => {}
        }
        match numbers.allowed {
            0 => Err(No::Exhausted { numbers, is_down: false }),
            _ => Ok(AllowReason::Charged),
        }
    }

    /// The oracle as it would be if the agents and the nodes of these pods were alive.
    fn trusting(&self, pods: &[Uid]) -> Self {
        let trusted = pods.iter().cloned().collect();
        Self { trusted, ..self.clone() }
    }

    /// Whether the request is a delete by the controller that owns the pod.
    pub(super) fn is_own_controller(&self, request: &Request, seen: &Seen) -> bool {
        request.operation == Operation::Delete && is_controller(&request.caller.user, &seen.pod)
    }

    /// Whether the pod's workload wants fewer pods than its controller has, is being deleted, or has the strategy
    /// Recreate.
    fn has_too_many(&self, pod: &Pod) -> bool {
        let Some(owner) = pod.controller() else { return false };
        let Some(workload) = self.scaled(&owner.uid) else { return false };
        let siblings = self.pods.values().filter(|seen| {
            let other = &seen.pod;
            let alive = seen.absent.is_none() && !other.terminating && !other.phase.is_terminal();
            alive && other.controller().is_some_and(|its| its.uid == owner.uid)
        });
        let siblings = u32::try_from(siblings.count()).unwrap();
        workload.deleting || workload.recreate || self.wants(workload).is_some_and(|wants| wants < siblings)
    }

    fn numbers(
        &self,
        budget: &Budget,
        count: &Count,
        seen: &Seen,
        group: Option<&Group>,
        own: bool,
    ) -> Numbers {
        let single = count.singles.contains(&seen.pod.uid);
        let mut numbers = if single { count.single_units } else { count.units };
        if own {
            if group.is_some() {
                numbers.current = count.whole;
            }
            if let Some(wanted) = self.wanted(budget, count, single) {
                numbers.desired = numbers.desired.min(wanted);
            }
            numbers.expected = numbers.expected.max(1);
        }
        numbers.allowed = match numbers.expected {
            0 => 0,
            _ => numbers.current.saturating_sub(numbers.desired),
        };
        numbers
    }

    /// How many units the workloads want from now on; with `single`, how many single pods.
    fn wanted(&self, budget: &Budget, count: &Count, single: bool) -> Option<u32> {
        let workloads = self.workloads(&count.members, &count.singles);
        let wants = |of: &OfWorkload| match of.deleting {
            true => 0,
            false => of.wants.unwrap_or(of.others + of.singles),
        };
        // Pods without a controller stay wanted, groups of them while they are whole.
        let counted = self.count(budget);
        let has_none = |uid: &Uid| self.pods[uid].pod.controller().is_none();
        let unmanaged = |uid: &&Uid| {
            let Seen { pod, absent } = &self.pods[*uid];
            has_none(uid) && !pod.terminating && !pod.phase.is_terminal() && absent.is_none()
        };
        if single {
            let with_singles = workloads.iter().filter(|of| of.has_singles);
            let managed: u32 = with_singles.map(|of| wants(of).saturating_sub(of.others)).sum();
            return Some(managed + counted.singles.iter().filter(unmanaged).count() as u32);
        }
        let pods: u32 = workloads.iter().filter(|of| of.has_others).map(wants).sum();
        let kept: u32 = count.kept.iter().map(|kept| kept.size).sum();
        if count.rules.units == Units::Pods {
            let unmanaged = counted.members.iter().filter(unmanaged).count() as u32;
            return (!workloads.is_empty()).then_some(pods + kept + unmanaged);
        }
        // A PodGroup without a template does not state that it is wanted: a workload that is scaled down must be able
        // to remove its pods.
        let beneath = |group: &Group| match &group.beneath {
            ExpectedFrom::Of(source) if is_lone(source) => ExpectedFrom::Seen,
            other => other.clone(),
        };
        let mut sources: BTreeSet<ExpectedFrom> = count.groups.iter().map(beneath).collect();
        if self.gone.get(&budget.key).is_some_and(|gone| !gone.is_empty()) {
            sources.insert(ExpectedFrom::Seen);
        }
        let whole_unmanaged = counted.groups.iter().filter(|group| {
            let healthy = group.pods.iter().filter(|uid| counted.healthy.contains(*uid) && has_none(uid));
            let healthy = healthy.count() as u32;
            group.is_whole()
                && !group.surge
                && beneath(group) == ExpectedFrom::Seen
                && group.min.is_some_and(|min| healthy >= min)
        });
        let whole_unmanaged = whole_unmanaged.count() as u32;
        let of = |expected_from: ExpectedFrom| match expected_from {
            ExpectedFrom::Seen => pods / asked(&count.rules).unwrap_or(1).max(1) + whole_unmanaged,
            ExpectedFrom::Of(source) => {
                let object = self.object(&budget.key.object.namespace, &source);
                object.map_or(0, |object| object.wants_from_now_on())
            }
            ExpectedFrom::Budget => unreachable!("the budget is beneath nothing"),
        };
        Some(sources.into_iter().map(of).sum::<u32>() + kept)
    }
}

/// Whether a user is the controller of a pod.
fn is_controller(user: &str, pod: &Pod) -> bool {
    let in_lws = pod.labels.get(&format!("{LWS}/name")).is_some();
    let kind = pod.controller().map(|owner| (&*owner.kind.group, &*owner.kind.kind));
    match user {
        "system:serviceaccount:lws-system:lws-controller-manager" => in_lws,
        "system:kube-controller-manager" => kind.is_some(),
        "system:serviceaccount:kube-system:replicaset-controller" => kind == Some(("apps", "ReplicaSet")),
        "system:serviceaccount:kube-system:statefulset-controller" => kind == Some(("apps", "StatefulSet")),
        _ => false,
    }
}

/// A pod after a relabel.
fn moved(pod: &Pod, placement: &Placement) -> Pod {
    let Placement { labels, owners, link } = placement.clone();
    Pod { labels, owners, link, ..pod.clone() }
}
