//! The decision on a request, with its checks in order.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::basics::{Labels, Text, Time, Uid};
use crate::claims::{MAX_CLAIM_BYTES, MAX_CLAIMS, PROTOCOL};
use crate::decision::{
    Allow, AllowReason, Decision, Denial, DenialReason, Down, Exhausted, Missing, NO_POD, NoEffect, Noun,
    Numbers, ProbeDoubt, Unhealthy, Unresolved,
};
use crate::engine::{BudgetRecord, Engine, Membership, PodRecord, why_unavailable};
use crate::facts::{
    BudgetKey, Controller, HealthRule, Operation, Owner, Phase, Pod, Rules, UnhealthyPolicy, Units,
};
use crate::report::natural;
use crate::request::Request;
use crate::tally::{Unit, UnitSlot};

/// The largest number of units that are down, and of pods missing in each, that a denial lists by name.
const NAMED: usize = 3;

/// How many units or pods that are down are sorted to find the first names. This bounds the cost of a denial when many
/// are down.
const MOST_SORTED: usize = 100;

impl Engine {
    /// Decides a request. Writes nothing: the caller must record an admission in the ledger before it answers.
    pub fn decide(&mut self, request: &Request, now: Time) -> Decision {
        self.advance_quietly(now);
        if let Some(decision) = request.always_passes() {
            return decision;
        }
        if self.is_terminating(&request.pod.namespace) {
            return no_effect(NoEffect::NamespaceTerminating, None);
        }
        let id = match &request.object {
            Some(object) => self.pod_id(&object.uid),
            None => self.pod_id_by_name(&request.pod),
        };
        let Some(id) = id else { return no_effect(NoEffect::Gone, Some(NO_POD.into())) };
        let record = &self.pods[id as usize];
        if record.absent {
            return no_effect(NoEffect::Gone, Some(NO_POD.into()));
        }
        let pod = &record.fact;
        if request.precondition.as_ref().is_some_and(|uid| *uid != pod.uid) {
            return no_effect(NoEffect::OtherUid, request.precondition.clone());
        }
        if pod.terminating {
            return no_effect(NoEffect::Terminating, Some(pod.uid.clone()));
        }
        if pod.phase.is_terminal() {
            return no_effect(NoEffect::Terminal, Some(pod.uid.clone()));
        }
        if let Some(denial) = self.may_be_covered(record, request.operation) {
            return Decision::Deny(vec![denial]);
        }
        self.review_budgets(request, record)
    }

    /// Checks one budget, with the ledger that a write in flight or a draft leaves.
    pub fn decide_one(
        &mut self,
        key: &BudgetKey,
        request: &Request,
        uid: &str,
        now: Time,
    ) -> Result<AllowReason, Denial> {
        self.review_one(key, request, uid, now).map(|passes| passes.reason)
    }

    /// Checks one budget, and whether an old view of the pods could make the answer wrong.
    pub(crate) fn review_one(
        &mut self,
        key: &BudgetKey,
        request: &Request,
        uid: &str,
        now: Time,
    ) -> Result<Passes, Denial> {
        self.advance_quietly(now);
        let member = self.budget_id(key).and_then(|budget| {
            let record = &self.pods[self.pod_id(uid)? as usize];
            let member = record.members.iter().find(|member| member.budget == budget)?;
            Some((record, member, &self.budgets[budget as usize]))
        });
        match member {
            Some((record, member, budget)) => {
                let reason = self.review(request, record, member, budget)?;
                let rules = &budget.rules;
                let review = BudgetReview { engine: self, request, record, member, budget, rules };
                Ok(Passes { reason, needs_list: reason.needs_fresh_list() && !review.is_met_without() })
            }
            None => Ok(Passes { reason: AllowReason::PassesBy, needs_list: false }),
        }
    }

