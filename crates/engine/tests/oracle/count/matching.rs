//! Whether a budget covers the future pods of a source, by its templates.

use quorate_engine::basics::{GroupKind, Labels, Text};
use quorate_engine::facts::{Controller, Covers, Rules, Source, Units, is_added_later};
use quorate_engine::selector::{Requirement, Selector};

use super::source::{counts_groups, is_leader_worker_set};
use crate::oracle::{LWS, Oracle};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    Yes,
    No,
    CannotTell,
}

impl Match {
    /// All must be `Yes`.
    fn all(parts: impl IntoIterator<Item = Self>) -> Self {
        parts.into_iter().fold(Self::Yes, |so_far, part| match (so_far, part) {
            (Self::No, _) | (_, Self::No) => Self::No,
            (Self::CannotTell, _) | (_, Self::CannotTell) => Self::CannotTell,
            _ => Self::Yes,
        })
    }

    /// One `Yes` is enough.
    fn any(parts: impl IntoIterator<Item = Self>) -> Self {
        parts.into_iter().fold(Self::No, |so_far, part| match (so_far, part) {
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
            (Self::CannotTell, _) | (_, Self::CannotTell) => Self::CannotTell,
            _ => Self::No,
        })
    }
}

impl Oracle {
    pub(crate) fn matching(&self, rules: &Rules, ns: &Text, source: &Source) -> Match {
        // Workloads and PodGroups have no template, and an unknown controller shows nothing.
        let Some(controller) = self.controller(ns, source) else { return Match::CannotTell };
        match (&rules.units, &rules.covers) {
            // Its scale does not count pods.
            (Units::Pods, _) if counts_groups(controller) => Match::CannotTell,
            (Units::Pods, Covers::Selector(selector)) => by_templates(selector, controller),
            (Units::Pods, Covers::Target(kind, name)) => self.by_owners(controller, kind, name),
            (Units::Label { .. } | Units::Owner { .. }, Covers::Selector(selector)) => {
                by_templates(selector, controller)
            }
            // A covered pod need not belong to a PodGroup.
            (Units::Workload, Covers::Selector(selector)) => match by_templates(selector, controller) {
                Match::No => Match::No,
                Match::Yes | Match::CannotTell => Match::CannotTell,
            },
            (units, Covers::Target(kind, name)) => {
                let is_target = controller.kind == *kind && controller.key.name == *name;
                let makes_units = match units {
                    Units::Workload => self.makes_pod_groups(controller),
                    _ => is_leader_worker_set(kind),
                };
                match is_target && counts_groups(controller) && makes_units {
                    true => Match::Yes,
                    false => Match::CannotTell,
                }
            }
        }
    }

    fn makes_pod_groups(&self, controller: &Controller) -> bool {
        let owners = self.pod_groups.values().filter_map(|group| group.controller.as_ref());
        owners.into_iter().any(|owner| owner.uid == controller.uid)
    }

    /// Whether a controller is the `targetRef`, or one of the four owners above it is.
    fn by_owners(&self, controller: &Controller, kind: &GroupKind, name: &Text) -> Match {
        let is_target = controller.kind == *kind && controller.key.name == *name;
        let by_label = is_leader_worker_set(kind)
            && templates(controller).any(|set| set.get(&format!("{LWS}/name")) == Some(name));
        let by_owners = match is_target || by_label {
            true => Match::Yes,
            false => self.above_is(controller, kind, name),
        };
        let has_children = || {
            let owners = self.controllers.values().filter_map(|child| child.owner.as_ref());
            owners.into_iter().any(|owner| owner.uid == controller.uid)
        };
        // A controller without a template may not create pods itself.
        let makes_pods = controller.templates.is_some() || (is_target && !has_children());
        match by_owners {
            Match::Yes if !makes_pods => Match::CannotTell,
            found => found,
        }
    }

    fn above_is(&self, controller: &Controller, kind: &GroupKind, name: &Text) -> Match {
        let mut below = controller;
        for above in 1..=4 {
            let Some(owner) = &below.owner else { return Match::No };
            if owner.kind == *kind && owner.name == *name {
                return Match::Yes;
            }
            match self.controllers.get(&owner.uid) {
                Some(known) => below = known,
                // The owners above the last one are not followed.
                None => return if above < 4 { Match::CannotTell } else { Match::No },
            }
        }
        Match::No
    }
}

fn templates(controller: &Controller) -> impl Iterator<Item = &Labels> {
    controller.templates.iter().flatten()
}

fn by_templates(selector: &Selector, controller: &Controller) -> Match {
    match controller.templates {
        None => Match::CannotTell,
        Some(_) => Match::any(templates(controller).map(|set| {
            let Selector(requirements) = selector;
            Match::all(requirements.iter().map(|requirement| by_label(requirement, set)))
        })),
    }
}

fn by_label(requirement: &Requirement, set: &Labels) -> Match {
    if set.get(&requirement.key).is_none() && is_added_later(&requirement.key) {
        return Match::CannotTell;
    }
    match Selector([requirement.clone()].into()).matches(set) {
        true => Match::Yes,
        false => Match::No,
    }
}
