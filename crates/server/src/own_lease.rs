//! The Lease of this process, as it must be in the store if the store did not go back.
//!
//! Only this process writes the renewal time of its Lease. So if the Lease has another one than this process wrote last,
//! etcd was restored from an older snapshot: what the process knows is from a time that never was. It must not decide on
//! that, nor write it to the Lease or to a budget. Versions alone would not show this: the restored store counts on, and
//! passes the versions that were known before.

use std::collections::VecDeque;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

/// The largest number of renewals without an answer that are remembered: more than an hour of them.
const MAX_UNANSWERED: usize = 4096;

/// Why a process must not go on with what it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Lost {
    /// The Lease was deleted: the other replicas go on without this process.
    #[error("its Lease is gone")]
    Gone,
    /// The Lease is older than this process wrote it.
    #[error("its Lease went back: etcd was restored from an older snapshot")]
    WentBack,
}

/// What is known about the Lease of this process.
#[derive(Debug, Default)]
pub(crate) struct OwnLease {
    /// The version that the next renewal requires.
    version: Option<String>,
    /// The renewal times that the Lease may have: the last one that was confirmed, then those whose answer was lost.
    renewals: VecDeque<Timestamp>,
}

impl OwnLease {
    /// The version that the next renewal requires.
    pub(crate) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// A renewal is being sent; returns its time, as precise as a Lease can have it.
    pub(crate) fn renewing(&mut self, now: Timestamp) -> MicroTime {
        let now = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
        if self.renewals.len() >= MAX_UNANSWERED {
            self.renewals.remove(1);
        }
        self.renewals.push_back(now);
        MicroTime(now)
    }

    /// A write was answered.
    pub(crate) fn written(&mut self, lease: &Lease) {
        self.version = lease.resource_version();
        self.renewals.clear();
        self.renewals.extend(renewal(lease));
    }

    /// The Lease was read, because it does not have the version that a renewal required.
    pub(crate) fn read(&mut self, lease: &Lease) -> Result<(), Lost> {
        let known = renewal(lease).is_some_and(|renewal| self.renewals.contains(&renewal));
        if !known {
            return Err(Lost::WentBack);
        }
        self.written(lease);
        Ok(())
    }
}

fn renewal(lease: &Lease) -> Option<Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(version: u64, renewed: &MicroTime) -> Lease {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "resourceVersion": version.to_string()},
            "spec": {"holderIdentity": "a", "renewTime": renewed},
        }))
        .expect("a Lease")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::new(1_700_000_000 + second, 123_456_789).expect("a time")
    }

    #[test]
    fn another_writer_changes_the_version_only() {
        let mut own = OwnLease::default();
        let first = own.renewing(at(0));
        own.written(&lease(7, &first));
        assert_eq!(own.version(), Some("7"));
        assert_eq!(own.read(&lease(9, &first)), Ok(()), "another process wrote how long it was silent");
        assert_eq!(own.version(), Some("9"));
    }

    #[test]
    fn a_renewal_whose_answer_was_lost_may_be_there_or_not() {
        for there in [0, 1, 2] {
            let mut own = OwnLease::default();
            let mut sent = vec![own.renewing(at(0))];
            own.written(&lease(7, &sent[0]));
            sent.extend([own.renewing(at(4)), own.renewing(at(8))]);
            assert_eq!(own.read(&lease(8, &sent[there])), Ok(()), "renewal {there}");
        }
    }

    #[test]
    fn an_older_renewal_shows_that_the_store_went_back() {
        let mut own = OwnLease::default();
        let first = own.renewing(at(0));
        own.written(&lease(7, &first));
        let second = own.renewing(at(4));
        own.written(&lease(8, &second));
        own.renewing(at(8));
        // The version does not matter: etcd can be restored with a higher one.
        for version in [7, 1_000_000_007] {
            assert_eq!(own.read(&lease(version, &first)), Err(Lost::WentBack));
        }
    }

    #[test]
    fn renewals_without_an_answer_do_not_pile_up() {
        let mut own = OwnLease::default();
        let first = own.renewing(at(0));
        own.written(&lease(7, &first));
        for second in 1..10_000 {
            own.renewing(at(second));
        }
        assert_eq!(own.renewals.len(), MAX_UNANSWERED);
        assert_eq!(own.read(&lease(7, &first)), Ok(()), "the confirmed one is kept");
    }
}
