//! What a budget covers, as a number.

use crate::facts::{Covers, Rules, Units};

/// What a budget covers. A budget is open for one coverage: while only its numbers change nobody needs to
/// be asked again, since a commit tests the generation. A new UID is a new budget.
pub fn coverage(uid: &str, rules: &Rules) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut hash = Fnv::default();
    uid.hash(&mut hash);
    hash_covers(&rules.covers, &mut hash);
    rules.operations.hash(&mut hash);
    rules.observe.hash(&mut hash);
    hash.finish()
}

fn hash_covers(covers: &Covers, mut hash: &mut Fnv) {
    use std::hash::Hash;
    match covers {
        Covers::Selector(selector) => {
            let mut requirements: Vec<_> = selector.0.iter().collect();
            requirements.sort_by(|a, b| a.key.cmp(&b.key));
            (0u8, requirements).hash(&mut hash);
        }
        Covers::Target(kind, name) => (1u8, kind, name).hash(&mut hash),
    }
}

/// What the memory of a budget rests on: which pods it covers, and how it forms units of them. When that changes, what was
/// remembered says nothing any more.
pub fn memory_key(rules: &Rules) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut hash = Fnv::default();
    hash_covers(&rules.covers, &mut hash);
    // How many pods make a group whole does not change which groups there are.
    match &rules.units {
        Units::Pods => 0u8.hash(&mut hash),
        Units::Workload => 1u8.hash(&mut hash),
        Units::Label { key, .. } => (2u8, key).hash(&mut hash),
        Units::Owner { kind, .. } => (3u8, kind).hash(&mut hash),
    }
    hash.finish()
}

/// A coverage that says nothing of what is covered.
pub(crate) fn bare_coverage(uid: &str) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut hash = Fnv::default();
    uid.hash(&mut hash);
    hash.finish()
}

/// FNV-1a: the same in every process and every release, which the standard hasher does not promise.
#[derive(Clone, Copy)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl std::hash::Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
