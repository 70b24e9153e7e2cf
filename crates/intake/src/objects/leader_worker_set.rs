//! LeaderWorkerSets.

use quorate_api::slim;
use quorate_engine::facts::{Controller, Counts};
use quorate_engine::group_source::LEADER_WORKER_SET;

use super::Incoming;
use super::controller::{counts_pods, labels};
use crate::error::Unreadable;

/// A LeaderWorkerSet as a fact. It counts groups, not pods.
pub fn leader_worker_set(set: &slim::LeaderWorkerSet) -> Result<Controller, Unreadable> {
    let source = LEADER_WORKER_SET;
    let incoming = Incoming::new(source.kind, &set.metadata);
    let size = incoming.count("spec.leaderWorkerTemplate.size", set.size(), 1)?;
    let fact = counts_pods(source.kind, source.group_kind(), &set.metadata, Some(set.replicas()))?;
    let counts = Counts::Groups { size: Some(size), falls_whole: set.falls_whole() };
    // The controller sets this label on each of its pods.
    let named = [(source.name_label, &*fact.key.name)];
    let templates = set.templates().into_iter().map(|template| labels(template, &named)).collect();
    Ok(Controller { counts, templates: Some(templates), ..fact })
}

/// A LeaderWorkerSet as a fact, from its JSON text.
pub(super) fn read(text: &str) -> Result<Controller, String> {
    let set = serde_json::from_str(text).map_err(|why| why.to_string())?;
    leader_worker_set(&set).map_err(|why| why.problem.to_string())
}
