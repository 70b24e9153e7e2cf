//! Kinds that a cluster may have or not: found, watched while they are served, and forgotten when they go.
//!
//! The definitions of custom kinds are watched, since they tell at once what comes and goes; and the API server is asked
//! from time to time, since not everything has a definition.

mod catalog;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::{Client, Error};
use quorate_api::budget::StoredBudget;
use quorate_api::slim;
use quorate_engine::Snapshot;
use quorate_engine::basics::GroupKind;
use quorate_engine::facts::{Front, WorkloadSource};
use quorate_engine::ledger::Event;
use quorate_intake::objects;
use quorate_kit::Plain;
use quorate_kit::backoff::Backoff;
use quorate_kit::watch::{Missing, Source};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::gate::{Gate, Ticket};
use super::reach::Reach;
use super::references::References;
use super::{feed, rows};
use crate::keeper::Keeper;
use crate::pubs::ServedHere;
use crate::stored::Stored;
use catalog::{Catalog, Definitions, Found, Served};

/// How often the API server is asked what it serves though nothing seems to have changed.
const POLL: Duration = Duration::from_secs(30);

/// Changes come in bursts.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// After a definition has changed, a kind is served or not within this time.
const FOLLOW_UPS: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(6)];

/// Something to watch if it is there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    PodGroups,
    UpstreamWorkloads,
    OwnWorkloads,
    LeaderWorkerSets,
    /// OpenKruise's budgets, unless somebody else serves them.
    UnavailableBudgets,
    /// A kind that a budget, a pod or a controller names.
    Referred(GroupKind),
}

impl Slot {
    /// What is looked for whether somebody refers to it or not.
    const ALWAYS: [Self; 4] =
        [Self::PodGroups, Self::UpstreamWorkloads, Self::OwnWorkloads, Self::LeaderWorkerSets];

    fn kind(&self) -> GroupKind {
        match self {
            Self::PodGroups => GroupKind::new("scheduling.k8s.io", "PodGroup"),
            Self::UpstreamWorkloads => GroupKind::new("scheduling.k8s.io", "Workload"),
            Self::OwnWorkloads => GroupKind::new("scheduling.quorate.dev", "Workload"),
            Self::LeaderWorkerSets => GroupKind::new("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
            Self::UnavailableBudgets => GroupKind::new("policy.kruise.io", "PodUnavailableBudget"),
            Self::Referred(kind) => kind.clone(),
        }
    }

    /// The versions that can be read here, the best one first; `None` where any can.
    fn versions(&self) -> Option<&'static [&'static str]> {
        match self {
            Self::PodGroups => Some(&slim::PodGroup::VERSIONS),
            Self::UpstreamWorkloads => Some(&slim::Workload::VERSIONS),
            Self::OwnWorkloads | Self::UnavailableBudgets => Some(&["v1alpha1"]),
            Self::LeaderWorkerSets => Some(&["v1"]),
            Self::Referred(_) => None,
        }
    }

    /// What to tell when it is not watched any more: there is nothing of it.
    fn nothing(&self) -> Event {
        Event::List(match self {
            Self::PodGroups => Snapshot::PodGroups(Vec::new()),
            Self::UpstreamWorkloads => Snapshot::Workloads(WorkloadSource::Upstream, Vec::new()),
            Self::OwnWorkloads => Snapshot::Workloads(WorkloadSource::Own, Vec::new()),
            Self::LeaderWorkerSets | Self::Referred(_) => Snapshot::Controllers(self.kind(), Vec::new()),
            Self::UnavailableBudgets => return Event::Unwatched(Front::PodUnavailableBudget),
        })
    }
}

/// A watch under way.
struct Watched {
    /// Where, and for a kind that somebody refers to, which number is its scale.
    at: (Served, Option<slim::ReplicasPath>),
    task: AbortOnDropHandle<()>,
}

pub(super) struct Discovery {
    client: Client,
    reach: Reach,
    keeper: Keeper,
    references: Arc<References>,
    /// Which kinds somebody referred to when it was last looked.
    referred: BTreeSet<GroupKind>,
    definitions: Arc<Definitions>,
    gate: Gate,
    stored: Arc<Stored>,
    /// Whether OpenKruise's budgets are for us to serve.
    kruise: ServedHere,
    watched: BTreeMap<Slot, Watched>,
    /// What could not be watched though it is served, since when, and why.
    refused: BTreeMap<Slot, (Instant, Missing)>,
    /// Watches that ended by themselves.
    ended: mpsc::UnboundedReceiver<(Slot, Missing)>,
    ends: mpsc::UnboundedSender<(Slot, Missing)>,
}

