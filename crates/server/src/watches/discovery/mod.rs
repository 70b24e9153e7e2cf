//! Kinds that not every cluster has: finds them, watches them while they are served, and drops them when they are
//! certainly gone.
//!
//! CustomResourceDefinitions are watched, because they show at once which kinds are added and removed. Discovery is
//! also repeated from time to time, because not every kind has a definition.
//!
//! A kind that cannot be read is not a kind that is gone. An API server that has just started answers 403 before it
//! knows all permissions, and its discovery may omit groups. So the objects of a kind stay until discovery has omitted
//! the kind several times, over at least a minute, and a read of the kind fails with 403 or 404. Then all other kinds
//! are listed again, and only then are its objects dropped.

mod catalog;
mod slot;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::{Client, Error};
use quorate_api::budget::StoredBudget;
use quorate_api::slim;
use quorate_engine::SafetyRule;
use quorate_engine::basics::GroupKind;
use quorate_engine::facts::{BudgetKind, WorkloadSource};
use quorate_engine::ledger::Event;
use quorate_intake::objects;
use quorate_kit::Plain;
use quorate_kit::backoff::Backoff;
use quorate_kit::watch::{Failing, Health, WatchSource, Why};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::initial_sync::{InitialSync, PendingList};
use super::references::References;
use super::scope::{SyncTimeout, WatchScope};
use super::{forward, translate};
use crate::actor::ReplicaHandle;
use crate::kruise::ServedHere;
use crate::raw_budgets::RawBudgets;
use catalog::{Catalog, Definitions, Found, Served};
use slot::{OURS, REFUSED, Slot};

/// Interval of discovery if nothing seems to have changed.
const POLL: Duration = Duration::from_secs(30);

/// Delay before discovery: changes come in bursts.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// When to repeat discovery after a definition has changed: by the last one, the API server has followed the change.
const FOLLOW_UPS: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(6)];

/// A kind is gone when discovery has omitted it this many times, over at least this time.
const ABSENT: (u32, Duration) = (3, Duration::from_secs(60));

/// Timeout for the lists of all other kinds before a kind is dropped. After a timeout, the next round retries.
const RELIST_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the initial sync waits for the webhooks of OpenKruise.
const UNKNOWN_SERVER: &str = "cannot find out whether OpenKruise serves PodUnavailableBudgets: this server needs to read \
    ValidatingWebhookConfigurations, unless --serve-pub is always or never";

/// Why the initial sync waits for definitions.
const UNKNOWN_KIND: &str = "cannot find out whether there are PodUnavailableBudgets: discovery does not show the kind, and \
    this server needs to read CustomResourceDefinitions, unless --serve-pub is never";

/// A running watch.
struct Watched {
    /// The resource, and for a referred kind with a scale, the path of its replicas.
    at: (Served, Option<slim::ReplicasPath>),
    health: Health,
    /// An earlier watch of this kind has listed objects.
    known: bool,
    task: AbortOnDropHandle<()>,
}

impl Watched {
    fn is_known(&self) -> bool {
        self.known || self.health.progress().last_received.is_some()
    }
}

/// How often discovery has omitted a kind, and since when.
struct Absence {
    times: u32,
    since: Instant,
}

pub(super) struct Discovery {
    client: Client,
    scope: WatchScope,
    replica: ReplicaHandle,
    references: Arc<References>,
    /// The referred kinds of the last round.
    referred: BTreeSet<GroupKind>,
    definitions: Arc<Definitions>,
    initial_sync: InitialSync,
    raw_budgets: Arc<RawBudgets>,
    /// Whether this process serves OpenKruise's budgets.
    kruise: ServedHere,
    watched: BTreeMap<Slot, Watched>,
    /// Kinds that discovery omits.
    absent: BTreeMap<Slot, Absence>,
    /// Kinds for which the last round could not find out whether they are served.
    undetermined: BTreeSet<Slot>,
}

