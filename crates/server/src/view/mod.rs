//! A view of a cluster from outside: the facts that a server would have, for a client that computes its decisions.

mod access;
mod leases;
mod outdated;

use std::collections::BTreeSet;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use quorate_api::names::{SCHEDULING_GROUP, UPSTREAM_SCHEDULING_GROUP};
use quorate_api::slim;
use quorate_engine::basics::{GroupKind, Text, Time};
use quorate_engine::decision::{Allow, AllowReason, Decision, Denial, DenialReason};
use quorate_engine::facts::{Agent, Budget, BudgetKey, BudgetKind, Input, Node, Operation, WorkloadSource};
use quorate_engine::ledger::Event;
use quorate_engine::request::Request;
use quorate_engine::{Engine, Gates, Snapshot};
use quorate_intake::objects;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::actor::{Message, ReplicaHandle};
use crate::clock;
use crate::kruise::{self, ServePub};
use crate::raw_budgets::RawBudgets;
use crate::twins;
use crate::watches;
use access::Access;
pub use access::{Unlisted, ViewError};
use leases::Leases;
pub use leases::Servers;

/// How long an agent whose Lease may not be listed is presumed alive: longer than any client uses a view.
const PRESUMED: Duration = Duration::from_secs(86_400);

/// How the servers were started, where the user says so. Otherwise their Leases say it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Assumed {
    /// Feature gates.
    pub gates: Option<Gates>,
    /// Whether they serve OpenKruise's budgets.
    pub serve_pub: Option<ServePub>,
}

/// The facts that a server would have of a cluster now.
pub struct View {
    engine: Engine,
    messages: mpsc::Receiver<Message>,
    servers: Servers,
    serve_pub: ServePub,
    offset: i64,
    /// The kinds of budgets whose definition does not store what servers write.
    outdated: Vec<BudgetKind>,
    unlisted: Vec<Unlisted>,
    _watches: JoinSet<()>,
}

