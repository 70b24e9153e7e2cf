//! Kinds that a cluster may have or not: found, watched while they are served, and forgotten when they are gone for sure.
//!
//! The definitions of custom kinds are watched, since they tell at once what comes and goes; and the API server is asked
//! from time to time, since not everything has a definition.
//!
//! A kind that cannot be read is not a kind that is gone. An API server that has just started answers 403 before it knows
//! all rights, and its discovery may leave groups out. So what is known of a kind stays until discovery has said several
//! times, over at least a minute, that the kind is not served, and the kind itself answers nothing else. Then everything
//! else is listed once more, and only then its objects are forgotten.

mod catalog;
mod slot;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::{Client, Error};
use quorate_api::budget::StoredBudget;
use quorate_api::slim;
use quorate_engine::basics::GroupKind;
use quorate_engine::facts::{BudgetKind, WorkloadSource};
use quorate_intake::objects;
use quorate_kit::Plain;
use quorate_kit::backoff::Backoff;
use quorate_kit::watch::{Failing, Health, Source, Why};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::initial_sync::{InitialSync, PendingList};
use super::references::References;
use super::scope::{Patience, WatchScope};
use super::{forward, translate};
use crate::actor::ReplicaHandle;
use crate::kruise::ServedHere;
use crate::raw_budgets::RawBudgets;
use catalog::{Catalog, Definitions, Found, Served};
use slot::{OURS, Slot};

/// How often the API server is asked what it serves though nothing seems to have changed.
const POLL: Duration = Duration::from_secs(30);

/// Changes come in bursts.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// After a definition has changed, a kind is served or not within this time.
const FOLLOW_UPS: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(6)];

/// A kind is gone when discovery has said so this often, over at least this time.
const ABSENT: (u32, Duration) = (3, Duration::from_secs(60));

/// The lists of all other kinds that come before a kind is forgotten are waited for this long; then it is tried again
/// with the next round.
const LISTED_AGAIN: Duration = Duration::from_secs(30);

/// A watch under way.
struct Watched {
    /// Where, and for a kind that somebody refers to, which number is its scale.
    at: (Served, Option<slim::ReplicasPath>),
    health: Health,
    /// Something is known from a watch before this one.
    known: bool,
    task: AbortOnDropHandle<()>,
}

impl Watched {
    fn is_known(&self) -> bool {
        self.known || self.health.progress().heard.is_some()
    }
}

/// How often discovery has left out what is watched, and since when.
struct Absence {
    times: u32,
    since: Instant,
}

