//! The scales of the controllers of a budget's pods. Updated incrementally, since a budget may have thousands of them.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use slab::Slab;

use crate::basics::Uid;
use crate::cluster_state::ClusterState;
use crate::facts::Controller;

/// The controllers of a budget's pods, and how many pods they want.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScaleIndex {
    /// By the controller in the pod's `ownerReferences`.
    owned: FxHashMap<Uid, Owned>,
    /// The workloads whose scale counts: for ReplicaSets of a Deployment, the Deployment.
    workloads: Slab<Wanting>,
    by_workload: FxHashMap<Uid, u32>,
    /// Controllers that are not known.
    missing: BTreeSet<Uid>,
    /// Controllers that have no scale.
    scaleless: BTreeSet<Uid>,
    totals: Totals,
}

/// The pods of one controller in a budget.
#[derive(Clone, Debug)]
struct Owned {
    pods: Pods,
    /// The workload whose scale counts for them; the controller itself if it is not known.
    workload: u32,
}

/// The pods of one workload in a budget, and how many pods it wants.
#[derive(Clone, Debug)]
struct Wanting {
    uid: Uid,
    pods: Pods,
    replicas: Option<u32>,
    deleting: bool,
    /// It stays expected even without pods.
    kept: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pods {
    /// Pods in groups, or in a budget that counts pods.
    seated: Seats,
    /// Pods without a group.
    single: Seats,
}

/// How many pods there are. Those that have ended do not stand for pods that their workload wants: it replaces them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seats {
    all: u32,
    ended: u32,
}

impl Seats {
    fn running(self) -> u32 {
        self.all - self.ended
    }
}

impl Pods {
    fn step(&mut self, OwnedPod { single, ended }: OwnedPod, up: bool) {
        let seats = if single { &mut self.single } else { &mut self.seated };
        step(&mut seats.all, up);
        if ended {
            step(&mut seats.ended, up);
        }
    }

    fn add(&mut self, other: Self) {
        for (seats, more) in [(&mut self.seated, other.seated), (&mut self.single, other.single)] {
            seats.all += more.all;
            seats.ended += more.ended;
        }
    }

    fn are_none(self) -> bool {
        self == Self::default()
    }

    fn running(self) -> u32 {
        self.seated.running().saturating_add(self.single.running())
    }
}

fn step(count: &mut u32, up: bool) {
    *count = if up { *count + 1 } else { *count - 1 };
}

/// A pod of a controller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnedPod {
    /// It has no group, in a budget that counts groups.
    pub(crate) single: bool,
    /// It has succeeded or failed.
    pub(crate) ended: bool,
}

/// Sums over all workloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    scale: u64,
    wanted: u64,
    singles_expected: u64,
    singles_wanted: u64,
}

impl Totals {
    fn step(&mut self, by: Self, up: bool) {
        let step = |sum: &mut u64, by: u64| *sum = if up { *sum + by } else { *sum - by };
        step(&mut self.scale, by.scale);
        step(&mut self.wanted, by.wanted);
        step(&mut self.singles_expected, by.singles_expected);
        step(&mut self.singles_wanted, by.singles_wanted);
    }
}

impl Wanting {
    fn adds(&self) -> Totals {
        let Pods { seated, single } = self.pods;
        let if_any = |pods: u32, n: u32| if pods > 0 { u64::from(n) } else { 0 };
        // A workload without a scale wants the pods that exist.
        let replicas = self.replicas.unwrap_or(self.pods.running());
        let from_now_on = if self.deleting { 0 } else { replicas };
        let without_pods = u32::from(self.kept && self.pods.are_none());
        Totals {
            scale: u64::from(self.replicas.unwrap_or(0)),
            wanted: if_any(seated.all + without_pods, from_now_on),
            singles_expected: if_any(
                single.all,
                single.running().max(replicas.saturating_sub(seated.running())),
            ),
            singles_wanted: if_any(single.all, from_now_on.saturating_sub(seated.running())),
        }
    }
}

