//! The decision on a request, with its checks in order.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::basics::{Text, Time, Uid};
use crate::budget_review::BudgetReview;
use crate::decision::{
    Allow, AllowReason, Decision, Denial, DenialReason, Down, Missing, NO_POD, NoEffect, Unhealthy,
    Unresolved,
};
use crate::engine::{BudgetRecord, Engine, Membership, PodRecord, why_unavailable};
use crate::facts::{BudgetKey, HealthRule, Operation, Phase, Pod, Rules, Units};
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
                let review = BudgetReview::new(self, request, record, member, budget);
                let needs_list = reason.needs_fresh_list() && !review.is_met_without();
                Ok(Passes { reason, needs_list, is_unlisted: self.mixes_times(reason, record, budget) })
            }
            None => Ok(Passes { reason: AllowReason::PassesBy, needs_list: false, is_unlisted: false }),
        }
    }

    /// Whether the answer adds a pod that was read to others that are known from an earlier time. They may never have been
    /// healthy at one time.
    fn mixes_times(&self, reason: AllowReason, record: &PodRecord, budget: &BudgetRecord) -> bool {
        matches!(reason, AllowReason::Charged | AllowReason::Surplus) && self.is_ahead(record, budget)
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
        match BudgetReview::new(self, request, record, member, budget).answer() {
            Err(_) if budget.rules.observe => Ok(AllowReason::Observed),
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

    /// The first few pods or units that are down in a budget, and their total number. A request does not wait for its own
    /// unit, so that one is left out, even if an earlier request holds it.
    pub(crate) fn downs(
        &self,
        budget: &BudgetRecord,
        rules: &Rules,
        slot: UnitSlot,
        requested: &Uid,
    ) -> (Vec<Down>, usize) {
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
        // Before the names are sorted and counted: the unit may not be among the first.
        let others = |ids: &BTreeSet<u32>, own: Option<u32>| {
            let first: Vec<u32> =
                ids.iter().copied().filter(|id| Some(*id) != own).take(MOST_SORTED).collect();
            (first, ids.len() - usize::from(own.is_some_and(|own| ids.contains(&own))))
        };
        let of_pods = |ids: &BTreeSet<u32>| {
            let (mut first, total) = others(ids, self.pod_id(requested));
            first.sort_by(|a, b| natural(self.pod_name(*a), self.pod_name(*b)));
            (first.iter().take(NAMED).map(of_pod).collect(), total)
        };
        match slot {
            UnitSlot::Pod => of_pods(&tally.down),
            UnitSlot::Single => of_pods(&tally.singles_down),
            UnitSlot::Group(_) | UnitSlot::Ungrouped => {
                let own = match slot {
                    UnitSlot::Group(unit) => Some(unit),
                    _ => None,
                };
                let (first, total) = others(&tally.down, own);
                let mut units: Vec<&Unit> = first.iter().map(|id| &tally.units[*id as usize]).collect();
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
                (down, total + tally.gone.len())
            }
        }
    }

    fn pod_name(&self, id: u32) -> &str {
        &self.pods[id as usize].fact.key.name
    }

    fn missing(&self, record: &PodRecord, budget: &BudgetRecord, health: HealthRule) -> Option<Missing> {
        let held = budget.ledger().holds(&record.fact.uid).then_some(Unhealthy::Held);
        let ahead = record.ahead.then_some(Unhealthy::Ahead);
        let why = why_unavailable(record, health, &self.cluster, self.now).or(held).or(ahead)?;
        let since = match why {
            Unhealthy::NotReady | Unhealthy::Ended => record.fact.ready_since,
            Unhealthy::NotDisruptable => record.fact.probe.as_ref().and_then(|probe| probe.since),
            Unhealthy::Held => budget
                .ledger()
                .claims
                .get(&record.fact.uid)
                .and_then(|claim| claim.tokens.values().map(|token| token.at).min()),
            Unhealthy::Terminating | Unhealthy::Inconsistent | Unhealthy::Ahead => None,
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
    /// The pod itself was read, and no list shows it yet in that state: the pods must be listed again.
    pub(crate) is_unlisted: bool,
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
        if asks_sources && let Some(source) = tally.unread_source(|kind| self.ages.is_read(kind)) {
            return Some(Unresolved::Unread { kind: source.kind.clone(), name: source.name.clone() });
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
