//! A set that owns all pods and says how many there should be.
//!
//! What a replica knows of it may be 90 s old, so a change of its scale binds replicas only after that.

use quorate_engine::basics::GroupKind;
use quorate_engine::facts::{Controller, Counts, Owner};

use super::*;

/// How long a replica may decide by an older scale: `Settings::fresh_for`.
const FRESH_FOR: Duration = Duration::from_secs(90);

/// The scale of the set.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Scale {
    replicas: u32,
    version: u64,
    changed: Time,
    /// The scale by which every admission is judged.
    pub(crate) binding: u32,
}

impl Scale {
    pub(super) fn new(replicas: u32) -> Self {
        Self { replicas, version: 1, changed: Time(0), binding: replicas }
    }

    /// The set as it is stored.
    pub(super) fn set(self) -> Controller {
        Controller {
            key: ObjectKey::new(NAMESPACE, "web"),
            uid: "set".into(),
            version: Version(self.version),
            kind: set_kind(),
            replicas: Some(self.replicas),
            counts: Counts::Pods,
            owner: None,
            deleting: false,
            recreate: false,
            activity: Default::default(),
            templates: None,
        }
    }
}

pub(super) fn set_kind() -> GroupKind {
    GroupKind::new("apps", "StatefulSet")
}

/// The owner of every pod where there is a set.
pub(super) fn owner() -> Owner {
    Owner { uid: "set".into(), kind: set_kind(), name: "web".into(), controller: true }
}

impl World {
    pub(super) fn rescale(&mut self, replicas: u32) {
        let Some(scale) = &mut self.scale else { return };
        (scale.replicas, scale.changed) = (replicas, self.clock);
        scale.version += 1;
        let set = Part::new(scale.set());
        for node in self.running() {
            node.sets.change(|sets| sets.push_back(News::Set(set.clone())));
        }
    }

    /// Time has passed: a watch without news sends a bookmark, and a scale that changed long enough ago binds all.
    pub(super) fn age_scale(&mut self) {
        let clock = self.clock;
        let Some(scale) = &mut self.scale else { return };
        let binds = scale.binding != scale.replicas && clock > scale.changed.after(FRESH_FOR);
        if binds {
            scale.binding = scale.replicas;
            let keys: Vec<BudgetKey> = self.budgets.keys().cloned().collect();
            keys.iter().for_each(|key| self.note_change(key));
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index].sets.is_empty() {
                self.deliver(index, &News::SetsAt);
            }
        }
    }
}
