//! The store of all state: objects, their history, and one revision for all of them.
//!
//! A stored object is immutable and includes its serialized bytes, so that reads, lists and any number of watches share
//! it. Watches pull changes from the history of their resource; the store only notifies them that there are new
//! changes. The store never waits for a watch, and holds no lock across an await.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;

use super::object::{self, Key};
use super::observer::{ObservedChange, Observing};

/// The table of a resource: `plural.group`, or the plural alone for the core group.
pub(crate) type TableId = Arc<str>;

/// One object at one revision.
#[derive(Debug)]
pub(crate) struct StoredObject {
    pub(crate) key: Key,
    pub(crate) revision: u64,
    pub(crate) value: Value,
    pub(crate) bytes: Bytes,
}

impl StoredObject {
    fn new(key: Key, revision: u64, mut value: Value) -> Arc<Self> {
        object::set_meta(&mut value, "resourceVersion", revision.to_string());
        let bytes = serde_json::to_vec(&value).map(Bytes::from).unwrap_or_default();
        Arc::new(Self { key, revision, value, bytes })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

/// One change in the history of a table.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) kind: ChangeKind,
    pub(crate) revision: u64,
    /// The object after the change. For a deletion: its last state, at the revision of the deletion.
    pub(crate) object: Arc<StoredObject>,
    pub(crate) previous: Option<Arc<StoredObject>>,
}

/// The state that a write expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    Absent,
    At(u64),
}

/// Another write came first.
#[derive(Debug)]
pub(crate) struct Raced;

/// The history no longer reaches back to the requested revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooOld {
    /// The oldest revision that is still available.
    pub(crate) floor: u64,
}

/// Objects of one table at one revision.
pub(crate) struct Snapshot {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<Arc<StoredObject>>,
}

struct Table {
    objects: BTreeMap<Key, Arc<StoredObject>>,
    history: VecDeque<Arc<Change>>,
    /// Changes up to this revision are no longer in `history`.
    floor: u64,
    latest: watch::Sender<u64>,
}

struct Inner {
    revision: u64,
    tables: HashMap<TableId, Table>,
}

/// All objects at one revision, to restore the store from.
#[derive(Clone, Debug)]
pub struct Backup {
    revision: u64,
    tables: HashMap<TableId, BTreeMap<Key, Arc<StoredObject>>>,
}

/// All state of the server.
pub(crate) struct Store {
    inner: RwLock<Inner>,
    history_len: usize,
    observer: Observing,
}

impl Inner {
    fn table(&mut self, id: &TableId) -> &mut Table {
        let floor = self.revision;
        self.tables.entry(id.clone()).or_insert_with(|| Table {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            // A table without writes has no changes that history could have lost.
            floor: floor.min(1),
            latest: watch::Sender::new(floor),
        })
    }

    fn record(&mut self, id: &TableId, change: Change, history_len: usize) {
        let revision = change.revision;
        let table = self.table(id);
        if change.kind == ChangeKind::Deleted {
            table.objects.remove(&change.object.key);
        } else {
            table.objects.insert(change.object.key.clone(), change.object.clone());
        }
        table.history.push_back(Arc::new(change));
        while table.history.len() > history_len {
            if let Some(oldest) = table.history.pop_front() {
                table.floor = oldest.revision;
            }
        }
        table.latest.send_replace(revision);
    }
}

impl Store {
    /// An empty store that keeps `history_len` changes per table.
    pub(crate) fn new(history_len: usize, observer: Observing) -> Self {
        Self {
            inner: RwLock::new(Inner { revision: 1, tables: HashMap::new() }),
            history_len: history_len.max(1),
            observer,
        }
    }

    /// Records a change. The store is locked, so the observer sees all changes in order.
    fn record(&self, inner: &mut Inner, id: &TableId, change: Change) {
        if let Some(observer) = &self.observer {
            observer.changed(&ObservedChange {
                resource: id,
                revision: change.revision,
                deleted: change.kind == ChangeKind::Deleted,
                object: &change.object.value,
            });
        }
        inner.record(id, change, self.history_len);
    }