impl ScaleIndex {
    /// Counts a pod of this controller that appears or disappears. Returns its workload if that is new here.
    pub(crate) fn step(
        &mut self,
        controller: &Uid,
        pod: OwnedPod,
        up: bool,
        cluster: &ClusterState,
    ) -> Option<Uid> {
        let Some(owned) = self.owned.get_mut(controller) else {
            let met = self.meet(controller, cluster);
            if self.owned.contains_key(controller) {
                self.step(controller, pod, up, cluster);
            }
            return met;
        };
        owned.pods.step(pod, up);
        let wanting = &mut self.workloads[owned.workload as usize];
        self.totals.step(wanting.adds(), false);
        wanting.pods.step(pod, up);
        if wanting.pods.are_none() && !wanting.kept {
            let gone = self.workloads.remove(owned.workload as usize);
            self.by_workload.remove(&gone.uid);
        } else {
            self.totals.step(wanting.adds(), true);
        }
        if owned.pods.are_none() {
            self.owned.remove(controller);
            self.missing.remove(controller);
            self.scaleless.remove(controller);
        }
        None
    }

    /// Updates whether a pod has ended.
    pub(crate) fn change(&mut self, controller: &Uid, was: OwnedPod, is: OwnedPod) {
        let Some(owned) = self.owned.get_mut(controller) else { return };
        let wanting = &mut self.workloads[owned.workload as usize];
        self.totals.step(wanting.adds(), false);
        for pods in [&mut owned.pods, &mut wanting.pods] {
            pods.step(was, false);
            pods.step(is, true);
        }
        self.totals.step(wanting.adds(), true);
    }

    /// Finds the workload whose scale counts for a controller that had no pods here yet. Returns it if it is new here.
    fn meet(&mut self, controller: &Uid, cluster: &ClusterState) -> Option<Uid> {
        let scaled = cluster.scaled(controller);
        match scaled {
            None => drop(self.missing.insert(controller.clone())),
            Some(scaled) if cluster.wanted_by(scaled).is_none() => {
                self.scaleless.insert(controller.clone());
            }
            Some(_) => {}
        }
        let uid = scaled.map_or(controller, |scaled| &scaled.uid);
        let known = self.by_workload.get(uid).copied();
        let workload = known.unwrap_or_else(|| self.enter(uid, scaled, false, cluster));
        self.owned.insert(controller.clone(), Owned { pods: Pods::default(), workload });
        known.is_none().then(|| uid.clone())
    }

    /// Starts to count how many pods a workload wants.
    fn enter(&mut self, uid: &Uid, workload: Option<&Controller>, kept: bool, cluster: &ClusterState) -> u32 {
        let wanting = Wanting {
            uid: uid.clone(),
            pods: Pods::default(),
            replicas: workload.and_then(|workload| cluster.wanted_by(workload)),
            deleting: workload.is_some_and(|workload| workload.deleting),
            kept,
        };
        self.totals.step(wanting.adds(), true);
        let id = self.workloads.insert(wanting) as u32;
        self.by_workload.insert(uid.clone(), id);
        id
    }

    /// Sets whether a workload stays expected without pods, and looks up its scale. Returns whether the totals may
    /// differ.
    pub(crate) fn keep(&mut self, uid: &Uid, kept: bool, cluster: &ClusterState) -> bool {
        let Some(id) = self.by_workload.get(uid).copied() else {
            if kept {
                self.enter(uid, cluster.controller(uid), true, cluster);
            }
            return kept;
        };
        let controller = cluster.controller(uid);
        let wanting = &mut self.workloads[id as usize];
        let before = wanting.adds();
        self.totals.step(before, false);
        wanting.kept = kept;
        wanting.replicas = controller.and_then(|controller| cluster.wanted_by(controller));
        wanting.deleting = controller.is_some_and(|controller| controller.deleting);
        if wanting.pods.are_none() && !kept {
            self.workloads.remove(id as usize);
            self.by_workload.remove(uid);
            return true;
        }
        let after = wanting.adds();
        self.totals.step(after, true);
        before != after
    }

