//! Cache of the objects of one kind: a watch updates it, and all actors read it.
//!
//! After a write, an actor stores the response in the cache and does not wait for the watch. A controller therefore
//! never acts twice because its watch lags behind its own writes. Events that are older than the cached object are
//! dropped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::runtime::utils::StreamBackoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::queue::backoff;

/// Namespace and name. The namespace of a cluster-wide object is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    pub(crate) fn of<K: Resource>(object: &K) -> Self {
        Self { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// How long the UID of a removed object is kept, so that late events about it are ignored.
const TOMBSTONE: Duration = Duration::from_secs(60);

type Listener<K> = Box<dyn Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync>;
type IndexKey<K> = fn(&K) -> Option<String>;

/// The traits that a cached kind must have.
pub(crate) trait Cached:
    Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static
{
}
impl<K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static> Cached for K {}

pub(crate) struct ObjectCache<K> {
    contents: RwLock<Contents<K>>,
    listeners: RwLock<Vec<Listener<K>>>,
    filled: watch::Sender<bool>,
}

struct Contents<K> {
    items: BTreeMap<Key, Item<K>>,
    by_owner: HashMap<String, BTreeSet<Key>>,
    by_index: HashMap<String, BTreeSet<Key>>,
    index: IndexKey<K>,
    tombstones: HashMap<String, Instant>,
    /// Number of relists. An own write records the number at its time.
    round: u64,
    incoming: Option<BTreeMap<Key, Arc<K>>>,
}

struct Item<K> {
    object: Arc<K>,
    /// Set while the object is known only from an own write, not yet from the watch.
    own_write_in: Option<u64>,
}

/// A change of one object: the state before and after.
type Change<K> = (Option<Arc<K>>, Option<Arc<K>>);

fn version<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}

fn uid<K: Resource>(object: &K) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

impl<K: Cached> ObjectCache<K> {
    pub(crate) fn new(index: IndexKey<K>) -> Self {
        Self {
            contents: RwLock::new(Contents {
                items: BTreeMap::new(),
                by_owner: HashMap::new(),
                by_index: HashMap::new(),
                index,
                tombstones: HashMap::new(),
                round: 0,
                incoming: None,
            }),
            listeners: RwLock::new(Vec::new()),
            filled: watch::Sender::new(false),
        }
    }

    /// Calls `listener` now for each cached object, and later with the states before and after each change.
    pub(crate) fn listen(&self, listener: impl Fn(Option<&Arc<K>>, Option<&Arc<K>>) + Send + Sync + 'static) {
        let mut listeners = self.listeners.write();
        for object in self.all() {
            listener(None, Some(&object));
        }
        listeners.push(Box::new(listener));
    }

    /// Waits for the first complete list.
    pub(crate) async fn filled(&self) {
        // The sender lives in self, so this cannot fail.
        let _ = self.filled.subscribe().wait_for(|filled| *filled).await;
    }

