//! Shares equal texts: a label value that a thousand pods have is kept once.

use rustc_hash::FxHashSet;

use crate::basics::Text;
use crate::facts::Pod;

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

    /// The same pod, its texts shared with all others. Name and UID are its own.
    pub(crate) fn share_pod(&mut self, mut pod: Pod) -> Pod {
        pod.key.namespace = self.share(&pod.key.namespace);
        pod.labels = pod.labels.shared(|text| self.share(text));
        pod.node = pod.node.map(|node| self.share(&node));
        for owner in &mut pod.owners {
            owner.uid = self.share(&owner.uid);
            owner.name = self.share(&owner.name);
            owner.kind.group = self.share(&owner.kind.group);
            owner.kind.kind = self.share(&owner.kind.kind);
        }
        for container in &mut pod.containers {
            container.name = self.share(&container.name);
        }
        pod
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