    pub(crate) fn revision(&self) -> u64 {
        self.inner.read().revision
    }

    pub(crate) fn get(&self, id: &TableId, key: &Key) -> Option<Arc<StoredObject>> {
        self.inner.read().tables.get(id)?.objects.get(key).cloned()
    }

    /// Writes `value` if the stored state is the expected one. A write that changes nothing does not create a revision.
    pub(crate) fn put(
        &self,
        id: &TableId,
        key: &Key,
        value: Value,
        expect: Expect,
    ) -> Result<Arc<StoredObject>, Raced> {
        let mut inner = self.inner.write();
        let current = inner.table(id).objects.get(key).cloned();
        let fits = match (expect, &current) {
            (Expect::Absent, None) => true,
            (Expect::At(revision), Some(current)) => current.revision == revision,
            _ => false,
        };
        if !fits {
            return Err(Raced);
        }
        if let Some(current) = &current
            && same_but_version(&current.value, &value)
        {
            return Ok(current.clone());
        }
        inner.revision += 1;
        let stored = StoredObject::new(key.clone(), inner.revision, value);
        let kind = if current.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        let change = Change { kind, revision: inner.revision, object: stored.clone(), previous: current };
        self.record(&mut inner, id, change);
        Ok(stored)
    }

    /// Removes the object if it is still at the expected revision, and returns its last state.
    pub(crate) fn remove(
        &self,
        id: &TableId,
        key: &Key,
        at: u64,
        last: Option<Value>,
    ) -> Result<Arc<StoredObject>, Raced> {
        let mut inner = self.inner.write();
        let current = inner.table(id).objects.get(key).cloned();
        let Some(previous) = current.filter(|c| c.revision == at) else {
            return Err(Raced);
        };
        inner.revision += 1;
        let value = last.unwrap_or_else(|| previous.value.clone());
        let gone = StoredObject::new(key.clone(), inner.revision, value);
        let change = Change {
            kind: ChangeKind::Deleted,
            revision: inner.revision,
            object: gone.clone(),
            previous: Some(previous),
        };
        self.record(&mut inner, id, change);
        Ok(gone)
    }

    /// Removes all objects of a table, with one deletion per object.
    pub(crate) fn clear(&self, id: &TableId) {
        let doomed: Vec<(Key, u64)> = match self.inner.read().tables.get(id) {
            Some(table) => table.objects.values().map(|o| (o.key.clone(), o.revision)).collect(),
            None => return,
        };
        for (key, revision) in doomed {
            // On a conflict, another request has removed or rewritten the object in the meantime.
            let _ = self.remove(id, &key, revision, None);
        }
    }

    /// The current objects of a namespace; an empty namespace means all.
    pub(crate) fn list(&self, id: &TableId, namespace: &str) -> Snapshot {
        let inner = self.inner.read();
        let objects = inner.tables.get(id).map(|t| in_namespace(&t.objects, namespace)).unwrap_or_default();
        Snapshot { revision: inner.revision, objects }
    }

    /// The objects of a namespace as they were at `revision`. Undoes all later changes.
    pub(crate) fn list_at(&self, id: &TableId, namespace: &str, revision: u64) -> Result<Snapshot, TooOld> {
        let inner = self.inner.read();
        let Some(table) = inner.tables.get(id) else {
            return Ok(Snapshot { revision, objects: Vec::new() });
        };
        if revision < table.floor {
            return Err(TooOld { floor: table.floor });
        }
        if table.history.back().is_none_or(|last| last.revision <= revision) {
            return Ok(Snapshot { revision, objects: in_namespace(&table.objects, namespace) });
        }
        let mut objects = table.objects.clone();
        for change in table.history.iter().rev().take_while(|c| c.revision > revision) {
            match &change.previous {
                Some(previous) => objects.insert(previous.key.clone(), previous.clone()),
                None => objects.remove(&change.object.key),
            };
        }
        Ok(Snapshot { revision, objects: in_namespace(&objects, namespace) })
    }

