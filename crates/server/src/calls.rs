//! Makes the calls to the API server that the replica requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, header};
use kube::api::{GetParams, ListParams};
use kube::core::{Request as KubeRequest, Resource};
use kube::{Client, Error};
use parking_lot::Mutex;
use quorate_api::budget::StoredBudget;
use quorate_api::{DisruptionBudget, PodUnavailableBudget, slim};
use quorate_engine::basics::{GroupKind, ObjectKey};
use quorate_engine::facts::{BudgetKey, BudgetKind, Covers};
use quorate_engine::ledger::{LedgerPatch, PodRead, Reply, WriteOutcome};
use quorate_engine::selector::{Operator, Requirement, Selector};
use quorate_engine::status::Status;
use quorate_intake::{budget, objects};
use quorate_kit::Plain;
use quorate_kit::watch::WatchSource;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tracing::warn;

use crate::clock;
use crate::controllers;
use crate::metrics::Metrics;
use crate::raw_budgets::RawBudgets;
use crate::replicas::ReplicaLeases;
use crate::status::StatusChange;

/// Timeout of a call, and of each page of a list. After it, the outcome of the call is unknown.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a whole list. A budget with a `targetRef` lists all pods of its namespace: 50,000 pods are 100 pages.
const LIST_TIMEOUT: Duration = Duration::from_secs(120);

/// Pause after a failed call. The replica retries at once when an outcome is unknown, and without the pause it would
/// retry a thousand times a second.
const PAUSE: Duration = Duration::from_millis(200);

/// Pause after a lost race. By then the watch has usually shown the write that won: the budget need not be read, and
/// requests that arrived meanwhile go into the next write too.
const LOST_RACE_PAUSE: Duration = Duration::from_millis(3);

/// Field manager of all writes, as `managedFields` shows it.
pub(crate) const FIELD_MANAGER: &str = "quorate";

/// A call with all the data it needs.
#[derive(Debug)]
pub(crate) enum ApiCall {
    /// A write to the ledger, and the status of the budget after the write.
    Patch(LedgerPatch, Option<Box<Status>>),
    GetBudget(BudgetKey),
    GetPod(ObjectKey),
    GetController(GroupKind, ObjectKey),
    ListPods(BudgetKey, Option<Covers>),
    PodsVersion,
    ListReplicas,
}

impl ApiCall {
    /// The time that the call may take as a whole.
    fn timeout(&self) -> Duration {
        match self {
            Self::ListPods(..) => LIST_TIMEOUT,
            _ => CALL_TIMEOUT,
        }
    }

    /// The status change that a successful call makes.
    pub(crate) fn status_change(&self) -> Option<StatusChange> {
        let Self::Patch(patch, Some(status)) = self else { return None };
        Some(StatusChange::Written { budget: patch.budget.clone(), scope: status.scope })
    }
}

/// Makes calls. The client does not retry by itself: the replica gets the outcome of each call.
pub(crate) struct Calls {
    client: Client,
    raw_budgets: Arc<RawBudgets>,
    leases: Arc<ReplicaLeases>,
    /// How many writes to a budget were rejected in a row.
    refused: Mutex<HashMap<BudgetKey, u32>>,
    metrics: Arc<Metrics>,
}

impl Calls {
    pub(crate) fn new(
        client: Client,
        raw_budgets: Arc<RawBudgets>,
        leases: Arc<ReplicaLeases>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { client, raw_budgets, leases, refused: Mutex::default(), metrics }
    }

