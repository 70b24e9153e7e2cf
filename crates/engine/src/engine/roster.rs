//! Rosters: which pods a namespace has, and which a controller. A pod knows its place in each, so that it is found
//! there and taken out without a search, and a new one is written at the end.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use slab::Slab;

use crate::basics::Uid;
use crate::engine::PodRecord;
use crate::facts::{Owner, Pod};

/// Pods that have something in common.
pub(super) type Roster = Vec<u32>;

/// The pods of one controller, and the owners that the first of them had: a new one need not be compared with another,
/// which would have to be fetched from where it lies.
#[derive(Clone, Debug)]
pub(super) struct Crew {
    pods: Roster,
    owners: Arc<[Owner]>,
}

impl Crew {
    /// The first pod of a controller.
    pub(super) fn of(pod: &Pod, id: u32, places: &mut Places) -> Self {
        let mut crew = Self { pods: Roster::new(), owners: pod.owners.clone() };
        crew.enter(id, places);
        crew
    }

    /// Another one.
    pub(super) fn enter(&mut self, id: u32, places: &mut Places) {
        enter(&mut self.pods, id, places.with_controller());
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = u32> {
        self.pods.iter().copied()
    }

    pub(super) fn owners(&self) -> &Arc<[Owner]> {
        &self.owners
    }
}

/// Where a pod stands in the rosters it is in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    /// Among those of its namespace.
    namespace: u32,
    /// Among those of its controller.
    controller: u32,
}

impl Places {
    /// Its place among the pods of its namespace.
    pub(super) fn in_namespace(&mut self) -> &mut u32 {
        &mut self.namespace
    }

    /// Its place among the pods of its controller.
    fn with_controller(&mut self) -> &mut u32 {
        &mut self.controller
    }
}

/// Writes a pod at the end of a roster.
pub(super) fn enter(roster: &mut Roster, id: u32, place: &mut u32) {
    *place = roster.len() as u32;
    roster.push(id);
}

/// Takes a pod out of a roster; the last one moves to its place.
pub(super) fn strike(
    roster: &mut Roster,
    pods: &mut Slab<PodRecord>,
    id: u32,
    place: fn(&mut Places) -> &mut u32,
) {
    let at = *place(&mut pods[id as usize].places);
    roster.swap_remove(at as usize);
    if let Some(moved) = roster.get(at as usize) {
        *place(&mut pods[*moved as usize].places) = at;
    }
}

/// Takes a pod out of its controller's roster, and the roster away with the last of them.
pub(super) fn strike_from(
    crews: &mut FxHashMap<Uid, Crew>,
    pods: &mut Slab<PodRecord>,
    controller: &Uid,
    id: u32,
) {
    if let Some(crew) = crews.get_mut(controller) {
        strike(&mut crew.pods, pods, id, Places::with_controller);
        if crew.pods.is_empty() {
            crews.remove(controller);
        }
    }
}