impl Discovery {
    pub(super) fn new(
        client: Client,
        scope: WatchScope,
        replica: ReplicaHandle,
        references: Arc<References>,
        initial_sync: InitialSync,
        raw_budgets: Arc<RawBudgets>,
        kruise: ServedHere,
    ) -> Self {
        Self {
            client,
            scope,
            replica,
            references,
            referred: BTreeSet::new(),
            definitions: Arc::default(),
            initial_sync,
            raw_budgets,
            kruise,
            watched: BTreeMap::new(),
            absent: BTreeMap::new(),
            undetermined: BTreeSet::new(),
        }
    }

    /// Finds and watches kinds; never returns. The pending list is dropped once every kind that is served now has been
    /// listed or cannot be read; kinds of budgets must have been listed. A kind that comes later does not delay the initial
    /// sync, but the list of all budgets that follows it.
    pub(super) async fn run(mut self, pending_list: PendingList) {
        let (_definitions, defined) = self.watch_definitions();
        let mut kruise = self.kruise.clone();
        let early = tokio::select! {
            // This fails when the sender is gone, and then the last value holds.
            _ = kruise.wait_for(Option::is_some) => true,
            () = self.initial_sync.wait_until_at_most(1) => false,
        };
        if early {
            self.round_until_done().await;
        }
        // The referred kinds are known once pods, controllers and budgets are listed. And when these can be read, the
        // API server knows the permissions of this process.
        self.initial_sync.wait_until_at_most(1).await;
        let timeout = self.scope.sync_timeout(OURS);
        if let Err(failing) = first_list(&defined, timeout).await {
            warn!(why = %failing.why, "cannot read CustomResourceDefinitions: changes are noticed late");
        }
        self.await_served(&mut kruise).await;
        self.round_until_determined().await;
        self.settle().await;
        self.round_until_determined().await;
        self.settle().await;
        drop(pending_list);
        let mut due: VecDeque<Instant> = VecDeque::new();
        loop {
            let next = due.pop_front().unwrap_or_else(|| Instant::now() + POLL);
            tokio::select! {
                () = self.scope.round_wanted() => {
                    due.push_front(next);
                    self.round_until_determined().await;
                    self.scope.round_done();
                    continue;
                }
                () = tokio::time::sleep_until(next) => {}
                () = self.definitions.changed.notified() => {
                    due = FOLLOW_UPS.iter().map(|after| Instant::now() + *after).collect();
                }
                () = self.references.changed.notified() => {
                    due.push_front(next);
                    // Most changes come from another namespace that refers to the same kinds, or from one without a
                    // budget.
                    if self.references.kinds() == self.referred {
                        continue;
                    }
                }
                Ok(()) = self.kruise.changed() => due.push_front(next),
            }
            tokio::time::sleep(DEBOUNCE).await;
            self.round_until_done().await;
        }
    }

