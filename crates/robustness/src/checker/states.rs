//! The history of the cluster, as a sequence of states of each namespace.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::count::{Sample, count};
use super::coverage::{covers, group_of};
use super::decode::{Budget, Disruption, Id, Ids, Pod, Source, Spec};
use super::memory::Memory;
use super::trust::Trust;
use crate::history::Change;

const OWN_BUDGETS: &str = "disruptionbudgets.policy.quorate.dev";
const KRUISE_BUDGETS: &str = "podunavailablebudgets.policy.kruise.io";
const ENFORCED: &str = "quorate.dev/enforced";

/// The history of the cluster, as far as it was replayed.
#[derive(Debug)]
pub(super) struct ClusterHistory {
    ids: Ids,
    namespaces: HashMap<String, NamespaceHistory>,
    trust: Trust,
    kept: Duration,
}

/// The history of a namespace.
#[derive(Debug, Default)]
pub(super) struct NamespaceHistory {
    /// Its latest states, oldest first.
    states: VecDeque<Rc<State>>,
    /// Every disruption of a pod, in the order of revisions.
    effects: Vec<Rc<Effect>>,
}

/// A namespace between two changes.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) at: Duration,
    pub(super) revision: u64,
    pub(super) pods: Rc<Vec<Rc<Pod>>>,
    pub(super) sources: Rc<BTreeMap<Id, Rc<Source>>>,
    pub(super) budgets: Rc<Vec<Entry>>,
    /// Whether the namespace is being deleted.
    pub(super) ending: bool,
    /// Whether requests fail while no server answers.
    pub(super) fails_closed: bool,
    samples: RefCell<Vec<Counted>>,
}

/// The counts of a budget, if it had this spec.
type Counted = (Id, Rc<Spec>, Rc<Sample>);

/// A budget, with what it remembers.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) budget: Rc<Budget>,
    pub(super) memory: Rc<Memory>,
    /// Since when it has this generation.
    pub(super) since: Duration,
    /// When each token was first stored, by the UID of its pod and its name.
    pub(super) tokens: Rc<BTreeMap<(String, String), Duration>>,
}

/// A disruption of a pod.
#[derive(Debug)]
pub(super) struct Effect {
    pub(super) revision: u64,
    pub(super) at: Duration,
    /// The pod before.
    pub(super) pod: Rc<Pod>,
    /// The pod after it, unless it was removed at once.
    pub(super) after: Option<Rc<Pod>>,
    pub(super) kind: Disruption,
}

impl Effect {
    /// Whether it takes the pod out of a budget, or out of a group of it, by the owners that this state has.
    pub(super) fn leaves(&self, spec: &Spec, state: &State) -> bool {
        let place =
            |pod: &Pod| covers(spec, pod, state).then(|| group_of(spec, pod, state).map(|it| it.name));
        let before = place(&self.pod);
        before.is_some() && before != self.after.as_deref().and_then(place)
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            at: Duration::ZERO,
            revision: 0,
            pods: Rc::default(),
            sources: Rc::default(),
            budgets: Rc::default(),
            ending: false,
            // A history without namespaces says nothing about them.
            fails_closed: true,
            samples: RefCell::default(),
        }
    }
}

impl ClusterHistory {
    /// An empty cluster that keeps states for at least this long.
    pub(super) fn new(kept: Duration) -> Self {
        Self { ids: Ids::default(), namespaces: HashMap::new(), trust: Trust::default(), kept }
    }