pub(super) struct Discovery {
    client: Client,
    scope: WatchScope,
    replica: ReplicaHandle,
    references: Arc<References>,
    /// Which kinds somebody referred to when it was last looked.
    referred: BTreeSet<GroupKind>,
    definitions: Arc<Definitions>,
    initial_sync: InitialSync,
    raw_budgets: Arc<RawBudgets>,
    /// Whether OpenKruise's budgets are for us to serve.
    kruise: ServedHere,
    watched: BTreeMap<Slot, Watched>,
    /// What is watched and discovery leaves out.
    absent: BTreeMap<Slot, Absence>,
    /// What the last round could not find out: whether it is served.
    untold: BTreeSet<Slot>,
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
            untold: BTreeSet::new(),
        }
    }

    /// Finds and watches for ever. The ticket is given up once everything that is there now has been listed, or cannot be
    /// read; what comes later does not make anybody wait.
    pub(super) async fn run(mut self, pending_list: PendingList) {
        let (_definitions, defined) = self.watch_definitions();
        let mut kruise = self.kruise.clone();
        let early = tokio::select! {
            // It fails when nobody can tell any more, and then what was told last holds.
            _ = kruise.wait_for(Option::is_some) => true,
            () = self.initial_sync.left(1) => false,
        };
        if early {
            self.round_until_done().await;
        }
        // Which kinds somebody refers to is known once pods, controllers and budgets are. And where those can be read, the
        // API server knows our rights.
        self.initial_sync.left(1).await;
        let patience = self.scope.patience(OURS);
        if let Err(failing) = seen(&defined, patience).await {
            warn!(why = %failing.why, "definitions of custom kinds cannot be read: what comes and goes is noticed late");
        }
        if tokio::time::timeout(patience.refused, kruise.wait_for(Option::is_some)).await.is_err() {
            warn!(
                "whether OpenKruise serves PodUnavailableBudgets cannot be told: they are left alone until it can"
            );
        }
        self.round_until_told().await;
        self.settle().await;
        self.round_until_told().await;
        self.settle().await;
        drop(pending_list);
        let mut due: VecDeque<Instant> = VecDeque::new();
        loop {
            let next = due.pop_front().unwrap_or_else(|| Instant::now() + POLL);
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.definitions.changed.notified() => {
                    due = FOLLOW_UPS.iter().map(|after| Instant::now() + *after).collect();
                }
                () = self.references.changed.notified() => {
                    due.push_front(next);
                    // Most of what is new is another namespace that refers to the same kinds, or one without a budget.
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

    fn watch_definitions(&self) -> (AbortOnDropHandle<()>, Health) {
        let definitions = self.definitions.clone();
        let health = self.scope.health("CustomResourceDefinition.apiextensions.k8s.io");
        let source = Source::<slim::CustomResourceDefinition>::all(self.client.clone());
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
            warn!(error = %Plain(&error), ?wait, "cannot tell what is served");
            tokio::time::sleep(wait).await;
        }
    }

    /// Looks until it is known of everything whether it is served, or patience ends.
    async fn round_until_told(&mut self) {
        let began = Instant::now();
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            self.round_until_done().await;
            let is_waited_for = |slot: &Slot| began.elapsed() < self.scope.patience(slot.patience()).refused;
            if !self.untold.iter().any(is_waited_for) {
                return;
            }
            tokio::time::sleep(backoff.failed()).await;
        }
    }

    /// Waits until everything that is watched has been listed, or cannot be read.
    async fn settle(&self) {
        let waits = self.watched.iter().map(|(slot, watched)| async {
            let patience = self.scope.patience(slot.patience());
            let Err(Failing { why, .. }) = seen(&watched.health, patience).await else { return };
            warn!(kind = %slot.kind().kind, %why, "cannot be read: what rests on it is not known");
            if matches!(why, Why::Forbidden(_)) {
                self.scope.refuse(&watched.at.0.resource);
            }
        });
        futures::future::join_all(waits).await;
    }

    /// Looks at what is served now, and starts and stops watches accordingly. What is not known stays as it is.
    async fn round(&mut self) -> Result<(), Error> {
        self.referred = self.references.kinds();
        let referred = self.referred.iter().cloned().map(Slot::Referred);
        let kruise = (*self.kruise.borrow_and_update() == Some(true)).then_some(Slot::UnavailableBudgets);
        let wanted: BTreeSet<Slot> = Slot::ALWAYS.into_iter().chain(kruise).chain(referred).collect();
        let groups = wanted.iter().map(|slot| slot.kind().group.to_string()).collect();
        let catalog = Catalog::ask(&self.client, &groups).await?;
        self.untold.clear();
        self.absent.retain(|slot, _| wanted.contains(slot));
        let idle: Vec<Slot> = self.watched.keys().filter(|slot| !wanted.contains(slot)).cloned().collect();
        for slot in idle {
            let why = match slot {
                Slot::UnavailableBudgets => "they are left alone",
                _ => "nobody refers to it any more",
            };
            self.stop(&slot, why).await;
        }
        for slot in wanted {
            match catalog.find(&slot.kind(), slot.versions()) {
                Found::Unknown => drop(self.untold.insert(slot)),
                // It is defined: discovery is behind.
                Found::Nowhere if self.definitions.serve(&slot.kind(), slot.versions()) => {
                    self.untold.insert(slot);
                }
                Found::Nowhere => self.missed(slot).await,
                Found::Served(served) => {
                    self.absent.remove(&slot);
                    self.watch(slot, served).await;
                }
            }
        }
        Ok(())
    }

    /// Discovery leaves a kind out. It is dropped when that has been so for long enough.
    async fn missed(&mut self, slot: Slot) {
        let Some(watched) = self.watched.get(&slot) else { return };
        if !watched.is_known() {
            self.stop(&slot, "it is not served any more").await;
            return;
        }
        // What can be read is served, whatever discovery says; and while there is no answer nobody knows.
        if !watched.health.progress().failing.is_some_and(|failing| failing.why.is_refusal()) {
            self.absent.remove(&slot);
            return;
        }
        let absence = self.absent.entry(slot.clone()).or_insert(Absence { times: 0, since: Instant::now() });
        absence.times += 1;
        let (times, lasts) = ABSENT;
        if absence.times < times || absence.since.elapsed() < lasts {
            return;
        }
        let others = self.scope.others(&slot.label());
        let listed = futures::future::join_all(others.iter().map(Health::list_again));
        if tokio::time::timeout(LISTED_AGAIN, listed).await.is_err() {
            warn!(kind = %slot.kind().kind, "it is not served any more, but not everything else can be listed: it is kept");
            return;
        }
        self.absent.remove(&slot);
        self.stop(&slot, "it is not served any more").await;
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
        // In another version the same objects are listed again: nothing is forgotten in between.
        let mut known = false;
        if let Some(before) = self.watched.remove(&slot) {
            known = before.is_known();
            end(before.task).await;
        }
        info!(kind = at.0.resource.kind, version = at.0.resource.api_version, "watching");
        let health = self.scope.health(&slot.label());
        let task = self.watching(slot.clone(), &at, health.clone());
        let task = AbortOnDropHandle::new(tokio::spawn(task));
        self.watched.insert(slot, Watched { at, health, known, task });
    }

    /// The watch itself.
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
                    forward(
                        source.reporting_to(health),
                        replica,
                        None,
                        translate::pod_groups(slot.kind(), &references),
                    )
                    .await;
                }
                Slot::UpstreamWorkloads => {
                    let source = scope.found::<slim::Workload>(&client, &resource);
                    let source = source.read_by(translate::reading(objects::upstream_workload));
                    let translate = translate::workloads(WorkloadSource::Upstream, slot.kind(), &references);
                    forward(source.reporting_to(health), replica, None, translate).await;
                }
                Slot::OwnWorkloads => {
                    let source = scope.found::<slim::OwnWorkload>(&client, &resource);
                    let read = |own: &slim::OwnWorkload| objects::own_workload(&own.metadata, &own.spec);
                    let source = source.read_by(translate::reading(read));
                    let translate = translate::workloads(WorkloadSource::Own, slot.kind(), &references);
                    forward(source.reporting_to(health), replica, None, translate).await;
                }
                Slot::LeaderWorkerSets => {
                    let source = scope.found::<slim::LeaderWorkerSet>(&client, &resource);
                    let source = source.read_by(translate::reading(objects::leader_worker_set));
                    forward(
                        source.reporting_to(health),
                        replica,
                        None,
                        translate::controllers(slot.kind(), &references),
                    )
                    .await;
                }
                Slot::UnavailableBudgets => {
                    let source = scope.found::<StoredBudget>(&client, &resource);
                    let kind = BudgetKind::PodUnavailableBudget;
                    forward(source.reporting_to(health), replica, None, move |event| {
                        translate::budgets(kind, event, &raw_budgets, &references, None)
                    })
                    .await;
                }
                Slot::Referred(kind) => {
                    let read_as = kind.clone();
                    let source = scope.found::<serde::de::IgnoredAny>(&client, &resource);
                    let source =
                        source.read_by(move |text| objects::any_controller(&read_as, text, scale.as_ref()));
                    forward(
                        source.reporting_to(health),
                        replica,
                        None,
                        translate::controllers(kind.clone(), &references),
                    )
                    .await;
                }
            }
        }
    }

    async fn stop(&mut self, slot: &Slot, why: &str) {
        let Some(Watched { task, .. }) = self.watched.remove(slot) else { return };
        // Whatever it was about to tell comes before its end.
        end(task).await;
        self.scope.unwatched(&slot.label());
        info!(kind = %slot.kind().kind, why, "not watched any more");
        if *slot == Slot::UnavailableBudgets {
            self.raw_budgets.retain(BudgetKind::PodUnavailableBudget, &[]);
            self.references.budgets(BudgetKind::PodUnavailableBudget, &[]);
        }
        // What these named as their controllers is named by nobody now.
        self.references.all(&slot.kind(), std::iter::empty());
        self.replica.send(slot.nothing()).await;
    }
}

/// Waits for the first list of a kind; why there is none when patience ends.
async fn seen(health: &Health, patience: Patience) -> Result<(), Failing> {
    let began = Instant::now();
    let mut progress = health.follow();
    loop {
        let now = progress.borrow_and_update().clone();
        if now.heard.is_some() {
            return Ok(());
        }
        let limit = match &now.failing {
            Some(failing) if failing.why.is_refusal() => Some(patience.refused),
            _ => patience.failing,
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
        // Without an answer there is no reason yet: an attempt fails in its time.
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
