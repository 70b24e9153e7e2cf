//! How many healthy units each budget has, counted from the API server's own objects and from what was admitted, and not
//! by the engine.
//!
//! A pod counts while it is ready, runs what its spec asks for, and nothing admitted is about to strike it: no token in
//! the budget, and no request whose answer is out. Whatever takes a pod out of the count for a request, a token that
//! is written or an answer that is given, must leave the budget what it asks for.
//!
//! Three things are no fault of a replica, and are checked only when a count is too low:
//! - a loss that just happened by itself cannot be known to a replica whose watch has not shown it;
//! - a unit that was down when it was looked at may heal before its free pass is written. That is harmless as long as
//!   no other request was admitted on its health since;
//! - what a budget does not protect against, it only takes note of. A unit that this takes down is down for others too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quorate_engine::basics::{Quantity, Text, Time, Uid, Version};
use quorate_engine::claims::Ledger;
use quorate_engine::facts::{
    Budget, BudgetKey, Covers, Link, Operation, Phase, Pod, Rules, UnhealthyPolicy, Units,
};

use super::apiserver::ARRIVES;
use super::plan::Plan;

/// The accounts of all budgets.
#[derive(Default)]
pub(crate) struct Truth {
    pub(crate) accounts: BTreeMap<BudgetKey, Account>,
    /// Pods that answers which are out may strike, and how.
    in_flight: BTreeMap<Uid, Vec<Operation>>,
    losses: BTreeMap<Uid, Loss>,
    /// What every watch had shown, and when.
    shown: VecDeque<(Time, Version)>,
}

/// A pod that stopped being healthy.
struct Loss {
    at: Version,
    /// What it was before.
    pod: Pod,
    /// What was done to it, if it was not by itself.
    cause: Option<Operation>,
}

/// The units of one budget.
pub(crate) struct Account {
    pub(crate) rules: Rules,
    pub(crate) open: bool,
    coverage: quorate_engine::Coverage,
    /// Since which generation it covers that.
    steady_since: i64,
    expected: u32,
    min_count: u32,
    seats: BTreeMap<Uid, Seat>,
    units: BTreeMap<UnitName, Unit>,
    held: BTreeSet<Uid>,
    /// When each process last took a unit out of the count.
    charges: BTreeMap<Text, Version>,
}

struct Seat {
    unit: UnitName,
    counts: bool,
    succeeded: bool,
}

/// Groups, or pods where pods are counted; pods without a group are counted apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitName {
    single: bool,
    name: Text,
}

#[derive(Clone, Default)]
struct Unit {
    pods: u32,
    healthy: u32,
    succeeded: u32,
    whole: bool,
    whole_since: Version,
}

/// The healthy units of a budget: groups or pods, and pods without a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HealthyCounts {
    pub(crate) units: u32,
    pub(crate) singles: u32,
}

/// A decision that took pods out of the count.
pub(crate) struct Deed<'a> {
    /// The process that decided.
    pub(crate) process: &'a Text,
    /// How far its pod watch had come when it did.
    pub(crate) seen: Version,
    /// The pods, what is to be done to each, and the revision at which that was asked for.
    pub(crate) pods: Vec<(Uid, Operation, Version)>,
}

impl Account {
    /// Whether the budget binds everybody: it was opened for what it covers, and has covered that ever since.
    fn is_open(&self, budget: &Budget) -> bool {
        let opened = budget.ledger.enforced_generation.unwrap_or_default();
        budget.ledger.enforced == Some(self.coverage) && opened >= self.steady_since
    }

    fn new(budget: &Budget, rules: &Rules, plan: &Plan) -> Self {
        Self {
            rules: rules.clone(),
            open: false,
            coverage: quorate_engine::Coverage::of(&budget.uid, rules),
            steady_since: budget.generation,
            expected: plan.expected(rules),
            min_count: plan.min_count(rules),
            seats: BTreeMap::new(),
            units: BTreeMap::new(),
            held: holds(&budget.ledger),
            charges: BTreeMap::new(),
        }
    }

