//! The check of one request against one budget, with its steps in order.

use crate::SafetyRule;
use crate::basics::Labels;
use crate::claims::{MAX_CLAIM_BYTES, MAX_CLAIMS, PROTOCOL};
use crate::decision::{AllowReason, DenialReason, Exhausted, Noun, Numbers, ProbeDoubt};
use crate::engine::{BudgetRecord, Engine, Membership, PodRecord, may_be_available};
use crate::facts::{Controller, Operation, Owner, Phase, Rules, UnhealthyPolicy};
use crate::ledger::ProtocolRule;
use crate::request::Request;
use crate::tally::{Unit, UnitSlot};

/// The check of one request against one budget.
pub(crate) struct BudgetReview<'a> {
    engine: &'a Engine,
    request: &'a Request,
    record: &'a PodRecord,
    member: &'a Membership,
    budget: &'a BudgetRecord,
    rules: &'a Rules,
}

impl<'a> BudgetReview<'a> {
    /// The check of a request for a pod against a budget that covers it.
    pub(crate) fn new(
        engine: &'a Engine,
        request: &'a Request,
        record: &'a PodRecord,
        member: &'a Membership,
        budget: &'a BudgetRecord,
    ) -> Self {
        Self { engine, request, record, member, budget, rules: &budget.rules }
    }

    /// Whether the budget allows the request.
    pub(crate) fn answer(&self) -> Result<AllowReason, DenialReason> {
        let operation = self.request.operation;
        if operation == Operation::Relabel && self.is_moved_by_controller() {
            return Ok(AllowReason::PassesBy);
        }
        if !self.engine.decides(self.budget, operation) {
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
        let available = self.member.slot != UnitSlot::Ungrouped && self.may_be_available(self.record);
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
                    if let Some(held) = self.held_down(unit, needs) {
                        // Nothing may come of the claims, and the agents may be alive, so the group is charged as if
                        // it were whole.
                        let numbers = self.numbers(held);
                        return match numbers.allowed {
                            0 => Err(self.exhausted(numbers, false)),
                            _ => Ok(AllowReason::Broken),
                        };
                    }
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
        if !self.budget.is_open() && !self.engine.is_without(ProtocolRule::ClosedDenies) {
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
            Some(_) if self.is_one_too_many() || SafetyRule::ProbesDecide.is_left_out() => Ok(()),
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

    /// Whether the pod is deleted by a Deployment with the strategy Recreate, or by the controller of its Job. They accept
    /// that all their pods are down.
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

    /// Whether a pod may be healthy, apart from claims.
    fn may_be_available(&self, record: &PodRecord) -> bool {
        may_be_available(record, self.rules.health, &self.engine.cluster, self.engine.now)
    }

    /// If only claims, or what is known of agents and nodes, keep a group from being whole: how many pods are missing for
    /// that.
    fn held_down(&self, unit: &Unit, needs: u32) -> Option<u32> {
        if self.engine.is_without(ProtocolRule::DecideGroupAfresh) {
            return None;
        }
        let is_available = |id: &&u32| self.may_be_available(&self.engine.pods[**id as usize]);
        let available = unit.members.iter().filter(is_available).count();
        (available >= needs as usize).then(|| needs - unit.healthy)
    }

    /// The numbers for this request, with `held` pods of its unit counted as healthy that claims hold.
    fn numbers(&self, held: u32) -> Numbers {
        let tally = &self.budget.tally;
        let mut numbers = match self.member.slot {
            UnitSlot::Pod => {
                let mut numbers = tally.numbers(self.rules);
                numbers.current += held;
                numbers
            }
            UnitSlot::Single => {
                let mut numbers = tally.single_numbers(self.rules);
                numbers.current += held;
                numbers
            }
            UnitSlot::Group(unit) => {
                let mut numbers = tally.numbers(self.rules);
                // A controller first deletes the groups that it has too many of.
                numbers.current = tally.current(unit, held, self.is_own_controller());
                numbers
            }
            UnitSlot::Ungrouped => tally.numbers(self.rules),
        };
        if self.is_own_controller() {
            // A workload that is scaled down, even to zero, or deleted must be able to remove its pods.
            let namespace = &self.budget.fact.key.object.namespace;
            let wanted = match self.member.slot {
                UnitSlot::Single => Some(tally.singles_wanted()),
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
    pub(crate) fn is_met_without(&self) -> bool {
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
        let (down, down_total) = self.engine.downs(self.budget, self.rules, slot, &self.record.fact.uid);
        let unit = match slot {
            UnitSlot::Group(unit) => {
                let tally = &self.budget.tally;
                tally.shown(&tally.units[unit as usize].name)
            }
            _ => self.record.fact.key.name.clone(),
        };
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
