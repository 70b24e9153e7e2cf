//! The API on the wire: paths, status codes, bodies.
//!
//! If a test checks the response itself, a typed client hides too much: it turns 201 into `Ok`, and drops fields that
//! it does not know.

use futures::AsyncBufReadExt;
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use std::time::Duration;

/// Timeout for one event.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Sends plain HTTP requests to a cluster as one user.
#[derive(Clone)]
pub struct Wire {
    client: kube::Client,
}

/// The kinds of patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// The strategic merge patch of Kubernetes, which knows the merge keys of lists.
    Strategic,
}

/// A response.
#[derive(Clone, Debug, PartialEq)]
pub struct WireResponse {
    /// The HTTP status.
    pub code: u16,
    /// The header `Retry-After`.
    pub retry_after: Option<String>,
    /// All `Warning` headers.
    pub warnings: Vec<String>,
    /// The JSON body, or a JSON string with the text if the body is not JSON.
    pub body: Value,
}

impl Wire {
    /// Sends requests through `client`.
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// GET.
    pub async fn get(&self, path: &str) -> WireResponse {
        self.call("GET", path, "application/json", None).await
    }

    /// GET as a `Table`, the form that kubectl prints.
    pub async fn table(&self, path: &str) -> WireResponse {
        let request = Request::get(path)
            .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
            .body(Body::from(Vec::new()));
        self.send(request.expect("a request")).await
    }

    /// POST.
    pub async fn post(&self, path: &str, body: &Value) -> WireResponse {
        self.call("POST", path, "application/json", Some(body)).await
    }

    /// PUT.
    pub async fn put(&self, path: &str, body: &Value) -> WireResponse {
        self.call("PUT", path, "application/json", Some(body)).await
    }

    /// DELETE, with `DeleteOptions`.
    pub async fn delete(&self, path: &str, options: &Value) -> WireResponse {
        let mut body = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if let (Some(body), Some(options)) = (body.as_object_mut(), options.as_object()) {
            body.extend(options.clone());
        }
        self.call("DELETE", path, "application/json", Some(&body)).await
    }

    /// PATCH.
    pub async fn patch(&self, path: &str, kind: Patch, body: &Value) -> WireResponse {
        let content_type = match kind {
            Patch::Json => "application/json-patch+json",
            Patch::Merge => "application/merge-patch+json",
            Patch::Strategic => "application/strategic-merge-patch+json",
        };
        self.call("PATCH", path, content_type, Some(body)).await
    }

    /// Any method with any body.
    pub async fn call(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> WireResponse {
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("accept", "application/json")
            .header("content-type", content_type)
            .body(Body::from(bytes));
        self.send(request.expect("a request")).await
    }

    async fn send(&self, request: Request<Body>) -> WireResponse {
        let what = format!("{} {}", request.method(), request.uri());
        let response = self.client.send(request).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (head, body) = response.into_parts();
        let header = |value: &http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
        let bytes = body.collect().await.unwrap_or_else(|error| panic!("{what}: {error}")).to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        WireResponse {
            code: head.status.as_u16(),
            retry_after: head.headers.get("retry-after").map(header),
            warnings: head.headers.get_all("warning").iter().map(header).collect(),
            body,
        }
    }

    /// Starts a watch at `path`, which may have query parameters.
    pub async fn watch(&self, path: &str) -> Watch {
        let separator = if path.contains('?') { '&' } else { '?' };
        let request = Request::get(format!("{path}{separator}watch=true"))
            .header("accept", "application/json")
            .body(Vec::new())
            .expect("a request");
        let lines =
            self.client.request_stream(request).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        Watch { lines: Box::pin(lines) }
    }
}

/// The events of a watch.
pub struct Watch {
    lines: std::pin::Pin<Box<dyn futures::AsyncBufRead + Send>>,
}

impl Watch {
    /// The next event, as type and object; `None` at the end of the stream. Panics after a timeout.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        match tokio::time::timeout(TIMEOUT, self.next_at_last()).await {
            Err(_) => panic!("no event within {} s", TIMEOUT.as_secs()),
            Ok(event) => event,
        }
    }

    /// The next event without a timeout, as type and object; `None` at the end of the stream.
    pub async fn next_at_last(&mut self) -> Option<(String, Value)> {
        let mut line = String::new();
        match self.lines.read_line(&mut line).await {
            Ok(0) | Err(_) => None,
            Ok(_) => {
                let mut event: Value = serde_json::from_str(&line).expect("an event in JSON");
                let kind = event["type"].as_str().unwrap_or_default().to_owned();
                Some((kind, event["object"].take()))
            }
        }
    }

    /// The next event that is not a bookmark, as type and name of the object.
    pub async fn next_change(&mut self) -> (String, String) {
        loop {
            let (kind, object) = self.next().await.expect("another event");
            if kind != "BOOKMARK" {
                return (kind, object["metadata"]["name"].as_str().unwrap_or_default().to_owned());
            }
        }
    }
}

impl WireResponse {
    /// The body of a response that must have this code.
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{:#}", self.body);
        self.body
    }

    /// The reason in a `Status`.
    pub fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }

    /// The message in a `Status`.
    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// Code, reason and message, for comparisons.
    pub fn failure(&self) -> (u16, &str, &str) {
        (self.code, self.reason(), self.message())
    }
}
