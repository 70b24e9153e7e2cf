//! For how long a Lease has not been renewed, and what is noted about that in the Lease itself.

use std::time::Duration;

use kube::ResourceExt as _;
use quorate_api::names::SILENT;
use quorate_api::slim;

use super::LEASE_DURATION;

/// How much longer a silence must be before it is written to the Lease again.
const SILENCE_STEP: Duration = Duration::from_secs(20);

/// A Lease as listed.
pub(super) struct SeenLease {
    pub(super) object: slim::Lease,
    /// How long it has not been renewed, at least.
    pub(super) silent: Duration,
    /// What the Lease says about that.
    pub(super) noted: Duration,
}

impl SeenLease {
    /// Whether its process ended so long ago that what it admitted does not matter any more. The process `own` has not ended: it was cut
    /// off, and renews its Lease again.
    pub(super) fn is_over(&self, own: &str, kept: Duration) -> bool {
        self.silent > LEASE_DURATION + kept && self.object.name_any() != own
    }

    pub(super) fn is_worth_noting(&self) -> bool {
        self.silent > LEASE_DURATION && self.silent >= self.noted.saturating_add(SILENCE_STEP)
    }
}

/// How long a Lease has not been renewed, and since which renewal. This stays true until the next renewal: no clock is
/// needed to read it.
pub(super) fn silence_text(silent: Duration, lease: &slim::Lease) -> String {
    format!("{} {}", silent.as_secs(), renewal_text(lease))
}

fn renewal_text(lease: &slim::Lease) -> String {
    let renewal = serde_json::to_value(&lease.spec.renew_time).ok();
    renewal.and_then(|renewal| renewal.as_str().map(str::to_owned)).unwrap_or_default()
}

/// How long a Lease has not been renewed, as another process wrote; zero if it did not, or the Lease was renewed since.
pub(super) fn noted_silence(lease: &slim::Lease) -> Duration {
    let noted = lease.annotations().get(SILENT).and_then(|text| text.split_once(' '));
    let noted = noted.filter(|(_, renewal)| *renewal == renewal_text(lease));
    noted.and_then(|(seconds, _)| seconds.parse().ok()).map(Duration::from_secs).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TEN, lease};
    use super::*;

    #[test]
    fn a_noted_silence_holds_until_the_next_renewal() {
        let noted = silence_text(Duration::from_millis(45_900), &lease(&[], TEN));
        assert_eq!(noted_silence(&lease(&[(SILENT, &noted)], TEN)), Duration::from_secs(45));
        let renewed = lease(&[(SILENT, &noted)], "2026-11-15T10:00:04.000000Z");
        assert_eq!(noted_silence(&renewed), Duration::ZERO);
        for text in ["", "45", "soon 2026-11-15T10:00:00.000000Z", "-5 2026-11-15T10:00:00.000000Z"] {
            assert_eq!(noted_silence(&lease(&[(SILENT, text)], TEN)), Duration::ZERO, "{text}");
        }
    }

    #[test]
    fn a_process_that_was_cut_off_keeps_its_own_lease() {
        let kept = Duration::from_secs(120);
        for (own, silent, over, why) in [
            ("b", 136, true, "another process ended long ago"),
            ("b", 134, false, "what it admitted may still have no effect"),
            ("a", 136, false, "this process was cut off"),
        ] {
            let silent = Duration::from_secs(silent);
            let lease = SeenLease { object: lease(&[], TEN), silent, noted: Duration::ZERO };
            assert_eq!(lease.is_over(own, kept), over, "{why}");
        }
    }
}
