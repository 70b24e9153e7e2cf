//! The servers of a run, as faults hit them: in this process or in processes of their own.

use std::sync::Arc;

use anyhow::Result;
use axum::body::Body;
use serde_json::Value;
use tower::ServiceExt as _;

use crate::determinism;
use crate::recorder::Recorder;
use crate::servers::Servers;

/// Places for servers. A server that ends is replaced by a new one in the same place.
pub trait Fleet: Send + Sync + 'static {
    /// The number of places.
    fn count(&self) -> usize;

    /// The user of the server in this place.
    fn user(&self, place: usize) -> Option<String>;

    /// The recorder of the run.
    fn recorder(&self) -> &Arc<Recorder>;

    /// Starts a server in this place, unless one runs there.
    fn start(&self, place: usize) -> impl Future<Output = Result<()>> + Send;

    /// Ends a server at once.
    fn kill(&self, place: usize);

    /// Ends a server as a rollout does, and waits until it has ended.
    fn stop(&self, place: usize) -> impl Future<Output = ()> + Send;

    /// Cuts a server off, or connects it again.
    fn set_cut(&self, place: usize, cut: bool);

    /// Sends a review to the server in this place, as an attacker on the network does, and ignores the answer.
    fn send_review(&self, place: usize, path: &str, review: &Value);

    /// Moves the time of day of the servers.
    fn step_time_of_day(&self, nanoseconds: i64);
}

impl Fleet for Servers {
    fn count(&self) -> usize {
        Self::count(self)
    }

    fn user(&self, place: usize) -> Option<String> {
        Self::user(self, place)
    }

    fn recorder(&self) -> &Arc<Recorder> {
        Self::recorder(self)
    }

    fn start(&self, place: usize) -> impl Future<Output = Result<()>> + Send {
        Self::start(self, place)
    }

    fn kill(&self, place: usize) {
        Self::kill(self, place);
    }

    fn stop(&self, place: usize) -> impl Future<Output = ()> + Send {
        Self::stop(self, place)
    }

    fn set_cut(&self, place: usize, cut: bool) {
        Self::set_cut(self, place, cut);
    }

    fn send_review(&self, place: usize, path: &str, review: &Value) {
        let post = http::Request::post(path).body(Body::from(review.to_string()));
        let (Some(router), Ok(post)) = (self.router(place), post) else { return };
        tokio::spawn(async move { drop(router.oneshot(post).await) });
    }

    fn step_time_of_day(&self, nanoseconds: i64) {
        determinism::step_time_of_day(nanoseconds);
    }
}
