//! The admin port: liveness, readiness and metrics of the process.

use std::sync::Arc;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;
use http::{StatusCode, header};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The state that [`router`] serves.
pub trait ProcessStatus: Send + Sync + 'static {
    /// Why the process is not ready; `None` if it is ready.
    fn unready(&self) -> Option<String>;

    /// All metrics, in the OpenMetrics text format.
    fn metrics(&self) -> impl Future<Output = String> + Send;
}

/// Serves `/healthz`, `/readyz` and `/metrics`.
pub fn router(shows: Arc<impl ProcessStatus>) -> Router {
    let readiness = shows.clone();
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(move || async move {
                match readiness.unready() {
                    None => (StatusCode::OK, "ok\n".to_owned()),
                    Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
                }
            }),
        )
        .route(
            "/metrics",
            get(move || async move {
                const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                ([(header::CONTENT_TYPE, TEXT)], shows.metrics().await).into_response()
            }),
        )
}

/// Serves a router without TLS until `stop`.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::warn!(%error, "the admin server stopped");
    }
}
