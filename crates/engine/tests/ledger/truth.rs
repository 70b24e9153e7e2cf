//! What must never happen, judged by the API server's own objects.
//!
//! For each open budget there is a floor: the healthy units it must keep, or what there was when it was opened if that
//! was less. Nothing that is admitted may bring a budget below its floor.
//!
//! See `docs/ledger.md#invariants`.

use std::collections::{BTreeMap, BTreeSet};

use quorate_engine::basics::{Quantity, Uid};
use quorate_engine::claims::Token;
use quorate_engine::facts::{Budget, BudgetKey, Covers, Pod, Rules, Units};

use super::world::{Change, Journey, Part, RequestState, World, relabelled, shown_image};

/// The floors of the open budgets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Floors {
    floors: BTreeMap<BudgetKey, Floor>,
    /// A pod that was healthy all the time was let go although the budget had no room.
    uncharged: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Floor {
    units: u32,
    /// Requests that were under way when the numbers changed: they may have been claimed by the old ones.
    excused: BTreeSet<usize>,
}

impl Floors {
    pub(crate) fn drop(&mut self, key: &BudgetKey) {
        self.floors.remove(key);
    }
}

impl World {
    /// A budget was opened: from now on it binds everybody.
    pub(crate) fn note_open(&mut self, key: &BudgetKey) {
        let Some(budget) = self.budgets.get(key) else { return };
        let units = self.desired(budget).min(self.healthy_units(budget));
        // Their claims were written under the rules of before, and they are answered later.
        let claimed = |journey: &Journey| {
            let pod = self.pod_named(&journey.pod);
            matches!(journey.stage, RequestState::Asked(_))
                && pod.is_some_and(|pod| budget.ledger.claims.contains_key(&pod.uid))
        };
        let requests = self.requests.iter().enumerate();
        let excused = requests.filter(|(_, journey)| claimed(journey)).map(|(request, _)| request).collect();
        let floor = Floor { units, excused };
        self.floors.change(|floors| floors.floors.insert(key.clone(), floor));
    }

    /// A budget's rules were changed.
    pub(crate) fn note_change(&mut self, key: &BudgetKey) {
        let Some(budget) = self.budgets.get(key) else { return };
        if !self.is_open(budget) {
            self.floors.change(|floors| floors.drop(key));
            return;
        }
        let units = self.desired(budget).min(self.healthy_units(budget));
        let excused = self
            .requests
            .iter()
            .enumerate()
            .filter(|(_, journey)| matches!(journey.stage, RequestState::Asked(_)))
            .map(|(request, _)| request)
            .collect();
        self.floors.change(|floors| floors.floors.insert(key.clone(), Floor { units, excused }));
    }

    /// A pod was lost. What is under way may have been decided while it was there.
    pub(crate) fn note_lost(&mut self) {
        let keys: Vec<BudgetKey> = self.budgets.keys().cloned().collect();
        keys.iter().for_each(|key| self.note_change(key));
        for request in 0..self.requests.len() {
            if matches!(self.requests[request].stage, RequestState::Asked(_)) {
                self.request(request, |journey| journey.bound = Vec::new());
            }
        }
    }

    /// A request was sent: every budget binds it that is open now, if the unit of the pod is whole.
    pub(crate) fn note_sent(&mut self, request: usize) {
        let bound = self
            .budgets
            .values()
            .filter(|budget| self.is_open(budget) && self.is_unit_whole(budget, request))
            .map(|budget| (budget.key.clone(), self.edition(budget)))
            .collect();
        let pod = self.pod_named(&self.requests[request].pod).filter(|pod| is_healthy(pod));
        let healthy = pod.map(|pod| pod.uid.clone());
        self.request(request, |journey| {
            journey.bound = bound;
            journey.healthy = healthy;
        });
    }

    /// How often the rules of a budget have changed.
    fn edition(&self, budget: &Budget) -> i64 {
        budget.generation + self.annotated.unwrap_or_default()
    }

    /// A request is over: whether it was excused does not matter any more.
    pub(crate) fn forgive(&mut self, request: usize) {
        if self.floors.floors.values().any(|floor| floor.excused.contains(&request)) {
            self.floors.change(|floors| {
                for floor in floors.floors.values_mut() {
                    floor.excused.remove(&request);
                }
            });
        }
    }