    /// The changes of a table after `revision`, oldest first, at most `limit`, and the global revision up to which they
    /// are complete.
    pub(crate) fn changes_after(
        &self,
        id: &TableId,
        revision: u64,
        limit: usize,
    ) -> Result<(Vec<Arc<Change>>, u64), TooOld> {
        let inner = self.inner.read();
        let Some(table) = inner.tables.get(id) else {
            return Ok((Vec::new(), inner.revision));
        };
        if revision < table.floor {
            return Err(TooOld { floor: table.floor });
        }
        let from = table.history.partition_point(|c| c.revision <= revision);
        let batch: Vec<_> = table.history.range(from..).take(limit).cloned().collect();
        let complete = from + batch.len() == table.history.len();
        let reached = if complete { inner.revision } else { batch.last().map_or(revision, |c| c.revision) };
        Ok((batch, reached))
    }

    /// Notifies of every change to a table.
    pub(crate) fn subscribe(&self, id: &TableId) -> watch::Receiver<u64> {
        if let Some(table) = self.inner.read().tables.get(id) {
            return table.latest.subscribe();
        }
        self.inner.write().table(id).latest.subscribe()
    }

    /// Opens a table for a new kind. It has no history before the current revision.
    pub(crate) fn open(&self, id: &TableId) {
        let mut inner = self.inner.write();
        if !inner.tables.contains_key(id) {
            let now = inner.revision;
            inner.table(id).floor = now;
        }
    }

    pub(crate) fn back_up(&self) -> Backup {
        let inner = self.inner.read();
        let objects = |(id, table): (&TableId, &Table)| (id.clone(), table.objects.clone());
        Backup { revision: inner.revision, tables: inner.tables.iter().map(objects).collect() }
    }

    /// Replaces everything by the state of a backup. The revision goes back too, and continues from there. Like the watch
    /// cache of an API server that has just started, the store has no history.
    pub(crate) fn restore(&self, backup: &Backup) {
        let mut inner = self.inner.write();
        inner.revision = backup.revision;
        for (id, table) in &mut inner.tables {
            table.objects = backup.tables.get(id).cloned().unwrap_or_default();
            table.history.clear();
            table.floor = backup.revision;
            table.latest.send_replace(backup.revision);
        }
    }

    /// Drops all history. A client that continues from an older revision must list again.
    pub(crate) fn compact(&self) {
        let mut inner = self.inner.write();
        // Compaction creates its own revision, so that the last revision of every client is older.
        inner.revision += 1;
        let revision = inner.revision;
        for table in inner.tables.values_mut() {
            table.history.clear();
            table.floor = revision;
            table.latest.send_replace(revision);
        }
    }
}

fn in_namespace(objects: &BTreeMap<Key, Arc<StoredObject>>, namespace: &str) -> Vec<Arc<StoredObject>> {
    if namespace.is_empty() {
        return objects.values().cloned().collect();
    }
    objects
        .range(Key::new(namespace, "")..)
        .take_while(|(key, _)| key.namespace == namespace)
        .map(|(_, object)| object.clone())
        .collect()
}

/// Whether two states of an object differ in nothing but the resource version.
fn same_but_version(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return false };
    a.len() == b.len()
        && a.iter().all(|(field, left)| {
            b.get(field).is_some_and(|right| match (field.as_str(), left, right) {
                ("metadata", Value::Object(left), Value::Object(right)) => {
                    let others = |m: &serde_json::Map<String, Value>| {
                        m.len() - usize::from(m.contains_key("resourceVersion"))
                    };
                    others(left) == others(right)
                        && left.iter().all(|(k, v)| k == "resourceVersion" || right.get(k) == Some(v))
                }
                _ => left == right,
            })
        })
}

#[cfg(test)]
mod tests {
    use super::{ChangeKind, Expect, Store, TableId};
    use crate::apiserver::object::Key;
    use serde_json::json;

    fn pods() -> TableId {
        "pods".into()
    }

