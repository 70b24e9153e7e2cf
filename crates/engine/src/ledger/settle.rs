//! Settling and expiry: when a token has had its effect, and when it never will.
//!
//! The leader removes tokens. A claim on a pod that is terminating, ended or gone is settled: no health comes back by that, so
//! it may wait for more of them and go out in one write. A token that an update has fulfilled, and a token whose pod was left
//! alone for the longest time an admitted request may take, give health back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::basics::{Time, Uid, Version};
use crate::claims::{Ledger, Target, Token, TokenId};
use crate::facts::{Operation, Pod};
use crate::ledger::settings::{ProtocolRule, Settings};

/// How long the watch has to show what a read has shown.
const REREAD_AFTER: Duration = Duration::from_secs(5);

/// A token of a pod.
pub(super) type PodToken = (Uid, TokenId);

/// What the leader is settling in one budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Settlement {
    /// Since when there are claims whose pods have gone.
    finished_since: Option<Time>,
    /// The pods of these tokens are being read, because the tokens are due.
    expiring: Option<BTreeSet<PodToken>>,
    /// Tokens whose pods were read after they were due, and were left alone: with the version of the pod. They are dropped by
    /// the next write that the budget has time for.
    unused: BTreeMap<PodToken, Version>,
    /// When to read again, after a read showed that the watch will show the pod's end.
    reread_at: Option<Time>,
}

impl Settlement {
    /// Whether claims whose pods have gone are to be written out now. They wait for more, unless the delay is zero.
    pub(super) fn is_due(&mut self, any: bool, now: Time, delay: Duration) -> bool {
        if !any {
            self.finished_since = None;
            return false;
        }
        if !delay.is_zero() && now < self.finished_since.get_or_insert(now).after(delay) {
            return false;
        }
        self.finished_since = None;
        true
    }

    /// Claims whose pods have gone went out with another write.
    pub(super) fn settled(&mut self) {
        self.finished_since = None;
    }

    /// Whether the pods of tokens that are due may be read now.
    pub(super) fn may_expire(&self, now: Time) -> bool {
        self.expiring.is_none() && self.reread_at.is_none_or(|at| now >= at)
    }

    /// The pods of tokens that are due are being read.
    pub(super) fn start_expiry(&mut self, tokens: BTreeSet<PodToken>) {
        self.expiring = Some(tokens);
    }

    /// The read came back: it showed these pods, alive, at these versions. A pod that it did not show is gone or terminating:
    /// the watch will show that, and then its claim is settled.
    pub(super) fn end_expiry(&mut self, alive: &BTreeMap<Uid, Version>, now: Time) {
        let tokens = self.expiring.take().unwrap_or_default();
        let all = tokens.len();
        let unused = tokens.into_iter().filter_map(|token| {
            let version = *alive.get(&token.0)?;
            Some((token, version))
        });
        let before = self.unused.len();
        self.unused.extend(unused);
        if self.unused.len() - before < all {
            self.reread_at = Some(now.after(REREAD_AFTER));
        }
    }

    /// The tokens that were left alone. Those that are not due any more are forgotten: the read says nothing about later.
    pub(super) fn unused(&mut self, is_due: impl Fn(&PodToken) -> bool) -> BTreeMap<PodToken, Version> {
        self.unused.retain(|token, _| is_due(token));
        self.unused.clone()
    }
}

/// Whether the update of a token is over for a pod: the pod runs what the token allows and is available, or another update
/// took its place. Mutations end it earlier.
pub(super) fn is_update_over(
    token: &Token,
    pod: &Pod,
    available: bool,
    ledger: &Ledger,
    settings: &Settings,
) -> bool {
    if token.operation == Operation::Relabel {
        return is_relabel_over(token, pod, settings);
    }
    let target = &token.target;
    let naive = settings.is_without(ProtocolRule::UpdateSeenRunning);
    let reached = target.is_reached(pod) || (naive && target.is_stored(pod));
    let replaceable = !settings.is_without(ProtocolRule::ReplacedUpdatesEnd);
    !token.operation.removes()
        && ((available && reached)
            || (replaceable && target.is_replaced(pod))
            || is_over_too_early(target, pod, ledger, settings))
}

