//! What the API server asks, over HTTP.
//!
//! `POST /evictions` decides `pods/eviction` and pins the pod that it decided on; `POST /pods` decides deletes, updates
//! and resizes of pods. Every body gets an answer, and none a panic.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use quorate_engine::basics::Time;
use quorate_engine::verdict::{Allow, Block, Reason, Verdict};
use quorate_intake::admission::{self as reviews, Asked, Fault, Rejected};
use serde::Deserialize;
use serde_json::Value;
use tracing::{info, warn};

use crate::clock;
use crate::keeper::Keeper;

/// Where evictions are decided.
pub const EVICTIONS: &str = "/evictions";
/// Where everything else that is done to pods is decided.
pub const PODS: &str = "/pods";

/// How much of a body is read. An object has 1.5 MiB in etcd at most, and a review may hold it twice.
const LIMIT: usize = 8 << 20;

/// What the API server gives a webhook where it does not say so.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Whom the router asks, and whether this process may answer.
#[derive(Clone)]
pub struct Desk {
    keeper: Keeper,
    may_answer: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Desk {
    /// Answers what `keeper` decides, as long as `may_answer` says so right before the answer.
    pub fn new(keeper: Keeper, may_answer: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { keeper, may_answer: Arc::new(may_answer) }
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

/// Everything that is served.
pub fn router(desk: Desk) -> Router {
    Router::new()
        .route(EVICTIONS, post(decide))
        .route(PODS, post(decide))
        .route("/healthz", get(|| async { StatusCode::OK }))
        .with_state(desk)
}

async fn decide(State(desk): State<Desk>, Query(params): Query<Params>, body: Body) -> Json<Value> {
    let deadline = params.deadline(clock::now());
    let body = match to_bytes(body, LIMIT).await {
        Ok(body) => body,
        Err(_) => {
            let rejected = Rejected { uid: None, fault: Fault::TooLarge { limit: LIMIT } };
            return Json(reviews::reject(&rejected));
        }
    };
    Json(match answer(&desk, &body, deadline).await {
        Ok(answer) => answer,
        Err(rejected) => {
            warn!(%rejected, "a review cannot be understood");
            reviews::reject(&rejected)
        }
    })
}

async fn answer(desk: &Desk, body: &[u8], deadline: Time) -> Result<Value, Rejected> {
    let review = reviews::read(body, LIMIT)?;
    let uid = review.uid();
    let disruption = match review.asked()? {
        Asked::Nothing(_) => return Ok(reviews::allow(uid)),
        Asked::Disruption(disruption) => disruption,
    };
    let mut verdict = desk.keeper.ask(disruption.request.clone(), deadline).await;
    // Last of all: a process that was held up may have been taken for dead meanwhile.
    let exempt = matches!(verdict, Verdict::Allow(Allow::Exempt(_)));
    if verdict.is_allowed() && !exempt && !(desk.may_answer)() {
        verdict = Verdict::Deny(vec![Block { budget: None, reason: Reason::NotSynced }]);
    }
    let request = &disruption.request;
    let word = if verdict.is_allowed() { "admitted" } else { "refused" };
    info!(pod = %request.pod, operation = ?request.operation, user = %request.caller.user, "{word}");
    Ok(reviews::answer(uid, &disruption, &verdict, clock::now()))
}

#[cfg(test)]
mod tests;