impl Discovery {
    pub(super) fn new(
        client: Client,
        reach: Reach,
        keeper: Keeper,
        references: Arc<References>,
        gate: Gate,
        stored: Arc<Stored>,
        kruise: ServedHere,
    ) -> Self {
        let (ends, ended) = mpsc::unbounded_channel();
        Self {
            client,
            reach,
            keeper,
            references,
            referred: BTreeSet::new(),
            definitions: Arc::default(),
            gate,
            stored,
            kruise,
            watched: BTreeMap::new(),
            refused: BTreeMap::new(),
            ended,
            ends,
        }
    }

    /// Finds and watches for ever. The ticket is given up once everything that is there now is being watched, and each of
    /// those watches has a ticket of its own; what comes later does not make anybody wait.
    pub(super) async fn run(mut self, ticket: Ticket) {
        let _definitions = self.watch_definitions();
        // It fails when nobody can tell any more, and then what was told last holds.
        let _ = self.kruise.wait_for(Option::is_some).await;
        self.round_until_done(true).await;
        // Which kinds somebody refers to is known once pods, controllers and budgets are.
        self.gate.left(1).await;
        self.round_until_done(true).await;
        drop(ticket);
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
                Some((slot, missing)) = self.ended.recv() => {
                    self.lost(slot, missing).await;
                    due.push_front(next);
                }
            }
            tokio::time::sleep(DEBOUNCE).await;
            self.round_until_done(false).await;
        }
    }

    fn watch_definitions(&self) -> AbortOnDropHandle<()> {
        let (definitions, mut ticket) = (self.definitions.clone(), Some(self.gate.ticket()));
        let source = Source::<slim::CustomResourceDefinition>::all(self.client.clone()).optional();
        AbortOnDropHandle::new(tokio::spawn(async move {
            let missing = quorate_kit::watch::run(source, |event| {
                definitions.take(&event);
                ticket = None;
                std::future::ready(())
            });
            let why = missing.await;
            warn!(%why, "definitions of custom kinds cannot be watched: what comes and goes is noticed late");
        }))
    }

    async fn round_until_done(&mut self, first: bool) {
        let mut backoff = Backoff::new(Duration::from_millis(200), POLL);
        while let Err(error) = self.round(first).await {
            let wait = backoff.failed();
            warn!(error = %Plain(&error), ?wait, "cannot tell what is served");
            tokio::time::sleep(wait).await;
        }
    }

    /// Looks at what is served now, and starts and stops watches accordingly. What is not known stays as it is.
    async fn round(&mut self, first: bool) -> Result<(), Error> {
        self.referred = self.references.kinds();
        let referred = self.referred.iter().cloned().map(Slot::Referred);
        let kruise = (*self.kruise.borrow_and_update() == Some(true)).then_some(Slot::UnavailableBudgets);
        let wanted: BTreeSet<Slot> = Slot::ALWAYS.into_iter().chain(kruise).chain(referred).collect();
        let groups = wanted.iter().map(|slot| slot.kind().group.to_string()).collect();
        let catalog = Catalog::ask(&self.client, &groups).await?;
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
                Found::Unknown => {}
                Found::Nowhere => {
                    self.refused.remove(&slot);
                    self.stop(&slot, "it is not served any more").await;
                }
                Found::Served(served) => self.watch(slot, served, first).await,
            }
        }
        Ok(())
    }

    async fn watch(&mut self, slot: Slot, served: Served, first: bool) {
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
        // What was refused is tried again in its time, or there would be no end of it.
        let too_early = |(since, missing): &(Instant, Missing)| match missing {
            // Between the two lies a moment: it is served as soon as it is listed.
            Missing::NotServed => since.elapsed() < FOLLOW_UPS[0],
            Missing::Forbidden(_) => since.elapsed() < POLL,
        };
        if self.refused.get(&slot).is_some_and(too_early) {
            return;
        }
        // In another version the same objects are listed again: nothing is forgotten in between.
        if let Some(Watched { task, .. }) = self.watched.remove(&slot) {
            end(task).await;
        }
        info!(kind = at.0.resource.kind, version = at.0.resource.api_version, "watching");
        let ticket = first.then(|| self.gate.ticket());
        let task = AbortOnDropHandle::new(tokio::spawn(self.watching(slot.clone(), &at, ticket)));
        self.watched.insert(slot, Watched { at, task });
    }

    /// The watch itself; it says so when it ends.
    fn watching(
        &self,
        slot: Slot,
        (served, scale): &(Served, Option<slim::ReplicasPath>),
        ticket: Option<Ticket>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (client, reach, keeper) = (self.client.clone(), self.reach.clone(), self.keeper.clone());
        let (references, resource) = (self.references.clone(), served.resource.clone());
        let (scale, ends, stored) = (scale.clone(), self.ends.clone(), self.stored.clone());
        async move {
            let (missing, ticket) = match &slot {
                Slot::PodGroups => {
                    let source = reach.found::<slim::PodGroup>(&client, &resource);
                    let source = source.read_by(rows::reading(objects::pod_group));
                    feed(source, keeper, ticket, rows::pod_groups(slot.kind(), &references)).await
                }
                Slot::UpstreamWorkloads => {
                    let source = reach.found::<slim::Workload>(&client, &resource);
                    let source = source.read_by(rows::reading(objects::upstream_workload));
                    let rows = rows::workloads(WorkloadSource::Upstream, slot.kind(), &references);
                    feed(source, keeper, ticket, rows).await
                }
                Slot::OwnWorkloads => {
                    let source = reach.found::<slim::OwnWorkload>(&client, &resource);
                    let read = |own: &slim::OwnWorkload| objects::own_workload(&own.metadata, &own.spec);
                    let source = source.read_by(rows::reading(read));
                    let rows = rows::workloads(WorkloadSource::Own, slot.kind(), &references);
                    feed(source, keeper, ticket, rows).await
                }
                Slot::LeaderWorkerSets => {
                    let source = reach.found::<slim::LeaderWorkerSet>(&client, &resource);
                    let source = source.read_by(rows::reading(objects::leader_worker_set));
                    feed(source, keeper, ticket, rows::controllers(slot.kind(), &references)).await
                }
                Slot::UnavailableBudgets => {
                    let source = reach.found::<StoredBudget>(&client, &resource);
                    let front = Front::PodUnavailableBudget;
                    feed(source, keeper, ticket, move |event| {
                        rows::budgets(front, event, &stored, &references, None)
                    })
                    .await
                }
                Slot::Referred(kind) => {
                    let read_as = kind.clone();
                    let source = reach.found::<serde::de::IgnoredAny>(&client, &resource);
                    let source =
                        source.read_by(move |text| objects::any_controller(&read_as, text, scale.as_ref()));
                    feed(source, keeper, ticket, rows::controllers(kind.clone(), &references)).await
                }
            };
            if matches!(missing, Missing::Forbidden(_)) {
                reach.refuse(&resource);
            }
            drop(ticket);
            let _ = ends.send((slot, missing));
        }
    }

    /// A watch ended by itself: there is nothing of that kind any more, as far as we may know.
    async fn lost(&mut self, slot: Slot, missing: Missing) {
        // Unless it was started anew in the meantime.
        if !self.watched.get(&slot).is_some_and(|watched| watched.task.is_finished()) {
            return;
        }
        self.stop(&slot, "").await;
        let kind = slot.kind().kind;
        // Once: it is tried again and again.
        if self.refused.get(&slot).is_none_or(|(_, before)| *before != missing) {
            info!(%kind, why = %missing, "cannot be watched");
        }
        self.refused.insert(slot, (Instant::now(), missing));
    }

    async fn stop(&mut self, slot: &Slot, why: &str) {
        let Some(Watched { task, .. }) = self.watched.remove(slot) else { return };
        // Whatever it was about to tell comes before its end.
        end(task).await;
        if !why.is_empty() {
            info!(kind = %slot.kind().kind, why, "not watched any more");
        }
        if *slot == Slot::UnavailableBudgets {
            self.stored.retain(Front::PodUnavailableBudget, &[]);
            self.references.budgets(Front::PodUnavailableBudget, &[]);
        }
        // What these named as their controllers is named by nobody now.
        self.references.all(&slot.kind(), std::iter::empty());
        self.keeper.tell(slot.nothing()).await;
    }
}

async fn end(task: AbortOnDropHandle<()>) {
    task.abort();
    let _ = task.await;
}
