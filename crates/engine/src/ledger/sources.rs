//! Reads of the objects that say how many groups there should be, before a group beyond that number passes for free.
//!
//! A group beyond the replicas of its LeaderWorkerSet costs nothing: the set no longer wants it. Where the watch lags, the
//! set may have been scaled up since, and the group is one that counts. So the set is read first, after the number of the
//! ledger that the write will test, as pods are before other free passes.

use crate::basics::{GroupKind, ObjectKey};
use crate::facts::{Budget, BudgetKey, Input};
use crate::ledger::commit::ReadStamp;
use crate::ledger::messages::{Call, Reply};
use crate::ledger::replica::{Purpose, Replica};

/// The object that says how many groups there should be.
pub(super) type Source = (GroupKind, ObjectKey);

impl Replica {
    /// Whether the source of a surplus group was read after the request arrived and after the number was read that the
    /// write will test. Where nobody says how many groups there should be, there is nothing to read.
    pub(super) fn has_fresh_source(&self, key: &BudgetKey, budget: &Budget, uid: &str, arrived: u64) -> bool {
        let Some(source) = self.engine.source_of(uid, key) else { return true };
        let stamp = self.queues.get(key).and_then(|queue| queue.sources_read.get(&source));
        stamp.is_some_and(|stamp| stamp.is_of(budget.ledger.number, arrived))
    }

    /// Reads the source of a surplus group, unless that is under way.
    pub(super) fn read_source(&mut self, key: &BudgetKey, budget: &Budget, uid: &str) {
        let Some(source) = self.engine.source_of(uid, key) else { return };
        let Some(queue) = self.queues.get_mut(key) else { return };
        if !queue.sources_reading.contains_key(&source) {
            let stamp = ReadStamp::new(budget.ledger.number, self.sequence, queue.coverage);
            queue.sources_reading.insert(source.clone(), stamp);
            let call = Call::GetController(source.0.clone(), source.1.clone());
            self.call(call, Purpose::Source(key.clone(), source));
        }
    }

    /// The source of a group was read.
    pub(super) fn source_was_read(&mut self, key: &BudgetKey, source: Source, reply: &Reply) {
        self.due.insert(key.clone());
        let stamp = self.queues.get_mut(key).and_then(|queue| queue.sources_reading.remove(&source));
        let Reply::Controller(shown) = reply else { return };
        let known = self.engine.controller_named(&source.0, &source.1).map(|known| known.uid.clone());
        let input = match (shown, known) {
            (Some(shown), _) => Some(Input::Controller((**shown).clone())),
            (None, known) => known.map(Input::ControllerGone),
        };
        if let Some(input) = input {
            let changes = self.engine.apply(input, self.now);
            self.note_changes(changes);
        }
        if let (Some(queue), Some(stamp)) = (self.queues.get_mut(key), stamp) {
            queue.sources_read.insert(source, stamp);
        }
    }
}