    fn covers(&self, pod: &Pod) -> bool {
        match &self.rules.covers {
            Covers::Selector(selector) => selector.matches(&pod.labels),
            Covers::Target(..) => false,
        }
    }

    fn unit_of(&self, pod: &Pod) -> UnitName {
        let group = |name: &Text| UnitName { single: false, name: name.clone() };
        match (&self.rules.units, pod.link.as_deref()) {
            (Units::Pods, _) => group(&pod.uid),
            (Units::Workload, Some(Link::Replica { replica, .. })) => group(replica),
            (Units::Label { key, .. }, _) => match pod.labels.get(key) {
                Some(value) => group(&value.into()),
                None => UnitName { single: true, name: pod.uid.clone() },
            },
            _ => UnitName { single: true, name: pod.uid.clone() },
        }
    }

    /// Whether a pod counts as far as it can be seen. An update shows in its token, where one is asked for.
    fn is_healthy(&self, pod: &Pod) -> bool {
        is_up(pod) && (runs_what_it_should(pod) || !self.rules.operations.contains(Operation::Update))
    }

    fn needs(&self, unit: &UnitName) -> u32 {
        if unit.single { 1 } else { self.min_count }
    }

    /// What the budget asks for: units, and single pods.
    fn desired(&self, complete: u32) -> HealthyCounts {
        let expected = self.expected.saturating_sub(complete);
        let min = self.rules.min_available.map_or(0, |min| share(min, expected));
        let max = self.rules.max_unavailable.map_or(0, |max| expected.saturating_sub(share(max, expected)));
        // Plans give budgets with single pods a plain minimum.
        HealthyCounts { units: min.max(max), singles: min }
    }

    fn complete(&self) -> u32 {
        let groups = !matches!(self.rules.units, Units::Pods);
        let done = |unit: &&Unit| groups && unit.pods > 0 && unit.succeeded == unit.pods;
        self.units.iter().filter(|(name, _)| !name.single).map(|(_, unit)| unit).filter(done).count() as u32
    }

    pub(crate) fn healthy(&self) -> HealthyCounts {
        let of = |single: bool| {
            self.units.iter().filter(|(name, unit)| name.single == single && unit.whole).count() as u32
        };
        HealthyCounts { units: of(false), singles: of(true) }
    }

    pub(crate) fn wants(&self) -> HealthyCounts {
        self.desired(self.complete())
    }

    /// Whether a pod may be evicted when everything is known; `None` if the budget has no say.
    pub(crate) fn lets_go(&self, uid: &Uid) -> Option<bool> {
        let seat = self.seats.get(uid)?;
        let unit = self.units.get(&seat.unit)?;
        let (healthy, wants) = (self.healthy(), self.wants());
        let (current, desired) = match seat.unit.single {
            true => (healthy.singles, wants.singles),
            false => (healthy.units.min(self.expected_units()), wants.units),
        };
        if !seat.counts || !unit.whole {
            let always = self.rules.unhealthy == UnhealthyPolicy::AlwaysAllow;
            return Some(always || current >= desired);
        }
        Some(unit.healthy > self.needs(&seat.unit) || current > desired)
    }

    /// The pods that count, for those who want to compare.
    pub(crate) fn counting(&self) -> BTreeSet<Uid> {
        self.seats.iter().filter(|(_, seat)| seat.counts).map(|(uid, _)| uid.clone()).collect()
    }

    fn expected_units(&self) -> u32 {
        match self.rules.units {
            Units::Pods => u32::MAX,
            _ if self.rules.expected.is_none() && matches!(self.rules.units, Units::Label { .. }) => u32::MAX,
            _ => self.expected,
        }
    }

    fn seat(&mut self, pod: &Pod) {
        let unit = self.unit_of(pod);
        self.units.entry(unit.clone()).or_default().pods += 1;
        self.seats.insert(pod.uid.clone(), Seat { unit, counts: false, succeeded: false });
    }

