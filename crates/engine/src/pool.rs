//! Shares equal texts and label sets: what a thousand pods have is kept once.

use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::basics::{Labels, Text};
use crate::facts::{BudgetKey, Covers, Owner, Pod};
use crate::selector::Ask;

/// What is in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    texts: Shelf<str>,
    /// Apart from the other texts: there are few of them, each pod has one, and no sibling has the same.
    nodes: Shelf<str>,
    labels: Shelf<[(Text, Text)]>,
}

/// What the pods of one controller have in common, as the first of them had it.
#[derive(Clone, Debug)]
pub(crate) struct Likeness {
    owners: Arc<[Owner]>,
    labels: Labels,
}

impl Likeness {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self { owners: pod.owners.clone(), labels: pod.labels.clone() }
    }
}

impl Pool {
    /// Has a pod share its texts with all others; name, UID and namespace apart. Those of its controller have most of
    /// them, each in the place where it is to be expected, which spares the search.
    pub(crate) fn share_pod(&mut self, pod: &mut Pod, like: Option<&Likeness>) {
        self.share_labels(&mut pod.labels, like.map(|like| &like.labels));
        if let Some(node) = &mut pod.node {
            self.nodes.share(node);
        }
        match like {
            Some(like) if like.owners == pod.owners => pod.owners = like.owners.clone(),
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
    }

    fn share_labels(&mut self, labels: &mut Labels, like: Option<&Labels>) {
        if let Some(known) = self.labels.find(labels.shared()) {
            *labels.shared() = known;
            return;
        }
        let mut all_known = true;
        for (at, (key, value)) in labels.iter_mut().enumerate() {
            let like = like.and_then(|like| like.nth(at));
            all_known &= self.share_like(key, like.map(|(key, _)| key));
            all_known &= self.share_like(value, like.map(|(_, value)| value));
        }
        // A label that nobody had before is likely to be one that only this pod has, such as its number.
        if all_known {
            self.labels.keep(labels.shared().clone());
        }
    }

    /// Shares the texts of a budget that pods are compared with.
    pub(crate) fn share_budget(&mut self, key: &mut BudgetKey, covers: &mut Covers) {
        self.texts.share(&mut key.object.namespace);
        let Covers::Selector(selector) = covers else { return };
        for requirement in &mut selector.0 {
            self.texts.share(&mut requirement.key);
            if let Ask::In(values) | Ask::NotIn(values) = &mut requirement.ask {
                for value in values {
                    self.texts.share(value);
                }
            }
        }
    }

    /// Returns whether the text was known.
    fn share_like(&mut self, text: &mut Text, like: Option<&Text>) -> bool {
        match like {
            Some(like) if like == text => {
                *text = like.clone();
                true
            }
            _ => self.texts.share(text),
        }
    }
}

/// Values in use. What nobody uses any more goes when there are twice as many.
#[derive(Debug)]
struct Shelf<T: ?Sized> {
    kept: FxHashSet<Arc<T>>,
    sweep_at: usize,
}

/// A shelf with less than this is not worth sweeping.
const SMALLEST_SWEEP: usize = 1024;

impl<T: ?Sized> Default for Shelf<T> {
    fn default() -> Self {
        Self { kept: FxHashSet::default(), sweep_at: SMALLEST_SWEEP }
    }
}

impl<T: ?Sized> Clone for Shelf<T> {
    fn clone(&self) -> Self {
        Self { kept: self.kept.clone(), sweep_at: self.sweep_at }
    }
}

impl<T: ?Sized + Hash + Eq> Shelf<T> {
    fn find(&self, value: &Arc<T>) -> Option<Arc<T>> {
        self.kept.get(value).cloned()
    }

    fn keep(&mut self, value: Arc<T>) {
        if self.kept.len() >= self.sweep_at {
            self.kept.retain(|kept| Arc::strong_count(kept) > 1);
            self.sweep_at = (self.kept.len() * 2).max(SMALLEST_SWEEP);
        }
        self.kept.insert(value);
    }

    /// Replaces a value by the one that is kept. Returns whether there was one.
    fn share(&mut self, value: &mut Arc<T>) -> bool {
        match self.find(value) {
            Some(known) => {
                *value = known;
                true
            }
            None => {
                self.keep(value.clone());
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(shelf: &mut Shelf<str>, text: &str) -> Text {
        let mut text = Text::from(text);
        shelf.share(&mut text);
        text
    }

    #[test]
    fn texts_are_shared_while_used_and_dropped_afterwards() {
        let mut shelf = Shelf::default();
        let first = shared(&mut shelf, "web");
        assert!(Text::ptr_eq(&first, &shared(&mut shelf, "web")));
        for n in 0..10_000 {
            shared(&mut shelf, &format!("once-{n}"));
        }
        assert!(shelf.kept.len() < 3 * SMALLEST_SWEEP, "{} texts kept", shelf.kept.len());
        assert!(Text::ptr_eq(&first, &shared(&mut shelf, "web")));
    }

    #[test]
    fn label_sets_are_shared_unless_a_label_is_the_pods_own() {
        let mut pool = Pool::default();
        let mut share = |zone: &str, name: &str| {
            let mut labels = Labels::new([("app", "web"), ("name", name), ("zone", zone)]);
            pool.share_labels(&mut labels, None);
            labels.shared().clone()
        };
        let sets = [share("a", "all"), share("a", "all"), share("a", "all"), share("b", "all")];
        assert!(Arc::ptr_eq(&sets[1], &sets[2]), "equal sets are kept once");
        assert!(!Arc::ptr_eq(&sets[2], &sets[3]));
        share("b", "web-0");
        share("b", "web-1");
        assert_eq!(pool.labels.kept.len(), 1, "sets that no other pod will have are not kept");
    }
}
