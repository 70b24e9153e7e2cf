//! Whether this process may decide: it has listed everything once, it serves, and its view of the pods is fresh.

use std::time::Duration;

use crate::basics::Time;
use crate::decision::DenialReason;

/// How current the view of this process is.
#[derive(Clone, Debug, Hash)]
pub(super) struct Freshness {
    synced: bool,
    serving: bool,
    last_pod_event: Time,
}

impl Freshness {
    /// Nothing has been listed yet.
    pub(super) fn new() -> Self {
        Self { synced: false, serving: false, last_pod_event: Time(i64::MIN) }
    }

    /// The pod watch showed an event or a bookmark, or requested the list that it showed.
    pub(super) fn pod_event(&mut self, at: Time) {
        self.last_pod_event = self.last_pod_event.max(at);
    }

    /// Every watch has shown its first list. Returns whether this was not known before.
    pub(super) fn synced(&mut self, now: Time) -> bool {
        if self.last_pod_event == Time(i64::MIN) {
            self.last_pod_event = now;
        }
        !std::mem::replace(&mut self.synced, true)
    }

    /// The Lease of this process is written and renewed, or no longer is.
    pub(super) fn set_serving(&mut self, serving: bool) {
        self.serving = serving;
    }

    /// Whether other replicas may rely on what this process has seen.
    pub(super) fn may_acknowledge(&self) -> bool {
        self.synced && self.serving
    }

    /// How long the pod watch has shown nothing, if that is too long to decide anything.
    pub(super) fn stale_for(&self, now: Time, fresh_for: Duration) -> Option<Duration> {
        Some(now.since(self.last_pod_event)).filter(|silence| *silence > fresh_for)
    }

    /// Why this process cannot decide anything now.
    pub(super) fn cannot_decide(&self, now: Time, fresh_for: Duration) -> Option<DenialReason> {
        if !self.synced {
            return Some(DenialReason::NotSynced);
        }
        if !self.serving {
            return Some(DenialReason::NotServing);
        }
        self.stale_for(now, fresh_for).map(|silence| DenialReason::NotFresh { seconds: silence.as_secs() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH_FOR: Duration = Duration::from_secs(90);

    #[test]
    fn a_process_decides_once_it_is_synced_and_serves() {
        let mut freshness = Freshness::new();
        assert_eq!(freshness.cannot_decide(Time(0), FRESH_FOR), Some(DenialReason::NotSynced));
        freshness.set_serving(true);
        assert_eq!(freshness.cannot_decide(Time(0), FRESH_FOR), Some(DenialReason::NotSynced));
        assert!(freshness.synced(Time(0)));
        assert!(!freshness.synced(Time(0)), "it is known");
        assert_eq!(freshness.cannot_decide(Time(0), FRESH_FOR), None);
        freshness.set_serving(false);
        assert_eq!(freshness.cannot_decide(Time(0), FRESH_FOR), Some(DenialReason::NotServing));
    }

    #[test]
    fn a_silent_pod_watch_is_stale_until_its_next_event() {
        let mut freshness = Freshness::new();
        freshness.synced(Time(0));
        freshness.set_serving(true);
        assert_eq!(freshness.cannot_decide(Time(90_000), FRESH_FOR), None);
        let stale = Some(DenialReason::NotFresh { seconds: 91 });
        assert_eq!(freshness.cannot_decide(Time(91_000), FRESH_FOR), stale);
        assert_eq!(freshness.stale_for(Time(91_000), FRESH_FOR), Some(Duration::from_secs(91)));
        freshness.pod_event(Time(91_000));
        assert_eq!(freshness.cannot_decide(Time(91_000), FRESH_FOR), None);
    }
}
