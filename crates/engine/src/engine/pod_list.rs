//! Rosters: which pods a namespace has, and which a controller. A pod knows its place in each, so that it is found
//! there and taken out without a search, and a new one is written at the end.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use slab::Slab;

use crate::basics::Uid;
use crate::engine::PodRecord;
use crate::facts::{Owner, Pod};

/// Pods that have something in common.
pub(super) type PodList = Vec<u32>;

/// The pods of one controller, and the owners that the first of them had: a new one need not be compared with another,
/// which would have to be fetched from where it lies.
#[derive(Clone, Debug)]
pub(super) struct ControllerPods {
    pods: PodList,
    owners: Arc<[Owner]>,
}

impl ControllerPods {
    /// The first pod of a controller.
    pub(super) fn of(pod: &Pod, id: u32, positions: &mut ListPositions) -> Self {
        let mut group = Self { pods: PodList::new(), owners: pod.owners.clone() };
        group.enter(id, positions);
        group
    }

    /// Another one.
    pub(super) fn enter(&mut self, id: u32, positions: &mut ListPositions) {
        enter(&mut self.pods, id, positions.with_controller());
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
pub(crate) struct ListPositions {
    /// Among those of its namespace.
    namespace: u32,
    /// Among those of its controller.
    controller: u32,
}

impl ListPositions {
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
pub(super) fn enter(list: &mut PodList, id: u32, place: &mut u32) {
    *place = list.len() as u32;
    list.push(id);
}

/// Takes a pod out of a roster; the last one moves to its place.
pub(super) fn strike(
    list: &mut PodList,
    pods: &mut Slab<PodRecord>,
    id: u32,
    place: fn(&mut ListPositions) -> &mut u32,
) {
    let at = *place(&mut pods[id as usize].positions);
    list.swap_remove(at as usize);
    if let Some(moved) = list.get(at as usize) {
        *place(&mut pods[*moved as usize].positions) = at;
    }
}

/// Takes a pod out of its controller's roster, and the roster away with the last of them.
pub(super) fn strike_from(
    by_controller: &mut FxHashMap<Uid, ControllerPods>,
    pods: &mut Slab<PodRecord>,
    controller: &Uid,
    id: u32,
) {
    if let Some(group) = by_controller.get_mut(controller) {
        strike(&mut group.pods, pods, id, ListPositions::with_controller);
        if group.pods.is_empty() {
            by_controller.remove(controller);
        }
    }
}
