//! The bounds of the protocol, and its rules by name.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::basics::Text;

/// The bounds of the protocol.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names this process; no other process ever has the same name.
    pub name: Text,
    /// A pod watch that has shown nothing for this long is not fresh.
    pub fresh_for: Duration,
    /// A token whose pod is untouched after this long is dropped. Longer than the API server may take to carry out
    /// what was admitted.
    pub expiry: Duration,
    /// How long admissions are remembered for budgets that are new.
    pub recent_for: Duration,
    /// How long to wait for the watch before pods are listed instead.
    pub patience: Duration,
    /// How long claims that have come to their end are gathered before a write of their own takes them out. Nobody waits
    /// for that: who still counts them is only too careful.
    pub settle_delay: Duration,
    /// For how long nobody may have come, in a storm of requests, before those who wait are written of together.
    pub batch_pause: Duration,
    /// Whether a budget opens before its namespace is guarded. Until it is, the API server asks about evictions and
    /// deletes alone, and takes no answer for a yes, so nothing may be promised. For tests that have no namespaces.
    pub opens_unguarded: bool,
    /// Rules of the protocol that are left out. Always empty, but in the tests which show that each is needed.
    pub without: BTreeSet<ProtocolRule>,
}

impl Settings {
    /// The settings of production.
    pub fn new(name: impl Into<Text>) -> Self {
        Self {
            name: name.into(),
            fresh_for: Duration::from_secs(90),
            expiry: Duration::from_secs(120),
            recent_for: Duration::from_secs(120),
            patience: Duration::from_millis(100),
            settle_delay: Duration::from_millis(400),
            batch_pause: Duration::from_millis(8),
            opens_unguarded: false,
            without: BTreeSet::new(),
        }
    }

    /// Whether a rule is left out.
    pub(crate) fn is_without(&self, rule: ProtocolRule) -> bool {
        // One comparison in production, where the set is empty.
        !self.without.is_empty() && self.without.contains(&rule)
    }
}

/// A rule of the protocol, for tests that leave it out and watch what breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is named by what it asks for")]
pub enum ProtocolRule {
    TestUid,
    TestGeneration,
    TestNumber,
    TestSettled,
    SecondAskWrites,
    WithdrawOnlyOwn,
    Pin,
    WaitForSettled,
    RaiseSettled,
    SettleOnlySeen,
    ExpiryReads,
    ClockPerToken,
    Expiry,
    FreshList,
    FreshListAfterNumber,
    PendingClaimed,
    ReadOther,
    DecideAfresh,
    JoinOnOpening,
    WaitForAcknowledgement,
    WaitForVanished,
    ListReplicas,
    ListAfterAcknowledgement,
    RecheckCovering,
    BudgetByUid,
    ClosedDenies,
    ReopenOnCoverage,
    ListOfCoverage,
    UpdateSeenRunning,
    UpdateSettlesUpdates,
    AnnouncementsAsked,
    AnnouncedHolds,
    UpdateSeenStored,
    ReplacedUpdatesEnd,
    ReplacedOnceSeen,
    TakenBackExpires,
}
