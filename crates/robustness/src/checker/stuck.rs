//! What does not go on although nothing is in its way.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::callers::{self, denied_by_native, operation};
use super::count::{Group, Healthy, Sample};
use super::coverage::{ExpectedFrom, covers, group_of};
use super::decode::{Grouping, Id, Operation, Pod};
use super::report::{Seconds, Stuck};
use super::states::{ClusterHistory, Entry, State};
use super::taken::Taken;
use crate::history::{History, Request, Span};

/// For how long the truth must allow a request before its denial is an error, and how old a claim may become.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);

/// How long after the last fault everything must be well.
const RECOVERY: Duration = Duration::from_secs(240);

/// Whether a request was denied although the truth allowed it for long enough.
pub(super) fn denied(history: &History, cluster: &ClusterHistory, request: &Request) -> Option<Stuck> {
    let operation = operation(request).filter(|it| matches!(it, Operation::Evict | Operation::Delete))?;
    let from = request.received.checked_sub(PATIENCE)?;
    let overlaps = |span: &Span| span.from <= request.ended && from <= span.to;
    let excused = denied_by_native(request)
        || history.faults.iter().any(overlaps)
        || history.pardons.iter().any(|it| it.namespace == request.namespace && overlaps(&it.span));
    if request.dry_run || request.name.is_empty() || excused || !callers::denied(request) {
        return None;
    }
    let namespace = cluster.namespace(&request.namespace)?;
    let states: Vec<&Rc<State>> = namespace.since(from, request.ended_at).collect();
    let (first, last) = (states.first()?, states.last()?);
    let pod = last.pods.iter().find(|pod| pod.meta.name == request.name)?.id();
    let believed = |pod: &Pod| cluster.trust().must(pod, from, request.ended);
    let left = |state: &State, entry: &Entry| left(state, entry, pod, &believed);
    // Mostly the last state explains the denial, and then the others need no look.
    let explains = |entry: &Entry| covering(last, entry, pod, operation) && left(last, entry).is_none();
    if first.at > from || last.budgets.iter().any(explains) {
        return None;
    }
    if !states.iter().rev().all(|state| serves(state, pod, &believed)) {
        return None;
    }
    let mut room = Vec::new();
    let mut scarce = i64::MAX;
    for entry in last.budgets.iter() {
        let id = entry.budget.meta.id;
        let touches = |state: &&&Rc<State>| -> bool {
            let entry = state.budget(id);
            entry.is_some_and(|entry| covering(state, entry, pod, operation))
        };
        if !states.iter().any(|state| touches(&state)) {
            continue;
        }
        let mut least: Option<(i64, Duration)> = None;
        for state in states.iter().rev() {
            let now = touches(&state).then(|| state.budget(id)).flatten()?;
            if now.budget.meta.generation != entry.budget.meta.generation
                || now.budget.spec != entry.budget.spec
            {
                return None;
            }
            let left = left(state, now)?;
            if least.is_none_or(|(fewest, _)| left < fewest) {
                least = Some((left, state.at));
            }
        }
        let (left, at) = least?;
        scarce = scarce.min(left);
        let budget = &entry.budget.meta;
        room.push(format!("{}/{} had room for {left} (at {})", budget.namespace, budget.name, Seconds(at)));
    }
    // Checked last: it looks at every request.
    if rivals(history, request) >= scarce {
        return None;
    }
    let room = if room.is_empty() { "no budget covered the pod".to_owned() } else { room.join(", ") };
    let Request { user, namespace, name, message, .. } = request;
    Some(Stuck {
        at: request.ended,
        what: format!(
            "{user} was denied {namespace}/{name} although the truth allowed it since {}: at the least {room}; the denial: {message}",
            Seconds(from)
        ),
    })
}

/// How many pods other requests of the same moment may have taken. A server denies a request while it writes the claim of
/// another one, which is not in the budget yet.
fn rivals(history: &History, request: &Request) -> i64 {
    let is_rival = |other: &&Request| {
        other.received <= request.ended
            && request.received <= other.ended
            && other.namespace == request.namespace
            && other.name != request.name
            && !other.dry_run
            && operation(other).is_some()
            && other.may_have_acted()
    };
    let takes = |other: &Request| if other.name.is_empty() { i64::MAX } else { 1 };
    history.requests.iter().filter(is_rival).map(takes).fold(0, i64::saturating_add)
}

/// Whether the pod is healthy by every rule. `believed`: whether servers must believe the yes of its probe.
fn serves(state: &State, pod: Id, believed: &dyn Fn(&Pod) -> bool) -> bool {
    let surely = |pod: &Pod| !pod.probe || (pod.ready && believed(pod));
    !state.ending && state.pod(pod).is_some_and(|pod| pod.healthy(true) && surely(pod))
}

/// Whether a budget can have been the reason for a denial.
fn covering(state: &State, entry: &Entry, pod: Id, operation: Operation) -> bool {
    let Some(spec) = &entry.budget.spec else { return true };
    !spec.observes
        && spec.operations.contains(&operation)
        && state.pod(pod).is_some_and(|pod| covers(spec, pod, state))
}

