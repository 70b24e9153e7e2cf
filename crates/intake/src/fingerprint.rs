//! Fingerprints: hashes of values that are only compared.
//!
//! They are stored in budgets and compared by other replicas, so they must be the same in every process and every
//! release. Any change here is a change of the ledger protocol.

use std::collections::BTreeMap;
use std::hash::Hasher as _;

use fnv::FnvHasher;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use quorate_api::slim::Resources;

use crate::{image, quantity};

/// FNV-1a over parts, with a separator that no part contains, so that `ab, c` is not `a, bc`.
fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hash = FnvHasher::default();
    for part in parts {
        hash.write(part);
        hash.write(&[0xff]);
    }
    // 0 is reserved for a missing value.
    hash.finish().max(1)
}

/// The fingerprint of a container ID; 0 if there is none.
pub fn container_id(id: Option<&str>) -> u64 {
    id.filter(|id| !id.is_empty()).map_or(0, |id| of([id.as_bytes()]))
}

/// The fingerprint of an image name; 0 if there is none.
pub fn image(name: Option<&str>) -> u64 {
    name.filter(|name| !name.is_empty()).map_or(0, |name| of([image::full_name(name).as_bytes()]))
}

/// The fingerprint of the resources that can change in place: cpu and memory. 0 if neither is set.
pub fn resources(resources: &Resources) -> u64 {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for (word, list) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for name in IN_PLACE {
            if let Some(amount) = list.get(name) {
                parts.push(word.into());
                parts.push(name.into());
                parts.push(amount_of(amount));
            }
        }
    }
    if parts.is_empty() { 0 } else { of(parts.iter().map(Vec::as_slice)) }
}

/// The resources that can change in place.
const IN_PLACE: [&str; 2] = ["cpu", "memory"];

/// The names of the resources that differ between two lists. A resource that one list lacks differs.
pub(crate) fn differing<'a>(
    old: &'a BTreeMap<String, Quantity>,
    new: &'a BTreeMap<String, Quantity>,
) -> Vec<&'a str> {
    let mut names: Vec<&str> = old
        .iter()
        .filter(|(name, amount)| new.get(*name).map(amount_of) != Some(amount_of(amount)))
        .map(|(name, _)| name.as_str())
        .chain(new.keys().filter(|name| !old.contains_key(*name)).map(String::as_str))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The canonical form of an amount: `0.5` and `500m` are the same. An amount that cannot be parsed is used as it is.
fn amount_of(amount: &Quantity) -> Vec<u8> {
    match quantity::nanos(&amount.0) {
        Some(nanos) => nanos.to_string().into_bytes(),
        None => amount.0.clone().into_bytes(),
    }
}
