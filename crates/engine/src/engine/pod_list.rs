//! The lists of pods of each namespace and each controller. A pod knows its position in both, so that it is removed
//! without a search. New pods are added at the end.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use slab::Slab;

use crate::basics::Uid;
use crate::engine::PodRecord;
use crate::facts::{Owner, Pod};

/// The pods of a namespace or a controller.
pub(super) type PodList = Vec<u32>;

/// The pods of one controller, and the owners of its first pod. A new pod is compared with these owners, which needs no
/// access to another pod.
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

    /// Adds another pod.
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

/// The positions of a pod in its lists.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ListPositions {
    /// In the list of its namespace.
    namespace: u32,
    /// In the list of its controller.
    controller: u32,
}

impl ListPositions {
    /// The position among the pods of its namespace.
    pub(super) fn in_namespace(&mut self) -> &mut u32 {
        &mut self.namespace
    }

    /// The position among the pods of its controller.
    fn with_controller(&mut self) -> &mut u32 {
        &mut self.controller
    }
}

/// Adds a pod at the end of a list.
pub(super) fn enter(list: &mut PodList, id: u32, position: &mut u32) {
    *position = list.len() as u32;
    list.push(id);
}

/// Removes a pod from a list; the last pod moves to its position.
pub(super) fn strike(
    list: &mut PodList,
    pods: &mut Slab<PodRecord>,
    id: u32,
    position: fn(&mut ListPositions) -> &mut u32,
) {
    let at = *position(&mut pods[id as usize].positions);
    list.swap_remove(at as usize);
    if let Some(moved) = list.get(at as usize) {
        *position(&mut pods[*moved as usize].positions) = at;
    }
}

/// Removes a pod from the list of its controller, and the list itself when it is empty.
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
