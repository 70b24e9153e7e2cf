//! A client that returns every answer as it is: the run continues whatever the API server says.

use ::http::Request;
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::Value;

/// Sends requests as one user.
#[derive(Clone)]
pub struct Http {
    client: kube::Client,
}

/// A response.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The HTTP status; 0 if the connection broke.
    pub code: u16,
    /// The body.
    pub body: Value,
}

impl Response {
    /// Whether the request succeeded.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

impl Http {
    /// Sends requests through `client`.
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Response {
        self.send("GET", path, "application/json", &Value::Null).await
    }

    /// POST.
    pub async fn post(&self, path: &str, body: &Value) -> Response {
        self.send("POST", path, "application/json", body).await
    }

    /// PUT.
    pub async fn put(&self, path: &str, body: &Value) -> Response {
        self.send("PUT", path, "application/json", body).await
    }

    /// DELETE, with options.
    pub async fn delete(&self, path: &str, options: &Value) -> Response {
        self.send("DELETE", path, "application/json", options).await
    }

    /// PATCH: a merge patch.
    pub async fn merge(&self, path: &str, body: &Value) -> Response {
        self.send("PATCH", path, "application/merge-patch+json", body).await
    }

    /// PATCH: a strategic merge patch, for built-in kinds.
    pub async fn strategic(&self, path: &str, body: &Value) -> Response {
        self.send("PATCH", path, "application/strategic-merge-patch+json", body).await
    }

    async fn send(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Response {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("accept", "application/json")
            .header("content-type", content_type)
            .body(Body::from(bytes));
        let Ok(request) = request else { return Response::default() };
        let Ok(response) = self.client.send(request).await else { return Response::default() };
        let code = response.status().as_u16();
        let Ok(body) = response.into_body().collect().await else { return Response::default() };
        Response { code, body: serde_json::from_slice(&body.to_bytes()).unwrap_or_default() }
    }
}
