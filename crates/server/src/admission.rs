//! The admission webhooks: the HTTP paths that the API server calls.
//!
//! - `POST /evictions` decides `pods/eviction`, and pins the eviction to the pod that it decided on.
//! - `POST /pods` decides deletes, updates, announced updates and resizes of pods.
//! - `POST /labels` decides changes of labels and owners that take a pod out of a budget.
//! - `POST /budgets` validates budgets and Workloads.
//! - `POST /probes` validates the probes of a pod.
//! - `POST /owners` adds to a pod the owners that its template names.
//!
//! Every body gets an answer, and no body causes a panic.

mod reading;
mod validate;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
use axum::body::Body;
use axum::extract::{FromRef, Query, Request, State};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use futures::future::BoxFuture;
use http::{HeaderValue, header};
use parking_lot::RwLock;
use quorate_engine::basics::Time;
use quorate_engine::decision::{Allow, Decision, Denial, DenialReason};
use quorate_engine::facts::Operation;
use quorate_engine::{Gates, SafetyRule};
#[cfg(feature = "mutations")]
use quorate_intake::admission::Review;
use quorate_intake::admission::{self as reviews, Rejected, ReviewedOperation};
use quorate_kit::fair_pool::FairPool;
use serde::Deserialize;
use serde_json::Value;
use tracing::{info, warn};

use crate::actor::ReplicaHandle;
use crate::clock;
use crate::events::Events;
use crate::kruise::ServedHere;
use crate::metrics::Metrics;
use crate::owners::Owners;
use reading::{LIMIT, Memory};

/// Path that decides evictions.
pub const EVICTIONS: &str = "/evictions";
/// Path that decides all other operations on pods.
pub const PODS: &str = "/pods";
/// Path that decides changes of the labels and owners of pods. A path of its own: a request that changes the image too is
/// decided twice, and each webhook has its own failure policy.
pub const LABELS: &str = "/labels";
/// Path that validates budgets and Workloads.
pub const BUDGETS: &str = "/budgets";
/// Path that validates the probes that pods declare.
pub const PROBES: &str = "/probes";
/// Path that adds to pods the owners that their templates name.
pub const OWNERS: &str = "/owners";

/// Timeout of a webhook call if the API server does not send one.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest timeout that Kubernetes accepts for a webhook. A caller that is not the API server could send a longer one.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of requests in progress, half of it for one client. Further requests wait, and are denied at their
/// deadline.
const AT_ONCE: u64 = 2048;

/// Requests of one client that wait for a seat: more than that cannot have memory.
const WAITING: usize = 4096;

/// State of the router: the replica that decides, and whether this process may answer.
#[derive(Clone)]
pub struct AdmissionState {
    replica: ReplicaHandle,
    gates: Gates,
    may_answer: Arc<dyn Fn(Time) -> BoxFuture<'static, bool> + Send + Sync>,
    memory: Memory,
    seats: FairPool,
    events: Events,
    metrics: Arc<Metrics>,
    /// Whether this process serves OpenKruise's budgets.
    kruise: ServedHere,
    /// Adds owners to pods, if the feature is on.
    owners: Option<Owners>,
}

impl AdmissionState {
    /// Answers with the decisions of `replica`, if `may_answer` is true right before the answer. It gets the deadline.
    pub(crate) fn new(
        replica: ReplicaHandle,
        gates: Gates,
        events: Events,
        metrics: Arc<Metrics>,
        kruise: ServedHere,
        may_answer: impl Fn(Time) -> BoxFuture<'static, bool> + Send + Sync + 'static,
    ) -> Self {
        let (memory, seats) = (Memory::new(), FairPool::new(AT_ONCE, WAITING));
        let may_answer = Arc::new(may_answer);
        Self { replica, gates, may_answer, memory, seats, events, metrics, kruise, owners: None }
    }

    /// Also adds owners to pods, if `owners` is given.
    pub(crate) fn with_owners(self, owners: Option<Owners>) -> Self {
        Self { owners, ..self }
    }

