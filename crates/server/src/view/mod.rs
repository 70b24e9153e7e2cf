//! A look at a cluster from outside: the facts that a server would have, for whoever wants to know what it would say.

mod access;

use std::collections::BTreeSet;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use quorate_api::slim;
use quorate_engine::basics::{Text, Time};
use quorate_engine::facts::{Agent, Input, Node};
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

/// For how long an agent that nobody may see is presumed to be alive: longer than anybody looks.
const PRESUMED: Duration = Duration::from_secs(86_400);

/// What a server would know of a cluster now.
pub struct View {
    engine: Engine,
    news: mpsc::Receiver<Message>,
    unlisted: Vec<Unlisted>,
    _watches: JoinSet<()>,
}

impl View {
    /// Looks at everything once. `own` is Quorate's own namespace: the agents' Leases are there. Where somebody may not
    /// look at all namespaces, `within` is the one to make do with.
    ///
    /// # Errors
    /// Something that is needed cannot be listed.
    pub async fn look(
        client: &Client,
        gates: Gates,
        serve_pub: ServePub,
        own: &str,
        within: Option<&str>,
    ) -> Result<Self, ViewError> {
        let Access { scope, mut unlisted, within } = Access::of(client, own, within).await?;
        let (replica, news) = ReplicaHandle::listening();
        let raw_budgets = std::sync::Arc::new(RawBudgets::default());
        // Who may not ask whether OpenKruise serves its budgets is told rather of one more than of one too few.
        let kruise = kruise::follow(client.clone(), serve_pub, &scope, Some(true));
        let watches =
            watches::start(client, &scope, &replica, &raw_budgets, own, &twins::Inbox::unread(), kruise);
        let mut view = Self { engine: Engine::new(gates), news, unlisted: Vec::new(), _watches: watches };
        while let Some(Message::Event(event)) = view.news.recv().await {
            if matches!(event, Event::Synced) {
                break;
            }
            view.take(event);
        }
        if let Some(name) = within
            && let Some(fact) = namespace(client, name, own).await
        {
            view.take(Event::Fact(Box::new(fact)));
            unlisted.retain(|unlisted| unlisted.what != watches::NAMESPACES);
        }
        unlisted.extend(scope.refused().into_iter().map(|what| {
            let hence = match what.starts_with("podunavailablebudgets.") {
                true => "whether one of them refuses",
                false => "what groups there are, or how many pods they want",
            };
            Unlisted { what, hence, of_probes: false }
        }));
        view.unlisted = unlisted;
        view.presume();
        Ok(view)
    }

    /// What may not be listed.
    pub fn unlisted(&self) -> &[Unlisted] {
        &self.unlisted
    }

    /// Of nodes and agents that nobody lets us see it is presumed that they live, or no probe could be judged.
    fn presume(&mut self) {
        let closed =
            |resource: &str| self.unlisted.iter().any(|unlisted| unlisted.what.starts_with(resource));
        let (nodes, agents) = (closed(watches::NODES), closed(watches::LEASES));
        let probed = self.engine.pods().filter(|pod| pod.probe.is_some());
        let homes: BTreeSet<Text> = probed.filter_map(|pod| pod.node.clone()).collect();
        for node in homes {
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

    /// What is known.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Looks on until enough is known or patience ends; whether it was enough.
    ///
    /// An agent, say, is believed from the first renewal on that was seen here.
    pub async fn until(&mut self, patience: Duration, enough: impl Fn(&mut Engine) -> bool) -> bool {
        let end = Instant::now() + patience;
        while !enough(&mut self.engine) {
            match tokio::time::timeout_at(end, self.news.recv()).await {
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
            // What else there is concerns replicas.
            _ => {}
        }
    }
}

/// The time that an engine of a view is to be asked with.
pub fn now() -> Time {
    clock::now()
}

/// A namespace, as somebody may read it who may not list them all.
async fn namespace(client: &Client, name: &str, own: &str) -> Option<Input> {
    let object = Api::<slim::Namespace>::all(client.clone()).get(name).await.ok()?;
    let (name, fact) = objects::namespace(&object.metadata, &[watches::EXCLUDED, own]).ok()?;
    Some(Input::Namespace(name, Some(fact)))
}
