//! Fault injection. Each fault is active while its guard lives, and ends when the guard is dropped.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::clock::Clock;
use super::failure::Failure;
use super::store::Store;

/// The properties of a request that a filter can match.
#[derive(Clone, Copy, Debug)]
pub struct RequestInfo<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'a str,
    /// The API group, empty for the core group.
    pub group: &'a str,
    /// The plural, for instance `pods`.
    pub resource: &'a str,
    /// The subresource, empty for the object itself.
    pub subresource: &'a str,
    /// The namespace, empty for cluster-scoped requests.
    pub namespace: &'a str,
    /// The object's name, empty if the request has none.
    pub name: &'a str,
    /// The user that sends the request.
    pub user: &'a str,
}

type Test = Arc<dyn Fn(&RequestInfo<'_>) -> bool + Send + Sync>;

/// Selects requests. A request must meet all conditions.
#[derive(Clone, Default)]
pub struct RequestFilter {
    tests: Vec<Test>,
}

impl std::fmt::Debug for RequestFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RequestFilter({} tests)", self.tests.len())
    }
}

impl RequestFilter {
    /// Every request to a resource.
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests for which `test` also holds.
    pub fn and(mut self, test: impl Fn(&RequestInfo<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.tests.push(Arc::new(test));
        self
    }

    /// Requests with this verb.
    pub fn verb(self, verb: &str) -> Self {
        let verb = verb.to_owned();
        self.and(move |request| request.verb == verb)
    }

    /// Requests that write.
    pub fn writes(self) -> Self {
        self.and(|request| !matches!(request.verb, "get" | "list" | "watch"))
    }

    /// Requests to this resource, by its plural.
    pub fn resource(self, plural: &str) -> Self {
        let plural = plural.to_owned();
        self.and(move |request| request.resource == plural)
    }

    /// Requests to this subresource.
    pub fn subresource(self, subresource: &str) -> Self {
        let subresource = subresource.to_owned();
        self.and(move |request| request.subresource == subresource)
    }

    /// Requests in this namespace.
    pub fn namespace(self, namespace: &str) -> Self {
        let namespace = namespace.to_owned();
        self.and(move |request| request.namespace == namespace)
    }

    /// Requests for the object with this name.
    pub fn name(self, name: &str) -> Self {
        let name = name.to_owned();
        self.and(move |request| request.name == name)
    }

    /// Requests of this user.
    pub fn user(self, user: &str) -> Self {
        let user = user.to_owned();
        self.and(move |request| request.user == user)
    }

    fn matches(&self, request: &RequestInfo<'_>) -> bool {
        self.tests.iter().all(|test| test(request))
    }
}

/// The effect of a fault on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request fails with 409 Conflict and has no effect.
    Conflict,
    /// The request fails with 403 Forbidden, as on an API server whose RBAC caches are not synced, and has no effect.
    Forbidden,
    /// The request fails with 429, and with `Retry-After` if seconds are given, and has no effect.
    TooManyRequests {
        /// Seconds for `Retry-After`.
        retry_after: Option<u32>,
    },
    /// The request fails with 500 and has no effect.
    InternalError,
    /// The request fails with 503 and has no effect.
    Unavailable,
    /// The request fails with 504 and has no effect.
    Timeout,
    /// The request is executed after this delay.
    Delay(Duration),
    /// The request is executed, but the response is lost: the connection breaks.
    LoseReply,
    /// The request is not executed; the connection breaks.
    Disconnect,
    /// The request is not executed. No response comes while the guard lives; then the connection breaks.
    Hang,
}

/// The effect of a fault on a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFault {
    /// No events and no bookmarks arrive while the guard lives; then all of them arrive.
    Hold,
    /// Changes that occur while the guard lives are never delivered.
    Drop,
    /// All events arrive with this delay.
    Delay(Duration),
    /// Events arrive, but no bookmarks, as from an aggregated API server.
    NoBookmarks,
}

/// How an active watch is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Close,
    Expire,
}

struct Rule {
    id: u64,
    which: RequestFilter,
    what: RuleFault,
    left: Option<usize>,
    hits: watch::Sender<usize>,
}

#[derive(Clone)]
enum RuleFault {
    Request(Fault),
    Watch(WatchFault),
    Discovery { group: String, resource: Option<String> },
}

#[derive(Default)]
struct State {
    last_id: u64,
    rules: Vec<Rule>,
    ends: Vec<(u64, RequestFilter, End)>,
}

struct Inner {
    state: Mutex<State>,
    epoch: watch::Sender<u64>,
    store: Arc<Store>,
    clock: Clock,
}

