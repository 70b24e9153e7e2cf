//! Events, as `kubectl describe` shows them: the same thing said again raises a count instead of making a new object.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use super::request::{self, Meaning};
use super::shelf::Key;

/// What was said this often is said again only after the pause below, as the real recorders do.
const OFTEN: i32 = 25;
const PAUSE: Duration = Duration::from_secs(300);
/// More kinds of events than this are not remembered for counting.
const REMEMBERED: usize = 4096;

struct Said {
    event: Key,
    count: i32,
    last: Instant,
}

#[derive(Clone)]
pub(crate) struct Recorder {
    client: Client,
    component: &'static str,
    said: Arc<Mutex<HashMap<String, Said>>>,
}

impl Recorder {
    pub(crate) fn new(client: Client, component: &'static str) -> Self {
        Self { client, component, said: Arc::default() }
    }

    pub(crate) async fn normal<K: Resource>(
        &self,
        about: &K,
        kind: &K::DynamicType,
        reason: &str,
        message: &str,
    ) {
        self.say(about, kind, "Normal", reason, message).await;
    }

    pub(crate) async fn warn<K: Resource>(
        &self,
        about: &K,
        kind: &K::DynamicType,
        reason: &str,
        message: &str,
    ) {
        self.say(about, kind, "Warning", reason, message).await;
    }

    async fn say<K: Resource>(
        &self,
        about: &K,
        kind: &K::DynamicType,
        severity: &str,
        reason: &str,
        message: &str,
    ) {
        let uid = about.meta().uid.as_deref().unwrap_or_default();
        let what = format!("{uid}/{severity}/{reason}/{message}");
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let known = {
            let mut said = self.said.lock();
            if said.len() > REMEMBERED {
                said.clear();
            }
            match said.get_mut(&what) {
                Some(said) if said.count >= OFTEN && said.last.elapsed() < PAUSE => return,
                Some(said) => {
                    said.count += 1;
                    said.last = Instant::now();
                    Some((said.event.clone(), said.count))
                }
                None => None,
            }
        };
        if let Some((key, count)) = known {
            let patch = json!({"count": count, "lastTimestamp": now});
            match request::merge::<Event>(&self.client, &(), &key, None, &patch).await {
                Err(error) if error.is_not_found() => {}
                _ => return,
            }
        }
        let namespace = about.namespace().unwrap_or_else(|| "default".to_owned());
        let name = format!("{}.{}", about.name_any(), &uuid::Uuid::new_v4().simple().to_string()[..16]);
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": K::api_version(kind), "kind": K::kind(kind), "namespace": about.namespace(),
                "name": about.name_any(), "uid": uid, "resourceVersion": about.meta().resource_version,
            },
            "type": severity, "reason": reason, "message": message, "count": 1,
            "firstTimestamp": now, "lastTimestamp": now,
            "source": {"component": self.component}, "reportingComponent": self.component,
        });
        // Events are a courtesy: nothing may fail for want of one.
        match request::create::<Event>(&self.client, &(), &namespace, &event).await {
            Ok(_) => {
                let said = Said { event: Key { namespace, name }, count: 1, last: Instant::now() };
                self.said.lock().insert(what, said);
            }
            Err(error) => tracing::debug!(%error, reason, "event not recorded"),
        }
    }
}
