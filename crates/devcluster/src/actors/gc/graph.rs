//! The graph of owners and dependents over all kinds. Pure functions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::core::ApiResource;

use super::super::cache::Key;

/// Finalizer of an object that is deleted with Foreground propagation: it waits for its dependents.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of an object that is deleted with Orphan propagation: its dependents must lose their reference first.
pub(super) const ORPHAN: &str = "orphan";

#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) kind: Arc<ApiResource>,
    pub(super) key: Key,
    pub(super) owners: Vec<OwnerReference>,
    pub(super) ending: bool,
    pub(super) finalizers: Vec<String>,
}

impl Object {
    pub(super) fn new(kind: &Arc<ApiResource>, meta: &ObjectMeta) -> Self {
        Self {
            kind: kind.clone(),
            key: Key::new(
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
            ),
            owners: meta.owner_references.clone().unwrap_or_default(),
            ending: meta.deletion_timestamp.is_some(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
        }
    }

    /// Whether the object waits for its dependents.
    pub(super) fn waits_for_dependents(&self) -> bool {
        self.ending && self.finalizers.iter().any(|finalizer| finalizer == FOREGROUND)
    }

    pub(super) fn sets_dependents_free(&self) -> bool {
        self.ending && self.finalizers.iter().any(|finalizer| finalizer == ORPHAN)
    }
}

#[derive(Default)]
pub(super) struct Graph {
    objects: HashMap<String, Object>,
    dependents: HashMap<String, BTreeSet<String>>,
}

impl Graph {
    pub(super) fn get(&self, uid: &str) -> Option<&Object> {
        self.objects.get(uid)
    }

    pub(super) fn dependents(&self, uid: &str) -> Vec<String> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }

    /// The dependents that an object with Foreground deletion waits for.
    pub(super) fn blocking(&self, uid: &str) -> Vec<String> {
        let blocks = |dependent: &String| {
            let object = self.objects.get(dependent);
            object.is_some_and(|object| {
                object.owners.iter().any(|owner| owner.uid == uid && owner.block_owner_deletion == Some(true))
            })
        };
        self.dependents(uid).into_iter().filter(blocks).collect()
    }

    /// Adds or updates an object. Returns the UIDs that must be processed because of the change.
    pub(super) fn insert(&mut self, uid: &str, object: Object) -> BTreeSet<String> {
        let before = self.remove_links(uid);
        let mut affected = BTreeSet::new();
        let was_waiting = before.as_ref().is_some_and(Object::waits_for_dependents);
        let owners_changed = before.as_ref().is_none_or(|before| before.owners != object.owners);
        if object.waits_for_dependents() && !was_waiting {
            affected.extend(self.dependents(uid));
            affected.insert(uid.to_owned());
        }
        if object.sets_dependents_free() {
            affected.insert(uid.to_owned());
        }
        if owners_changed {
            // An owner that is not in the graph may not exist. An owner that waits for its dependents needs this
            // object deleted.
            let doubtful = |owner: &OwnerReference| {
                self.objects.get(&owner.uid).is_none_or(Object::waits_for_dependents)
            };
            if object.owners.iter().any(doubtful) {
                affected.insert(uid.to_owned());
            }
            // If this object no longer blocks an owner, it may have been the last blocking one.
            affected.extend(before.iter().flat_map(|before| &before.owners).map(|owner| owner.uid.clone()));
        }
        for owner in &object.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.to_owned());
        }
        self.objects.insert(uid.to_owned(), object);
        affected
    }

    /// Removes an object. Returns the UIDs that must be processed because of the removal.
    pub(super) fn remove(&mut self, uid: &str) -> BTreeSet<String> {
        let mut affected: BTreeSet<_> = self.dependents(uid).into_iter().collect();
        if let Some(gone) = self.remove_links(uid) {
            let waiting = |owner: &&OwnerReference| {
                self.objects.get(&owner.uid).is_some_and(Object::waits_for_dependents)
            };
            affected.extend(gone.owners.iter().filter(waiting).map(|owner| owner.uid.clone()));
        }
        affected
    }

    fn remove_links(&mut self, uid: &str) -> Option<Object> {
        let before = self.objects.remove(uid)?;
        for owner in &before.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
        Some(before)
    }

    /// Classifies the owners of an object. `exists` contains, for owners that are not in the graph, whether they exist.
    pub(super) fn classify(&self, owners: &[OwnerReference], exists: &BTreeMap<String, bool>) -> Owners {
        let mut sorted = Owners::default();
        for owner in owners {
            match self.objects.get(&owner.uid) {
                Some(object) if object.waits_for_dependents() => sorted.waiting.push(owner.clone()),
                Some(_) => sorted.solid.push(owner.clone()),
                None if exists.get(&owner.uid) == Some(&false) => sorted.absent.push(owner.clone()),
                None => sorted.solid.push(owner.clone()),
            }
        }
        sorted
    }
}