    /// Decides a request. It takes one of the `AT_ONCE` seats until the answer is there.
    async fn decide(
        &self,
        client: IpAddr,
        request: &quorate_engine::request::Request,
        deadline: Time,
    ) -> Decision {
        let refuse = |reason| Decision::Deny(vec![Denial { budget: None, reason }]);
        let left = deadline.since(clock::now());
        let Ok(Ok(_seat)) = tokio::time::timeout(left, self.seats.take(client, 1)).await else {
            return refuse(DenialReason::Deadline);
        };
        let decision = self.replica.decide(request.clone(), deadline).await;
        // Checked last: if this process was paused, the other replicas may consider it dead by now.
        let free =
            matches!(&decision, Decision::Allow(allow) if passes_without_lease(request.operation, allow));
        if decision.is_allowed() && !free && !(self.may_answer)(deadline).await {
            return refuse(DenialReason::NotServing);
        }
        decision
    }
}

/// Whether an answer is sent even if the Lease of this process is not current: no budget decided anything. A relabel must
/// not wait, because a database may be waiting for its new primary. If a budget decides it that this process does not know,
/// the process acts like one that does not answer: the webhook for relabels fails open.
fn passes_without_lease(operation: Operation, allow: &Allow) -> bool {
    match allow {
        Allow::Exempt(_) => true,
        Allow::NotCovered { .. } => operation == Operation::Relabel,
        Allow::Agreed { reasons, .. } => {
            operation == Operation::Relabel && reasons.iter().all(|(_, reason)| reason.only_observes())
        }
        Allow::NoEffect { .. } => false,
    }
}

/// The state that answers now. A process that starts over replaces it.
#[derive(Clone)]
pub struct CurrentState {
    state: Arc<RwLock<AdmissionState>>,
}

impl CurrentState {
    pub(crate) fn replace(&self, state: AdmissionState) {
        *self.state.write() = state;
    }
}

impl From<AdmissionState> for CurrentState {
    fn from(state: AdmissionState) -> Self {
        Self { state: Arc::new(RwLock::new(state)) }
    }
}