    fn review_budgets(&self, request: &Request, record: &PodRecord) -> Decision {
        let uid = record.fact.uid.clone();
        let concerned = self.concerned(request, record);
        if concerned.is_empty() {
            return Decision::Allow(Allow::NotCovered { uid });
        }
        let mut members: SmallVec<[(&Membership, &BudgetRecord); 4]> =
            concerned.into_iter().map(|member| (member, &self.budgets[member.budget as usize])).collect();
        members.sort_by(|(_, a), (_, b)| a.fact.key.cmp(&b.fact.key));
        let mut reasons = Vec::with_capacity(members.len());
        let mut denials = Vec::new();
        for (member, budget) in members {
            match self.review(request, record, member, budget) {
                Ok(reason) => reasons.push((budget.fact.key.clone(), reason)),
                Err(denial) => denials.push(denial),
            }
        }
        if denials.is_empty()
            && request.operation == Operation::Evict
            && let Some(denial) = self.native_denial(&record.fact)
        {
            denials.push(denial);
        }
        if denials.is_empty() {
            Decision::Allow(Allow::Agreed { uid, reasons, departures: Vec::new() })
        } else {
            Decision::Deny(denials)
        }
    }

    /// Checks one budget. A budget that only observes never denies.
    fn review(
        &self,
        request: &Request,
        record: &PodRecord,
        member: &Membership,
        budget: &BudgetRecord,
    ) -> Result<AllowReason, Denial> {
        let rules = &budget.rules;
        let review = BudgetReview { engine: self, request, record, member, budget, rules };
        match review.answer() {
            Err(_) if rules.observe => Ok(AllowReason::Observed),
            Err(reason) => Err(denial(budget, reason)),
            Ok(reason) => Ok(reason),
        }
    }

    /// A native budget that would deny the eviction. It is checked here so that nothing is claimed in vain.
    fn native_denial(&self, pod: &Pod) -> Option<Denial> {
        // The API server does not check native budgets for a pod that has not started.
        if pod.phase == Phase::Pending {
            return None;
        }
        let over: SmallVec<[_; 2]> = self.cluster.native_budgets_of(pod).collect();
        let reason = match over.as_slice() {
            [] => return None,
            [(name, budget)] => {
                let (healthy, desired) = budget.healthy;
                let unready_passes = budget.always_allow_unready || (healthy >= desired && desired > 0);
                let refuses = budget.current && budget.allowed <= 0 && (pod.ready || !unready_passes);
                refuses.then(|| DenialReason::Native { name: Text::clone(name), healthy: budget.healthy })?
            }
            several => DenialReason::SeveralNative {
                pod: pod.key.name.clone(),
                names: several.iter().map(|(name, _)| Text::clone(name)).collect(),
            },
        };
        Some(Denial { budget: None, reason })
    }

    /// The first few pods or units that are down in a budget, and their total number.
    pub(crate) fn downs(&self, budget: &BudgetRecord, rules: &Rules, slot: UnitSlot) -> (Vec<Down>, usize) {
        let tally = &budget.tally;
        let of_pod = |id: &u32| {
            let record = &self.pods[*id as usize];
            let missing = self.missing(record, budget, rules.health);
            Down {
                unit: record.fact.key.name.clone(),
                missing: missing.into_iter().collect(),
                healthy: (0, 1),
            }
        };
        let of_pods = |ids: &BTreeSet<u32>| {
            let mut first: Vec<&u32> = ids.iter().take(MOST_SORTED).collect();
            first.sort_by(|a, b| natural(self.pod_name(**a), self.pod_name(**b)));
            (first.into_iter().take(NAMED).map(of_pod).collect(), ids.len())
        };
        match slot {
            UnitSlot::Pod => of_pods(&tally.down),
            UnitSlot::Single => of_pods(&tally.singles_down),
            UnitSlot::Group(_) | UnitSlot::Ungrouped => {
                let mut units: Vec<&Unit> =
                    tally.down.iter().take(MOST_SORTED).map(|id| &tally.units[*id as usize]).collect();
                units.sort_by(|a, b| natural(&a.name, &b.name));
                let mut down: Vec<Down> = units
                    .into_iter()
                    .take(NAMED)
                    .map(|unit| {
                        let mut missing: Vec<Missing> = unit
                            .members
                            .iter()
                            .filter_map(|pod| self.missing(&self.pods[*pod as usize], budget, rules.health))
                            .collect();
                        missing.sort_by(|a, b| natural(&a.pod, &b.pod));
                        missing.truncate(NAMED);
                        let needs = unit.min_count.unwrap_or(0);
                        Down { unit: tally.shown(&unit.name), missing, healthy: (unit.healthy, needs) }
                    })
                    .collect();
                down.extend(tally.gone.keys().take(NAMED - down.len().min(NAMED)).map(|name| Down {
                    unit: tally.shown(name),
                    missing: Vec::new(),
                    healthy: (0, 0),
                }));
                (down, tally.down.len() + tally.gone.len())
            }
        }
    }

