//! Finds pods by UID and by name. The keys stay in the pods: a million of them are looked up in tables that fit a cache.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use slab::Slab;

use crate::basics::ObjectKey;
use crate::engine::PodRecord;

/// Which pod has a UID, and which is the newest of a name.
#[derive(Clone, Debug, Default)]
pub(super) struct PodIndex {
    by_uid: HashTable<u32>,
    by_name: HashTable<u32>,
}

fn uid_hash(uid: &str) -> u64 {
    FxBuildHasher.hash_one(uid)
}

fn name_hash(key: &ObjectKey) -> u64 {
    FxBuildHasher.hash_one(key)
}

impl PodIndex {
    pub(super) fn by_uid(&self, pods: &Slab<PodRecord>, uid: &str) -> Option<u32> {
        self.by_uid.find(uid_hash(uid), |id| *pods[*id as usize].fact.uid == *uid).copied()
    }

    pub(super) fn by_name(&self, pods: &Slab<PodRecord>, key: &ObjectKey) -> Option<u32> {
        self.by_name.find(name_hash(key), |id| pods[*id as usize].fact.key == *key).copied()
    }

    /// Files a pod that is not filed yet. Of several with one name the newest is found by it.
    pub(super) fn insert(&mut self, pods: &Slab<PodRecord>, id: u32) {
        let fact = &pods[id as usize].fact;
        self.by_uid.insert_unique(uid_hash(&fact.uid), id, |id| uid_hash(&pods[*id as usize].fact.uid));
        let hash = name_hash(&fact.key);
        match self.by_name.find_mut(hash, |other| pods[*other as usize].fact.key == fact.key) {
            Some(other) if pods[*other as usize].fact.version < fact.version => *other = id,
            Some(_) => {}
            None => {
                self.by_name.insert_unique(hash, id, |id| name_hash(&pods[*id as usize].fact.key));
            }
        }
    }

    /// Takes a pod out, while it is still in the slab.
    pub(super) fn remove(&mut self, pods: &Slab<PodRecord>, id: u32) {
        let fact = &pods[id as usize].fact;
        if let Ok(entry) = self.by_uid.find_entry(uid_hash(&fact.uid), |other| *other == id) {
            entry.remove();
        }
        if let Ok(entry) = self.by_name.find_entry(name_hash(&fact.key), |other| *other == id) {
            entry.remove();
        }
    }
}