    /// Whether a workload has pods here.
    pub(crate) fn has_pods(&self, uid: &Uid) -> bool {
        self.by_workload.get(uid).is_some_and(|id| !self.workloads[*id as usize].pods.are_none())
    }

    /// The controllers of the pods, and the workloads whose scale counts.
    pub(crate) fn controllers(&self) -> impl Iterator<Item = &Uid> {
        self.owned.keys().chain(self.by_workload.keys())
    }

    /// The workloads whose scale counts.
    pub(crate) fn workloads(&self) -> impl Iterator<Item = &Uid> {
        self.by_workload.keys()
    }

    /// Looks up every controller again. Returns the workloads that were kept; the caller must check whether they still
    /// are.
    pub(crate) fn refresh(&mut self, cluster: &ClusterState) -> Vec<Uid> {
        let Self { owned, workloads, .. } = std::mem::take(self);
        let kept = workloads.into_iter().filter(|(_, wanting)| wanting.kept).map(|(_, wanting)| wanting.uid);
        let kept = kept.collect();
        for (controller, Owned { pods, .. }) in owned {
            self.meet(&controller, cluster);
            let Some(owned) = self.owned.get_mut(&controller) else { continue };
            owned.pods = pods;
            let wanting = &mut self.workloads[owned.workload as usize];
            self.totals.step(wanting.adds(), false);
            wanting.pods.add(pods);
            self.totals.step(wanting.adds(), true);
        }
        kept
    }

    /// Whether the workload of this controller may create more pods for the budget: it wants more than there are, or is
    /// not known.
    pub(crate) fn may_grow(&self, controller: &Uid) -> bool {
        let Some(owned) = self.owned.get(controller).filter(|_| !self.missing.contains(controller)) else {
            return true;
        };
        let wanting = &self.workloads[owned.workload as usize];
        wanting.replicas.is_some_and(|replicas| replicas > wanting.pods.running())
    }

    /// The sum of the scales: the expected number of pods.
    pub(crate) fn scale(&self) -> u32 {
        shorten(self.totals.scale)
    }

    /// The pods wanted from now on by workloads that have pods in groups, or in a budget that counts pods.
    pub(crate) fn wanted(&self) -> u32 {
        shorten(self.totals.wanted)
    }

    /// The expected number of pods without a group: what their controllers want, minus their pods in groups.
    pub(crate) fn singles_expected(&self) -> u32 {
        shorten(self.totals.singles_expected)
    }

    /// The same from now on: a workload that is being deleted wants none.
    pub(crate) fn singles_wanted(&self) -> u32 {
        shorten(self.totals.singles_wanted)
    }

    /// Whether no pod has a controller.
    pub(crate) fn is_empty(&self) -> bool {
        self.owned.is_empty()
    }

    /// The first controller that is not known; with `of_singles`, only of controllers that have single pods.
    pub(crate) fn missing(&self, of_singles: bool) -> Option<&Uid> {
        self.first(&self.missing, of_singles)
    }

    /// The first controller without a scale; with `of_singles`, only of controllers that have single pods.
    pub(crate) fn scaleless(&self, of_singles: bool) -> Option<&Uid> {
        self.first(&self.scaleless, of_singles)
    }

    fn first<'a>(&self, set: &'a BTreeSet<Uid>, of_singles: bool) -> Option<&'a Uid> {
        let has_singles = |uid: &&Uid| self.owned.get(*uid).is_some_and(|owned| owned.pods.single.all > 0);
        set.iter().find(|uid| !of_singles || has_singles(uid))
    }
}

fn shorten(sum: u64) -> u32 {
    u32::try_from(sum).unwrap_or(u32::MAX)
}
