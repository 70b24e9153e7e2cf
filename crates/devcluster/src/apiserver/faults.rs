//! Bad days on demand. Every fault is a guard: it holds while the guard lives and ends with its scope.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::clock::Clock;
use super::failure::Failure;
use super::store::Store;

/// What a request wants, for choosing the ones to hit.
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
    /// The object's name, empty where the request names none.
    pub name: &'a str,
    /// Who asks.
    pub user: &'a str,
}

type Test = Arc<dyn Fn(&RequestInfo<'_>) -> bool + Send + Sync>;

/// Chooses requests. Everything that is said must hold.
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

    /// Requests for which `test` holds too.
    pub fn and(mut self, test: impl Fn(&RequestInfo<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.tests.push(Arc::new(test));
        self
    }

    /// Requests with this verb.
    pub fn verb(self, verb: &str) -> Self {
        let verb = verb.to_owned();
        self.and(move |asked| asked.verb == verb)
    }

    /// Requests that write.
    pub fn writes(self) -> Self {
        self.and(|asked| !matches!(asked.verb, "get" | "list" | "watch"))
    }

    /// Requests to this resource, by its plural.
    pub fn resource(self, plural: &str) -> Self {
        let plural = plural.to_owned();
        self.and(move |asked| asked.resource == plural)
    }

    /// Requests to this subresource.
    pub fn subresource(self, subresource: &str) -> Self {
        let subresource = subresource.to_owned();
        self.and(move |asked| asked.subresource == subresource)
    }

    /// Requests in this namespace.
    pub fn namespace(self, namespace: &str) -> Self {
        let namespace = namespace.to_owned();
        self.and(move |asked| asked.namespace == namespace)
    }

    /// Requests for the object of this name.
    pub fn name(self, name: &str) -> Self {
        let name = name.to_owned();
        self.and(move |asked| asked.name == name)
    }

    /// Requests of this user.
    pub fn user(self, user: &str) -> Self {
        let user = user.to_owned();
        self.and(move |asked| asked.user == user)
    }

    fn matches(&self, asked: &RequestInfo<'_>) -> bool {
        self.tests.iter().all(|test| test(asked))
    }
}

/// What happens to a request that is hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Refused with 409 Conflict; nothing is done.
    Conflict,
    /// Refused with 403 Forbidden, as an API server does whose RBAC caches are not synced; nothing is done.
    Forbidden,
    /// Refused with 429, and a `Retry-After` where seconds are given; nothing is done.
    TooManyRequests {
        /// Seconds for `Retry-After`.
        retry_after: Option<u32>,
    },
    /// Refused with 500; nothing is done.
    InternalError,
    /// Refused with 503; nothing is done.
    Unavailable,
    /// Refused with 504; nothing is done.
    Timeout,
    /// Done, after a while.
    Delay(Duration),
    /// Done, but the answer never arrives: the connection breaks.
    LoseReply,
    /// Not done; the connection breaks.
    Disconnect,
    /// Not done; no answer comes while the guard lives, then the connection breaks.
    Hang,
}

/// What happens to the watches that are hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFault {
    /// Nothing arrives, neither events nor bookmarks, while the guard lives; then all of it.
    Hold,
    /// What happens while the guard lives is never delivered.
    Drop,
    /// Everything arrives later by this much.
    Delay(Duration),
}

/// How a live watch is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Close,
    Expire,
}

struct Rule {
    id: u64,
    which: RequestFilter,
    what: What,
    left: Option<usize>,
    hits: watch::Sender<usize>,
}

#[derive(Clone)]
enum What {
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

/// The switchboard of faults.
#[derive(Clone)]
pub struct Faults {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Faults({} in force)", self.inner.state.lock().rules.len())
    }
}

