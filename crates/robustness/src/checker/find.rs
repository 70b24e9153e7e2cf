//! Disruptions: which changes of pods requests caused that a budget may have to decide.

use std::collections::HashMap;
use std::rc::Rc;

use super::callers::{can_cause, denied, describe, exempt, moves_freely};
use super::decode::{Disruption, Id, Operation, Pod, Spec};
use super::memory::LAG;
use super::report::Summary;
use super::states::{ClusterHistory, Effect, NamespaceHistory};
use super::taken::{Record, Taken};
use crate::history::{History, Request};

/// Finds the disruptions of a history.
pub(super) struct Finder<'a> {
    /// Requests that may have been carried out, by namespace and name of the pod. Those of all pods have no name.
    carried_out: HashMap<(&'a str, &'a str), Vec<&'a Request>>,
    /// The disruptions so far.
    pub(super) taken: Taken,
    /// The disruptions that each request is the first to end of, by its place in the history.
    pub(super) caused: HashMap<usize, Vec<(Id, usize)>>,
}

impl<'a> Finder<'a> {
    /// Finds the disruptions of this history.
    pub(super) fn new(history: &'a History) -> Self {
        let mut carried_out: HashMap<_, Vec<_>> = HashMap::new();
        for request in history.requests.iter().filter(|request| request.may_have_acted() && !request.dry_run)
        {
            let key = (request.namespace.as_str(), request.name.as_str());
            carried_out.entry(key).or_default().push(request);
        }
        Self { carried_out, taken: Taken::default(), caused: HashMap::new() }
    }

    /// Takes a change of a pod in.
    pub(super) fn observe(&mut self, pod: &Pod, revision: u64) {
        self.taken.observe(pod, revision);
    }

    /// Finds what a request did. The cluster is as it was when the request ended.
    pub(super) fn request(
        &mut self,
        cluster: &ClusterHistory,
        index: usize,
        request: &Request,
        summary: &mut Summary,
    ) {
        summary.denials += usize::from(denied(request));
        let Some(namespace) = cluster.namespace(&request.namespace) else { return };
        if !request.may_have_acted() || request.dry_run || exempt(request) {
            return;
        }
        for effect in namespace.effects(request.received_at, request.ended_at) {
            let named = request.name.is_empty() || request.name == effect.pod.meta.name;
            if !named || !can_cause(request, effect.kind) {
                continue;
            }
            // A request that always passes may have caused it, or none that was recorded.
            let causes = self.causes(&request.namespace, effect);
            let relabelled = effect.kind == Disruption::Relabelled;
            let free = |cause: &&Request| exempt(cause) || (relabelled && moves_freely(cause, effect));
            if causes.iter().any(free) || (relabelled && !is_decided(namespace, effect)) {
                continue;
            }
            summary.admissions += 1;
            if self.taken.has(effect) {
                continue;
            }
            let words = format!("{} {}", request.user, describe(request, effect.kind));
            let first = causes.iter().min_by_key(|cause| cause.received_at).unwrap_or(&request);
            let (since, before) = (first.received.saturating_sub(LAG), effect.revision.saturating_sub(1));
            let moved = namespace.moved(effect.pod.id(), since, before);
            let record = Record::new(namespace, effect, first, &causes, moved, words);
            let later = namespace.between(effect.revision, request.ended_at);
            let id = effect.pod.id();
            let seen = later.filter_map(|state| state.pod(id).map(|pod| (&**pod, state.revision)));
            let place = self.taken.add(record, seen);
            self.caused.entry(index).or_default().push(place);
        }
    }

    /// The requests that can have had an effect: those under way when it happened.
    fn causes(&self, namespace: &str, effect: &Effect) -> Vec<&'a Request> {
        let of = |name| self.carried_out.get(&(namespace, name)).into_iter().flatten().copied();
        let under_way = |request: &&Request| {
            request.received_at < effect.revision
                && effect.revision <= request.ended_at
                && can_cause(request, effect.kind)
        };
        of(effect.pod.meta.name.as_str()).chain(of("")).filter(under_way).collect()
    }
}

/// Whether a relabel takes the pod out of a budget that decides relabels. Most labels make no difference to any budget.
fn is_decided(namespace: &NamespaceHistory, effect: &Effect) -> bool {
    let before = effect.revision.saturating_sub(1);
    let Some(state) = namespace.between(before, before).next_back() else { return false };
    let decides =
        |spec: &Rc<Spec>| spec.operations.contains(&Operation::Relabel) && effect.leaves(spec, state);
    state.budgets.iter().any(|entry| entry.budget.spec.as_ref().is_some_and(decides))
}