    fn pod_name(&self, id: u32) -> &str {
        &self.pods[id as usize].fact.key.name
    }

    fn missing(&self, record: &PodRecord, budget: &BudgetRecord, health: HealthRule) -> Option<Missing> {
        let held = budget.ledger().holds(&record.fact.uid).then_some(Unhealthy::Held);
        let why = why_unavailable(record, health, &self.cluster, self.now).or(held)?;
        let since = match why {
            Unhealthy::NotReady | Unhealthy::Ended => record.fact.ready_since,
            Unhealthy::NotDisruptable => record.fact.probe.as_ref().and_then(|probe| probe.since),
            Unhealthy::Held => budget
                .ledger()
                .claims
                .get(&record.fact.uid)
                .and_then(|claim| claim.tokens.values().map(|token| token.at).min()),
            Unhealthy::Terminating | Unhealthy::Inconsistent => None,
        };
        Some(Missing { pod: record.fact.key.name.clone(), why, since })
    }
}

/// A budget lets a request pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passes {
    /// Why.
    pub(crate) reason: AllowReason,
    /// It passes because something is down that may have recovered: the pods must be listed first.
    pub(crate) needs_list: bool,
}

/// The check of one request against one budget.
struct BudgetReview<'a> {
    engine: &'a Engine,
    request: &'a Request,
    record: &'a PodRecord,
    member: &'a Membership,
    budget: &'a BudgetRecord,
    rules: &'a Rules,
}