/// Whether the relabel of a token is over: the pod has changed since. Then the pod itself shows where it belongs, or the
/// relabel was not stored and cannot be any more: the API server stores it on one version only.
pub(super) fn is_relabel_over(token: &Token, pod: &Pod, settings: &Settings) -> bool {
    let seen = token.target.base.is_some_and(|base| pod.version > base);
    seen || settings.is_without(ProtocolRule::RelabelSeenStored)
}

/// The mutations that show why an update does not end sooner.
fn is_over_too_early(target: &Target, pod: &Pod, ledger: &Ledger, settings: &Settings) -> bool {
    let unstored = settings.is_without(ProtocolRule::UpdateSeenStored);
    let unannounced = settings.is_without(ProtocolRule::AnnouncedHolds);
    let several = settings.is_without(ProtocolRule::ReplacedOnceSeen)
        && ledger.claims.get(&pod.uid).is_some_and(|claim| {
            claim.tokens.values().filter(|token| !token.operation.removes()).count() > 1
        });
    (unstored && Target { base: None, ..target.clone() }.is_reached(pod))
        || (unannounced && target.is_replaced(&Pod { announced: false, ..pod.clone() }))
        || (several && !target.is_stored(pod))
}

/// How long a token must have stood before it can be dropped; `None` if it stays. After `expiry` no admitted request is under
/// way any more.
///
/// An update that was stored is kept: it ends when the containers run what it specifies, however long that takes. But:
///
/// - An update to what runs already took another back. If the kubelet has replaced nothing by now, it never will.
/// - A node never carries out a resize that it has no room for.
/// - A runtime may show another name of the requested image for good. If the containers were replaced, and the pod has been
///   available after the time that a container may take to stop, the kubelet has done what it will do.
pub(super) fn drops_after(
    token: &Token,
    pod: Option<&Pod>,
    available: bool,
    settings: &Settings,
) -> Option<Duration> {
    let takes_back = !settings.is_without(ProtocolRule::TakenBackExpires);
    let renames = !settings.is_without(ProtocolRule::RenamedImageExpires);
    let updates = !token.operation.removes() && token.operation != Operation::Relabel;
    let Some(pod) = pod.filter(|_| updates) else { return Some(settings.expiry) };
    let target = &token.target;
    if !target.is_stored(pod) || (takes_back && target.runs_unreplaced(pod)) || target.is_infeasible(pod) {
        return Some(settings.expiry);
    }
    let restarted = renames && available && target.is_restarted(pod);
    restarted.then(|| settings.expiry.saturating_add(Duration::from_secs(pod.grace_seconds.into())))
}