    pub(crate) fn is_filled(&self) -> bool {
        *self.filled.borrow()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.contents.read().items.get(key).map(|item| item.object.clone())
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.contents.read().items.values().map(|item| item.object.clone()).collect()
    }

    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let from = Key::new(namespace, "");
        let contents = self.contents.read();
        let range = contents.items.range(from..).take_while(|(key, _)| key.namespace == namespace);
        range.map(|(_, item)| item.object.clone()).collect()
    }

    /// The objects that have an owner with this UID. An empty UID returns the objects without a controller.
    pub(crate) fn owned_by(&self, owner: &str) -> Vec<Arc<K>> {
        let contents = self.contents.read();
        contents.pick(contents.by_owner.get(owner))
    }

    /// The objects for which the cache's `index` function returns this name.
    pub(crate) fn by_index(&self, name: &str) -> Vec<Arc<K>> {
        let contents = self.contents.read();
        contents.pick(contents.by_index.get(name))
    }

    /// Stores the response to an own write.
    pub(crate) fn wrote(&self, object: K) {
        let change = {
            let mut contents = self.contents.write();
            let round = contents.round;
            contents.insert(object, Some(round))
        };
        self.notify(change);
    }

    /// Removes an object after the response to an own delete confirmed its removal.
    pub(crate) fn removed(&self, key: &Key, uid: &str) {
        let change = self.contents.write().remove(key, uid);
        self.notify(change);
    }

    fn notify(&self, changes: impl IntoIterator<Item = Change<K>>) {
        let listeners = self.listeners.read();
        for (before, after) in changes {
            for listener in listeners.iter() {
                listener(before.as_ref(), after.as_ref());
            }
        }
    }

    fn take_in(&self, event: Event<K>) {
        match event {
            Event::Apply(object) => {
                let change = self.contents.write().insert(object, None);
                self.notify(change);
            }
            Event::Delete(object) => {
                let change = self.contents.write().remove(&Key::of(&object), uid(&object));
                self.notify(change);
            }
            Event::Init => {
                let mut contents = self.contents.write();
                contents.round += 1;
                contents.incoming = Some(BTreeMap::new());
            }
            Event::InitApply(object) => {
                if let Some(incoming) = &mut self.contents.write().incoming {
                    incoming.insert(Key::of(&object), Arc::new(object));
                }
            }
            Event::InitDone => {
                let changes = self.contents.write().replace();
                self.notify(changes);
                self.filled.send_replace(true);
            }
        }
    }
}

impl<K: Cached> Contents<K> {
    fn pick(&self, keys: Option<&BTreeSet<Key>>) -> Vec<Arc<K>> {
        let keys = keys.into_iter().flatten();
        keys.filter_map(|key| self.items.get(key)).map(|item| item.object.clone()).collect()
    }

    fn insert(&mut self, object: K, own_write_in: Option<u64>) -> Option<Change<K>> {
        let key = Key::of(&object);
        if self.tombstones.contains_key(uid(&object)) {
            return None;
        }
        if let Some(item) = self.items.get_mut(&key)
            && version(&object) <= version(item.object.as_ref())
        {
            // The event is already known, or late. At the same version, the watch has caught up with an own write.
            if own_write_in.is_none() && version(&object) == version(item.object.as_ref()) {
                item.own_write_in = None;
            }
            return None;
        }
        let object = Arc::new(object);
        let before = self.unlink(&key);
        self.link(&key, &object);
        self.items.insert(key, Item { object: object.clone(), own_write_in });
        Some((before, Some(object)))
    }

    fn remove(&mut self, key: &Key, gone: &str) -> Option<Change<K>> {
        let now = Instant::now();
        self.tombstones.retain(|_, since| now.duration_since(*since) < TOMBSTONE);
        self.tombstones.insert(gone.to_owned(), now);
        // A successor with the same name may already be cached.
        if self.items.get(key).is_some_and(|item| uid(item.object.as_ref()) == gone) {
            Some((self.unlink(key), None))
        } else {
            None
        }
    }

    fn replace(&mut self) -> Vec<Change<K>> {
        let Some(incoming) = self.incoming.take() else { return Vec::new() };
        let round = self.round;
        let missing: Vec<_> = self
            .items
            .iter()
            // An actor wrote this object after the list was requested, so it may be missing in the list.
            .filter(|(key, item)| !incoming.contains_key(*key) && item.own_write_in != Some(round))
            .map(|(key, item)| (key.clone(), uid(item.object.as_ref()).to_owned()))
            .collect();
        let mut changes: Vec<_> = missing.iter().filter_map(|(key, uid)| self.remove(key, uid)).collect();
        for object in incoming.into_values() {
            changes.extend(self.insert(Arc::unwrap_or_clone(object), None));
        }
        changes
    }

    fn link(&mut self, key: &Key, object: &Arc<K>) {
        for owner in owners(object.as_ref()) {
            self.by_owner.entry(owner.to_owned()).or_default().insert(key.clone());
        }
        if let Some(index) = (self.index)(object.as_ref()) {
            self.by_index.entry(index).or_default().insert(key.clone());
        }
    }

    fn unlink(&mut self, key: &Key) -> Option<Arc<K>> {
        let before = self.items.remove(key)?.object;
        for owner in owners(before.as_ref()) {
            forget(&mut self.by_owner, owner, key);
        }
        if let Some(index) = (self.index)(before.as_ref()) {
            forget(&mut self.by_index, &index, key);
        }
        Some(before)
    }
}

