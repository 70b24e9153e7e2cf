//! What the API server asks, over HTTP.
//!
//! `POST /evictions` decides `pods/eviction` and pins the pod that it decided on; `POST /pods` decides deletes, updates,
//! announced updates and resizes of pods; `POST /budgets` says whether our own objects make sense, `POST /probes` whether the probes of a
//! pod do; `POST /owners` adds to a pod the owners that its template names. Every body gets an answer, and none a panic.

mod validate;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Query, State};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use http::{HeaderValue, header};
use quorate_engine::Gates;
use quorate_engine::basics::Time;
use quorate_engine::decision::{Allow, Decision, Denial, DenialReason};
use quorate_intake::admission::{self as reviews, Fault, Rejected, ReviewedOperation};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use tracing::{info, warn};

use crate::actor::ReplicaHandle;
use crate::clock;
use crate::events::Events;
use crate::kruise::ServedHere;
use crate::metrics::Metrics;
use crate::owners::Owners;

/// Where evictions are decided.
pub const EVICTIONS: &str = "/evictions";
/// Where everything else that is done to pods is decided.
pub const PODS: &str = "/pods";
/// Where our own objects are validated.
pub const BUDGETS: &str = "/budgets";
/// Where the probes that pods declare are validated.
pub const PROBES: &str = "/probes";
/// Where pods get the owners that their templates name.
pub const OWNERS: &str = "/owners";

/// How much of a body is read. An object has 1.5 MiB in etcd at most, and a review may hold it twice.
const LIMIT: usize = 8 << 20;

/// What the API server gives a webhook where it does not say so.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How many requests are thought about at once. More than this wait, and are refused when their time is up.
const AT_ONCE: usize = 1024;

/// Whom the router asks, and whether this process may answer.
#[derive(Clone)]
pub struct AdmissionState {
    replica: ReplicaHandle,
    gates: Gates,
    may_answer: Arc<dyn Fn() -> bool + Send + Sync>,
    seats: Arc<Semaphore>,
    events: Events,
    metrics: Arc<Metrics>,
    /// Whether budgets of OpenKruise are for us to judge.
    kruise: ServedHere,
    /// Who adds owners to pods, where that is switched on.
    owners: Option<Owners>,
}

impl AdmissionState {
    /// Answers what `keeper` decides, as long as `may_answer` says so right before the answer.
    pub(crate) fn new(
        replica: ReplicaHandle,
        gates: Gates,
        events: Events,
        metrics: Arc<Metrics>,
        kruise: ServedHere,
        may_answer: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        let seats = Arc::new(Semaphore::new(AT_ONCE));
        let may_answer = Arc::new(may_answer);
        Self { replica, gates, may_answer, seats, events, metrics, kruise, owners: None }
    }

    /// Adds owners to pods too, where there is somebody who does.
    pub(crate) fn with_owners(self, owners: Option<Owners>) -> Self {
        Self { owners, ..self }
    }

    /// Decides a request. The seat is given back when the answer is there.
    async fn decide(&self, request: &quorate_engine::request::Request, deadline: Time) -> Decision {
        let refuse = |reason| Decision::Deny(vec![Denial { budget: None, reason }]);
        let left = deadline.since(clock::now());
        let Ok(Ok(_seat)) = tokio::time::timeout(left, self.seats.acquire()).await else {
            return refuse(DenialReason::Deadline);
        };
        let decision = self.replica.decide(request.clone(), deadline).await;
        // Last of all: a process that was held up may have been taken for dead meanwhile.
        let exempt = matches!(decision, Decision::Allow(Allow::Exempt(_)));
        if decision.is_allowed() && !exempt && !(self.may_answer)() {
            return refuse(DenialReason::NotSynced);
        }
        decision
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Params {
    timeout: Option<String>,
}

impl Params {
    /// Nine tenths of what the API server gives: an answer that comes too late is none.
    fn deadline(&self, now: Time) -> Time {
        let given = self.timeout.as_deref().and_then(|text| text.strip_suffix('s'));
        let seconds = given.and_then(|text| text.parse::<u32>().ok()).filter(|seconds| *seconds > 0);
        now.after(seconds.map_or(TIMEOUT, |seconds| Duration::from_secs(seconds.into())).mul_f64(0.9))
    }
}

/// Everything that is served. Once `ending` says so, each answer asks to connect anew: then the connections have moved
/// on to others by the time this process ends, and none breaks with a request on it.
pub fn router(state: AdmissionState, ending: impl Fn() -> bool + Clone + Send + Sync + 'static) -> Router {
    let farewell = move |mut response: Response| {
        if ending() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        std::future::ready(response)
    };
    Router::new()
        .route(EVICTIONS, post(decide))
        .route(PODS, post(decide))
        .route(BUDGETS, post(validate))
        .route(PROBES, post(validate))
        .route(OWNERS, post(add_owners))
        .with_state(state)
        .layer(map_response(farewell))
}

async fn decide(
    State(state): State<AdmissionState>,
    Query(params): Query<Params>,
    body: Body,
) -> Json<Value> {
    let deadline = params.deadline(clock::now());
    reply(body, async |body| answer(&state, body, deadline).await).await
}

async fn validate(State(state): State<AdmissionState>, body: Body) -> Json<Value> {
    reply(body, async |body| validate::validate(&state, body).await).await
}

/// No pod fails to start because of this: what cannot be understood passes as it is. Where the feature is off, servers
/// of before or after the switch may still be asked.
async fn add_owners(State(state): State<AdmissionState>, body: Body) -> Json<Value> {
    let answer = async |body: &[u8]| match &state.owners {
        Some(owners) => owners.answer(body, LIMIT).await,
        None => reviews::read(body, LIMIT).map(|review| reviews::allow(review.uid())),
    };
    reply(body, async |body| match answer(body).await {
        Err(Rejected { uid: Some(uid), fault }) => {
            warn!(%fault, "a pod cannot be understood, and is made as it is");
            Ok(reviews::allow(&uid))
        }
        answered => answered,
    })
    .await
}

/// Reads a body and answers it; one that cannot be understood is told so.
async fn reply(body: Body, answer: impl AsyncFnOnce(&[u8]) -> Result<Value, Rejected>) -> Json<Value> {
    let body = match to_bytes(body, LIMIT).await {
        Ok(body) => body,
        Err(_) => {
            let rejected = Rejected { uid: None, fault: Fault::TooLarge { limit: LIMIT } };
            return Json(reviews::reject(&rejected));
        }
    };
    Json(answer(&body).await.unwrap_or_else(|rejected| {
        warn!(%rejected, "a review cannot be understood");
        reviews::reject(&rejected)
    }))
}

async fn answer(state: &AdmissionState, body: &[u8], deadline: Time) -> Result<Value, Rejected> {
    let arrived = clock::now();
    let review = reviews::read(body, LIMIT)?;
    let uid = review.uid();
    let disruption = match review.asked()? {
        ReviewedOperation::NoDisruption(_) => return Ok(reviews::allow(uid)),
        ReviewedOperation::Disruption(disruption) => disruption,
    };
    let request = &disruption.request;
    let decision = state.decide(request, deadline).await;
    let now = clock::now();
    state.metrics.answered(request.operation, &decision, now.since(arrived));
    let word = match &decision {
        Decision::Allow(_) => "admitted",
        Decision::Deny(denials) => {
            state.events.denied(request, denials, now);
            "refused"
        }
    };
    info!(pod = %request.pod, operation = ?request.operation, user = %request.caller.user, "{word}");
    Ok(reviews::answer(uid, &disruption, &decision, now))
}

#[cfg(test)]
mod tests;
