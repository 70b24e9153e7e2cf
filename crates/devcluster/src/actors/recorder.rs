//! Records Events, as `kubectl describe` shows them. A repeated Event raises a count instead of creating a new object.
//!
//! This is not the `Recorder` of kube: the controllers of Kubernetes write `v1` Events, and limit their number.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use super::cache::Key;
use super::request::{self, ErrorExt};

/// Maximum burst of Events about one object. After the burst, one Event per `REFILL_INTERVAL` is recorded. The real
/// recorders have the same limit, so that a set of a thousand pods does not record an Event for each pod.
const BURST: f64 = 25.0;
const REFILL_INTERVAL: Duration = Duration::from_secs(300);
/// Maximum size of the memory. If it is exceeded, all counts are dropped.
const MAX_MEMORY: usize = 4096;

#[derive(Default)]
struct Memory {
    /// Recorded Events by content, with their count.
    recorded: HashMap<String, (Key, i32)>,
    /// Remaining Events per object, by UID, and the time of that value.
    left: HashMap<String, (f64, Instant)>,
}

impl Memory {
    /// Whether another Event about this object may be recorded.
    fn allows(&mut self, uid: &str, now: Instant) -> bool {
        if self.left.len() > MAX_MEMORY || self.recorded.len() > MAX_MEMORY {
            *self = Self::default();
        }
        let (left, since) = self.left.entry(uid.to_owned()).or_insert((BURST, now));
        let regained = now.duration_since(*since).as_secs_f64() / REFILL_INTERVAL.as_secs_f64();
        *left = (*left + regained).min(BURST);
        *since = now;
        if *left < 1.0 {
            return false;
        }
        *left -= 1.0;
        true
    }
}

#[derive(Clone)]
pub(crate) struct Recorder {
    client: Client,
    component: &'static str,
    memory: Arc<Mutex<Memory>>,
}

impl Recorder {
    pub(crate) fn new(client: Client, component: &'static str) -> Self {
        Self { client, component, memory: Arc::default() }
    }

    pub(crate) async fn normal<K: Resource>(
        &self,
        about: &K,
        kind: &K::DynamicType,
        reason: &str,
        message: &str,
    ) {
        self.record(about, kind, "Normal", reason, message).await;
    }

    pub(crate) async fn warn<K: Resource>(
        &self,
        about: &K,
        kind: &K::DynamicType,
        reason: &str,
        message: &str,
    ) {
        self.record(about, kind, "Warning", reason, message).await;
    }

    async fn record<K: Resource>(
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
            let mut memory = self.memory.lock();
            if !memory.allows(uid, Instant::now()) {
                return;
            }
            memory.recorded.get_mut(&what).map(|(event, count)| {
                *count += 1;
                (event.clone(), *count)
            })
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
        // Events are optional: a failed Event must not fail the reconciliation.
        match request::create::<Event>(&self.client, &(), &namespace, &event).await {
            Ok(_) => {
                self.memory.lock().recorded.insert(what, (Key { namespace, name }, 1));
            }
            Err(error) => tracing::debug!(%error, reason, "event not recorded"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_limited_after_a_burst() {
        let (mut memory, start) = (Memory::default(), Instant::now());
        assert!((0..25).all(|_| memory.allows("a", start)));
        assert!(!memory.allows("a", start));
        assert!(memory.allows("b", start));
        assert!(memory.allows("a", start + REFILL_INTERVAL));
        assert!(!memory.allows("a", start + REFILL_INTERVAL));
    }
}