/// Whether what a token allows was carried out before the token is dropped: an update that another took back, or whose image
/// the pod shows by another name. No other token is dropped after its effect.
pub(super) fn has_happened(token: &Token, pod: Option<&Pod>) -> bool {
    let target = &token.target;
    let updates = matches!(token.operation, Operation::Update | Operation::Resize);
    updates && pod.is_some_and(|pod| target.is_stored(pod) && !target.is_infeasible(pod))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::basics::{ObjectKey, Version};
    use crate::claims::ContainerChange;
    use crate::facts::Container;

    #[test]
    fn claims_whose_pods_have_gone_wait_for_more_of_them() {
        let mut settlement = Settlement::default();
        let delay = Duration::from_millis(400);
        assert!(!settlement.is_due(false, Time(0), delay));
        assert!(!settlement.is_due(true, Time(100), delay));
        assert!(!settlement.is_due(true, Time(499), delay));
        assert!(settlement.is_due(true, Time(500), delay));
        assert!(!settlement.is_due(true, Time(501), delay), "the next ones wait again");
        settlement.settled();
        assert!(!settlement.is_due(true, Time(900), delay), "a commit took them along");
        assert!(settlement.is_due(true, Time(900), Duration::ZERO));
    }

    #[test]
    fn the_pods_of_due_tokens_are_read_together() {
        let mut settlement = Settlement::default();
        let token = |uid: &str, id: &str| (Uid::from(uid), TokenId::from(id));
        assert!(settlement.may_expire(Time(0)));
        settlement.start_expiry([token("x", "t1"), token("y", "t2")].into());
        assert!(!settlement.may_expire(Time(0)), "one read at a time");
        settlement.end_expiry(&[(Uid::from("x"), Version(7)), (Uid::from("z"), Version(8))].into(), Time(0));
        assert_eq!(settlement.unused(|_| true), [(token("x", "t1"), Version(7))].into());
        assert!(!settlement.may_expire(Time(4_999)), "the watch will show what became of y");
        assert!(settlement.may_expire(Time(5_000)));
        assert!(settlement.unused(|_| false).is_empty() && settlement.unused(|_| true).is_empty());
    }

    /// Image 1 runs in container 7. The update sets image 2.
    fn update() -> Token {
        let change =
            ContainerChange { name: "main".into(), replaces: Some(7), image: Some(2), resources: None };
        let target = Target { base: Some(Version(10)), containers: [change].into(), ..Target::default() };
        Token { operation: Operation::Update, by: "alice".into(), at: Time(0), target }
    }

    /// A pod at a version: the image in its spec, and the image and the ID of the container that runs.
    fn pod(version: u64, spec_image: u64, image: u64, id: u64) -> Pod {
        let container =
            Container { name: "main".into(), id, image, resources: 0, spec_image, spec_resources: 0 };
        Pod { containers: [container].into(), ..Pod::ready(ObjectKey::new("ns", "x"), "x", version) }
    }

    #[test]
    fn an_update_is_over_when_the_pod_runs_it_or_another_took_its_place() {
        let settings = Settings::new("r0");
        for (why, pod, available, over) in [
            ("not stored yet", pod(10, 1, 1, 7), true, false),
            ("stored, the old container runs", pod(11, 2, 1, 7), true, false),
            ("the new container runs, and is not ready", pod(12, 2, 2, 8), false, false),
            ("the new container runs", pod(12, 2, 2, 8), true, true),
            ("the same container cannot run another image", pod(12, 2, 2, 7), true, false),
            ("no container runs", pod(12, 2, 2, 0), true, false),
            ("a later update replaced it", pod(12, 3, 1, 7), false, true),
            ("refused, and the pod has changed since", pod(11, 1, 1, 7), true, true),
        ] {
            let found = is_update_over(&update(), &pod, available, &Ledger::default(), &settings);
            assert_eq!(found, over, "{why}");
        }
        let eviction = Token { operation: Operation::Evict, ..update() };
        assert!(!is_update_over(&eviction, &pod(12, 2, 2, 8), true, &Ledger::default(), &settings));
        let announced = Pod { announced: true, ..pod(12, 2, 2, 8) };
        assert!(!is_update_over(&update(), &announced, true, &Ledger::default(), &settings));
    }

    /// Whether a token that has stood for the longest time an admitted request may take can be dropped.
    fn is_droppable(token: &Token, pod: Option<&Pod>, settings: &Settings) -> bool {
        drops_after(token, pod, true, settings) == Some(settings.expiry)
    }

    #[test]
    fn a_due_token_is_dropped_unless_its_update_was_stored() {
        let settings = Settings::new("r0");
        for (why, pod, dropped) in [
            ("the pod is gone", None, true),
            ("never stored", Some(pod(10, 1, 1, 7)), true),
            ("stored: the kubelet may be slow", Some(pod(11, 2, 1, 7)), false),
            ("it took another update back, and the container was not replaced", Some(pod(12, 2, 2, 7)), true),
        ] {
            assert_eq!(is_droppable(&update(), pod.as_ref(), &settings), dropped, "{why}");
        }
        let infeasible = Pod { resize_infeasible: true, ..pod(11, 2, 1, 7) };
        assert!(!is_droppable(&update(), Some(&infeasible), &settings), "it is about the image");
        let eviction = Token { operation: Operation::Evict, target: Target::default(), ..update() };
        assert!(is_droppable(&eviction, Some(&pod(10, 1, 1, 7)), &settings));
    }

    #[test]
    fn an_update_whose_image_is_shown_by_another_name_is_dropped_once_the_container_had_time_to_stop() {
        let settings = Settings::new("r0");
        let late = Some(settings.expiry + Duration::from_secs(600));
        for (why, pod, available, after) in [
            ("another container runs", pod(12, 2, 1, 8), true, late),
            ("another container runs, and is not ready", pod(12, 2, 1, 8), false, None),
            ("the old container runs", pod(12, 2, 1, 7), true, None),
            ("no container runs", pod(12, 2, 1, 0), true, None),
            ("not stored", pod(10, 1, 1, 8), true, Some(settings.expiry)),
            ("it is announced that more follows", Pod { announced: true, ..pod(12, 2, 1, 8) }, true, None),
        ] {
            let pod = Pod { grace_seconds: 600, ..pod };
            assert_eq!(drops_after(&update(), Some(&pod), available, &settings), after, "{why}");
        }
        assert!(has_happened(&update(), Some(&pod(12, 2, 1, 8))), "no Event says that nothing happened");
        let unknown = ContainerChange { replaces: None, ..update().target.containers[0].clone() };
        let older = Token { target: Target { containers: [unknown].into(), ..update().target }, ..update() };
        assert_eq!(drops_after(&older, Some(&pod(12, 2, 1, 8)), true, &settings), None);
    }

    #[test]
    fn a_relabel_is_over_once_the_pod_has_changed() {
        let settings = Settings::new("r0");
        let target = Target { base: Some(Version(10)), ..Target::default() };
        let relabel = Token { operation: Operation::Relabel, target, ..update() };
        let over = |pod: &Pod| is_update_over(&relabel, pod, true, &Ledger::default(), &settings);
        assert!(!over(&pod(10, 1, 1, 7)), "not stored yet");
        assert!(over(&pod(11, 1, 1, 7)), "stored, or refused for good");
        let announced = Pod { announced: true, ..pod(11, 1, 1, 7) };
        assert!(over(&announced), "an announced update is another token's");
        assert!(is_droppable(&relabel, Some(&pod(10, 1, 1, 7)), &settings), "refused elsewhere");
        assert!(!has_happened(&relabel, Some(&pod(10, 1, 1, 7))));
    }

    #[test]
    fn a_resize_that_the_node_has_no_room_for_is_dropped() {
        let settings = Settings::new("r0");
        let change =
            ContainerChange { name: "main".into(), replaces: Some(7), image: None, resources: Some(9) };
        let target = Target { base: Some(Version(10)), containers: [change].into(), ..Target::default() };
        let resize = Token { operation: Operation::Resize, target, ..update() };
        let mut stored = pod(11, 1, 1, 7);
        stored.containers[0].spec_resources = 9;
        assert!(!is_droppable(&resize, Some(&stored), &settings), "deferred: the node may get room");
        assert!(has_happened(&resize, Some(&stored)));
        stored.resize_infeasible = true;
        assert!(is_droppable(&resize, Some(&stored), &settings));
        assert!(!has_happened(&resize, Some(&stored)), "an Event reports it");
    }

    #[test]
    fn a_shorter_deadline_is_over_when_the_pod_ends_or_never_got_it() {
        let settings = Settings::new("r0");
        let change = ContainerChange { name: "main".into(), replaces: Some(7), image: None, resources: None };
        let target = Target {
            base: Some(Version(10)),
            containers: [change].into(),
            deadline: Some(60),
            ..Target::default()
        };
        let token = Token { target, ..update() };
        let with = |version, id, deadline| Pod { deadline, ..pod(version, 1, 1, id) };
        let over = |pod: &Pod| is_update_over(&token, pod, true, &Ledger::default(), &settings);
        for (why, pod, is_over, dropped) in [
            ("not stored yet, or refused", with(10, 7, None), false, true),
            ("stored: the pod ends at its deadline", with(11, 7, Some(60)), false, false),
            (
                "a container that restarts by itself has nothing to do with it",
                with(12, 8, Some(60)),
                false,
                false,
            ),
            ("refused, and the pod has changed since", with(11, 7, None), true, true),
            ("a later update took its place", with(12, 7, Some(30)), true, true),
        ] {
            assert_eq!(over(&pod), is_over, "{why}");
            assert_eq!(is_droppable(&token, Some(&pod), &settings), dropped, "{why}");
        }
    }
}
