//! Rules outside the ledger that a test build can leave out, to show that a test finds what each prevents.
//!
//! A rule of the ledger belongs to a replica ([`Settings::without`](crate::ledger::Settings)): the search runs replicas
//! with and without it. These are for a whole process, which makes one run and ends.

macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident),+ $(,)?) => {
        /// A rule of a server about what it may believe.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum SafetyRule {
            $($(#[$doc])* $rule),+
        }

        impl SafetyRule {
            /// All rules.
            pub const ALL: &[Self] = &[$(Self::$rule),+];
        }
    };
}

rules! {
    /// Nothing in the body of a review enters the state.
    ReviewsTeachNothing,
    /// A 403 does not mean that a kind is gone.
    ForbiddenIsNotAbsence,
    /// A kind that discovery omits once is not gone.
    PartialDiscoveryIsNotAbsence,
    /// A source stays expected when its pods are gone.
    SourcesStay,
    /// An unknown owner between a pod and the target of a budget is read.
    UnknownOwnersAreRead,
    /// The source of a surge group is read before the group passes.
    SurgeIsRead,
    /// An admitted eviction reaches only the pod that was decided on.
    EvictionsArePinned,
    /// The Lease of a process says that it serves, and the budgets are listed after that, before the process serves.
    ServesOnceAnnounced,
    /// A ready pod whose disruption probe does not allow it is not disrupted.
    ProbesDecide,
    /// The result of a probe counts only while its agent renews its Lease.
    AgentsExpire,
    /// The result of a probe from before the agent began does not count.
    OldResultsDoNotCount,
    /// A pod that does not count only because its agent or its node seems to be gone is not free.
    DoubtedPodsAreCharged,
}

impl SafetyRule {
    /// Whether this process leaves the rule out. In a program none is.
    pub fn is_left_out(self) -> bool {
        #[cfg(feature = "mutations")]
        return test_build::LEFT_OUT.get() == Some(&self);
        #[cfg(not(feature = "mutations"))]
        false
    }

    /// Leaves the rule out from now on, for the life of this process.
    #[cfg(feature = "mutations")]
    pub fn leave_out(self) {
        let _ = test_build::LEFT_OUT.set(self);
    }
}

#[cfg(feature = "mutations")]
mod test_build {
    use std::sync::OnceLock;

    use super::SafetyRule;

    pub(super) static LEFT_OUT: OnceLock<SafetyRule> = OnceLock::new();
}
