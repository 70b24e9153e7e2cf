//! The core of the server, which handles every request: shared state, served resources, and dispatch to each verb.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use parking_lot::RwLock;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::admission::Webhooks;
use super::builtin;
use super::clock::Clock;
use super::failure::{Failure, Outcome};
use super::faults::{Faults, RequestInfo};
use super::object::Key;
use super::options::Options;
use super::request::{Call, Form, Verb};
use super::resource::{Registry, Served};
use super::store::{Expect, Store, StoredObject};
use super::table;
use super::users::Users;

/// State that all requests share.
pub(crate) struct Api {
    pub(crate) store: Arc<Store>,
    registry: RwLock<Arc<Registry>>,
    pub(crate) clock: Clock,
    pub(crate) users: Users,
    pub(crate) faults: Faults,
    pub(crate) webhooks: Webhooks,
    pub(crate) options: Options,
    /// How often the server was restarted: requests in progress end then.
    pub(crate) restarts: watch::Sender<u64>,
}

/// The response to a successful request.
pub(crate) enum Reply {
    Body { code: u16, bytes: Bytes, warnings: Vec<String> },
    Watch(BoxStream<'static, Bytes>),
}

impl Reply {
    pub(crate) fn json(code: u16, value: &Value) -> Self {
        let bytes = serde_json::to_vec(value).map(Bytes::from).unwrap_or_default();
        Self::Body { code, bytes, warnings: Vec::new() }
    }

    /// A `Status` of success, as a deletion returns it.
    pub(crate) fn success(code: u16, details: Value) -> Self {
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
        if details.is_object() {
            status["details"] = details;
        }
        Self::json(code, &status)
    }

    pub(crate) fn with_warnings(mut self, more: Vec<String>) -> Self {
        if let Self::Body { warnings, .. } = &mut self {
            warnings.extend(more);
        }
        self
    }
}

impl Api {
    pub(crate) fn new(options: Options) -> Arc<Self> {
        let store = Arc::new(Store::new(options.history, options.observer.clone()));
        let faults = Faults::new(store.clone(), options.clock.clone());
        let users = Users::default();
        for (token, user) in &options.tokens {
            users.add(token.clone(), user.clone());
        }
        let api = Self {
            registry: RwLock::new(Arc::new(builtin::registry(options.workload_api))),
            clock: options.clock.clone(),
            users,
            faults,
            webhooks: Webhooks::default(),
            store,
            options,
            restarts: watch::Sender::new(0),
        };
        api.found();
        Arc::new(api)
    }

