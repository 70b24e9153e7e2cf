//! A view of a cluster from outside: the facts that a server would have, for a client that computes its decisions.

mod access;

use std::collections::BTreeSet;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use quorate_api::slim;
use quorate_engine::basics::{Text, Time};
use quorate_engine::facts::{Agent, Budget, BudgetKey, BudgetKind, Input, Node};
use quorate_engine::ledger::Event;
use quorate_engine::{Engine, Gates, Snapshot};
use quorate_intake::objects;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::actor::{Message, ReplicaHandle};
use crate::clock;
use crate::kruise::{self, ServePub};
use crate::raw_budgets::RawBudgets;
use crate::twins;
use crate::watches;
use access::Access;
pub use access::{Unlisted, ViewError};

/// How long an agent whose Lease may not be listed is presumed alive: longer than any client uses a view.
const PRESUMED: Duration = Duration::from_secs(86_400);

/// The facts that a server would have of a cluster now.
pub struct View {
    engine: Engine,
    messages: mpsc::Receiver<Message>,
    unlisted: Vec<Unlisted>,
    _watches: JoinSet<()>,
}

impl View {
    /// Lists everything once. `own` is Quorate's own namespace, where the Leases of the agents are. If the user may not
    /// list all namespaces, only the namespace `within` is listed.
    ///
    /// # Errors
    /// A resource that is required cannot be listed.
    pub async fn load(
        client: &Client,
        gates: Gates,
        serve_pub: ServePub,
        own: &str,
        within: Option<&str>,
    ) -> Result<Self, ViewError> {
        let Access { scope, mut unlisted, within } = Access::of(client, own, within).await?;
        let (replica, messages) = ReplicaHandle::listening();
        let raw_budgets = std::sync::Arc::new(RawBudgets::default());
        // If the user may not read OpenKruise's webhooks, its budgets are included: one budget too many is better than
        // one too few.
        let mut kruise = kruise::follow(client.clone(), serve_pub, &scope, Some(true));
        // Servers may serve these budgets beside OpenKruise. Then the status of the budgets shows it.
        let all = match serve_pub {
            ServePub::Never => kruise.clone(),
            ServePub::Auto | ServePub::Always => tokio::sync::watch::channel(Some(true)).1,
        };
        let watches =
            watches::start(client, &scope, &replica, &raw_budgets, own, &twins::Inbox::unread(), all);
        let mut view = Self { engine: Engine::new(gates), messages, unlisted: Vec::new(), _watches: watches };
        while let Some(Message::Event(event)) = view.messages.recv().await {
            if matches!(event, Event::Synced) {
                break;
            }
            view.take(event);
        }
        let known = kruise.wait_for(Option::is_some).await.map_or(Some(true), |served| *served);
        if known == Some(false) {
            view.drop_unserved();
        }
        if let Some(name) = within
            && let Some(fact) = namespace(client, name, own).await
        {
            view.take(Event::Fact(Box::new(fact)));
            unlisted.retain(|unlisted| unlisted.what != watches::NAMESPACES);
        }
        unlisted.extend(scope.refused().into_iter().map(|what| {
            let unknown = match what.starts_with("podunavailablebudgets.") {
                true => "whether one of them denies",
                false => "which groups there are, or how many pods they want",
            };
            Unlisted { what, unknown, of_probes: false }
        }));
        view.unlisted = unlisted;
        view.presume();
        Ok(view)
    }

    /// Drops OpenKruise's budgets that no server of Quorate has opened: OpenKruise decides on them.
    fn drop_unserved(&mut self) {
        let is_unserved = |budget: &&Budget| {
            budget.key.kind == BudgetKind::PodUnavailableBudget && budget.ledger.enforced.is_none()
        };
        let unserved: Vec<BudgetKey> =
            self.engine.budgets().filter(is_unserved).map(|budget| budget.key.clone()).collect();
        for key in unserved {
            self.take(Event::Fact(Box::new(Input::BudgetGone(key))));
        }
    }

    /// The resources that may not be listed.
    pub fn unlisted(&self) -> &[Unlisted] {
        &self.unlisted
    }

    /// Presumes that nodes are ready and agents alive where they may not be listed. Otherwise no probe could be
    /// evaluated.
    fn presume(&mut self) {
        let closed =
            |resource: &str| self.unlisted.iter().any(|unlisted| unlisted.what.starts_with(resource));
        let (nodes, agents) = (closed(watches::NODES), closed(watches::LEASES));
        let probed = self.engine.pods().filter(|pod| pod.probe.is_some());
        let probed_nodes: BTreeSet<Text> = probed.filter_map(|pod| pod.node.clone()).collect();
        for node in probed_nodes {
            if nodes {
                let ready = Input::Node(node.clone(), Some(Node { ready: true }));
                self.take(Event::Fact(Box::new(ready)));
            }
            if agents {
                let alive = Agent { started: Time(0), renewed: clock::now(), holds: PRESUMED };
                self.take(Event::Fact(Box::new(Input::Agent(node, Some(alive)))));
            }
        }
    }

    /// The facts.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Applies events until `enough` is true or `timeout` is over; returns whether `enough` is true.
    ///
    /// For example, an agent counts as alive only from the first renewal that this view observes.
    pub async fn until(&mut self, timeout: Duration, enough: impl Fn(&mut Engine) -> bool) -> bool {
        let end = Instant::now() + timeout;
        while !enough(&mut self.engine) {
            match tokio::time::timeout_at(end, self.messages.recv()).await {
                Ok(Some(Message::Event(event))) => self.take(event),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return false,
            }
        }
        true
    }

    fn take(&mut self, event: Event) {
        let now = clock::now();
        match event {
            Event::Fact(fact) => drop(self.engine.apply(*fact, now)),
            Event::List(list) => drop(self.engine.sync(list, now)),
            Event::Unwatched(kind) => drop(self.engine.sync(Snapshot::Budgets(kind, Vec::new()), now)),
            // All other events concern replicas.
            _ => {}
        }
    }
}

/// The time to pass to the engine of a view.
pub fn now() -> Time {
    clock::now()
}

/// A single namespace, for a user who may not list all of them.
async fn namespace(client: &Client, name: &str, own: &str) -> Option<Input> {
    let object = Api::<slim::Namespace>::all(client.clone()).get(name).await.ok()?;
    let (name, fact) = objects::namespace(&object.metadata, &[watches::EXCLUDED, own]).ok()?;
    Some(Input::Namespace(name, Some(fact)))
}