/// The owners of an object: existing, absent, and waiting for their dependents.
#[derive(Debug, Default)]
pub(super) struct Owners {
    pub(super) solid: Vec<OwnerReference>,
    pub(super) absent: Vec<OwnerReference>,
    pub(super) waiting: Vec<OwnerReference>,
}

/// The consequence of an object's owners for the object.
#[derive(Debug, PartialEq)]
pub(super) enum GcAction {
    /// The object stays unchanged.
    Keep,
    /// The object stays, and keeps only these owners.
    KeepOwners(Vec<OwnerReference>),
    /// The object is deleted, with Foreground propagation if an owner waits and the object has dependents.
    Delete { foreground: bool },
}

pub(super) fn gc_action(owners: Owners, has_dependents: bool, finalizers: &[String]) -> GcAction {
    let Owners { solid, absent, waiting } = owners;
    if solid.is_empty() && absent.is_empty() && waiting.is_empty() {
        return GcAction::Keep;
    }
    if !solid.is_empty() {
        return if absent.is_empty() && waiting.is_empty() {
            GcAction::Keep
        } else {
            GcAction::KeepOwners(solid)
        };
    }
    let requested = finalizers.iter().any(|finalizer| finalizer == FOREGROUND);
    GcAction::Delete { foreground: requested || (!waiting.is_empty() && has_dependents) }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "json!(…) stands where it is used")]
mod tests {
    use kube::core::GroupVersionKind;
    use serde_json::{Value, json};

    use super::*;

    fn object(meta: Value) -> Object {
        let kind = Arc::new(ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod")));
        Object::new(&kind, &serde_json::from_value(meta).unwrap())
    }

    fn owner(uid: &str, blocks: bool) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "name": uid, "uid": uid, "blockOwnerDeletion": blocks})
    }

    fn set(items: &[&str]) -> BTreeSet<String> {
        items.iter().map(|item| (*item).to_owned()).collect()
    }

    #[test]
    fn the_removal_of_an_owner_queues_its_dependents() {
        let mut graph = Graph::default();
        assert_eq!(graph.insert("owner", object(json!({"name": "owner"}))), set(&[]));
        assert_eq!(
            graph.insert(
                "child",
                object(json!({"name": "child", "ownerReferences": [owner("owner", false)]}))
            ),
            set(&[])
        );
        assert_eq!(
            graph.insert("orphan", object(json!({"ownerReferences": [owner("absent", false)]}))),
            set(&["orphan"])
        );
        assert_eq!(graph.remove("owner"), set(&["child"]));
    }

    #[test]
    fn foreground_deletion_waits_for_blocking_dependents() {
        let mut graph = Graph::default();
        graph.insert("owner", object(json!({})));
        graph.insert("blocks", object(json!({"ownerReferences": [owner("owner", true)]})));
        graph.insert("free", object(json!({"ownerReferences": [owner("owner", false)]})));
        let ending = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FOREGROUND]});
        assert_eq!(graph.insert("owner", object(ending.clone())), set(&["owner", "blocks", "free"]));
        assert_eq!(graph.insert("owner", object(ending)), set(&[]), "queued only once");
        assert_eq!(graph.blocking("owner"), ["blocks"]);
        assert_eq!(graph.remove("blocks"), set(&["owner"]));
        assert!(graph.blocking("owner").is_empty());
    }

    #[test]
    fn an_object_without_an_existing_owner_is_deleted() {
        let mut graph = Graph::default();
        graph.insert("solid", object(json!({})));
        graph.insert(
            "waiting",
            object(json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FOREGROUND]})),
        );
        let gone = BTreeMap::from([("absent".to_owned(), false), ("unseen".to_owned(), true)]);
        let action_for = |names: &[&str], dependents: bool| {
            let owners: Vec<OwnerReference> =
                names.iter().map(|name| serde_json::from_value(owner(name, true)).unwrap()).collect();
            match gc_action(graph.classify(&owners, &gone), dependents, &[]) {
                GcAction::KeepOwners(kept) => {
                    format!("keeps {}", kept.iter().map(|o| o.uid.clone()).collect::<Vec<_>>().join(","))
                }
                other => format!("{other:?}"),
            }
        };
        assert_eq!(action_for(&[], false), "Keep");
        assert_eq!(action_for(&["solid"], false), "Keep");
        assert_eq!(action_for(&["unseen"], false), "Keep");
        assert_eq!(action_for(&["solid", "absent"], false), "keeps solid");
        assert_eq!(action_for(&["solid", "waiting"], false), "keeps solid");
        assert_eq!(action_for(&["absent"], true), "Delete { foreground: false }");
        assert_eq!(action_for(&["waiting"], false), "Delete { foreground: false }");
        assert_eq!(action_for(&["waiting", "absent"], true), "Delete { foreground: true }");
    }
}
