//! The HTTP layer: converts HTTP requests to calls, and replies to HTTP responses.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};

use super::api::{Api, Reply, request_info};
use super::discovery;
use super::failure::{Failure, Outcome};
use super::faults::Fault;
use super::observer::ObservedRequest;
use super::request::{Call, Path, Query, Verb};
use super::reviews;

/// The body of a response.
pub(crate) type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// Maximum size of a request body: 3 MiB, as in the real API server.
const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// The request gets no response: the connection breaks.
#[derive(Debug, thiserror::Error)]
#[error("the connection was broken on demand")]
pub(crate) struct Broken;

/// Handles one request.
pub(crate) async fn handle<B>(api: Arc<Api>, request: Request<B>) -> Result<Response<Body>, Broken>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match answer(api, request).await {
        Ok(HandlerResult::Response(response)) => Ok(response),
        Ok(HandlerResult::Nothing) => Err(Broken),
        Err(failure) => Ok(failed(&failure)),
    }
}

enum HandlerResult {
    Response(Response<Body>),
    Nothing,
}

async fn answer<B>(api: Arc<Api>, request: Request<B>) -> Outcome<HandlerResult>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let restarted = api.restarts.subscribe();
    let (head, body) = request.into_parts();
    let user = api
        .users
        .of_request(&head.headers)
        .ok_or_else(|| Failure::new(401, "Unauthorized", "Unauthorized"))?;
    let path = match Path::parse(head.uri.path()) {
        Path::Resource(path) => path,
        Path::Group { group, version } => {
            return api.resources(&group, &version).map(|v| HandlerResult::Response(json_response(200, &v)));
        }
        Path::Other => {
            let accept = head.headers.get("accept").and_then(|v| v.to_str().ok()).unwrap_or_default();
            return Ok(HandlerResult::Response(other(&api, head.uri.path(), accept)));
        }
    };
    if let Some(review) = reviews::find(&path) {
        if head.method != Method::POST {
            return Err(Failure::method_not_allowed());
        }
        let body = read(body).await?;
        return api.review(review, &user, &body).map(|reply| HandlerResult::Response(respond(reply)));
    }
    let query = Query::parse(head.uri.query());
    let mut call = Call::new(user, &head.method, &path, query, &head.headers, &api.registry())?;
    if matches!(call.verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection)
    {
        call.body = read(body).await?;
    }
    let mut lose_reply = false;
    for (rule, fault) in api.faults.strike(&request_info(&call)) {
        match fault {
            Fault::Delay(by) => tokio::time::sleep(by).await,
            Fault::LoseReply => lose_reply = true,
            Fault::Disconnect => return Ok(HandlerResult::Nothing),
            Fault::Hang => {
                api.faults.until_over(rule).await;
                return Ok(HandlerResult::Nothing);
            }
            refusal => {
                if let Some(failure) = refusal.refusal(&request_info(&call)) {
                    return Err(failure);
                }
            }
        }
    }
    let outcome = if matches!(call.verb, Verb::Get | Verb::List | Verb::Watch) {
        api.dispatch(&call).await
    } else {
        // A started request runs to completion even if the client disconnects.
        let mut restarted = restarted;
        let task = tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = restarted.changed() => None,
                outcome = execute(&api, &call) => Some(outcome),
            }
        });
        match task.await.unwrap_or_else(|e| Some(Err(Failure::internal(e)))) {
            Some(outcome) => outcome,
            None => return Ok(HandlerResult::Nothing),
        }
    };
    if lose_reply {
        return Ok(HandlerResult::Nothing);
    }
    outcome.map(|reply| HandlerResult::Response(respond(reply)))
}