    /// Creates the objects that every new cluster has.
    fn found(&self) {
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            let namespace = json!({
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "name": name,
                    "uid": uuid::Uuid::new_v4().to_string(),
                    "creationTimestamp": self.clock.now_text(),
                    "labels": {"kubernetes.io/metadata.name": name},
                },
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            });
            // The store is empty, so this write cannot conflict.
            let _ = self.store.put(&"namespaces".into(), &Key::new("", name), namespace, Expect::Absent);
        }
        for (name, value) in
            [("system-node-critical", 2_000_001_000_i64), ("system-cluster-critical", 2_000_000_000)]
        {
            let class = json!({
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {
                    "name": name,
                    "uid": uuid::Uuid::new_v4().to_string(),
                    "creationTimestamp": self.clock.now_text(),
                    "generation": 1,
                },
                "preemptionPolicy": "PreemptLowerPriority",
                "value": value,
            });
            let table = builtin::table_id("scheduling.k8s.io", "priorityclasses");
            let _ = self.store.put(&table, &Key::new("", name), class, Expect::Absent);
        }
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.registry.read().clone()
    }

    /// Changes the set of served resources.
    pub(crate) fn change_registry(&self, change: impl FnOnce(&mut Registry)) {
        let mut registry = self.registry.write();
        let mut next = Registry::clone(&registry);
        change(&mut next);
        *registry = Arc::new(next);
    }

    /// Executes the call.
    pub(crate) async fn dispatch(self: &Arc<Self>, call: &Call) -> Outcome<Reply> {
        if !call.subresource.is_empty() {
            return self.subresource(call).await;
        }
        match call.verb {
            Verb::Get => self.get(call),
            Verb::List => self.list(call),
            Verb::Watch => {
                self.until_reached(call).await?;
                self.watch(call)
            }
            Verb::Create => self.create(call).await,
            Verb::Update => self.update(call).await,
            Verb::Patch => self.patch(call).await,
            Verb::Delete => self.delete(call).await,
            Verb::DeleteCollection => self.delete_collection(call).await,
        }
    }

    async fn subresource(self: &Arc<Self>, call: &Call) -> Outcome<Reply> {
        if !call.served.resource.subresources(&call.served.version).contains(&call.subresource.as_str()) {
            return Err(Failure::no_such_resource());
        }
        match (call.subresource.as_str(), call.verb) {
            ("status", Verb::Get) => self.get(call),
            ("status", Verb::Update) => self.update(call).await,
            ("status", Verb::Patch) => self.patch(call).await,
            ("scale", _) => self.scale(call).await,
            ("finalize", Verb::Update) => self.finalize_namespace(call).await,
            ("eviction", Verb::Create) => self.evict(call).await,
            ("binding", Verb::Create) => self.bind(call).await,
            ("resize", Verb::Get) => self.get(call),
            ("resize", Verb::Update) => self.update(call).await,
            ("resize", Verb::Patch) => self.patch(call).await,
            ("token", Verb::Create) => self.token_request(call),
            ("ephemeralcontainers", _) => Err(Failure::not_implemented("ephemeral containers")),
            ("log", Verb::Get) => Err(Failure::not_implemented("pod logs: no container runs here")),
            _ => Err(Failure::method_not_allowed()),
        }
    }

    /// The object that the call names.
    pub(crate) fn current(&self, call: &Call) -> Outcome<Arc<StoredObject>> {
        self.store.get(&call.served.resource.table, &call.key()).ok_or_else(|| call.not_found())
    }

    /// An object in the form that the call requests.
    pub(crate) fn reply(&self, call: &Call, code: u16, stored: &StoredObject) -> Reply {
        match call.form {
            Form::Object => Reply::Body { code, bytes: call.served.bytes(stored), warnings: Vec::new() },
            Form::Table => {
                let value = call.served.present(stored);
                Reply::json(
                    code,
                    &table::of_objects(&call.served, &[&value], &json!({}), self.clock.now(), &call.query),
                )
            }
            Form::Metadata => {
                Reply::json(code, &metadata_only(&call.served.present(stored), "PartialObjectMetadata"))
            }
        }
    }

    /// An object that is not (or no longer) stored, in the form that the call requests.
    pub(crate) fn reply_value(&self, call: &Call, code: u16, value: Value) -> Reply {
        let value = call.served.present_value(value);
        match call.form {
            Form::Object => Reply::json(code, &value),
            Form::Table => Reply::json(
                code,
                &table::of_objects(&call.served, &[&value], &json!({}), self.clock.now(), &call.query),
            ),
            Form::Metadata => Reply::json(code, &metadata_only(&value, "PartialObjectMetadata")),
        }
    }

    /// The namespace object, if it exists.
    pub(crate) fn namespace(&self, name: &str) -> Option<Arc<StoredObject>> {
        self.store.get(&"namespaces".into(), &Key::new("", name))
    }

    /// A built-in or custom resource in its storage version.
    pub(crate) fn stored_resource(&self, group: &str, plural: &str) -> Outcome<Served> {
        self.registry().stored(group, plural).ok_or_else(Failure::no_such_resource)
    }
}

/// An object reduced to its metadata.
pub(crate) fn metadata_only(object: &Value, kind: &str) -> Value {
    json!({"kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

/// The parts of a call that faults can match.
pub(crate) fn request_info(call: &Call) -> RequestInfo<'_> {
    RequestInfo {
        verb: call.verb.text(),
        group: &call.served.resource.group,
        resource: &call.served.resource.plural,
        subresource: &call.subresource,
        namespace: &call.namespace,
        name: &call.name,
        user: &call.user.name,
    }
}
