//! A look at a cluster from outside: the facts that a server would have, for whoever wants to know what it would say.

use std::time::Duration;

use kube::core::Request;
use kube::core::params::ListParams;
use kube::{Client, Error};
use quorate_engine::basics::Time;
use quorate_engine::ledger::Event;
use quorate_engine::{Engine, Gates, Snapshot};
use quorate_kit::Plain;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::adoption;
use crate::clock;
use crate::feed;
use crate::keeper::{Keeper, Message};
use crate::pubs::{self, ServePub};
use crate::stored::Stored;

/// What has to be listed for a look, and where.
const NEEDED: [(&str, &str); 9] = [
    ("disruptionbudgets.policy.quorate.dev", "/apis/policy.quorate.dev/v1alpha1/disruptionbudgets"),
    ("pods", "/api/v1/pods"),
    ("namespaces", "/api/v1/namespaces"),
    ("nodes", "/api/v1/nodes"),
    ("poddisruptionbudgets.policy", "/apis/policy/v1/poddisruptionbudgets"),
    ("replicasets.apps", "/apis/apps/v1/replicasets"),
    ("statefulsets.apps", "/apis/apps/v1/statefulsets"),
    ("deployments.apps", "/apis/apps/v1/deployments"),
    ("leases.coordination.k8s.io", "/apis/coordination.k8s.io/v1/namespaces/{}/leases"),
];

/// Why a cluster cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum Obstacle {
    /// A right is missing.
    #[error("you may not list {0}: ask for the verbs list and watch on it")]
    Forbidden(&'static str),
    /// Nobody knows who asks.
    #[error("the API server does not know you: {0}")]
    Unknown(String),
    /// There are no budgets here.
    #[error(
        "DisruptionBudgets are not installed here: `quorate crds | kubectl apply --server-side -f -` does it"
    )]
    NotInstalled,
    /// The API server answers something else, or not at all.
    #[error("cannot list {what}: {why}")]
    Failed {
        /// What was asked for.
        what: &'static str,
        /// What came back.
        why: String,
    },
}

/// What a server would know of a cluster now.
pub struct View {
    engine: Engine,
    news: mpsc::Receiver<Message>,
    _watches: JoinSet<()>,
}

impl View {
    /// Looks at everything once. `namespace` is Quorate's own: the agents' Leases are there.
    ///
    /// # Errors
    /// Something that is needed cannot be listed.
    pub async fn look(
        client: &Client,
        gates: Gates,
        serve_pub: ServePub,
        namespace: &str,
    ) -> Result<Self, Obstacle> {
        for (what, path) in NEEDED {
            may_list(client, what, &path.replace("{}", namespace)).await?;
        }
        let (keeper, news) = Keeper::listening();
        let stored = std::sync::Arc::new(Stored::default());
        // Who may not ask whether OpenKruise serves its budgets is told rather of one more than of one too few.
        let kruise = pubs::follow(client.clone(), serve_pub, true);
        let watches = feed::start(client, &keeper, &stored, namespace, &adoption::Inbox::unread(), kruise);
        let mut view = Self { engine: Engine::new(gates), news, _watches: watches };
        while let Some(Message::Event(event)) = view.news.recv().await {
            if matches!(event, Event::Synced) {
                break;
            }
            view.take(event);
        }
        Ok(view)
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
            Event::Unwatched(front) => drop(self.engine.sync(Snapshot::Budgets(front, Vec::new()), now)),
            // What else there is concerns replicas.
            _ => {}
        }
    }
}

/// The time that an engine of a view is to be asked with.
pub fn now() -> Time {
    clock::now()
}

async fn may_list(client: &Client, what: &'static str, path: &str) -> Result<(), Obstacle> {
    let few = ListParams::default().limit(1);
    let failed = |why: String| Obstacle::Failed { what, why };
    let request = Request::new(path).list(&few).map_err(|error| failed(error.to_string()))?;
    match client.request_text(request).await {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) if status.code == 403 => Err(Obstacle::Forbidden(what)),
        Err(Error::Api(status)) if status.code == 401 => Err(Obstacle::Unknown(status.message.clone())),
        Err(Error::Api(status)) if status.code == 404 && what == NEEDED[0].0 => Err(Obstacle::NotInstalled),
        Err(error) => Err(failed(Plain(&error).to_string())),
    }
}