    /// Whether the unit of the pod that a request is about has all that it needs, and nothing else that was admitted is
    /// about to strike it. A pod that is a unit of its own is looked at by itself.
    fn is_unit_whole(&self, budget: &Budget, request: usize) -> bool {
        let Ok(rules) = &budget.spec else { return false };
        let Units::Label { key, min_ready } = &rules.units else { return true };
        let Some(pod) = self.pod_named(&self.requests[request].pod) else { return false };
        let others = self.requests.iter().enumerate().filter(|(other, _)| *other != request);
        let healthy = self.healthy(rules, others.map(|(_, journey)| journey));
        let group = pod.labels.get(key);
        let count = healthy.iter().filter(|pod| pod.labels.get(key) == group).count() as u32;
        group.is_some() && count >= min_ready.unwrap_or(1)
    }

    /// A request was admitted. If its pod was healthy all the while, every budget that bound it must have had room.
    pub(crate) fn note_admitted(&mut self, request: usize) {
        let journey = self.requests[request].clone();
        self.request(request, |journey| {
            journey.bound = Vec::new();
            journey.healthy = None;
        });
        let (RequestState::Admitted(uid), Some(healthy)) = (&journey.stage, &journey.healthy) else { return };
        let Some(pod) = self.pods.get(uid).filter(|pod| uid == healthy && is_healthy(pod)) else { return };
        for (key, edition) in &journey.bound {
            let is_same = |budget: &&Part<Budget>| self.edition(budget) == *edition;
            let Some(budget) = self.budgets.get(key).filter(is_same) else { continue };
            let Ok(rules) = &budget.spec else { continue };
            let asked = covers(rules, pod)
                && rules.operations.contains(journey.operation)
                && journey.leaves(rules, pod);
            let disturbed = self.is_disturbed(rules);
            if asked
                && self.is_unit_whole(budget, request)
                && !disturbed
                && self.is_open(budget)
                && self.healthy_units(budget) < self.desired(budget)
            {
                let uncharged = format!("{uid} was let go without room in {key}");
                self.floors.change(|floors| floors.uncharged = Some(uncharged));
                return;
            }
        }
    }

    /// Whether something was admitted that the budget does not decide: it may take the room of what was charged before.
    fn is_disturbed(&self, rules: &Rules) -> bool {
        self.requests.iter().any(|journey| {
            matches!(journey.stage, RequestState::Admitted(_) | RequestState::Over)
                && !rules.operations.contains(journey.operation)
        })
    }

    /// Lowers floors by what may lower them: requests that were excused, or that the budget does not look at.
    pub(crate) fn keep_floors(&mut self) {
        let lowered: Vec<(BudgetKey, u32)> = self
            .floors
            .floors
            .iter()
            .filter_map(|(key, floor)| {
                let budget = self.budgets.get(key)?;
                let rules = budget.spec.as_ref().ok()?;
                let excused = self.requests.iter().enumerate().any(|(request, journey)| {
                    matches!(journey.stage, RequestState::Admitted(_)) && floor.excused.contains(&request)
                });
                let forgiven = excused || self.is_disturbed(rules);
                let healthy_units = self.healthy_units(budget);
                (forgiven && healthy_units < floor.units).then(|| (key.clone(), healthy_units))
            })
            .collect();
        for (key, units) in lowered {
            self.floors.change(|floors| {
                if let Some(floor) = floors.floors.get_mut(&key) {
                    floor.units = units;
                }
            });
        }
    }

    /// The budgets that have fewer healthy units than their floor.
    pub(crate) fn broken(&self) -> Vec<String> {
        self.floors
            .floors
            .iter()
            .filter_map(|(key, floor)| {
                let healthy_units = self.healthy_units(self.budgets.get(key)?);
                (healthy_units < floor.units)
                    .then(|| format!("{key} has {healthy_units} healthy, floor {}", floor.units))
            })
            .chain(self.floors.uncharged.iter().cloned())
            .collect()
    }

    fn desired(&self, budget: &Budget) -> u32 {
        let Ok(rules) = &budget.spec else { return 0 };
        match (rules.min_available, rules.max_unavailable, self.scale) {
            (Some(Quantity::Count(n)), _, _) => n,
            (None, Some(Quantity::Count(n)), Some(scale)) => scale.binding.saturating_sub(n),
            _ => 0,
        }
    }