impl BudgetReview<'_> {
    fn answer(&self) -> Result<AllowReason, DenialReason> {
        let operation = self.request.operation;
        if operation == Operation::Relabel && self.is_moved_by_controller() {
            return Ok(AllowReason::PassesBy);
        }
        if !self.rules.operations.contains(operation) {
            let leaves = operation == Operation::Relabel;
            return Ok(if leaves { AllowReason::Leaves } else { AllowReason::PassesBy });
        }
        let pod = &self.record.fact;
        if self.rules.waivable && pod.waives {
            return Ok(AllowReason::PassesBy);
        }
        self.trustworthy()?;
        if pod.phase == Phase::Pending && operation.removes() {
            return Ok(AllowReason::Pending);
        }
        self.current()?;
        self.resolvable()?;
        self.probe()?;
        if self.member.slot == UnitSlot::Ungrouped && operation == Operation::Evict {
            return Err(DenialReason::NoGroup { pod: pod.key.name.clone() });
        }
        if self.is_recreated() {
            return Ok(AllowReason::Recreate);
        }

        if let UnitSlot::Group(unit) = self.member.slot
            && self.budget.tally.units[unit as usize].surge
        {
            return Ok(AllowReason::Surge);
        }

        // A held pod is evaluated as if it had no tokens of its own. So a repeated request costs no more than the first
        // one, and a pod that was admitted without a charge while it was unhealthy is charged once it has recovered.
        let available = self.member.slot != UnitSlot::Ungrouped
            && why_unavailable(self.record, self.rules.health, &self.engine.cluster, self.engine.now)
                .is_none();
        let own = u32::from(available && !self.member.counts.healthy);
        let numbers = self.numbers(own);
        if !available {
            // A group that is whole without the pod stays whole, so the pod does not wait for the budget.
            return match self.is_in_whole_group() {
                true => Ok(AllowReason::Unhealthy),
                false => self.already_down(numbers, AllowReason::Unhealthy),
            };
        }
        match self.member.slot {
            UnitSlot::Group(unit) => {
                let unit = &self.budget.tally.units[unit as usize];
                let (healthy, needs) = (unit.healthy + own, unit.min_count.unwrap_or(u32::MAX));
                if healthy < needs {
                    // Its missing pods may exist, under a controller that is not known yet.
                    if let Some(reason) = self.engine.undecided_member(self.record, &self.rules.covers) {
                        return Err(reason);
                    }
                    return self.already_down(numbers, AllowReason::Broken);
                }
                if healthy > needs {
                    return Ok(AllowReason::Surplus);
                }
            }
            UnitSlot::Pod | UnitSlot::Single | UnitSlot::Ungrouped => {}
        }
        if numbers.allowed >= 1 { Ok(AllowReason::Charged) } else { Err(self.exhausted(numbers, false)) }
    }

    /// Whether this replica may decide on the budget.
    fn trustworthy(&self) -> Result<(), DenialReason> {
        if let Err(broken) = &self.budget.fact.spec {
            return Err(DenialReason::Invalid(broken.why.clone()));
        }
        let ledger = self.budget.ledger();
        if let Some(protocol) = ledger.protocol.filter(|protocol| *protocol != PROTOCOL) {
            return Err(DenialReason::Protocol(protocol));
        }
        if !self.budget.is_open() && !self.engine.open_all {
            return Err(DenialReason::NotOpen);
        }
        let is_new = !ledger.claims.contains_key(&self.record.fact.uid);
        if (is_new && ledger.claims.len() >= MAX_CLAIMS) || self.budget.claim_bytes >= MAX_CLAIM_BYTES {
            return Err(DenialReason::TooManyClaims);
        }
        Ok(())
    }

    /// Whether everything that the budget depends on is known well enough.
    fn current(&self) -> Result<(), DenialReason> {
        match self.engine.stale_dependency(self.budget, self.record, || self.is_own_controller()) {
            Some(stale) => Err(stale),
            None => Ok(()),
        }
    }

    fn resolvable(&self) -> Result<(), DenialReason> {
        match self.engine.unresolved(self.budget, self.rules) {
            Some(unresolved) => Err(DenialReason::Unresolved(unresolved)),
            None => Ok(()),
        }
    }

    /// A ready pod whose disruption probe does not allow a disruption is not disrupted, whatever the numbers are.
    fn probe(&self) -> Result<(), DenialReason> {
        let pod = &self.record.fact;
        let Some(probe) = pod.probe.as_ref().filter(|_| self.engine.cluster.probes && pod.ready) else {
            return Ok(());
        };
        match self.engine.cluster.doubt(pod, probe, self.engine.now) {
            None => Ok(()),
            Some(_) if self.is_one_too_many() => Ok(()),
            Some(why) => {
                let since = matches!(why, ProbeDoubt::SaysNo(_)).then_some(probe.since).flatten();
                Err(DenialReason::Probe { pod: pod.key.name.clone(), why, since })
            }
        }
    }

    /// Whether the request is a delete by the controller that owns the pod.
    fn is_own_controller(&self) -> bool {
        if self.request.operation != Operation::Delete {
            return false;
        }
        let pod = &self.record.fact;
        self.request.caller.is_controller_of(pod.controller().map(|owner| &owner.kind), &pod.labels)
    }

    /// Whether the controller of the pod, before or after the change, changes its labels or owners. A controller must be
    /// able to release a pod that it must not count, and to adopt one.
    fn is_moved_by_controller(&self) -> bool {
        let pod = &self.record.fact;
        let is_controller = |owners: &[Owner], labels: &Labels| {
            let controller = owners.iter().find(|owner| owner.controller).map(|owner| &owner.kind);
            self.request.caller.is_controller_of(controller, labels)
        };
        let after = self.request.placement.as_ref();
        is_controller(&pod.owners, &pod.labels)
            || after.is_some_and(|after| is_controller(&after.owners, &after.labels))
    }

    /// The workload whose controller deletes the pod; `None` for other requests.
    fn deleted_by(&self) -> Option<&Controller> {
        if !self.is_own_controller() {
            return None;
        }
        self.engine.cluster.scaled(&self.record.fact.controller()?.uid)
    }

    /// Whether a Deployment with the strategy Recreate deletes the pod. The strategy accepts that all its pods are
    /// down.
    fn is_recreated(&self) -> bool {
        self.deleted_by().is_some_and(|workload| workload.recreate)
    }

    /// Whether the controller deletes the pod because the workload wants fewer pods than the controller has, is being
    /// deleted, or has the strategy Recreate. A rollout does not count: it deletes pods that were wanted until now, so
    /// it may wait.
    fn is_one_too_many(&self) -> bool {
        let Some(workload) = self.deleted_by() else { return false };
        let stays = |id: u32| {
            let record = &self.engine.pods[id as usize];
            !record.absent && !record.fact.terminating && !record.fact.phase.is_terminal()
        };
        let owner = self.record.fact.controller();
        let pods = owner
            .map_or(0, |owner| self.engine.pods_of_controller(&owner.uid).filter(|id| stays(*id)).count());
        workload.recreate
            || workload.deleting
            || self
                .engine
                .cluster
                .wanted_by(workload)
                .is_some_and(|wanted| pods > usize::try_from(wanted).unwrap_or(usize::MAX))
    }

    /// Whether the pod belongs to a group that has enough healthy pods.
    fn is_in_whole_group(&self) -> bool {
        matches!(self.member.slot, UnitSlot::Group(unit) if self.budget.tally.units[unit as usize].is_whole())
    }

    /// The numbers for this request, with `own` healthy pods added back.
    fn numbers(&self, own: u32) -> Numbers {
        let tally = &self.budget.tally;
        let mut numbers = match self.member.slot {
            UnitSlot::Pod => {
                let mut numbers = tally.numbers(self.rules);
                numbers.current += own;
                numbers
            }
            UnitSlot::Single => {
                let mut numbers = tally.single_numbers(self.rules);
                numbers.current += own;
                numbers
            }
            UnitSlot::Group(unit) => {
                let mut numbers = tally.numbers(self.rules);
                // A controller first deletes the groups that it has too many of.
                numbers.current = tally.current(unit, own > 0, self.is_own_controller());
                numbers
            }
            UnitSlot::Ungrouped => tally.numbers(self.rules),
        };
        if self.is_own_controller() {
            // A workload that is scaled down, even to zero, or deleted must be able to remove its pods.
            let namespace = &self.budget.fact.key.object.namespace;
            let wanted = match self.member.slot {
                UnitSlot::Single => Some(tally.scales.singles_wanted()),
                _ => tally.wanted(self.rules, namespace, &self.engine.cluster),
            };
            if let Some(wanted) = wanted {
                numbers.desired = numbers.desired.min(wanted);
            }
            numbers.expected = numbers.expected.max(1);
        }
        numbers.allowed =
            if numbers.expected == 0 { 0 } else { numbers.current.saturating_sub(numbers.desired) };
        numbers
    }

    /// A unit that is already down costs nothing. Its eviction may still have to wait until the budget is met.
    fn already_down(&self, numbers: Numbers, reason: AllowReason) -> Result<AllowReason, DenialReason> {
        let met = numbers.current >= numbers.desired && numbers.expected > 0;
        let waits = self.request.operation == Operation::Evict
            && self.rules.unhealthy == UnhealthyPolicy::IfHealthyBudget;
        if waits && !met { Err(self.exhausted(numbers, true)) } else { Ok(reason) }
    }

    /// Whether the budget keeps what it must keep even if the unit of the request goes, whatever its health is by now.
    fn is_met_without(&self) -> bool {
        // What a stale kind says about the units that must stay is too old to replace a list.
        if self.current().is_err() || self.resolvable().is_err() {
            return false;
        }
        let numbers = self.numbers(0);
        let counts = match self.member.slot {
            UnitSlot::Pod | UnitSlot::Single => self.member.counts.healthy,
            UnitSlot::Group(unit) => self.budget.tally.units[unit as usize].is_whole(),
            UnitSlot::Ungrouped => false,
        };
        numbers.expected > 0 && numbers.current.saturating_sub(u32::from(counts)) >= numbers.desired
    }

    fn exhausted(&self, numbers: Numbers, unit_is_down: bool) -> DenialReason {
        let slot = self.member.slot;
        let (mut down, mut down_total) = self.engine.downs(self.budget, self.rules, slot);
        let unit = match slot {
            UnitSlot::Group(unit) => {
                let tally = &self.budget.tally;
                tally.shown(&tally.units[unit as usize].name)
            }
            _ => self.record.fact.key.name.clone(),
        };
        // The requested unit itself is not a reason for the denial, even if an earlier request holds it.
        if let Some(at) = down.iter().position(|down| down.unit == unit) {
            down.remove(at);
            down_total -= 1;
        }
        DenialReason::Exhausted(Box::new(Exhausted {
            noun: if matches!(slot, UnitSlot::Group(_)) { Noun::Group } else { Noun::Pod },
            unit,
            unit_is_down,
            numbers,
            down,
            down_total,
        }))
    }
}

