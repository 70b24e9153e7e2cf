//! Finds pods by UID and by name. The tables do not store the keys, so that for a million pods they fit a CPU cache.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use slab::Slab;

use crate::basics::ObjectKey;
use crate::engine::PodRecord;

/// Finds the pod with a UID, and the newest pod with a name.
#[derive(Clone, Debug, Default)]
pub(super) struct PodIndex {
    by_uid: HashTable<Entry>,
    by_name: HashTable<Entry>,
}

/// A pod, and the hash of its key. With the hash, a table can grow without access to every pod, and a search compares
/// only pods with the same hash.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    pod: u32,
}

impl Entry {
    /// The table uses the highest and the lowest bits of the hash, so all of them must vary.
    fn spread(&self) -> u64 {
        u64::from(self.hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

fn uid_entry(uid: &str, pod: u32) -> Entry {
    entry(FxBuildHasher.hash_one(uid), pod)
}

fn name_entry(key: &ObjectKey, pod: u32) -> Entry {
    entry(FxBuildHasher.hash_one(key), pod)
}

fn entry(hash: u64, pod: u32) -> Entry {
    Entry { hash: (hash ^ (hash >> 32)) as u32, pod }
}

impl PodIndex {
    pub(super) fn by_uid(&self, pods: &Slab<PodRecord>, uid: &str) -> Option<u32> {
        let sought = uid_entry(uid, 0);
        let is_it = |entry: &Entry| entry.hash == sought.hash && *pods[entry.pod as usize].fact.uid == *uid;
        self.by_uid.find(sought.spread(), is_it).map(|entry| entry.pod)
    }

    pub(super) fn by_name(&self, pods: &Slab<PodRecord>, key: &ObjectKey) -> Option<u32> {
        let sought = name_entry(key, 0);
        let is_it = |entry: &Entry| entry.hash == sought.hash && pods[entry.pod as usize].fact.key == *key;
        self.by_name.find(sought.spread(), is_it).map(|entry| entry.pod)
    }

    /// Adds a pod that is not in the index yet. Of several pods with the same name, the newest is found by name.
    pub(super) fn insert(&mut self, pods: &Slab<PodRecord>, id: u32) {
        let fact = &pods[id as usize].fact;
        let new = uid_entry(&fact.uid, id);
        self.by_uid.insert_unique(new.spread(), new, Entry::spread);
        let new = name_entry(&fact.key, id);
        let same_name =
            |entry: &Entry| entry.hash == new.hash && pods[entry.pod as usize].fact.key == fact.key;
        match self.by_name.find_mut(new.spread(), same_name) {
            Some(other) if pods[other.pod as usize].fact.version < fact.version => *other = new,
            Some(_) => {}
            None => drop(self.by_name.insert_unique(new.spread(), new, Entry::spread)),
        }
    }

    /// Removes a pod. It must still be in the slab.
    pub(super) fn remove(&mut self, pods: &Slab<PodRecord>, id: u32) {
        let fact = &pods[id as usize].fact;
        let is_it = |entry: &Entry| entry.pod == id;
        if let Ok(entry) = self.by_uid.find_entry(uid_entry(&fact.uid, id).spread(), is_it) {
            entry.remove();
        }
        if let Ok(entry) = self.by_name.find_entry(name_entry(&fact.key, id).spread(), is_it) {
            entry.remove();
        }
    }
}