    /// The healthy units of a budget, those left out that something admitted is about to strike.
    fn healthy_units(&self, budget: &Budget) -> u32 {
        let Ok(rules) = &budget.spec else { return 0 };
        let healthy = self.healthy(rules, self.requests.iter());
        match &rules.units {
            Units::Label { key, min_ready } => {
                let mut groups: BTreeMap<&str, u32> = BTreeMap::new();
                for pod in healthy {
                    if let Some(group) = pod.labels.get(key) {
                        *groups.entry(group).or_default() += 1;
                    }
                }
                groups.values().filter(|n| **n >= min_ready.unwrap_or(1)).count() as u32
            }
            _ => healthy.len() as u32,
        }
    }

    /// The healthy pods of a budget, those left out that one of these requests is about to strike.
    fn healthy<'a>(
        &'a self,
        rules: &Rules,
        requests: impl Iterator<Item = &'a Journey>,
    ) -> Vec<&'a Part<Pod>> {
        let doomed: BTreeSet<&Uid> = requests
            .filter_map(|journey| match &journey.stage {
                RequestState::Admitted(uid) => {
                    let leaves = self.pods.get(uid).is_none_or(|pod| journey.leaves(rules, pod));
                    Some(uid).filter(|uid| leaves && self.may_strike(journey, uid))
                }
                _ => None,
            })
            .collect();
        let counts = |pod: &&Part<Pod>| covers(rules, pod) && is_healthy(pod) && !doomed.contains(&pod.uid);
        self.pods.values().filter(counts).collect()
    }

    /// Whether what was admitted can still happen: an update of a pod that has changed since is a conflict.
    fn may_strike(&self, journey: &Journey, uid: &Uid) -> bool {
        let version = self.pods.get(uid).map(|pod| pod.version);
        journey.operation.removes() || version == journey.base
    }

    /// Updates that the pods have moved on without, and that are still counted.
    pub(crate) fn lingering(&self) -> usize {
        let claims = self.budgets.values().flat_map(|budget| &budget.ledger.claims);
        let lingers = |pod: &Pod, token: &Token| !token.operation.removes() && token.target.is_replaced(pod);
        claims
            .filter_map(|(uid, claim)| Some((self.pods.get(uid)?, claim)))
            .map(|(pod, claim)| claim.tokens.values().filter(|token| lingers(pod, token)).count())
            .sum()
    }

    /// Budgets that need pods which the store does not have: nothing is decided under them.
    pub(crate) fn blocked(&self) -> usize {
        self.budgets.values().filter(|budget| budget.ledger.settled > self.pods_version()).count()
    }

    /// Budgets that a replica knows and that are not stored: it denies what nothing protects.
    pub(crate) fn unstored(&self) -> usize {
        let minds = self.nodes.iter().filter_map(|node| node.mind.as_ref());
        let known = minds.flat_map(|mind| mind.replica.engine().budgets());
        known.filter(|budget| !self.budgets.contains_key(&budget.key)).count()
    }

    /// Claims that are never removed.
    pub(crate) fn leftovers(&self) -> usize {
        self.budgets.values().map(|budget| budget.ledger.claims.len()).sum()
    }
}

impl Journey {
    /// Whether the pod leaves a budget or a group of it by the request. What is no relabel takes the pod away.
    fn leaves(&self, rules: &Rules, pod: &Pod) -> bool {
        let Change::Label(key, value) = self.change else { return true };
        let before = Pod::clone(pod);
        let after = Pod { labels: relabelled(&pod.labels, key, value), ..before };
        let group = |pod: &Pod| match &rules.units {
            Units::Label { key, .. } => pod.labels.get(key).map(str::to_owned),
            _ => None,
        };
        !covers(rules, &after) || group(&after) != group(pod)
    }
}

fn is_healthy(pod: &Pod) -> bool {
    pod.ready
        && !pod.terminating
        && !pod.announced
        && pod.containers.iter().all(|container| container.image == shown_image(container))
}

fn covers(rules: &Rules, pod: &Pod) -> bool {
    match &rules.covers {
        Covers::Selector(selector) => selector.matches(&pod.labels),
        Covers::Target(..) => false,
    }
}