    fn unseat(&mut self, uid: &Uid, at: Version) {
        let Some(seat) = self.seats.remove(uid) else { return };
        let Some(unit) = self.units.get_mut(&seat.unit) else { return };
        unit.pods -= 1;
        unit.healthy -= u32::from(seat.counts);
        unit.succeeded -= u32::from(seat.succeeded);
        if unit.pods == 0 {
            self.units.remove(&seat.unit);
        } else {
            self.weigh(&seat.unit, at);
        }
    }

    /// Takes a pod as it is now, with what is about to strike it.
    fn take(&mut self, pod: &Pod, in_flight: &[Operation], at: Version) {
        let healthy = self.is_healthy(pod);
        let struck = in_flight.iter().any(|operation| self.rules.operations.contains(*operation));
        let held = self.held.contains(&pod.uid) || struck;
        let counts = healthy && !held;
        let Some(seat) = self.seats.get_mut(&pod.uid) else { return };
        let Some(unit) = self.units.get_mut(&seat.unit) else { return };
        // A pod that succeeds because it was terminated has not done its work.
        let succeeded = pod.phase == Phase::Succeeded && (seat.succeeded || !pod.terminating);
        unit.healthy = unit.healthy + u32::from(counts) - u32::from(seat.counts);
        unit.succeeded = unit.succeeded + u32::from(succeeded) - u32::from(seat.succeeded);
        (seat.counts, seat.succeeded) = (counts, succeeded);
        let name = seat.unit.clone();
        self.weigh(&name, at);
    }

    fn weigh(&mut self, name: &UnitName, at: Version) {
        let needs = self.needs(name);
        let Some(unit) = self.units.get_mut(name) else { return };
        let whole = unit.healthy >= needs;
        if whole && !unit.whole {
            unit.whole_since = at;
        }
        unit.whole = whole;
    }
}

impl Truth {
    pub(crate) fn pod_made(&mut self, pod: &Pod) {
        for account in self.accounts.values_mut().filter(|account| account.covers(pod)) {
            account.seat(pod);
            account.take(pod, &[], pod.version);
        }
    }

    /// A pod changed, by itself or because of something that was admitted.
    pub(crate) fn pod_changed(&mut self, old: &Pod, new: &Pod, cause: Option<Operation>) {
        // A pod that was down already is no loss: the loss before it is what others may not have seen.
        let stops = !is_up(new) || (runs_what_it_should(old) && !runs_what_it_should(new));
        if is_up(old) && stops {
            let loss = Loss { at: new.version, pod: old.clone(), cause };
            self.losses.insert(new.uid.clone(), loss);
        }
        let in_flight = self.in_flight.get(&new.uid).map_or(&[][..], Vec::as_slice);
        self.accounts.values_mut().for_each(|account| account.take(new, in_flight, new.version));
    }

    pub(crate) fn pod_gone(&mut self, uid: &Uid, at: Version) {
        self.accounts.values_mut().for_each(|account| account.unseat(uid, at));
    }

    /// Losses that every watch has shown are known to every replica, once what was decided before that has arrived or
    /// never will.
    pub(crate) fn forget_losses(&mut self, seen_by_all: Version, now: Time) {
        self.shown.push_back((now, seen_by_all));
        while let Some((_, version)) = self.shown.pop_front_if(|(at, _)| now.since(*at) > ARRIVES) {
            self.losses.retain(|_, loss| loss.at > version);
        }
    }