/// A fault in force.
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
    /// Lets the fault strike only so many more times.
    pub fn times(self, count: usize) -> Self {
        let mut state = self.inner.state.lock();
        for rule in state.rules.iter_mut().filter(|rule| self.ids.contains(&rule.id)) {
            rule.left = Some(count);
        }
        drop(state);
        self
    }

    /// How often the fault has struck.
    pub fn hits(&self) -> usize {
        *self.hits.borrow()
    }

    /// Waits until the fault has struck so often.
    pub async fn struck(&mut self, count: usize) {
        // The sender lives in the rule, and the rule as long as this guard.
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

    fn install(&self, rules: Vec<(RequestFilter, What)>) -> FaultGuard {
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

    /// Hits the chosen requests.
    pub fn requests(&self, which: RequestFilter, fault: Fault) -> FaultGuard {
        self.install(vec![(which, What::Request(fault))])
    }

    /// Hits the chosen watches, those that run and those that begin.
    pub fn watches(&self, which: RequestFilter, fault: WatchFault) -> FaultGuard {
        self.install(vec![(which, What::Watch(fault))])
    }

    /// Leaves a group, or one resource of it, out of discovery. Its objects are served as ever: this is what an API
    /// server that has just started answers, and one whose aggregated API servers do not.
    pub fn partial_discovery(&self, group: &str, resource: Option<&str>) -> FaultGuard {
        let what = What::Discovery { group: group.to_owned(), resource: resource.map(str::to_owned) };
        self.install(vec![(RequestFilter::any(), what)])
    }

    /// Cuts a user off: requests get no answer and watches fall silent. When it is over, connections break.
    pub fn partition(&self, user: &str) -> FaultGuard {
        let which = RequestFilter::any().user(user);
        let mut guard = self.install(vec![
            (which.clone(), What::Request(Fault::Hang)),
            (which.clone(), What::Watch(WatchFault::Hold)),
        ]);
        guard.end_watches = Some(which);
        guard
    }

    /// Moves the server's clock while the guard lives.
    pub fn step_clock(&self, step: SignedDuration) -> FaultGuard {
        self.inner.clock.step(step);
        let mut guard = self.install(Vec::new());
        guard.undo_step = Some(step);
        guard
    }

    /// Ends the chosen watches that run now, as a restarted API server would.
    pub fn cut_watches(&self, which: RequestFilter) {
        self.inner.end_watches(which, End::Close);
    }

    /// Ends the chosen watches that run now with 410 Expired: their clients list again.
    pub fn expire_watches(&self, which: RequestFilter) {
        self.inner.end_watches(which, End::Expire);
    }

    /// Forgets all history: every watch gets 410 Expired, and so does a list that continues an older one.
    pub fn compact(&self) {
        self.inner.store.compact();
    }

    /// What strikes this request, delays first. Counts as struck.
    pub(crate) fn strike(&self, asked: &RequestInfo<'_>) -> Vec<(u64, Fault)> {
        let mut state = self.inner.state.lock();
        let mut struck = Vec::new();
        for rule in &mut state.rules {
            let What::Request(fault) = &rule.what else { continue };
            if rule.left == Some(0) || !rule.which.matches(asked) {
                continue;
            }
            rule.left = rule.left.map(|left| left - 1);
            rule.hits.send_modify(|hits| *hits += 1);
            struck.push((rule.id, fault.clone()));
        }
        struck.sort_by_key(|(_, fault)| !matches!(fault, Fault::Delay(_)));
        struck
    }

    /// What is in force for this watch now.
    pub(crate) fn on_watch(&self, asked: &RequestInfo<'_>) -> Option<WatchFault> {
        let state = self.inner.state.lock();
        state.rules.iter().find_map(|rule| match &rule.what {
            What::Watch(fault) if rule.which.matches(asked) => {
                rule.hits.send_if_modified(|hits| {
                    *hits += 1;
                    true
                });
                Some(*fault)
            }
            _ => None,
        })
    }

    /// Whether discovery leaves this group, or this resource of it, out now.
    pub(crate) fn hides(&self, group: &str, resource: Option<&str>) -> bool {
        let state = self.inner.state.lock();
        let mut hidden = false;
        for rule in &state.rules {
            let What::Discovery { group: of, resource: only } = &rule.what else { continue };
            if of == group && only.as_deref() == resource {
                rule.hits.send_modify(|hits| *hits += 1);
                hidden = true;
            }
        }
        hidden
    }

    /// A mark for `ended_since`.
    pub(crate) fn mark(&self) -> u64 {
        self.inner.state.lock().last_id
    }

    /// Whether a watch that began at `mark` was ended since.
    pub(crate) fn ended_since(&self, mark: u64, asked: &RequestInfo<'_>) -> Option<End> {
        let state = self.inner.state.lock();
        state.ends.iter().find(|(id, which, _)| *id > mark && which.matches(asked)).map(|(_, _, how)| *how)
    }

    /// Tells when anything about faults changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.inner.epoch.subscribe()
    }

    /// Waits until a rule is no longer in force.
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
    /// The refusal this fault answers with, where it is one.
    pub(crate) fn refusal(&self, asked: &RequestInfo<'_>) -> Option<Failure> {
        let about = super::failure::About { group: asked.group, resource: asked.resource };
        Some(match self {
            Self::Conflict => Failure::modified(about, asked.name),
            Self::Forbidden => {
                let place = match asked.namespace {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {namespace:?}"),
                };
                let resource = match asked.subresource {
                    "" => asked.resource.to_owned(),
                    subresource => format!("{}/{subresource}", asked.resource),
                };
                let (user, verb, group) = (asked.user, asked.verb, asked.group);
                let why = format!(
                    "User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {place}"
                );
                Failure::forbidden(about, asked.name, &why)
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
