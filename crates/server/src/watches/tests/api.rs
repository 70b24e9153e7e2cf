//! An API server that serves lists and watches of the given objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[derive(Clone, Default)]
pub(super) struct FakeApi {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The objects, and the watches on them, by path.
    served: BTreeMap<String, Vec<Value>>,
    watches: BTreeMap<String, Vec<mpsc::UnboundedSender<String>>>,
    requests: Vec<String>,
    /// How often each path was listed.
    lists: BTreeMap<String, usize>,
    slow: BTreeSet<String>,
    /// Paths that get the answer 403.
    forbidden: BTreeSet<String>,
    /// Paths, or prefixes of paths, that discovery omits.
    hidden: BTreeSet<String>,
}

impl FakeApi {
    /// With the kinds that every cluster has, and budgets.
    pub(super) fn empty_cluster() -> Self {
        let api = Self::default();
        for path in [
            "/api/v1/pods",
            "/api/v1/namespaces",
            "/api/v1/nodes",
            "/apis/apps/v1/replicasets",
            "/apis/apps/v1/statefulsets",
            "/apis/apps/v1/deployments",
            "/apis/policy/v1/poddisruptionbudgets",
            "/apis/coordination.k8s.io/v1/namespaces/quorate/leases",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            super::BUDGETS,
        ] {
            api.serve(path, Vec::new());
        }
        api
    }

    pub(super) fn serve(&self, path: &str, objects: Vec<Value>) {
        self.state.lock().unwrap().served.insert(path.to_owned(), objects);
    }

    /// Delays requests for this path.
    pub(super) fn slow(&self, path: &str) {
        self.state.lock().unwrap().slow.insert(path.to_owned());
    }

    /// Forbids a path from now on, and ends its watches.
    pub(super) fn forbid(&self, path: &str) {
        let mut state = self.state.lock().unwrap();
        state.forbidden.insert(path.to_owned());
        state.watches.remove(path);
    }

    pub(super) fn permit(&self, path: &str) {
        self.state.lock().unwrap().forbidden.remove(path);
    }

    /// Makes discovery omit everything below this path.
    pub(super) fn hide(&self, path: &str) {
        self.state.lock().unwrap().hidden.insert(path.to_owned());
    }

    pub(super) fn show(&self, path: &str) {
        self.state.lock().unwrap().hidden.remove(path);
    }

    /// Removes a kind and its watches.
    pub(super) fn withdraw(&self, path: &str) {
        let mut state = self.state.lock().unwrap();
        state.served.remove(path);
        state.watches.remove(path);
    }

    /// Sends an event to the watches of a path.
    pub(super) fn change(&self, path: &str, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        for watch in self.state.lock().unwrap().watches.get(path).into_iter().flatten() {
            let _ = watch.send(line.clone());
        }
    }

    /// How often a path was requested.
    pub(super) fn request_count(&self, path: &str) -> usize {
        self.state.lock().unwrap().requests.iter().filter(|request| *request == path).count()
    }

    /// How often a path was listed.
    pub(super) fn list_count(&self, path: &str) -> usize {
        self.state.lock().unwrap().lists.get(path).copied().unwrap_or_default()
    }

    pub(super) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let slow = api.state.lock().unwrap().slow.contains(request.uri().path());
            let api = api.clone();
            async move {
                if slow {
                    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
                }
                Ok::<_, std::convert::Infallible>(api.answer(&request))
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, request: &Request<Body>) -> Response<StreamBody<Frames>> {
        let mut state = self.state.lock().unwrap();
        let path = request.uri().path().to_owned();
        state.requests.push(path.clone());
        if let Some(found) = state.discovery(&path) {
            return once(200, &found);
        }
        if state.forbidden.contains(&path) {
            let status = json!({"kind": "Status", "status": "Failure", "code": 403, "message": "forbidden",
                "reason": "Forbidden"});
            return once(403, &status);
        }
        let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        if !watch {
            *state.lists.entry(path.clone()).or_default() += 1;
        }
        match state.served.get(&path) {
            None => {
                let status = json!({"kind": "Status", "status": "Failure", "code": 404, "message": "not found",
                    "reason": "NotFound"});
                once(404, &status)
            }
            Some(_) if watch => {
                let (sender, mut lines) = mpsc::unbounded_channel();
                state.watches.entry(path).or_default().push(sender);
                let lines = futures::stream::poll_fn(move |context| lines.poll_recv(context));
                let frames = lines.map(|line: String| Ok(Frame::data(Bytes::from(line))));
                Response::new(StreamBody::new(frames.boxed()))
            }
            Some(items) => once(200, &json!({"metadata": {"resourceVersion": "10"}, "items": items})),
        }
    }
}

type Frames = futures::stream::BoxStream<'static, Result<Frame<Bytes>, std::io::Error>>;

fn once(code: u16, body: &Value) -> Response<StreamBody<Frames>> {
    let frame = Frame::data(Bytes::from(body.to_string()));
    let body = StreamBody::new(futures::stream::iter([Ok(frame)]).boxed());
    Response::builder().status(code).body(body).unwrap()
}

impl State {
    /// `/apis`, `/api/v1` and `/apis/group/version`, made from the paths that are served.
    fn discovery(&self, path: &str) -> Option<Value> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let shown = |path: &&String| !self.hidden.iter().any(|hidden| path.starts_with(hidden));
        let paths = || {
            self.served.keys().filter(shown).map(|path| path.trim_matches('/').split('/').collect::<Vec<_>>())
        };
        match parts.as_slice() {
            ["apis"] => {
                let mut groups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
                for path in paths().filter(|path| path[0] == "apis") {
                    groups.entry(path[1].to_owned()).or_default().insert(path[2].to_owned());
                }
                let version = |group: &str, version: &String| json!({"groupVersion": format!("{group}/{version}"), "version": version});
                let group = |(name, versions): (&String, &BTreeSet<String>)| {
                    let versions: Vec<Value> = versions.iter().map(|v| version(name, v)).collect();
                    json!({"name": name, "preferredVersion": versions[0], "versions": versions})
                };
                Some(json!({"groups": groups.iter().map(group).collect::<Vec<_>>()}))
            }
            ["api", _] | ["apis", _, _] => {
                let resources: Vec<Value> = paths()
                    .filter(|path| path.starts_with(&parts))
                    .map(|path| path[parts.len()..].join("/"))
                    .map(|name| json!({"name": name, "kind": kind(&name), "namespaced": true, "verbs": []}))
                    .collect();
                if resources.is_empty() {
                    return None;
                }
                Some(json!({"groupVersion": parts[1..].join("/"), "resources": resources}))
            }
            _ => None,
        }
    }
}

fn kind(plural: &str) -> &'static str {
    match plural {
        "fleets" => "Fleet",
        "jobs" => "Job",
        "leaderworkersets" => "LeaderWorkerSet",
        "podgroups" => "PodGroup",
        "podunavailablebudgets" => "PodUnavailableBudget",
        "workloads" => "Workload",
        _ => "Other",
    }
}