impl Engine {
    /// What the budget needs to know and cannot resolve.
    pub(crate) fn unresolved(&self, budget: &BudgetRecord, rules: &Rules) -> Option<Unresolved> {
        let tally = &budget.tally;
        if let Some(unit) = tally.unresolved.first().map(|id| &tally.units[*id as usize]) {
            let pod = unit.members.iter().map(|id| &self.pods[*id as usize].fact.key.name).min()?;
            return Some(Unresolved::Group { pod: pod.clone(), name: unit.name.clone() });
        }
        let asks_sources = rules.expected.is_none()
            && (rules.units != Units::Pods || tally.needs_scale_of_singles(rules).is_some());
        if let Some(count) = tally.too_many_sources(rules).filter(|_| asks_sources) {
            return Some(Unresolved::Sources { count });
        }
        let of_singles = tally.needs_scale_of_singles(rules)?;
        let owner_of = |uid: &crate::basics::Uid| {
            let id = self.budget_id(&budget.fact.key)?;
            let pod = self
                .pods_of_controller(uid)
                .map(|pod| &self.pods[pod as usize])
                .filter(|record| record.members.iter().any(|member| member.budget == id))
                .map(|record| &record.fact)
                .min_by_key(|pod| pod.key.name.clone())?;
            Some((pod, pod.controller()?))
        };
        if let Some(uid) = tally.scales.missing(of_singles) {
            let (pod, owner) = owner_of(uid)?;
            return Some(Unresolved::Controller {
                pod: pod.key.name.clone(),
                kind: owner.kind.kind.clone(),
                name: owner.name.clone(),
            });
        }
        let (_, owner) = owner_of(tally.scales.scaleless(of_singles)?)?;
        Some(Unresolved::Scale { kind: owner.kind.kind.clone(), name: owner.name.clone() })
    }
}

fn denial(budget: &BudgetRecord, reason: DenialReason) -> Denial {
    Denial { budget: Some(budget.fact.key.clone()), reason }
}

fn no_effect(why: NoEffect, uid: Option<Uid>) -> Decision {
    Decision::Allow(Allow::NoEffect { why, uid })
}