impl FromRef<CurrentState> for AdmissionState {
    fn from_ref(current: &CurrentState) -> Self {
        current.state.read().clone()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Params {
    timeout: Option<String>,
}

impl Params {
    /// Nine tenths of the webhook timeout: the API server ignores an answer that comes too late.
    fn deadline(&self, now: Time) -> Time {
        let given = self.timeout.as_deref().and_then(|text| text.strip_suffix('s'));
        let seconds = given.and_then(|text| text.parse::<u32>().ok()).filter(|seconds| *seconds > 0);
        let timeout = seconds.map_or(TIMEOUT, |seconds| Duration::from_secs(seconds.into()));
        now.after(timeout.min(LONGEST_TIMEOUT).mul_f64(0.9))
    }
}

/// The router of all paths. Once `ending` is true, each answer closes its connection: then the API server has moved its
/// connections to other servers before this process ends, and no connection breaks with a request on it.
pub fn router(
    state: impl Into<CurrentState>,
    ending: impl Fn() -> bool + Clone + Send + Sync + 'static,
) -> Router {
    let farewell = move |mut response: Response| {
        if ending() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        std::future::ready(response)
    };
    Router::new()
        .route(EVICTIONS, post(decide))
        .route(PODS, post(decide))
        .route(LABELS, post(decide_relabel))
        .route(BUDGETS, post(validate))
        .route(PROBES, post(validate))
        .route(OWNERS, post(add_owners))
        .with_state(state.into())
        .layer(map_response(farewell))
}

/// What of a request is decided: an update can restart containers and change labels, too.
#[derive(Clone, Copy)]
enum Aspect {
    /// What happens to the pod.
    Pod,
    /// Its labels and owners.
    Labels,
}

async fn decide(
    State(state): State<AdmissionState>,
    Query(params): Query<Params>,
    request: Request,
) -> Json<Value> {
    let (client, deadline) = (reading::client(&request), params.deadline(clock::now()));
    let answer = async |body: &[u8]| answer(&state, client, body, deadline, Aspect::Pod).await;
    reply(&state, request, deadline, answer).await
}

async fn decide_relabel(
    State(state): State<AdmissionState>,
    Query(params): Query<Params>,
    request: Request,
) -> Json<Value> {
    let (client, deadline) = (reading::client(&request), params.deadline(clock::now()));
    let answer = async |body: &[u8]| answer(&state, client, body, deadline, Aspect::Labels).await;
    reply(&state, request, deadline, answer).await
}

async fn validate(
    State(state): State<AdmissionState>,
    Query(params): Query<Params>,
    request: Request,
) -> Json<Value> {
    let deadline = params.deadline(clock::now());
    reply(&state, request, deadline, async |body| validate::validate(&state, body).await).await
}

/// Never prevents a pod from starting: a pod that cannot be read is admitted unchanged. A server with the feature off
/// answers too: while the feature is being switched on or off, the API server may still call it.
async fn add_owners(
    State(state): State<AdmissionState>,
    Query(params): Query<Params>,
    request: Request,
) -> Json<Value> {
    let deadline = params.deadline(clock::now());
    let answer = async |body: &[u8]| match &state.owners {
        Some(owners) => owners.answer(body, LIMIT).await,
        None => reviews::read(body, LIMIT).map(|review| reviews::allow(review.uid())),
    };
    reply(&state, request, deadline, async |body| match answer(body).await {
        Err(Rejected { uid: Some(uid), fault }) => {
            warn!(%fault, "cannot read a pod: it is admitted unchanged");
            Ok(reviews::allow(&uid))
        }
        answered => answered,
    })
    .await
}

/// Reads a body and answers it. The answer to a body that cannot be read says so.
async fn reply(
    state: &AdmissionState,
    request: Request,
    deadline: Time,
    answer: impl AsyncFnOnce(&[u8]) -> Result<Value, Rejected>,
) -> Json<Value> {
    let answered = match state.memory.read(request, deadline).await {
        Ok((body, _share)) => answer(&body).await,
        Err(fault) => Err(Rejected { uid: None, fault }),
    };
    Json(answered.unwrap_or_else(|rejected| {
        warn!(%rejected, "cannot read a review");
        reviews::reject(&rejected)
    }))
}

async fn answer(
    state: &AdmissionState,
    client: IpAddr,
    body: &[u8],
    deadline: Time,
    aspect: Aspect,
) -> Result<Value, Rejected> {
    let arrived = clock::now();
    let review = reviews::read(body, LIMIT)?;
    let uid = review.uid();
    let requested = match aspect {
        Aspect::Pod => review.reviewed_operation()?,
        Aspect::Labels => review.reviewed_relabel()?,
    };
    let mut disruption = match requested {
        ReviewedOperation::NoDisruption(_) => return Ok(reviews::allow(uid)),
        ReviewedOperation::Disruption(disruption) => disruption,
    };
    if SafetyRule::EvictionsArePinned.is_left_out() {
        disruption.pin = None;
    }
    let request = &disruption.request;
    #[cfg(feature = "mutations")]
    if SafetyRule::ReviewsTeachNothing.is_left_out() {
        learn(state, &review).await;
    }
    let decision = state.decide(client, request, deadline).await;
    let now = clock::now();
    state.metrics.answered(request.operation, &decision, now.since(arrived));
    let outcome = match &decision {
        // Most labels make no difference to any budget.
        Decision::Allow(Allow::NotCovered { .. }) if request.operation == Operation::Relabel => {
            return Ok(reviews::allow(uid));
        }
        Decision::Allow(allow) => {
            let departures = match allow {
                Allow::Agreed { departures, .. } if !request.dry_run => departures.as_slice(),
                _ => &[],
            };
            for departure in departures {
                state.events.left(departure);
                state.metrics.pod_left(&departure.budget);
            }
            "admitted"
        }
        Decision::Deny(denials) => {
            state.events.denied(request, denials, now);
            "denied"
        }
    };
    info!(pod = %request.pod, operation = ?request.operation, user = %request.caller.user, "{outcome}");
    Ok(reviews::answer(uid, &disruption, &decision, now))
}

/// Believes the object of a review, which a server must not do: an attacker may have written it. Only in test builds.
#[cfg(feature = "mutations")]
async fn learn(state: &AdmissionState, review: &Review<'_>) {
    let read = |object: Value| quorate_intake::objects::any_pod(&object.to_string()).ok();
    let pod = review.old_object().ok().and_then(read).map(|(pod, _)| pod);
    if let Some(pod) = pod {
        state
            .replica
            .send(quorate_engine::ledger::Event::Fact(Box::new(quorate_engine::facts::Input::Pod(pod))))
            .await;
    }
}

#[cfg(test)]
mod tests;