    /// A budget is there, made or changed.
    pub(crate) fn budget_written<'a>(
        &mut self,
        budget: &Budget,
        plan: &Plan,
        pods: impl Iterator<Item = &'a Pod>,
    ) {
        let Ok(rules) = &budget.spec else { return };
        let mut account = Account::new(budget, rules, plan);
        if let Some(old) = self.accounts.remove(&budget.key) {
            if old.coverage == account.coverage {
                account.steady_since = old.steady_since;
            }
            account.charges = old.charges;
        }
        account.open = account.is_open(budget);
        for pod in pods.filter(|pod| account.covers(pod)).collect::<Vec<_>>() {
            account.seat(pod);
            account.take(pod, striking(&self.in_flight, &pod.uid), budget.version);
        }
        self.accounts.insert(budget.key.clone(), account);
    }

    pub(crate) fn budget_gone(&mut self, key: &BudgetKey) {
        self.accounts.remove(key);
    }

    /// The ledger of a budget was written. What was taken out of the count by that must leave enough.
    pub(crate) fn ledger_written(
        &mut self,
        budget: &Budget,
        pods: &BTreeMap<Uid, Pod>,
        deed: &Deed<'_>,
    ) -> Result<bool, String> {
        let Some(account) = self.accounts.get_mut(&budget.key) else { return Ok(false) };
        let before = account.healthy();
        let whole = account.whole_units();
        let held = holds(&budget.ledger);
        let touched: Vec<Uid> = account.held.symmetric_difference(&held).cloned().collect();
        account.held = held;
        for pod in touched.iter().filter_map(|uid| pods.get(uid)) {
            account.take(pod, striking(&self.in_flight, &pod.uid), budget.version);
        }
        account.open = account.is_open(budget);
        self.judge(&budget.key, (before, &whole), deed, budget.version)
    }

    /// An answer is out, or what it allowed has happened or never will.
    pub(crate) fn in_flight(
        &mut self,
        pod: Option<&Pod>,
        (uid, operation): (&Uid, Operation),
        out: bool,
        deed: &Deed<'_>,
        at: Version,
    ) -> Result<(), String> {
        let striking = self.in_flight.entry(uid.clone()).or_default();
        if out {
            striking.push(operation);
        } else if let Some(at) = striking.iter().position(|other| *other == operation) {
            striking.remove(at);
        }
        if striking.is_empty() {
            self.in_flight.remove(uid);
        }
        let Some(pod) = pod else { return Ok(()) };
        let keys: Vec<BudgetKey> = self
            .accounts
            .iter()
            .filter(|(_, a)| a.seats.contains_key(uid))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            let Some(account) = self.accounts.get_mut(&key) else { continue };
            let (before, whole) = (account.healthy(), account.whole_units());
            account.take(pod, self.in_flight.get(uid).map_or(&[], Vec::as_slice), at);
            if out {
                self.judge(&key, (before, &whole), deed, at)?;
            }
        }
        Ok(())
    }

    /// Whether a deed took units out of a budget's count; an error if it should not have.
    fn judge(
        &mut self,
        key: &BudgetKey,
        (before, whole): (HealthyCounts, &BTreeMap<UnitName, Version>),
        deed: &Deed<'_>,
        at: Version,
    ) -> Result<bool, String> {
        let Some(account) = self.accounts.get_mut(key) else { return Ok(false) };
        let after = account.healthy();
        if after.units >= before.units && after.singles >= before.singles {
            return Ok(false);
        }
        let charged: Vec<(UnitName, Version)> = whole
            .iter()
            .filter(|(name, _)| account.units.get(*name).is_none_or(|unit| !unit.whole))
            .map(|(name, since)| (name.clone(), *since))
            .collect();
        let decision = account.excuse(&charged, after, deed, &self.losses);
        account.charges.insert(deed.process.clone(), at);
        match decision {
            Ok(()) => Ok(true),
            Err(why) => Err(format!("{key}: {why}, by {}", deed.process)),
        }
    }
}

impl Account {
    fn whole_units(&self) -> BTreeMap<UnitName, Version> {
        let whole = self.units.iter().filter(|(_, unit)| unit.whole);
        whole.map(|(name, unit)| (name.clone(), unit.whole_since)).collect()
    }

