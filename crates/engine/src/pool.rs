//! Shares equal texts: a label value that a thousand pods have is kept once.

use rustc_hash::FxHashSet;

use crate::basics::Text;
use crate::facts::{BudgetKey, Covers, Pod};
use crate::selector::Ask;

/// Texts in use. What nobody uses any more goes when the pool has doubled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    texts: FxHashSet<Text>,
    sweep_at: usize,
}

/// A pool smaller than this is not worth sweeping.
const SMALLEST_SWEEP: usize = 1024;

impl Pool {
    fn share(&mut self, text: &Text) -> Text {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        if self.texts.len() >= self.sweep_at.max(SMALLEST_SWEEP) {
            self.texts.retain(|text| Text::strong_count(text) > 1);
            self.sweep_at = self.texts.len() * 2;
        }
        self.texts.insert(text.clone());
        text.clone()
    }

    /// The same pod, its texts shared with all others. Name and UID are its own. A sibling has most of them, each in
    /// the place where it is to be expected, which spares the search.
    pub(crate) fn share_pod(&mut self, mut pod: Pod, sibling: Option<&Pod>) -> Pod {
        self.share_like(&mut pod.key.namespace, sibling.map(|s| &s.key.namespace));
        for (at, (key, value)) in pod.labels.iter_mut().enumerate() {
            let like = sibling.and_then(|s| s.labels.nth(at));
            self.share_like(key, like.map(|(key, _)| key));
            self.share_like(value, like.map(|(_, value)| value));
        }
        if let Some(node) = &mut pod.node {
            self.share_like(node, None);
        }
        for (at, owner) in pod.owners.iter_mut().enumerate() {
            let like = sibling.and_then(|s| s.owners.get(at));
            self.share_like(&mut owner.uid, like.map(|o| &o.uid));
            self.share_like(&mut owner.name, like.map(|o| &o.name));
            self.share_like(&mut owner.kind.group, like.map(|o| &o.kind.group));
            self.share_like(&mut owner.kind.kind, like.map(|o| &o.kind.kind));
        }
        for (at, container) in pod.containers.iter_mut().enumerate() {
            let like = sibling.and_then(|s| s.containers.get(at));
            self.share_like(&mut container.name, like.map(|c| &c.name));
        }
        pod
    }

    /// Shares the texts of a budget that pods are compared with.
    pub(crate) fn share_budget(&mut self, key: &mut BudgetKey, covers: &mut Covers) {
        self.share_like(&mut key.object.namespace, None);
        let Covers::Selector(selector) = covers else { return };
        for requirement in &mut selector.0 {
            self.share_like(&mut requirement.key, None);
            if let Ask::In(values) | Ask::NotIn(values) = &mut requirement.ask {
                values.iter_mut().for_each(|value| self.share_like(value, None));
            }
        }
    }

    fn share_like(&mut self, text: &mut Text, like: Option<&Text>) {
        *text = match like {
            Some(like) if like == text => like.clone(),
            _ => self.share(text),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_shared_while_used_and_dropped_afterwards() {
        let mut pool = Pool::default();
        let first = pool.share(&Text::from("web"));
        let second = pool.share(&Text::from("web"));
        assert!(Text::ptr_eq(&first, &second));
        for n in 0..10_000 {
            pool.share(&Text::from(format!("once-{n}")));
        }
        assert!(pool.texts.len() < 3 * SMALLEST_SWEEP, "{} texts kept", pool.texts.len());
        assert!(Text::ptr_eq(&first, &pool.share(&Text::from("web"))));
    }
}