impl View {
    /// Lists everything once. `own` is Quorate's own namespace, where the Leases of servers and agents are. If the user may
    /// not list all namespaces, only the namespace `within` is listed.
    ///
    /// # Errors
    /// A resource that is required cannot be listed.
    pub async fn load(
        client: &Client,
        assumed: Assumed,
        own: &str,
        within: Option<&str>,
    ) -> Result<Self, ViewError> {
        let Access { scope, leases, mut unlisted, within } = Access::of(client, own, within).await?;
        let Leases { agents, servers, offset } = leases.unwrap_or_default();
        let published = servers.settings();
        let settings = published.unwrap_or_default();
        let gates = assumed.gates.unwrap_or(settings.gates);
        let serve_pub = assumed.serve_pub.unwrap_or(settings.serve_pub);
        let (replica, messages) = ReplicaHandle::listening();
        let raw_budgets = std::sync::Arc::new(RawBudgets::default());
        // If the user may not read OpenKruise's webhooks, its budgets are included: one budget too many is better than
        // one too few.
        let mut kruise = kruise::follow(client.clone(), serve_pub, &scope, Some(true));
        // Servers that do not say how they were started may serve these budgets beside OpenKruise. Then the status of the
        // budgets shows it.
        let all = match serve_pub {
            ServePub::Never => kruise.clone(),
            ServePub::Auto | ServePub::Always => tokio::sync::watch::channel(Some(true)).1,
        };
        let watches =
            watches::start(client, &scope, &replica, &raw_budgets, own, &twins::Inbox::unread(), all);
        let mut view = Self {
            engine: Engine::new(gates),
            messages,
            servers,
            serve_pub,
            offset,
            outdated: Vec::new(),
            unlisted: Vec::new(),
            _watches: watches,
        };
        view.engine.set_age_limit(settings.fresh_for);
        // What the user can read of such a kind, the servers do not know.
        let unread = view.servers.unread();
        let mut read = BTreeSet::new();
        while let Some(Message::Event(event)) = view.messages.recv().await {
            match &event {
                Event::Synced => break,
                Event::Heard(kind, _) if !unread.contains(kind) => drop(read.insert(kind.clone())),
                event if kind_of(event).is_some_and(|kind| unread.contains(&kind)) => continue,
                _ => {}
            }
            view.take(event);
        }
        let known = kruise.wait_for(Option::is_some).await.map_or(Some(true), |served| *served);
        if known == Some(false) {
            let says_so = published.is_some() || assumed.serve_pub.is_some();
            view.drop_unserved(says_so);
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
        view.take(Event::List(Snapshot::Agents(agents)));
        view.presume();
        view.engine.owners_are_listed();
        let now = view.now();
        for (kind, age) in view.servers.ages() {
            let ago = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
            read.remove(&kind);
            view.engine.heard(&kind, Time(now.0.saturating_sub(ago)));
        }
        // Kinds of which the servers say nothing: they would read them as this view has.
        read.iter().for_each(|kind| view.engine.heard(kind, now));
        view.outdated = outdated::kinds(client, &view.engine).await;
        Ok(view)
    }

    /// The time by the clock of the API server, to pass to the engine.
    pub fn now(&self) -> Time {
        Time(clock::now().0.saturating_add(self.offset))
    }

    /// Whether the servers serve OpenKruise's budgets, as their Leases or the user say.
    pub fn serve_pub(&self) -> ServePub {
        self.serve_pub
    }

    /// What the servers publish.
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// The decision of the servers on a request.
    pub fn decide(&mut self, request: &Request) -> Decision {
        let now = self.now();
        let mut decision = self.engine.decide(request, now);
        if matches!(decision, Decision::Allow(Allow::Exempt(_))) {
            return decision;
        }
        let refusal = self.servers.refusal();
        if refusal != Some(DenialReason::NotSynced)
            && self.is_free_relabel(request)
            && let Some(object) = &request.object
        {
            return match decision {
                Decision::Allow(_) => decision,
                Decision::Deny(_) => Decision::Allow(Allow::Agreed {
                    uid: object.uid.clone(),
                    reasons: Vec::new(),
                    departures: Vec::new(),
                }),
            };
        }
        if let Some(reason) = refusal {
            return Decision::Deny(vec![Denial { budget: None, reason }]);
        }
        if let Decision::Deny(denials) = &mut decision {
            denials.iter_mut().for_each(|denial| self.name_outdated_definition(denial));
        }
        decision
    }

    /// The decision of one budget.
    ///
    /// # Errors
    /// The budget denies the request.
    pub fn decide_one(
        &mut self,
        key: &BudgetKey,
        request: &Request,
        uid: &str,
    ) -> Result<AllowReason, Denial> {
        let now = self.now();
        let decided = self.engine.decide_one(key, request, uid, now);
        if self.is_free_relabel(request) {
            return Ok(decided.unwrap_or(AllowReason::Leaves));
        }
        decided.map_err(|mut denial| {
            self.name_outdated_definition(&mut denial);
            denial
        })
    }

    /// Whether a request is a relabel, and no budget of the namespace decides those. A server that serves then admits it,
    /// even if it has not heard from the API server.
    fn is_free_relabel(&self, request: &Request) -> bool {
        request.operation == Operation::Relabel
            && !self.engine.may_deny(Operation::Relabel, &request.pod.namespace)
    }

    /// A budget that is closed because its definition drops what is written was not just created.
    fn name_outdated_definition(&self, denial: &mut Denial) {
        let kind = denial.budget.as_ref().map(|budget| budget.kind);
        if denial.reason == DenialReason::NotOpen && kind.is_some_and(|kind| self.outdated.contains(&kind)) {
            denial.reason = DenialReason::OutdatedDefinition;
        }
    }

    /// Drops OpenKruise's budgets, on which OpenKruise decides. If it is not certain that Quorate's servers do not serve
    /// them, those that one of them has opened stay.
    fn drop_unserved(&mut self, is_certain: bool) {
        let is_unserved = |budget: &&Budget| {
            let is_open = budget.ledger.enforced.is_some();
            budget.key.kind == BudgetKind::PodUnavailableBudget && (is_certain || !is_open)
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
                let alive = Agent { started: Time(0), renewed: self.now(), holds: PRESUMED };
                self.take(Event::Fact(Box::new(Input::Agent(node, Some(alive)))));
            }
        }
    }

    /// The facts.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    fn take(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Fact(fact) => drop(self.engine.apply(*fact, now)),
            Event::List(list) => drop(self.engine.sync(list, now)),
            Event::Unwatched(kind) => drop(self.engine.sync(Snapshot::Budgets(kind, Vec::new()), now)),
            // All other events concern replicas.
            _ => {}
        }
    }
}

/// The kind of the objects that an event shows, if it is one that defines groups or owns pods.
fn kind_of(event: &Event) -> Option<GroupKind> {
    let workload = |source: &WorkloadSource| match source {
        WorkloadSource::Own => GroupKind::new(SCHEDULING_GROUP, "Workload"),
        WorkloadSource::Upstream => GroupKind::new(UPSTREAM_SCHEDULING_GROUP, "Workload"),
    };
    let pod_group = || GroupKind::new(UPSTREAM_SCHEDULING_GROUP, "PodGroup");
    match event {
        Event::List(Snapshot::Controllers(kind, _)) => Some(kind.clone()),
        Event::List(Snapshot::PodGroups(_)) => Some(pod_group()),
        Event::List(Snapshot::Workloads(source, _)) => Some(workload(source)),
        Event::Fact(fact) => match &**fact {
            Input::Controller(controller) => Some(controller.kind.clone()),
            Input::PodGroup(..) => Some(pod_group()),
            Input::Workload(source, ..) => Some(workload(source)),
            _ => None,
        },
        _ => None,
    }
}

/// A single namespace, for a user who may not list all of them.
async fn namespace(client: &Client, name: &str, own: &str) -> Option<Input> {
    let object = Api::<slim::Namespace>::all(client.clone()).get(name).await.ok()?;
    let (name, fact) = objects::namespace(&object.metadata, &[watches::EXCLUDED, own]).ok()?;
    Some(Input::Namespace(name, Some(fact)))
}