/// How many more units may go, if that is at least one and certain.
fn left(state: &State, entry: &Entry, pod: Id, believed: &dyn Fn(&Pod) -> bool) -> Option<i64> {
    let spec = entry.budget.spec.as_ref()?;
    let sample = state.sample(entry.budget.meta.id, spec);
    let single = spec.grouping != Grouping::Pods && group_of(spec, state.pod(pod)?, state).is_none();
    let expects = if single { sample.expects_single } else { sample.expected.low > 0 };
    if sample.unsure || entry.budget.configured == "Invalid" || !expects {
        return None;
    }
    let healthy = if single || spec.grouping == Grouping::Pods {
        let surely = |it: &&Healthy| it.surely || state.pod(it.pod).is_some_and(|pod| believed(pod));
        sample.pods.iter().filter(surely).count()
    } else {
        whole(&sample).min(sample.expected.low as usize)
    };
    let desired = if single { sample.desired_single } else { sample.desired };
    // Pods without a group are counted by themselves, and so are their claims.
    let counts = |id: &&Id| {
        state.pod(**id).is_none_or(|other| group_of(spec, other, state).is_none() == single)
            || spec.grouping == Grouping::Pods
    };
    let held = entry.budget.held.as_ref();
    let held = held.map_or(entry.budget.claims.len(), |held| held.iter().filter(counts).count());
    let held = i64::try_from(held).ok()?;
    let left = i64::try_from(healthy).ok()? - i64::from(desired.high) - held;
    (left >= 1).then_some(left)
}

/// Groups that are whole by every rule. One that its source does not want replaces none of another source.
fn whole(sample: &Sample) -> usize {
    let unsure = |group: &Group| group.healthy.iter().any(|healthy| !healthy.surely);
    let is_whole = |group: &&Group| !unsure(group) && group.whole(group.minimum, |_| false);
    let mut by_source: BTreeMap<Option<&ExpectedFrom>, usize> = BTreeMap::new();
    for group in sample.groups.values().filter(is_whole) {
        *by_source.entry(group.source.as_ref()).or_default() += 1;
    }
    let wanted = |source: Option<&ExpectedFrom>| sample.wanted.get(source?).map(|wanted| *wanted as usize);
    by_source.into_iter().map(|(source, whole)| whole.min(wanted(source).unwrap_or(whole))).sum()
}

/// What is not well at the end of a run, long enough after the last fault.
pub(super) fn at_the_end(history: &History, cluster: &mut ClusterHistory, taken: &Taken) -> Vec<Stuck> {
    let calm = history.faults.iter().map(|span| span.to).max().unwrap_or_default();
    let Some(wait) = history.length.checked_sub(calm).filter(|wait| *wait >= RECOVERY) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut held = Vec::new();
    let entries =
        cluster.namespaces().filter_map(|(_, namespace)| namespace.latest()).filter(|state| !state.ending);
    for (state, entry) in entries.flat_map(|state| state.budgets.iter().map(move |entry| (state, entry))) {
        let budget = &entry.budget;
        let name = format!("{} {}/{}", budget.kind, budget.meta.namespace, budget.meta.name);
        let pardoned = history.pardons.iter().any(|it| {
            it.namespace == budget.meta.namespace
                && it.name == budget.meta.name
                && it.span.to + PATIENCE > history.length
        });
        let stale = |since: Duration| history.length.saturating_sub(since) > PATIENCE;
        let excluded = matches!(budget.configured.as_str(), "Invalid" | "NamespaceExcluded")
            || budget.meta.namespace == "kube-system";
        if pardoned || excluded || budget.spec.is_none() || budget.meta.deleting {
            continue;
        }
        if !budget.enforced && stale(entry.since) {
            let since = Seconds(entry.since);
            found.push(format!("{name} is not Enforced; it has its generation since {since}"));
        }
        for ((uid, token), since) in entry.tokens.iter().filter(|(_, since)| stale(**since)) {
            let Some(claim) = budget.claims.get(uid) else { continue };
            let in_place =
                claim.tokens.get(token).is_some_and(|it| matches!(it.as_str(), "Update" | "Resize"));
            let what = format!("{name} holds token {token} of {} since {}", claim.pod, Seconds(*since));
            held.push((uid.clone(), in_place, what, Rc::clone(state)));
        }
    }
    for (uid, in_place, what, state) in held {
        let pod = cluster.id(&uid);
        let unfinished = state.pod(pod).is_some_and(|it| !it.healthy(true)) || taken.updating(pod);
        if !(in_place && unfinished) {
            found.push(what);
        }
    }
    let wait = Seconds(wait);
    let stuck =
        |what| Stuck { at: history.length, what: format!("{what}; the last fault ended {wait} before") };
    let mut found: Vec<Stuck> = found.into_iter().map(stuck).collect();
    found.sort_by(|one, other| one.what.cmp(&other.what));
    found
}