    /// Whether units may be taken out of the count.
    fn excuse(
        &self,
        charged: &[(UnitName, Version)],
        after: HealthyCounts,
        deed: &Deed<'_>,
        losses: &BTreeMap<Uid, Loss>,
    ) -> Result<(), String> {
        let wants = self.wants();
        let enough = |healthy: HealthyCounts, single: bool| match single {
            true => healthy.singles >= wants.singles,
            false => healthy.units >= wants.units,
        };
        let fault = charged.iter().find(|(unit, whole_since)| {
            let strikes = || {
                let seat = |uid: &Uid| self.seats.get(uid).is_some_and(|seat| seat.unit == *unit);
                deed.pods.iter().filter(move |(uid, ..)| seat(uid))
            };
            let others = self.charges.iter().filter(|(process, _)| *process != deed.process);
            let built_on = others.map(|(_, at)| *at).max() > Some(*whole_since);
            // Those that the budget protects against, had they not been written along with the others.
            let protected = strikes()
                .filter(|(_, operation, _)| self.rules.operations.contains(*operation))
                .count() as u32;
            let healthy = self.units.get(unit).map_or(0, |unit| unit.healthy);
            let only_noted = protected == 0 || healthy + protected < self.needs(unit);
            let healed_since = strikes().all(|(.., asked)| whole_since > asked) && !built_on;
            !enough(after, unit.single) && !only_noted && !healed_since
        });
        let Some((unit, _)) = fault else { return Ok(()) };
        if !self.open || self.rules.observe {
            return Ok(());
        }
        // Enough is left as far as any replica could know, or the unit had a pod to spare.
        let (healthy, whole) = self.as_seen(deed.seen, losses);
        if enough(healthy, unit.single) || whole.contains(unit) {
            return Ok(());
        }
        Err(format!("{} taken, {after:?} left, {wants:?} wanted", unit.name))
    }

    /// The count if what was lost after `seen`, by itself or by what the budget does not protect against, were not.
    fn as_seen(&self, seen: Version, losses: &BTreeMap<Uid, Loss>) -> (HealthyCounts, BTreeSet<UnitName>) {
        let mut healthy: BTreeMap<UnitName, u32> = BTreeMap::new();
        for seat in self.seats.values().filter(|seat| seat.counts) {
            *healthy.entry(seat.unit.clone()).or_default() += 1;
        }
        for (uid, loss) in losses.iter().filter(|(_, loss)| loss.at > seen) {
            let counts = self.seats.get(uid).is_some_and(|seat| seat.counts);
            let forbidden = loss.cause.is_some_and(|operation| self.rules.operations.contains(operation));
            let was_healthy = self.covers(&loss.pod) && self.is_healthy(&loss.pod);
            if was_healthy && !forbidden && !counts && !self.held.contains(uid) {
                *healthy.entry(self.unit_of(&loss.pod)).or_default() += 1;
            }
        }
        let whole: BTreeSet<UnitName> =
            healthy.into_iter().filter(|(name, n)| *n >= self.needs(name)).map(|(name, _)| name).collect();
        let of = |single: bool| whole.iter().filter(|name| name.single == single).count() as u32;
        (HealthyCounts { units: of(false), singles: of(true) }, whole)
    }
}

/// Ready, and not on its way out.
fn is_up(pod: &Pod) -> bool {
    pod.ready && !pod.terminating && !pod.phase.is_terminal()
}

fn runs_what_it_should(pod: &Pod) -> bool {
    pod.containers.iter().all(|container| container.image == container.spec_image)
}

/// Whether a budget is open for the generation that it is in.
pub(crate) fn is_open(budget: &Budget) -> bool {
    let coverage = budget.spec.as_ref().ok().map(|rules| quorate_engine::Coverage::of(&budget.uid, rules));
    budget.ledger.enforced == coverage && budget.ledger.enforced_generation == Some(budget.generation)
}

fn striking<'a>(in_flight: &'a BTreeMap<Uid, Vec<Operation>>, uid: &Uid) -> &'a [Operation] {
    in_flight.get(uid).map_or(&[], Vec::as_slice)
}

fn holds(ledger: &Ledger) -> BTreeSet<Uid> {
    ledger.claims.iter().filter(|(_, claim)| !claim.tokens.is_empty()).map(|(uid, _)| uid.clone()).collect()
}

fn share(quantity: Quantity, whole: u32) -> u32 {
    match quantity {
        Quantity::Count(n) => n,
        Quantity::Percent(n) => (whole * n).div_ceil(100),
    }
}