/// The keys of an object in the index of owners.
fn owners<K: Resource>(object: &K) -> impl Iterator<Item = &str> {
    let owners = object.owner_references();
    let orphan = owners.iter().all(|owner| owner.controller != Some(true));
    owners.iter().map(|owner| owner.uid.as_str()).chain(orphan.then_some(""))
}

fn forget(index: &mut HashMap<String, BTreeSet<Key>>, name: &str, key: &Key) {
    if let Some(keys) = index.get_mut(name) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(name);
        }
    }
}

/// Updates the cache from a watch forever. Retries after errors, broken connections and restarts of the API server.
pub(crate) async fn fill<K: Cached>(cache: Arc<ObjectCache<K>>, api: Api<K>)
where
    K::DynamicType: Clone,
{
    // Tests often restart the API server, and the actors must recover soon after.
    let backoff = backoff(Duration::from_millis(50), Duration::from_secs(3));
    let events = StreamBackoff::new(watcher(api, watcher::Config::default()), backoff);
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => cache.take_in(event),
            Err(error) => tracing::debug!(%error, kind = std::any::type_name::<K>(), "watch interrupted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    fn map(name: &str, uid: &str, version: u64) -> ConfigMap {
        serde_json::from_value(json!({"metadata": {
            "namespace": "ns", "name": name, "uid": uid, "resourceVersion": version.to_string(),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "owner"}],
        }}))
        .unwrap()
    }

    fn cache() -> (ObjectCache<ConfigMap>, Arc<Mutex<Vec<String>>>) {
        let cache = ObjectCache::new(|_| None);
        let changes_seen = Arc::new(Mutex::new(Vec::new()));
        let log = changes_seen.clone();
        cache.listen(move |before, after| {
            let show = |o: Option<&Arc<ConfigMap>>| {
                o.map_or("-".to_owned(), |o| format!("{}@{}", o.name_any(), version(o.as_ref())))
            };
            log.lock().push(format!("{}>{}", show(before), show(after)));
        });
        (cache, changes_seen)
    }

    #[test]
    fn own_writes_are_cached_at_once_and_a_late_watch_changes_nothing() {
        let (cache, changes_seen) = cache();
        cache.take_in(Event::Init);
        cache.take_in(Event::InitDone);
        cache.wrote(map("a", "1", 5));
        cache.wrote(map("a", "1", 7));
        cache.take_in(Event::Apply(map("a", "1", 5)));
        cache.take_in(Event::Apply(map("a", "1", 7)));
        assert_eq!(*changes_seen.lock(), ["->a@5", "a@5>a@7"]);
        assert_eq!(cache.owned_by("owner").len(), 1);
    }

    #[test]
    fn a_removed_object_does_not_come_back_but_its_successor_does() {
        let (cache, changes_seen) = cache();
        cache.wrote(map("a", "1", 5));
        cache.removed(&Key::new("ns", "a"), "1");
        cache.take_in(Event::Apply(map("a", "1", 6)));
        assert!(cache.get(&Key::new("ns", "a")).is_none());
        assert!(cache.owned_by("owner").is_empty());
        cache.wrote(map("a", "2", 9));
        cache.take_in(Event::Delete(map("a", "1", 8)));
        assert!(cache.get(&Key::new("ns", "a")).is_some());
        assert_eq!(*changes_seen.lock(), ["->a@5", "a@5>-", "->a@9"]);
    }

    #[test]
    fn a_relist_keeps_objects_written_after_its_request() {
        let (cache, _) = cache();
        cache.wrote(map("before", "1", 5));
        cache.take_in(Event::Init);
        cache.wrote(map("after", "2", 9));
        cache.take_in(Event::InitApply(map("listed", "3", 7)));
        cache.take_in(Event::InitDone);
        let names: Vec<_> = cache.in_namespace("ns").iter().map(|o| o.name_any()).collect();
        assert_eq!(names, ["after", "listed"]);
    }
}
