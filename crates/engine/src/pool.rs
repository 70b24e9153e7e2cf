//! Interns equal texts, so that a text in a thousand pods is stored once.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::basics::{Labels, Text};
use crate::facts::{BudgetKey, Covers, Owner, Pod};
use crate::selector::Selected;

/// The texts in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    texts: Interner<()>,
    /// Node names, in their own table: there are few, each pod has one, and the pods of a controller have different
    /// ones.
    nodes: Interner<()>,
    /// Label sets, also in their own table. Each set is one text, with the budgets that select it.
    labels: Interner<Selected>,
}

impl Pool {
    /// Replaces the texts of a pod by shared ones, except name, UID and namespace. Pods of one controller usually have
    /// the same owners, so those of its siblings are tried first, which avoids a lookup. Returns the entry for the
    /// pod's label set.
    pub(crate) fn share_pod(&mut self, pod: &mut Pod, siblings: Option<&Arc<[Owner]>>) -> &mut Selected {
        if let Some(node) = &mut pod.node {
            self.nodes.share(node);
        }
        match siblings {
            Some(owners) if *owners == pod.owners => pod.owners = owners.clone(),
            _ => {
                for owner in Arc::make_mut(&mut pod.owners) {
                    self.texts.share(&mut owner.uid);
                    self.texts.share(&mut owner.name);
                    self.texts.share(&mut owner.kind.group);
                    self.texts.share(&mut owner.kind.kind);
                }
            }
        }
        for container in &mut pod.containers {
            self.texts.share(&mut container.name);
        }
        self.labels.share(pod.labels.shared())
    }

    /// Replaces a label set by the shared one.
    pub(crate) fn share_labels(&mut self, labels: &mut Labels) {
        self.labels.share(labels.shared());
    }

    /// Replaces the namespace of a budget and the label keys of its selector by shared ones.
    pub(crate) fn share_budget(&mut self, key: &mut BudgetKey, covers: &mut Covers) {
        self.texts.share(&mut key.object.namespace);
        let Covers::Selector(selector) = covers else { return };
        for requirement in &mut selector.0 {
            self.texts.share(&mut requirement.key);
        }
    }
}

/// Texts in use, with a value for each. Unused texts are dropped when the number of texts has doubled.
#[derive(Clone, Debug)]
struct Interner<V> {
    kept: FxHashMap<Text, V>,
    sweep_at: usize,
}

/// Smaller interners are not worth a sweep.
const SMALLEST_SWEEP: usize = 1024;

impl<V> Default for Interner<V> {
    fn default() -> Self {
        Self { kept: FxHashMap::default(), sweep_at: SMALLEST_SWEEP }
    }
}

impl<V: Default> Interner<V> {
    /// Replaces a text by the stored one, or stores it.
    fn share(&mut self, text: &mut Text) -> &mut V {
        if self.kept.len() >= self.sweep_at {
            self.kept.retain(|kept, _| Text::strong_count(kept) > 1);
            self.sweep_at = (self.kept.len() * 2).max(SMALLEST_SWEEP);
        }
        let entry = self.kept.entry(text.clone());
        *text = entry.key().clone();
        entry.or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(interner: &mut Interner<()>, text: &str) -> Text {
        let mut text = Text::from(text);
        interner.share(&mut text);
        text
    }

    #[test]
    fn texts_are_shared_while_used_and_dropped_afterwards() {
        let mut interner = Interner::default();
        let first = shared(&mut interner, "web");
        assert!(Text::ptr_eq(&first, &shared(&mut interner, "web")));
        for n in 0..10_000 {
            shared(&mut interner, &format!("once-{n}"));
        }
        assert!(interner.kept.len() < 3 * SMALLEST_SWEEP, "{} texts kept", interner.kept.len());
        assert!(Text::ptr_eq(&first, &shared(&mut interner, "web")));
    }
}
