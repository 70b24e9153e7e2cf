//! The bounds of the protocol, and its rules by name.

#[cfg(feature = "mutations")]
use std::collections::BTreeSet;
use std::time::Duration;

use crate::ages::FRESH_FOR;
use crate::basics::Text;

/// The bounds of the protocol.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names this process; no other process ever has the same name.
    pub name: Text,
    /// How long what is known of a kind is fresh after its watch last received something.
    pub fresh_for: Duration,
    /// How long a token without effect is kept. Longer than the API server may take to carry out what was admitted.
    pub expiry: Duration,
    /// How long an admission is recent: a budget that is new here must get its token.
    pub recent_for: Duration,
    /// How long to wait for the watch to show newer pods before they are listed.
    pub patience: Duration,
    /// How long claims whose pods have gone wait for more of them before they are written out. No request waits for
    /// that: a replica that still counts them is only too careful.
    pub settle_delay: Duration,
    /// How long a `settledVersion` may lie ahead of the pods that the leader knows, before it reads how far the store has
    /// come.
    pub ahead_for: Duration,
    /// The shortest pause between two lists of the replicas while budgets wait to be opened. It doubles up to ten times
    /// that while no budget gets on.
    pub list_pause: Duration,
    /// How long no request may arrive, in a burst, before those that wait are written together.
    pub batch_pause: Duration,
    /// Whether a budget opens before its namespace is guarded, for tests without namespaces. Until a namespace is guarded,
    /// the API server calls the webhooks for evictions and deletes only, and admits a request if a call fails.
    pub opens_unguarded: bool,
    /// Rules of the protocol that are left out, to show that each is needed.
    #[cfg(feature = "mutations")]
    pub without: BTreeSet<ProtocolRule>,
}

/// A rule that every replica of this process leaves out.
#[cfg(feature = "mutations")]
static LEFT_OUT: std::sync::OnceLock<ProtocolRule> = std::sync::OnceLock::new();

#[cfg(feature = "mutations")]
impl ProtocolRule {
    /// Whether this process leaves the rule out, for the parts of it outside the replica.
    pub fn is_left_out(self) -> bool {
        LEFT_OUT.get() == Some(&self)
    }

    /// Leaves the rule out in all replicas that this process makes from now on.
    pub fn leave_out(self) {
        let _ = LEFT_OUT.set(self);
    }
}

impl Settings {
    /// The settings of production.
    pub fn new(name: impl Into<Text>) -> Self {
        Self {
            name: name.into(),
            fresh_for: FRESH_FOR,
            expiry: Duration::from_secs(120),
            recent_for: Duration::from_secs(120),
            patience: Duration::from_millis(100),
            settle_delay: Duration::from_millis(400),
            ahead_for: Duration::from_secs(10),
            list_pause: Duration::from_millis(100),
            batch_pause: Duration::from_millis(8),
            opens_unguarded: false,
            #[cfg(feature = "mutations")]
            without: LEFT_OUT.get().copied().into_iter().collect(),
        }
    }

    /// Whether a rule is left out. In a program none is.
    pub(crate) fn is_without(&self, rule: ProtocolRule) -> bool {
        #[cfg(feature = "mutations")]
        return self.without.contains(&rule);
        #[cfg(not(feature = "mutations"))]
        LeftOut::default().contains(rule)
    }

    /// The rules that are left out, for the engine.
    pub(crate) fn left_out(&self) -> LeftOut {
        #[cfg(feature = "mutations")]
        return LeftOut(self.without.clone());
        #[cfg(not(feature = "mutations"))]
        LeftOut()
    }
}

/// Rules that are left out. Only test builds have any; in a program this is empty and costs nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftOut(#[cfg(feature = "mutations")] BTreeSet<ProtocolRule>);

impl LeftOut {
    pub(crate) fn contains(&self, rule: ProtocolRule) -> bool {
        #[cfg(feature = "mutations")]
        return self.0.contains(&rule);
        #[cfg(not(feature = "mutations"))]
        {
            let _ = rule;
            false
        }
    }
}

macro_rules! rules {
    ($($rule:ident),+ $(,)?) => {
        /// A rule of the protocol, which tests leave out to see what breaks. `docs/ledger.md` describes each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "each is named by what it requires")]
        #[allow(dead_code, unreachable_pub, reason = "only tests name rules from outside")]
        pub enum ProtocolRule {
            $($rule),+
        }

        impl ProtocolRule {
            /// All rules.
            #[allow(dead_code, unreachable_pub, reason = "only tests name rules from outside")]
            pub const ALL: &[Self] = &[$(Self::$rule),+];
        }
    };
}

rules! {
    TestUid,
    TestGeneration,
    TestAnnotations,
    ReopensForAll,
    OpeningRaisesNumber,
    TestNumber,
    TestSettled,
    SecondRequestWrites,
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
    ReadsCountOnceShown,
    DecideAfresh,
    DecideGroupAfresh,
    BackfillOnOpening,
    WaitForAcknowledgement,
    WaitForVanished,
    ListReplicas,
    ListOnceServing,
    TakeHandedOver,
    ListAfterAcknowledgement,
    RecheckCovering,
    BudgetByUid,
    AgreementByPod,
    ClosedDenies,
    ReopenOnCoverage,
    SteadyCoverage,
    ListOfCoverage,
    UpdateSeenRunning,
    UpdateSettlesUpdates,
    AnnouncementsDecided,
    AnnouncedHolds,
    UpdateSeenStored,
    ReplacedUpdatesEnd,
    ReplacedOnceSeen,
    TakenBackExpires,
    RenamedImageExpires,
    StaleKindsDeny,
    RelabelsDecided,
    RelabelSeenStored,
    LowerSettled,
    LowerAsRead,
    ReadBeforeLowering,
}