/// Injects faults into a server.
#[derive(Clone)]
pub struct Faults {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Faults({} in force)", self.inner.state.lock().rules.len())
    }
}

/// An active fault.
#[must_use = "dropping the guard ends the fault"]
pub struct FaultGuard {
    inner: Arc<Inner>,
    ids: Vec<u64>,
    hits: watch::Receiver<usize>,
    undo_step: Option<SignedDuration>,
    end_watches: Option<RequestFilter>,
}

impl std::fmt::Debug for FaultGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FaultGuard({} hits)", self.hits())
    }
}

impl FaultGuard {
    /// Limits the fault to `count` more hits.
    pub fn times(self, count: usize) -> Self {
        let mut state = self.inner.state.lock();
        for rule in state.rules.iter_mut().filter(|rule| self.ids.contains(&rule.id)) {
            rule.left = Some(count);
        }
        drop(state);
        self
    }

    /// The number of hits so far.
    pub fn hits(&self) -> usize {
        *self.hits.borrow()
    }

    /// Waits until the fault has at least `count` hits.
    pub async fn struck(&mut self, count: usize) {
        // The rule owns the sender and lives as long as this guard, so the wait cannot fail.
        let _ = self.hits.wait_for(|hits| *hits >= count).await;
    }
}

impl Drop for FaultGuard {
    fn drop(&mut self) {
        self.inner.state.lock().rules.retain(|rule| !self.ids.contains(&rule.id));
        if let Some(step) = self.undo_step {
            self.inner.clock.step(-step);
        }
        if let Some(which) = self.end_watches.take() {
            self.inner.end_watches(which, End::Close);
        }
        self.inner.epoch.send_modify(|epoch| *epoch += 1);
    }
}

impl Inner {
    fn end_watches(&self, which: RequestFilter, how: End) {
        let mut state = self.state.lock();
        state.last_id += 1;
        let id = state.last_id;
        state.ends.push((id, which, how));
        drop(state);
        self.epoch.send_modify(|epoch| *epoch += 1);
    }
}

impl Faults {
    pub(crate) fn new(store: Arc<Store>, clock: Clock) -> Self {
        let inner = Inner { state: Mutex::default(), epoch: watch::Sender::new(0), store, clock };
        Self { inner: Arc::new(inner) }
    }

    fn install(&self, rules: Vec<(RequestFilter, RuleFault)>) -> FaultGuard {
        let hits = watch::Sender::new(0);
        let seen = hits.subscribe();
        let mut ids = Vec::new();
        let mut state = self.inner.state.lock();
        for (which, what) in rules {
            state.last_id += 1;
            let id = state.last_id;
            ids.push(id);
            state.rules.push(Rule { id, which, what, left: None, hits: hits.clone() });
        }
        drop(state);
        self.inner.epoch.send_modify(|epoch| *epoch += 1);
        FaultGuard { inner: self.inner.clone(), ids, hits: seen, undo_step: None, end_watches: None }
    }

    /// Applies a fault to the selected requests.
    pub fn requests(&self, which: RequestFilter, fault: Fault) -> FaultGuard {
        self.install(vec![(which, RuleFault::Request(fault))])
    }

    /// Applies a fault to the selected watches, both active and new ones.
    pub fn watches(&self, which: RequestFilter, fault: WatchFault) -> FaultGuard {
        self.install(vec![(which, RuleFault::Watch(fault))])
    }

    /// Omits a group, or one resource of the group, from discovery. Its objects are still served. A real API server
    /// behaves like this just after its start, or while an aggregated API server does not respond.
    pub fn partial_discovery(&self, group: &str, resource: Option<&str>) -> FaultGuard {
        let what = RuleFault::Discovery { group: group.to_owned(), resource: resource.map(str::to_owned) };
        self.install(vec![(RequestFilter::any(), what)])
    }

    /// Isolates a user: requests get no response, and watches deliver nothing. When the fault ends, connections break.
    pub fn partition(&self, user: &str) -> FaultGuard {
        let which = RequestFilter::any().user(user);
        let mut guard = self.install(vec![
            (which.clone(), RuleFault::Request(Fault::Hang)),
            (which.clone(), RuleFault::Watch(WatchFault::Hold)),
        ]);
        guard.end_watches = Some(which);
        guard
    }

    /// Moves the server's clock by `step` while the guard lives.
    pub fn step_clock(&self, step: SignedDuration) -> FaultGuard {
        self.inner.clock.step(step);
        let mut guard = self.install(Vec::new());
        guard.undo_step = Some(step);
        guard
    }