/// Executes a write, and reports it to the observer.
async fn execute(api: &Arc<Api>, call: &Call) -> Outcome<Reply> {
    let Some(observer) = &api.options.observer else { return api.dispatch(call).await };
    let (began, began_at) = (tokio::time::Instant::now(), api.store.revision());
    let outcome = api.dispatch(call).await;
    let (code, message) = match &outcome {
        Ok(Reply::Body { code, .. }) => (*code, String::new()),
        Ok(Reply::Watch(_)) => (200, String::new()),
        Err(failure) => (failure.code(), failure.message().to_owned()),
    };
    observer.executed(&ObservedRequest {
        info: request_info(call),
        groups: &call.user.groups,
        dry_run: call.dry_run,
        body: &call.body,
        began_at,
        took: began.elapsed(),
        ended_at: api.store.revision(),
        code,
        message: &message,
        failed_open: call.failed_open.load(Ordering::Relaxed),
    });
    outcome
}

async fn read<B>(body: B) -> Outcome<Bytes>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, BODY_LIMIT).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(Failure::new(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {BODY_LIMIT}"),
        )),
        Err(error) => Err(Failure::bad_request(format!("cannot read the body: {error}"))),
    }
}

/// Handles the paths that do not belong to a resource.
fn other(api: &Api, path: &str, accept: &str) -> Response<Body> {
    let path = path.trim_end_matches('/');
    match path {
        "/healthz" | "/livez" | "/readyz" => plain(200, "ok"),
        "/version" => json_response(200, &version(&api.options.version)),
        "/api" | "/apis" if discovery::wants_aggregated(accept) => {
            let mut response = json_response(200, &api.aggregated(path == "/api"));
            response
                .headers_mut()
                .insert("content-type", HeaderValue::from_static(discovery::AGGREGATED_TYPE));
            response
        }
        "/api" => json_response(200, &api.core_versions()),
        "/apis" => json_response(200, &api.groups()),
        "/openapi/v2" => json_response(200, &api.openapi_v2()),
        "/openapi/v3" => json_response(200, &api.openapi_v3()),
        "" => json_response(
            200,
            &json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]}),
        ),
        _ => {
            let document = path.strip_prefix("/openapi/v3/").map(|group| api.openapi_v3_of(group));
            let group = path.strip_prefix("/apis/").filter(|g| !g.contains('/')).map(|g| api.group(g));
            match document.or(group) {
                Some(Ok(value)) => json_response(200, &value),
                Some(Err(failure)) => failed(&failure),
                None => plain(404, "404 page not found\n"),
            }
        }
    }
}

fn version(text: &str) -> Value {
    let mut parts = text.trim_start_matches('v').split('.');
    json!({
        "major": parts.next().unwrap_or_default(),
        "minor": parts.next().unwrap_or_default(),
        "gitVersion": text,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).boxed_unsync()
}

fn response(code: u16, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() =
        http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert("content-type", HeaderValue::from_static(content_type));
    response
}

fn plain(code: u16, text: &'static str) -> Response<Body> {
    response(code, "text/plain; charset=utf-8", full(Bytes::from_static(text.as_bytes())))
}

fn json_response(code: u16, value: &Value) -> Response<Body> {
    let bytes = serde_json::to_vec(value).map(Bytes::from).unwrap_or_default();
    response(code, "application/json", full(bytes))
}

fn failed(failure: &Failure) -> Response<Body> {
    let mut response = json_response(failure.code(), &failure.status());
    if let Some(seconds) = failure.retry_after_seconds() {
        response.headers_mut().insert("retry-after", HeaderValue::from(seconds));
    }
    response
}

fn respond(reply: Reply) -> Response<Body> {
    match reply {
        Reply::Body { code, bytes, warnings } => {
            let mut response = response(code, "application/json", full(bytes));
            for warning in warnings {
                let text: String = warning.chars().filter(|c| !c.is_control()).collect();
                let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
                if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
                    response.headers_mut().append("warning", value);
                }
            }
            response
        }
        Reply::Watch(stream) => {
            let frames = stream.map(|chunk| Ok(Frame::data(chunk)));
            response(200, "application/json", StreamBody::new(frames).boxed_unsync())
        }
    }
}
