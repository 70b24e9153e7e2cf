//! Shares equal texts: what a thousand pods have is kept once.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::basics::{Labels, Text};
use crate::facts::{BudgetKey, Covers, Owner, Pod};
use crate::selector::Selected;

/// What is in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    texts: Interner<()>,
    /// Apart from the other texts: there are few of them, each pod has one, and no sibling has the same.
    nodes: Interner<()>,
    /// Apart as well, and each set as one text, with the budgets that select it.
    labels: Interner<Selected>,
}

impl Pool {
    /// Has a pod share its texts with all others; name, UID and namespace apart. What its siblings have as owners is
    /// likely to be what it has, which spares the search. Returns what is known of pods with its labels.
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

    /// Has a set of labels shared with all that are equal.
    pub(crate) fn share_labels(&mut self, labels: &mut Labels) {
        self.labels.share(labels.shared());
    }

    /// Has a budget share its namespace and the keys of its labels with all others.
    pub(crate) fn share_budget(&mut self, key: &mut BudgetKey, covers: &mut Covers) {
        self.texts.share(&mut key.object.namespace);
        let Covers::Selector(selector) = covers else { return };
        for requirement in &mut selector.0 {
            self.texts.share(&mut requirement.key);
        }
    }
}

/// Texts in use, and what is known of each. What nobody uses any more goes when there are twice as many.
#[derive(Clone, Debug)]
struct Interner<V> {
    kept: FxHashMap<Text, V>,
    sweep_at: usize,
}

/// A shelf with less than this is not worth sweeping.
const SMALLEST_SWEEP: usize = 1024;

impl<V> Default for Interner<V> {
    fn default() -> Self {
        Self { kept: FxHashMap::default(), sweep_at: SMALLEST_SWEEP }
    }
}

impl<V: Default> Interner<V> {
    /// Replaces a text by the one that is kept, or keeps it.
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