    /// The histories of all namespaces.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = (&String, &NamespaceHistory)> {
        self.namespaces.iter()
    }

    /// The history of a namespace.
    pub(super) fn namespace(&self, namespace: &str) -> Option<&NamespaceHistory> {
        self.namespaces.get(namespace)
    }

    /// When results of probes count.
    pub(super) fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The number of a UID.
    pub(super) fn id(&mut self, uid: &str) -> Id {
        self.ids.of(uid)
    }

    /// Takes a change in. Returns the pod, if a pod that exists has changed.
    pub(super) fn apply(&mut self, change: &Change) -> Option<Rc<Pod>> {
        if self.trust.take(change) {
            return None;
        }
        let object = &*change.object;
        let resource = &*change.resource;
        let meta = &object["metadata"];
        let key = if resource == "namespaces" { &meta["name"] } else { &meta["namespace"] };
        let namespace = self.namespaces.entry(key.as_str()?.to_owned()).or_default();
        let mut next = namespace.latest().map_or_else(State::default, |state| State::clone(state));
        next.at = change.at;
        next.revision = change.revision;
        next.samples = RefCell::default();
        let mut changed = None;
        match resource {
            "pods" => changed = Some(namespace.take_pod(&mut next, change, &mut self.ids)?),
            "namespaces" => {
                next.ending = change.deleted || !meta["deletionTimestamp"].is_null();
                next.fails_closed = !meta["labels"][ENFORCED].is_null();
            }
            OWN_BUDGETS | KRUISE_BUDGETS => {
                let budget = Budget::read(object, resource == KRUISE_BUDGETS, &mut self.ids);
                take_budget(&mut next, budget, change.deleted);
            }
            _ => {
                let source = Source::read(resource, object, &mut self.ids)?;
                let id = source.meta.id;
                if !change.deleted && next.sources.get(&id).is_some_and(|known| **known == source) {
                    return None;
                }
                let sources = Rc::make_mut(&mut next.sources);
                if change.deleted {
                    sources.remove(&id);
                } else {
                    sources.insert(id, Rc::new(source));
                }
            }
        }
        namespace.push(next, self.kept);
        changed.filter(|_| !change.deleted)
    }
}

impl NamespaceHistory {
    /// The present state.
    pub(super) fn latest(&self) -> Option<&Rc<State>> {
        self.states.back()
    }

    /// The states from this time on, up to a revision, oldest first. The first one may have begun before.
    pub(super) fn since(&self, from: Duration, to: u64) -> impl DoubleEndedIterator<Item = &Rc<State>> {
        let begin = self.states.partition_point(|state| state.at < from).saturating_sub(1);
        let end = self.states.partition_point(|state| state.revision <= to);
        self.states.range(begin..end.max(begin))
    }

    /// The states between two revisions, oldest first. The first one may have begun before.
    pub(super) fn between(&self, from: u64, to: u64) -> impl DoubleEndedIterator<Item = &Rc<State>> {
        let begin = self.states.partition_point(|state| state.revision <= from).saturating_sub(1);
        let end = self.states.partition_point(|state| state.revision <= to);
        self.states.range(begin..end.max(begin))
    }

    /// The disruptions after one revision, up to another.
    pub(super) fn effects(&self, after: u64, to: u64) -> &[Rc<Effect>] {
        let begin = self.effects.partition_point(|effect| effect.revision <= after);
        let end = self.effects.partition_point(|effect| effect.revision <= to);
        self.effects.get(begin..end).unwrap_or(&[])
    }

    /// Whether the labels or owners of a pod changed since then, up to a revision.
    pub(super) fn moved(&self, pod: Id, since: Duration, to: u64) -> bool {
        let moves = |effect: &&Rc<Effect>| effect.kind == Disruption::Relabelled && effect.pod.id() == pod;
        let recent = self.effects.iter().rev().take_while(|effect| effect.at >= since);
        recent.filter(moves).any(|effect| effect.revision <= to)
    }

    fn push(&mut self, state: State, kept: Duration) {
        let old = state.at.saturating_sub(kept);
        self.states.push_back(Rc::new(state));
        while self.states.get(1).is_some_and(|second| second.at < old) {
            self.states.pop_front();
        }
    }

    /// Takes a change of a pod in. Returns the pod, unless nothing changed that matters.
    fn take_pod(&mut self, next: &mut State, change: &Change, ids: &mut Ids) -> Option<Rc<Pod>> {
        let name = change.object["metadata"]["name"].as_str()?;
        let known = next.pods.iter().position(|pod| pod.meta.name == name);
        let before = known.and_then(|at| next.pods.get(at).cloned());
        let same = Pod::read(&change.object, ids, before.as_deref());
        let replaced = before.as_ref().is_some_and(|before| before.id() != same.id());
        let pod = Rc::new(if replaced { Pod::read(&change.object, ids, None) } else { same });
        if !change.deleted && before.as_ref() == Some(&pod) {
            return None;
        }
        let after = (!change.deleted).then_some(&pod);
        if let Some(before) = &before {
            let kinds = before.disruptions(after.filter(|_| !replaced).map(|pod| &**pod));
            self.effects.extend(kinds.into_iter().map(|kind| {
                let (revision, at, pod, after) =
                    (change.revision, change.at, Rc::clone(before), after.cloned());
                Rc::new(Effect { revision, at, pod, after, kind })
            }));
        }
        let pods = Rc::make_mut(&mut next.pods);
        match (known, after) {
            (Some(at), Some(pod)) => pods[at] = Rc::clone(pod),
            (Some(at), None) => drop(pods.remove(at)),
            (None, Some(pod)) => pods.push(Rc::clone(pod)),
            (None, None) => {}
        }
        remember(next, before.as_deref(), after.map(|pod| &**pod));
        Some(pod)
    }
}