    /// Makes a call and returns its reply.
    pub(crate) async fn perform(&self, api_call: ApiCall) -> Reply {
        let outcome = tokio::time::timeout(api_call.timeout(), async {
            match &api_call {
                ApiCall::Patch(patch, status) => self.patch(patch, status.as_deref()).await,
                ApiCall::GetBudget(key) => self.get_budget(key).await,
                ApiCall::GetPod(key) => self.get_pod(key).await,
                ApiCall::GetController(kind, key) => controllers::get(&self.client, kind, key).await,
                ApiCall::ListPods(key, covers) => self.list_pods(key, covers.as_ref()).await,
                ApiCall::PodsVersion => self.pods_version().await,
                ApiCall::ListReplicas => self.leases.list().await.map(Reply::Replicas),
            }
        });
        match outcome.await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => {
                warn!(?api_call, error = %Plain(&error), "API call failed");
                tokio::time::sleep(PAUSE).await;
                Reply::Lost
            }
            Err(_) => {
                warn!(?api_call, "API call timed out");
                Reply::Lost
            }
        }
    }

    async fn patch(&self, patch: &LedgerPatch, status: Option<&Status>) -> Result<Reply, Error> {
        let key = &patch.budget;
        let mut body = budget::json_patch(patch, &self.raw_budgets.missing(key));
        if let (Some(status), Some(seen), Value::Array(steps)) =
            (status, self.raw_budgets.status(key), &mut body)
        {
            steps.extend(budget::status_steps(key.kind, &seen, status, clock::now()));
        }
        let sent = Instant::now();
        let written = self.write_status(key, "application/json-patch+json", &body).await;
        let refused = matches!(&written, Err(Error::Api(status)) if matches!(status.code, 409 | 422));
        self.metrics.wrote(sent.elapsed(), refused);
        match written {
            Ok(object) => {
                self.refused.lock().remove(key);
                Ok(self
                    .take(key.kind, &object)
                    .map_or(Reply::Lost, |budget| Reply::Written(WriteOutcome::Done(Box::new(budget)))))
            }
            Err(Error::Api(status)) if is_absent(&status, &key.object.name) => {
                Ok(Reply::Written(WriteOutcome::Gone))
            }
            // A `test` failed, or there were too many concurrent writes: nothing was written.
            Err(Error::Api(status)) if matches!(status.code, 409 | 422) => {
                tokio::time::sleep(self.pause_after_refusal(key)).await;
                Ok(Reply::Written(WriteOutcome::Refused))
            }
            // Nothing was written. It can be written only when the budget has become smaller.
            Err(Error::Api(status)) if is_too_large(&status) => {
                let pause = self.pause_after_too_large(key);
                warn!(budget = %key, error = %status.message, ?pause, "the budget is too large to be stored");
                tokio::time::sleep(pause).await;
                Ok(Reply::Written(WriteOutcome::Refused))
            }
            Err(error) => Err(error),
        }
    }

    /// Each attempt costs the API server as much as the last one, and claims are settled within seconds. It counts per budget
    /// over many calls, which the backoff of a library, one for each call, does not.
    fn pause_after_too_large(&self, key: &BudgetKey) -> Duration {
        let mut refused = self.refused.lock();
        let times = refused.entry(key.clone()).and_modify(|times| *times += 1).or_insert(1);
        (PAUSE * (1 << (*times).min(5))).min(CALL_TIMEOUT * 4 / 5)
    }

    /// After a lost race, only the watch has to catch up. After several in a row, the cause may not be a race: a write
    /// that can never succeed must not become a storm of retries.
    fn pause_after_refusal(&self, key: &BudgetKey) -> Duration {
        let mut refused = self.refused.lock();
        let times = refused.entry(key.clone()).and_modify(|times| *times += 1).or_insert(1);
        match *times {
            0..4 => LOST_RACE_PAUSE,
            times => Duration::from_millis(5 << (times - 4).min(7)),
        }
    }

    /// Writes to the status of a budget. While the watches have lost the API server, it waits: what this process knows may
    /// be from a store that does not exist any more, and a `settledVersion` from there would block the budget.
    pub(crate) async fn write_status(
        &self,
        key: &BudgetKey,
        content_type: &str,
        body: &Value,
    ) -> Result<StoredBudget, Error> {
        self.leases.until_verified().await;
        let object: StoredBudget = self.client.request(status_request(key, content_type, body)?).await?;
        self.raw_budgets.take(key.kind, &object);
        Ok(object)
    }

    async fn get_budget(&self, key: &BudgetKey) -> Result<Reply, Error> {
        let object = self.get_at::<StoredBudget>(url(key), &key.object.name).await?;
        Ok(match object {
            Some(object) => {
                self.raw_budgets.take(key.kind, &object);
                self.take(key.kind, &object)
                    .map_or(Reply::Lost, |budget| Reply::Budget(Some(Box::new(budget))))
            }
            None => Reply::Budget(None),
        })
    }

    async fn get_pod(&self, key: &ObjectKey) -> Result<Reply, Error> {
        let url = slim::Pod::url_path(&(), Some(&key.namespace));
        let Some(pod) = self.get_at::<slim::Pod>(url, &key.name).await? else {
            return Ok(Reply::Pod(PodRead::Gone));
        };
        Ok(match objects::pod(&pod) {
            Ok(pod) => Reply::Pod(PodRead::There(Box::new(pod))),
            Err(why) => {
                warn!(%why, "cannot read a pod");
                Reply::Lost
            }
        })
    }

    /// Reads an object consistently, not from a cache; `None` if it does not exist.
    async fn get_at<K: DeserializeOwned>(&self, url: String, name: &str) -> Result<Option<K>, Error> {
        let request = KubeRequest::new(url).get(name, &GetParams::default()).map_err(Error::BuildRequest)?;
        match self.client.request(request).await {
            Ok(object) => Ok(Some(object)),
            Err(Error::Api(status)) if is_absent(&status, name) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list_pods(&self, key: &BudgetKey, covers: Option<&Covers>) -> Result<Reply, Error> {
        let labels = match covers {
            Some(Covers::Selector(selector)) => selector_text(selector),
            // Labels alone do not say which pods belong to a workload, so list all pods of the namespace.
            Some(Covers::Target(..)) => String::new(),
            // The budget is gone, so there is nothing to list.
            None => return Ok(Reply::Lost),
        };
        let source = WatchSource::<slim::Pod>::namespaced(self.client.clone(), &key.object.namespace);
        // A pod that cannot be read in full still exists.
        let source = source
            .selected_by(labels)
            .with_request_timeout(CALL_TIMEOUT)
            .read_by(|text| objects::any_pod(text).map(|(pod, _)| pod));
        let listed = source.list().await?;
        let Some(version) = objects::version(&listed.version) else { return Ok(Reply::Lost) };
        Ok(Reply::Pods(listed.objects, version))
    }

    /// How far the store of pods has come: the version of a consistent list, of which one pod is enough.
    async fn pods_version(&self) -> Result<Reply, Error> {
        let request = KubeRequest::new(slim::Pod::url_path(&(), None));
        let request = request.list(&ListParams::default().limit(1)).map_err(Error::BuildRequest)?;
        let listed: Value = self.client.request(request).await?;
        let version = listed["metadata"]["resourceVersion"].as_str().and_then(objects::version);
        Ok(version.map_or(Reply::Lost, Reply::PodsVersion))
    }

    /// The fact of a budget that the API server returned.
    fn take(&self, kind: BudgetKind, object: &StoredBudget) -> Option<quorate_engine::facts::Budget> {
        budget::fact(kind, object).inspect_err(|why| warn!(%why, "cannot read a budget")).ok()
    }
}

/// Whether a status says that an object does not exist. A 404 without the name of the object means that the whole kind
/// is not served, and an API server that has just started serves some kinds late.
fn is_absent(status: &kube::core::Status, name: &str) -> bool {
    status.code == 404 && status.details.as_ref().is_some_and(|details| details.name == name)
}

/// Whether a status says that an object is larger than the API server or etcd accepts.
fn is_too_large(status: &kube::core::Status) -> bool {
    let from_etcd =
        ["request is too large", "larger than max"].iter().any(|text| status.message.contains(text));
    status.code == 413 || (status.code == 500 && from_etcd)
}

/// A patch of the status of a budget.
pub(crate) fn status_request(
    key: &BudgetKey,
    content_type: &str,
    body: &Value,
) -> Result<http::Request<Vec<u8>>, Error> {
    http::Request::builder()
        .method(Method::PATCH)
        .uri(format!("{}/{}/status?fieldManager={FIELD_MANAGER}", url(key), key.object.name))
        .header(header::CONTENT_TYPE, content_type)
        .header(header::ACCEPT, "application/json")
        .body(body.to_string().into_bytes())
        .map_err(|error| Error::BuildRequest(kube::core::request::Error::BuildRequest(error)))
}

/// The path of the budgets of this kind and namespace.
fn url(key: &BudgetKey) -> String {
    let namespace = Some(&*key.object.namespace);
    match key.kind {
        BudgetKind::DisruptionBudget => DisruptionBudget::url_path(&(), namespace),
        BudgetKind::PodUnavailableBudget => PodUnavailableBudget::url_path(&(), namespace),
    }
}

/// A selector as the `labelSelector` parameter of a list.
fn selector_text(selector: &Selector) -> String {
    let requirement = |Requirement { key, operator }: &Requirement| match operator {
        Operator::In(values) => format!("{key} in ({})", values.join(",")),
        Operator::NotIn(values) => format!("{key} notin ({})", values.join(",")),
        Operator::Exists => key.to_string(),
        Operator::Absent => format!("!{key}"),
    };
    selector.0.iter().map(requirement).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use quorate_engine::basics::Version;
    use quorate_kit::watch::Interruptions;

    use super::*;

    const PODS_PER_PAGE: usize = 500;

    /// An API server that gives every request the same answer.
    fn answering(code: u16, message: &'static str) -> Calls {
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| async move {
            let status =
                serde_json::json!({"kind": "Status", "status": "Failure", "code": code, "message": message});
            let mut response = http::Response::new(kube::client::Body::from(status.to_string().into_bytes()));
            *response.status_mut() = http::StatusCode::from_u16(code).expect("a status code");
            Ok::<_, std::convert::Infallible>(response)
        });
        of(Client::new(service, "default"))
    }

    fn of(client: Client) -> Calls {
        let (namespace, name) = ("quorate".to_owned(), "a".to_owned());
        let leases =
            ReplicaLeases::new(client.clone(), namespace, name, Duration::ZERO, Interruptions::default());
        Calls::new(client, Arc::default(), Arc::new(leases), Arc::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_too_large_is_not_retried_at_once() {
        for (code, message) in [(413, "Request entity too large"), (500, "etcdserver: request is too large")]
        {
            let calls = answering(code, message);
            let mut pauses = Vec::new();
            for _ in 0..6 {
                let start = tokio::time::Instant::now();
                let patch = LedgerPatch { budget: key(), steps: Vec::new() };
                let reply = calls.perform(ApiCall::Patch(patch, None)).await;
                assert_eq!(reply, Reply::Written(WriteOutcome::Refused), "nothing was written");
                pauses.push(start.elapsed().as_millis() / 100);
            }
            assert_eq!(pauses, [4, 8, 16, 32, 40, 40], "in tenths of a second");
        }
    }

    fn key() -> BudgetKey {
        BudgetKey { object: ObjectKey::new("shop", "web"), kind: BudgetKind::DisruptionBudget }
    }

    /// An API server that lists so many pages of pods, each after a delay.
    fn calls(pages: usize, delay: Duration) -> Calls {
        let listed = Arc::new(AtomicUsize::new(0));
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let page = listed.fetch_add(1, Ordering::Relaxed);
            let names = (0..PODS_PER_PAGE).map(|n| format!("web-{}", page * PODS_PER_PAGE + n));
            let items: Vec<Value> = names
                .map(|name| {
                    serde_json::json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "7"}})
                })
                .collect();
            let next = if page + 1 < pages { "more" } else { "" };
            let list =
                serde_json::json!({"metadata": {"resourceVersion": "9", "continue": next}, "items": items});
            async move {
                tokio::time::sleep(delay).await;
                let body = kube::client::Body::from(list.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(http::Response::new(body))
            }
        });
        of(Client::new(service, "default"))
    }

    async fn list(calls: &Calls) -> Reply {
        let covers = Covers::Target(GroupKind::new("apps", "Deployment"), "web".into());
        calls.perform(ApiCall::ListPods(key(), Some(covers))).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_of_50_000_pods_is_listed_page_by_page() {
        let Reply::Pods(pods, version) = list(&calls(100, Duration::from_millis(300))).await else {
            panic!("30 s for the whole list are too little");
        };
        assert_eq!((pods.len(), version), (50_000, Version(9)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_page_shows_how_far_the_store_has_come() {
        let start = tokio::time::Instant::now();
        let reply = calls(100, Duration::from_millis(300)).perform(ApiCall::PodsVersion).await;
        assert_eq!(reply, Reply::PodsVersion(Version(9)));
        assert_eq!(start.elapsed(), Duration::from_millis(300), "a version needs no second page");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_does_not_come_ends_a_list() {
        let start = tokio::time::Instant::now();
        assert_eq!(list(&calls(2, Duration::from_secs(60))).await, Reply::Lost);
        assert!(start.elapsed() < 2 * CALL_TIMEOUT, "a free pass waits for it: {:?}", start.elapsed());
    }

    #[test]
    fn a_404_without_a_name_does_not_mean_that_the_object_is_absent() {
        let status = |details: serde_json::Value| -> kube::core::Status {
            serde_json::from_value(serde_json::json!({"code": 404, "details": details})).expect("a status")
        };
        assert!(is_absent(&status(serde_json::json!({"name": "web", "kind": "disruptionbudgets"})), "web"));
        assert!(!is_absent(&status(serde_json::json!({})), "web"));
        assert!(!is_absent(&status(serde_json::Value::Null), "web"));
    }

    #[test]
    fn a_selector_becomes_a_label_selector_parameter() {
        let requirement = |key: &str, operator| Requirement { key: key.into(), operator };
        let selector = Selector(
            [
                requirement("app", Operator::In(["llm".into()].into())),
                requirement("tier", Operator::NotIn(["dev".into(), "test".into()].into())),
                requirement("gpu", Operator::Exists),
                requirement("canary", Operator::Absent),
            ]
            .into(),
        );
        assert_eq!(selector_text(&selector), "app in (llm),tier notin (dev,test),gpu,!canary");
        assert_eq!(selector_text(&Selector::default()), "");
    }
}
