//! Nodes, namespaces, the agents' Leases and native budgets.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use quorate_api::names::ENFORCED;
use quorate_api::slim;
use quorate_engine::basics::{ObjectKey, Text, Time};
use quorate_engine::facts::{Agent, Namespace, NativeBudget, Node};

use super::Incoming;
use crate::error::{Problem, Unreadable};
use crate::{selector, time};

/// A node as a fact.
pub fn node(node: &slim::Node) -> Result<(Text, Node), Unreadable> {
    Ok((Incoming::new("Node", &node.metadata).name()?, Node { ready: node.is_ready() }))
}

/// A namespace as a fact; `excluded` are the names of the namespaces that the webhooks exclude.
pub fn namespace(meta: &ObjectMeta, excluded: &[impl AsRef<str>]) -> Result<(Text, Namespace), Unreadable> {
    let incoming = Incoming::new("Namespace", meta);
    let name = incoming.name()?;
    let excluded = excluded.iter().any(|other| other.as_ref() == &*name);
    let guarded = meta.labels.as_ref().is_some_and(|labels| labels.contains_key(ENFORCED));
    Ok((name, Namespace { terminating: incoming.terminating(), excluded, guarded }))
}

/// The Lease of a node's agent as a fact, by the name of the node. The lease holder is the node, and the acquire time
/// is the start of the agent. `renewed` is the local time at which the renewal was observed, because the agent's clock
/// may differ.
pub fn agent(lease: &slim::Lease, renewed: Time) -> Result<(Text, Agent), Unreadable> {
    let incoming = Incoming::new("Lease", &lease.metadata);
    let node = incoming.required(lease.spec.holder_identity.as_deref(), "spec.holderIdentity")?;
    let started = lease.spec.acquire_time.as_ref().map(time::from_micro).ok_or_else(|| {
        incoming.unreadable(Problem::at("spec.acquireTime", "is missing: set it to the agent's start time"))
    })?;
    let seconds = lease.spec.lease_duration_seconds.unwrap_or_default();
    let seconds = incoming.count("spec.leaseDurationSeconds", seconds, 1)?;
    let agent = Agent {
        started: time::next_second(started),
        renewed,
        holds: Duration::from_secs(u64::from(seconds)),
    };
    Ok((node, agent))
}

/// A native budget as a fact; `None` if it covers no pods: it has no selector, or one that the API server cannot use
/// either.
pub fn native_budget(
    budget: &slim::PodDisruptionBudget,
) -> Result<(ObjectKey, Option<NativeBudget>), Unreadable> {
    let incoming = Incoming::new("PodDisruptionBudget", &budget.metadata);
    let status = &budget.status;
    let selector = budget.spec.selector.as_ref().and_then(|selector| selector::from_object(selector).ok());
    let fact = selector.map(|selector| NativeBudget {
        selector,
        allowed: i64::from(status.disruptions_allowed),
        current: status.observed_generation >= budget.metadata.generation.unwrap_or_default(),
        always_allow_unready: budget.spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow"),
        healthy: (i64::from(status.current_healthy), i64::from(status.desired_healthy)),
        expected: i64::from(status.expected_pods),
    });
    Ok((incoming.key()?, fact))
}