    /// Ends the selected active watches, as a restart of the API server would.
    pub fn cut_watches(&self, which: RequestFilter) {
        self.inner.end_watches(which, End::Close);
    }

    /// Ends the selected active watches with 410 Expired, so that their clients list again.
    pub fn expire_watches(&self, which: RequestFilter) {
        self.inner.end_watches(which, End::Expire);
    }

    /// Drops all history. Every watch gets 410 Expired, and so does a list that continues an older list.
    pub fn compact(&self) {
        self.inner.store.compact();
    }

    /// The faults for this request, delays first. Counts one hit for each.
    pub(crate) fn strike(&self, request: &RequestInfo<'_>) -> Vec<(u64, Fault)> {
        let mut state = self.inner.state.lock();
        let mut struck = Vec::new();
        for rule in &mut state.rules {
            let RuleFault::Request(fault) = &rule.what else { continue };
            if rule.left == Some(0) || !rule.which.matches(request) {
                continue;
            }
            rule.left = rule.left.map(|left| left - 1);
            rule.hits.send_modify(|hits| *hits += 1);
            struck.push((rule.id, fault.clone()));
        }
        struck.sort_by_key(|(_, fault)| !matches!(fault, Fault::Delay(_)));
        struck
    }

    /// The active fault for this watch.
    pub(crate) fn on_watch(&self, request: &RequestInfo<'_>) -> Option<WatchFault> {
        let state = self.inner.state.lock();
        state.rules.iter().find_map(|rule| match &rule.what {
            RuleFault::Watch(fault) if rule.which.matches(request) => {
                rule.hits.send_if_modified(|hits| {
                    *hits += 1;
                    true
                });
                Some(*fault)
            }
            _ => None,
        })
    }

    /// Whether discovery currently omits this group, or this resource of the group.
    pub(crate) fn hides(&self, group: &str, resource: Option<&str>) -> bool {
        let state = self.inner.state.lock();
        let mut hidden = false;
        for rule in &state.rules {
            let RuleFault::Discovery { group: of, resource: only } = &rule.what else { continue };
            if of == group && only.as_deref() == resource {
                rule.hits.send_modify(|hits| *hits += 1);
                hidden = true;
            }
        }
        hidden
    }

    /// The current position, as an argument for `ended_since`.
    pub(crate) fn mark(&self) -> u64 {
        self.inner.state.lock().last_id
    }

    /// How a watch that started at `mark` was ended since then, if it was.
    pub(crate) fn ended_since(&self, mark: u64, request: &RequestInfo<'_>) -> Option<End> {
        let state = self.inner.state.lock();
        state.ends.iter().find(|(id, which, _)| *id > mark && which.matches(request)).map(|(_, _, how)| *how)
    }

    /// Notifies of every change to the faults.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.inner.epoch.subscribe()
    }

    /// Waits until a rule is no longer active.
    pub(crate) async fn until_over(&self, id: u64) {
        let mut epoch = self.subscribe();
        loop {
            epoch.borrow_and_update();
            if !self.inner.state.lock().rules.iter().any(|rule| rule.id == id) {
                return;
            }
            if epoch.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Fault {
    /// The error response of this fault, if it has one.
    pub(crate) fn refusal(&self, request: &RequestInfo<'_>) -> Option<Failure> {
        let about = super::failure::About { group: request.group, resource: request.resource };
        Some(match self {
            Self::Conflict => Failure::modified(about, request.name),
            Self::Forbidden => {
                let scope = match request.namespace {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {namespace:?}"),
                };
                let resource = match request.subresource {
                    "" => request.resource.to_owned(),
                    subresource => format!("{}/{subresource}", request.resource),
                };
                let (user, verb, group) = (request.user, request.verb, request.group);
                let why = format!(
                    "User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}"
                );
                Failure::forbidden(about, request.name, &why)
            }
            Self::TooManyRequests { retry_after } => Failure::too_many_requests(
                "the server has received too many requests and has asked us to try again later",
            )
            .retry_after(retry_after.unwrap_or(0)),
            Self::InternalError => Failure::internal("a fault on demand"),
            Self::Unavailable => Failure::new(
                503,
                "ServiceUnavailable",
                "the server is currently unable to handle the request",
            ),
            Self::Timeout => {
                Failure::new(504, "Timeout", "Timeout: request did not complete within the allotted timeout")
            }
            Self::Delay(_) | Self::LoseReply | Self::Disconnect | Self::Hang => return None,
        })
    }
}