    /// Waits until it is known whether this process serves OpenKruise's budgets, without a limit: other servers may report
    /// them as enforced.
    async fn await_served(&self, kruise: &mut ServedHere) {
        self.scope.set_awaited(Some(UNKNOWN_SERVER));
        let known = async {
            if kruise.wait_for(Option::is_some).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::pin!(known);
        if tokio::time::timeout(REFUSED, &mut known).await.is_err() {
            warn!("{UNKNOWN_SERVER}");
            known.await;
        }
        self.scope.set_awaited(None);
    }

    fn watch_definitions(&self) -> (AbortOnDropHandle<()>, Health) {
        let definitions = self.definitions.clone();
        let health = self.scope.health(&GroupKind::new("apiextensions.k8s.io", "CustomResourceDefinition"));
        let source = WatchSource::<slim::CustomResourceDefinition>::all(self.client.clone());
        let source = source.reporting_to(health.clone());
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            quorate_kit::watch::run(source, |event| {
                definitions.take(&event);
                std::future::ready(())
            })
            .await;
        }));
        (task, health)
    }

    async fn round_until_done(&mut self) {
        let mut backoff = Backoff::new(Duration::from_millis(200), POLL);
        while let Err(error) = self.round().await {
            let wait = backoff.failed();
            warn!(error = %Plain(&error), ?wait, "cannot discover the served kinds");
            tokio::time::sleep(wait).await;
        }
    }

    /// Repeats discovery until it is known for every kind whether it is served, or the timeout is over.
    async fn round_until_determined(&mut self) {
        let began = Instant::now();
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            self.round_until_done().await;
            self.report_unknown_budgets();
            let is_waited_for = |slot: &Slot| {
                let limit = self.scope.sync_timeout(slot.sync_timeout()).refused;
                limit.is_none_or(|limit| began.elapsed() < limit)
            };
            if !self.undetermined.iter().any(is_waited_for) {
                return;
            }
            tokio::time::sleep(backoff.failed()).await;
        }
    }

    /// Reports that it is not known whether there are budgets of a kind, if a server waits for that.
    fn report_unknown_budgets(&self) {
        let slot = Slot::UnavailableBudgets;
        let waits = self.scope.sync_timeout(slot.sync_timeout()).refused.is_none();
        let is_unknown = waits && self.undetermined.contains(&slot);
        if is_unknown && self.scope.awaited().is_none() {
            warn!("{UNKNOWN_KIND}");
        }
        self.scope.set_awaited(is_unknown.then_some(UNKNOWN_KIND));
    }

    /// Waits until every watched kind has been listed, or cannot be read.
    async fn settle(&self) {
        let waits = self.watched.iter().map(|(slot, watched)| async {
            let timeout = self.scope.sync_timeout(slot.sync_timeout());
            let Err(Failing { why, .. }) = first_list(&watched.health, timeout).await else { return };
            warn!(kind = %slot.kind().kind, %why, "cannot read a kind: what depends on it is unknown");
            if matches!(why, Why::Forbidden(_)) {
                self.scope.refuse(&watched.at.0.resource);
            }
        });
        futures::future::join_all(waits).await;
    }

    /// Runs discovery, and starts and stops watches. A kind whose state is unknown stays as it is.
    async fn round(&mut self) -> Result<(), Error> {
        self.referred = self.references.kinds();
        let referred = self.referred.iter().cloned().map(Slot::Referred);
        let kruise = (*self.kruise.borrow_and_update() == Some(true)).then_some(Slot::UnavailableBudgets);
        let wanted: BTreeSet<Slot> = Slot::always().chain(kruise).chain(referred).collect();
        let groups = wanted.iter().map(|slot| slot.kind().group.to_string()).collect();
        let catalog = Catalog::discover(&self.client, &groups).await?;
        self.undetermined.clear();
        self.absent.retain(|slot, _| wanted.contains(slot));
        let idle: Vec<Slot> = self.watched.keys().filter(|slot| !wanted.contains(slot)).cloned().collect();
        for slot in idle {
            let why = match slot {
                Slot::UnavailableBudgets => "Quorate does not serve them",
                _ => "no budget needs it any more",
            };
            self.stop(&slot, why).await;
        }
        for slot in wanted {
            match catalog.find(&slot.kind(), slot.versions()) {
                Found::Unknown => drop(self.undetermined.insert(slot)),
                // A definition serves the kind, or may serve it: discovery is behind.
                Found::Nowhere
                    if !SafetyRule::PartialDiscoveryIsNotAbsence.is_left_out() && self.may_exist(&slot) =>
                {
                    self.undetermined.insert(slot);
                }
                Found::Nowhere => self.missed(slot).await,
                Found::Served(_)
                    if SafetyRule::ForbiddenIsNotAbsence.is_left_out() && self.is_forbidden(&slot) =>
                {
                    self.stop(&slot, "it is forbidden").await;
                }
                Found::Served(served) => {
                    self.absent.remove(&slot);
                    self.watch(slot, served).await;
                }
            }
        }
        Ok(())
    }

    /// Whether a kind that discovery omits may exist all the same, as far as definitions say. Without definitions, only
    /// budgets are presumed to exist: what depends on any other kind is unknown.
    fn may_exist(&self, slot: &Slot) -> bool {
        let is_unknown = *slot == Slot::UnavailableBudgets && !self.definitions.are_listed();
        is_unknown || self.definitions.serve(&slot.kind(), slot.versions())
    }

    /// Whether the API server forbids to read a watched kind.
    fn is_forbidden(&self, slot: &Slot) -> bool {
        let failing = self.watched.get(slot).and_then(|watched| watched.health.progress().failing);
        failing.is_some_and(|failing| matches!(failing.why, Why::Forbidden(_)))
    }

    /// Handles a kind that discovery omits. It is dropped once it has been omitted for long enough.
    async fn missed(&mut self, slot: Slot) {
        let Some(watched) = self.watched.get(&slot) else {
            self.missed_unwatched(slot).await;
            return;
        };
        // A kind that was never read has no objects to lose, unless a budget remembers some.
        let has_objects = watched.is_known() || self.references.is_named(&slot.kind());
        if !has_objects || SafetyRule::PartialDiscoveryIsNotAbsence.is_left_out() {
            self.stop(&slot, "the API server does not serve it any more").await;
            return;
        }
        // A kind that can be read is served, even if discovery omits it. Without an answer, its state is unknown.
        if !watched.health.progress().failing.is_some_and(|failing| failing.why.is_refusal()) {
            self.absent.remove(&slot);
            return;
        }
        if !self.is_absent(&slot) {
            return;
        }
        // Budgets that depend on the kind deny until it is dropped, or can be read again.
        self.replica.send(Event::Doubted(slot.kind())).await;
        let others = self.scope.others(&slot.kind());
        let listed = futures::future::join_all(others.iter().map(Health::list_again));
        if tokio::time::timeout(RELIST_TIMEOUT, listed).await.is_err() {
            warn!(kind = %slot.kind().kind, "kept a kind that is not served any more: cannot list all other kinds");
            return;
        }
        self.absent.remove(&slot);
        self.stop(&slot, "the API server does not serve it any more").await;
    }

    /// Handles a kind that discovery omits and that was not watched. A budget may remember an object of it from before this
    /// process started: once the kind is certainly not served, it has no objects.
    async fn missed_unwatched(&mut self, slot: Slot) {
        if slot != Slot::UnavailableBudgets && self.references.is_named(&slot.kind()) && self.is_absent(&slot)
        {
            self.absent.remove(&slot);
            self.replica.send(slot.nothing()).await;
        }
    }

    /// Counts that discovery omits a kind. Returns whether it has done so often enough, and for long enough.
    fn is_absent(&mut self, slot: &Slot) -> bool {
        let absence = self.absent.entry(slot.clone()).or_insert(Absence { times: 0, since: Instant::now() });
        absence.times += 1;
        let (times, lasts) = ABSENT;
        absence.times >= times && absence.since.elapsed() >= lasts
    }

    async fn watch(&mut self, slot: Slot, served: Served) {
        let scale = match &slot {
            Slot::Referred(kind) => {
                served.scales.then(|| self.definitions.path(kind, &served.resource.version))
            }
            _ => None,
        };
        let at = (served, scale);
        if self.watched.get(&slot).is_some_and(|watched| watched.at == at) {
            return;
        }
        // The same objects are listed again in another version, so nothing is dropped in between.
        let mut known = false;
        if let Some(before) = self.watched.remove(&slot) {
            known = before.is_known();
            end(before.task).await;
        }
        info!(kind = at.0.resource.kind, version = at.0.resource.api_version, "watching");
        let health = self.scope.health(&slot.kind());
        let task = self.watching(slot.clone(), &at, health.clone());
        let task = AbortOnDropHandle::new(tokio::spawn(task));
        self.watched.insert(slot, Watched { at, health, known, task });
    }

    /// The task of a watch.
    fn watching(
        &self,
        slot: Slot,
        (served, scale): &(Served, Option<slim::ReplicasPath>),
        health: Health,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (client, scope, replica) = (self.client.clone(), self.scope.clone(), self.replica.clone());
        let (references, resource) = (self.references.clone(), served.resource.clone());
        let (scale, raw_budgets) = (scale.clone(), self.raw_budgets.clone());
        async move {
            match &slot {
                Slot::PodGroups => {
                    let source = scope.found::<slim::PodGroup>(&client, &resource);
                    let source = source.read_by(translate::reading(objects::pod_group));
                    let translate = translate::pod_groups(slot.kind(), &references);
                    forward(slot.kind(), source.reporting_to(health), replica, None, translate).await;
                }
                Slot::UpstreamWorkloads => {
                    let source = scope.found::<slim::Workload>(&client, &resource);
                    let source = source.read_by(translate::reading(objects::upstream_workload));
                    let translate = translate::workloads(WorkloadSource::Upstream, slot.kind(), &references);
                    forward(slot.kind(), source.reporting_to(health), replica, None, translate).await;
                }
                Slot::OwnWorkloads => {
                    let source = scope.found::<slim::OwnWorkload>(&client, &resource);
                    let read = |own: &slim::OwnWorkload| objects::own_workload(&own.metadata, &own.spec);
                    let source = source.read_by(translate::reading(read));
                    let translate = translate::workloads(WorkloadSource::Own, slot.kind(), &references);
                    forward(slot.kind(), source.reporting_to(health), replica, None, translate).await;
                }
                Slot::UnavailableBudgets => {
                    let source = scope.found::<StoredBudget>(&client, &resource);
                    let kind = BudgetKind::PodUnavailableBudget;
                    let translate =
                        move |event| translate::budgets(kind, event, &raw_budgets, &references, None);
                    forward(slot.kind(), source.reporting_to(health), replica, None, translate).await;
                }
                Slot::Groups(_) | Slot::Referred(_) => {
                    let kind = slot.kind();
                    let read_as = kind.clone();
                    let source = scope.found::<serde::de::IgnoredAny>(&client, &resource);
                    let source =
                        source.read_by(move |text| objects::any_controller(&read_as, text, scale.as_ref()));
                    let translate = translate::controllers(kind, &references);
                    forward(slot.kind(), source.reporting_to(health), replica, None, translate).await;
                }
            }
        }
    }

    async fn stop(&mut self, slot: &Slot, why: &str) {
        let Some(Watched { task, .. }) = self.watched.remove(slot) else { return };
        // The watch ends first, so that it cannot send anything after the empty list.
        end(task).await;
        self.scope.unwatched(&slot.kind());
        info!(kind = %slot.kind().kind, why, "stopped the watch");
        if *slot == Slot::UnavailableBudgets {
            self.raw_budgets.retain(BudgetKind::PodUnavailableBudget, &[]);
            self.references.budgets(BudgetKind::PodUnavailableBudget, &[]);
        }
        // The objects of this kind do not refer to controllers any more.
        self.references.all(&slot.kind(), std::iter::empty());
        self.replica.send(slot.nothing()).await;
        self.replica.send(Event::Forgotten(slot.kind())).await;
    }
}

/// Waits for the first list of a kind; returns why there is none after the timeout.
async fn first_list(health: &Health, timeout: SyncTimeout) -> Result<(), Failing> {
    let began = Instant::now();
    let mut progress = health.follow();
    loop {
        let now = progress.borrow_and_update().clone();
        if now.last_received.is_some() {
            return Ok(());
        }
        let limit = match &now.failing {
            Some(failing) if failing.why.is_refusal() => timeout.refused,
            _ => timeout.failing,
        };
        let Some(limit) = limit else {
            let _ = progress.changed().await;
            continue;
        };
        if began.elapsed() >= limit
            && let Some(failing) = now.failing
        {
            return Err(failing);
        }
        // Without an answer there is no reason to return yet: each attempt has its own timeout.
        let next = tokio::time::timeout_at(began + limit, progress.changed()).await;
        if next.is_err() && now.failing.is_none() {
            let _ = progress.changed().await;
        }
    }
}

async fn end(task: AbortOnDropHandle<()>) {
    task.abort();
    let _ = task.await;
}