    #[test]
    fn all_tables_share_one_revision_and_an_unchanged_write_creates_none() {
        let store = Store::new(100, None);
        let key = Key::new("d", "a");
        let first = store.put(&pods(), &key, json!({"metadata": {}, "x": 1}), Expect::Absent).unwrap();
        let other = store.put(&"nodes".into(), &Key::new("", "n"), json!({}), Expect::Absent).unwrap();
        assert_eq!(other.revision, first.revision + 1);
        let again =
            store.put(&pods(), &key, json!({"metadata": {}, "x": 1}), Expect::At(first.revision)).unwrap();
        assert_eq!(again.revision, first.revision);
        let changed =
            store.put(&pods(), &key, json!({"metadata": {}, "x": 2}), Expect::At(first.revision)).unwrap();
        assert_eq!(changed.revision, other.revision + 1);
        assert!(
            store.put(&pods(), &key, json!({"metadata": {}, "x": 3}), Expect::At(first.revision)).is_err()
        );
        assert!(store.put(&pods(), &key, json!({"metadata": {}, "x": 3}), Expect::Absent).is_err());
    }

    #[test]
    fn an_older_list_can_be_read_while_its_history_is_kept() {
        let store = Store::new(100, None);
        let a = store.put(&pods(), &Key::new("d", "a"), json!({"x": 1}), Expect::Absent).unwrap();
        let then = a.revision;
        store.put(&pods(), &Key::new("d", "a"), json!({"x": 2}), Expect::At(then)).unwrap();
        let b = store.put(&pods(), &Key::new("d", "b"), json!({}), Expect::Absent).unwrap();
        store.remove(&pods(), &Key::new("d", "b"), b.revision, None).unwrap();
        let old = store.list_at(&pods(), "d", then).unwrap();
        assert_eq!(old.objects.len(), 1);
        assert_eq!(old.objects[0].value["x"], 1);
        store.compact();
        assert!(store.list_at(&pods(), "d", then).is_err());
        assert!(store.changes_after(&pods(), then, 10).is_err());
    }

    #[test]
    fn a_restored_store_continues_from_the_revision_of_the_backup() {
        let store = Store::new(100, None);
        let (a, b) = (Key::new("d", "a"), Key::new("d", "b"));
        let before = store.put(&pods(), &a, json!({"x": 1}), Expect::Absent).unwrap();
        let backup = store.back_up();
        store.put(&pods(), &a, json!({"x": 2}), Expect::At(before.revision)).unwrap();
        store.put(&pods(), &b, json!({}), Expect::Absent).unwrap();
        store.put(&"nodes".into(), &Key::new("", "n"), json!({}), Expect::Absent).unwrap();
        store.restore(&backup);
        assert_eq!(store.revision(), before.revision);
        assert_eq!(store.get(&pods(), &a).unwrap().value["x"], 1);
        assert!(store.get(&pods(), &b).is_none());
        assert!(store.list(&"nodes".into(), "").objects.is_empty());
        let next = store.put(&pods(), &b, json!({}), Expect::Absent).unwrap();
        assert_eq!(next.revision, before.revision + 1);
    }

    #[test]
    fn a_deletion_carries_its_own_revision() {
        let store = Store::new(2, None);
        let a = store.put(&pods(), &Key::new("d", "a"), json!({}), Expect::Absent).unwrap();
        let gone = store.remove(&pods(), &Key::new("d", "a"), a.revision, None).unwrap();
        assert_eq!(gone.value["metadata"]["resourceVersion"], gone.revision.to_string());
        let (changes, reached) = store.changes_after(&pods(), a.revision, 10).unwrap();
        assert_eq!(changes[0].kind, ChangeKind::Deleted);
        assert_eq!(reached, gone.revision);
    }

    #[test]
    fn a_full_history_drops_the_oldest_change() {
        let store = Store::new(2, None);
        for n in 0..4 {
            store.put(&pods(), &Key::new("d", &n.to_string()), json!({}), Expect::Absent).unwrap();
        }
        assert!(store.changes_after(&pods(), 2, 10).is_err());
        assert_eq!(store.changes_after(&pods(), 3, 10).unwrap().0.len(), 2);
    }
}
