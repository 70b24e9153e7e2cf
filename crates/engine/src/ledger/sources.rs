//! Reads of the objects that say how many groups there should be, before a group beyond that number passes for free.
//!
//! A group beyond the replicas of its LeaderWorkerSet costs nothing: the set no longer wants it. Where the watch lags, the
//! set may have been scaled up since, and the group is one that counts. So the set is read first, after the number of the
//! ledger that the write will test, as pods are before other free passes.

use crate::basics::{GroupKind, ObjectKey};
use crate::facts::{Budget, BudgetKey, Input};
use crate::ledger::desk::Look;
use crate::ledger::messages::{Call, Reply};
use crate::ledger::replica::{Purpose, Replica};

/// The object that says how many groups there should be.
pub(super) type Source = (GroupKind, ObjectKey);

impl Replica {
    /// Whether the source of a surplus group was read after the request arrived and after the number was read that the
    /// write will test. Where nobody says how many groups there should be, there is nothing to read.
    pub(super) fn sees_source(&self, key: &BudgetKey, budget: &Budget, uid: &str, arrived: u64) -> bool {
        let Some(source) = self.engine.source_of(uid, key) else { return true };
        let look = self.desks.get(key).and_then(|desk| desk.sources_read.get(&source));
        look.is_some_and(|look| look.is_of(budget.ledger.number, arrived))
    }

    /// Reads the source of a surplus group, unless that is under way.
    pub(super) fn read_source(&mut self, key: &BudgetKey, budget: &Budget, uid: &str) {
        let Some(source) = self.engine.source_of(uid, key) else { return };
        let Some(desk) = self.desks.get_mut(key) else { return };
        if !desk.sources_reading.contains_key(&source) {
            let look = Look::new(budget.ledger.number, self.sequence, desk.coverage);
            desk.sources_reading.insert(source.clone(), look);
            let call = Call::GetController(source.0.clone(), source.1.clone());
            self.call(call, Purpose::Source(key.clone(), source));
        }
    }

    /// The source of a group was read.
    pub(super) fn source_was_read(&mut self, key: &BudgetKey, source: Source, reply: &Reply) {
        self.due.insert(key.clone());
        let look = self.desks.get_mut(key).and_then(|desk| desk.sources_reading.remove(&source));
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
        if let (Some(desk), Some(look)) = (self.desks.get_mut(key), look) {
            desk.sources_read.insert(source, look);
        }
    }
}