impl State {
    /// A budget.
    pub(super) fn budget(&self, id: Id) -> Option<&Entry> {
        self.budgets.iter().find(|entry| entry.budget.meta.id == id)
    }

    /// A pod.
    pub(super) fn pod(&self, id: Id) -> Option<&Rc<Pod>> {
        self.pods.iter().find(|pod| pod.id() == id)
    }

    /// The counts of a budget in this state, if it had this spec.
    pub(super) fn sample(&self, budget: Id, spec: &Rc<Spec>) -> Rc<Sample> {
        let mut samples = self.samples.borrow_mut();
        let known = samples.iter().find(|(id, of, _)| *id == budget && Rc::ptr_eq(of, spec));
        if let Some((_, _, sample)) = known {
            return Rc::clone(sample);
        }
        let entry = self.budget(budget);
        let same = |other: &Rc<Spec>| same_coverage(other, spec);
        let entry = entry.filter(|entry| entry.budget.spec.as_ref().is_some_and(same));
        let nothing = Memory::default();
        let memory = entry.map_or(&nothing, |entry| &entry.memory);
        let sample = Rc::new(count(self, spec, memory, entry.map(|entry| &*entry.budget)));
        samples.push((budget, Rc::clone(spec), Rc::clone(&sample)));
        sample
    }
}

/// Takes a change of a pod into the memories of the budgets.
fn remember(next: &mut State, before: Option<&Pod>, after: Option<&Pod>) {
    let mut changed: Option<Vec<Entry>> = None;
    for (at, entry) in next.budgets.iter().enumerate() {
        let Some(spec) = &entry.budget.spec else { continue };
        if entry.memory.ignores(spec, next, before, after) {
            continue;
        }
        let mut memory = Memory::clone(&entry.memory);
        memory.update(spec, next, before, after);
        if memory != *entry.memory {
            let entries = changed.get_or_insert_with(|| next.budgets.to_vec());
            if let Some(entry) = entries.get_mut(at) {
                entry.memory = Rc::new(memory);
            }
        }
    }
    if let Some(entries) = changed {
        next.budgets = Rc::new(entries);
    }
}

fn take_budget(next: &mut State, mut budget: Budget, deleted: bool) {
    let mut entries = next.budgets.to_vec();
    let same_object =
        |entry: &Entry| entry.budget.kind == budget.kind && entry.budget.meta.name == budget.meta.name;
    let before = entries.iter().position(same_object).map(|at| entries.remove(at));
    if deleted {
        next.budgets = Rc::new(entries);
        return;
    }
    let before = before.filter(|entry| entry.budget.meta.id == budget.meta.id);
    let old_spec = before.as_ref().and_then(|entry| entry.budget.spec.as_ref());
    if let (Some(old), Some(new)) = (old_spec, &budget.spec)
        && old == new
    {
        // One spec is one pointer: samples are found by it.
        budget.spec = Some(Rc::clone(old));
    }
    let memory = match (&before, old_spec, &budget.spec) {
        (Some(entry), Some(old), Some(new)) if same_coverage(old, new) => Rc::clone(&entry.memory),
        (_, _, Some(new)) => Rc::new(Memory::new(new, next)),
        (_, _, None) => Rc::default(),
    };
    let since = match &before {
        Some(entry) if entry.budget.meta.generation == budget.meta.generation => entry.since,
        _ => next.at,
    };
    let known = before.as_ref().map(|entry| &*entry.tokens);
    let tokens = budget
        .claims
        .iter()
        .flat_map(|(uid, claim)| claim.tokens.keys().map(|token| (uid.clone(), token.clone())));
    let first = |key: &(String, String)| known.and_then(|known| known.get(key)).copied();
    let tokens = tokens.map(|key| (first(&key).unwrap_or(next.at), key)).map(|(at, key)| (key, at)).collect();
    entries.push(Entry { budget: Rc::new(budget), memory, since, tokens: Rc::new(tokens) });
    next.budgets = Rc::new(entries);
}

fn same_coverage(one: &Spec, other: &Spec) -> bool {
    one.selector == other.selector && one.target == other.target && one.grouping == other.grouping
}
