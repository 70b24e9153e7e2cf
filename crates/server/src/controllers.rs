//! Consistent reads of single controllers, for requests that the watched state cannot decide yet.
//!
//! A read is a list of one name: it needs no permission that the watch does not need, and a kind that is not served for
//! a moment is an error and not an empty list.

use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{self, Scope};
use kube::{Client, Error};
use quorate_api::slim;
use quorate_engine::basics::{GroupKind, ObjectKey};
use quorate_engine::facts::Controller;
use quorate_engine::group_source::GroupSource;
use quorate_engine::ledger::Reply;
use quorate_engine::workload_kind::{DEPLOYMENT, REPLICA_SET, STATEFUL_SET};
use quorate_intake::{Unreadable, objects};
use quorate_kit::watch::WatchSource;
use serde::de::{DeserializeOwned, IgnoredAny};
use tracing::warn;

/// Reads a controller consistently, not from a cache.
///
/// # Errors
/// The API server does not answer, or does not serve the kind now. The controller may still exist.
pub(crate) async fn get(client: &Client, kind: &GroupKind, key: &ObjectKey) -> Result<Reply, Error> {
    match kind {
        kind if REPLICA_SET.is_kind(kind) => read(typed(client, key), objects::replica_set, key).await,
        kind if STATEFUL_SET.is_kind(kind) => read(typed(client, key), objects::stateful_set, key).await,
        kind if DEPLOYMENT.is_kind(kind) => read(typed(client, key), objects::deployment, key).await,
        _ => match GroupSource::of_kind(kind).and_then(group_source_resource) {
            Some(resource) => untyped(client, &resource, (kind, key), None).await,
            None => discovered(client, kind, key).await,
        },
    }
}

/// The resource of a group source, in the best version that Quorate reads.
fn group_source_resource(source: &GroupSource) -> Option<ApiResource> {
    let gvk = GroupVersionKind::gvk(source.api_group, source.versions.first()?, source.kind);
    Some(ApiResource::from_gvk_with_plural(&gvk, source.resource))
}

fn typed<K>(client: &Client, key: &ObjectKey) -> WatchSource<K>
where
    K: kube::Resource<DynamicType = ()> + DeserializeOwned + 'static,
{
    WatchSource::namespaced(client.clone(), &key.namespace)
}

/// A controller of a kind that only discovery knows.
async fn discovered(client: &Client, kind: &GroupKind, key: &ObjectKey) -> Result<Reply, Error> {
    let group = discovery::group(client, &kind.group).await?;
    let found = group.recommended_kind(&kind.kind).filter(|(_, caps)| caps.scope == Scope::Namespaced);
    let Some((resource, caps)) = found else { return Ok(Reply::Lost) };
    let scales = caps.subresources.iter().any(|(sub, _)| sub.plural.ends_with("/scale"));
    // A kind with another path gets its number from the watch. Until then the number is unknown, which is safe.
    untyped(client, &resource, (kind, key), scales.then(slim::ReplicasPath::default)).await
}

async fn untyped(
    client: &Client,
    resource: &ApiResource,
    (kind, key): (&GroupKind, &ObjectKey),
    scale: Option<slim::ReplicasPath>,
) -> Result<Reply, Error> {
    let source = WatchSource::<IgnoredAny>::found(client.clone(), resource, Some(&key.namespace));
    let kind = kind.clone();
    let source = source.read_by(move |text| objects::any_controller(&kind, text, scale.as_ref()));
    read(source, |controller| Ok(controller.clone()), key).await
}

async fn read<K>(
    source: WatchSource<K>,
    fact: impl Fn(&K) -> Result<Controller, Unreadable>,
    key: &ObjectKey,
) -> Result<Reply, Error> {
    let listed = source.in_field(format!("metadata.name={}", key.name)).list().await?;
    let reply = match (listed.objects.first().map(fact), listed.unreadable.first()) {
        (None, None) => Reply::Controller(None),
        (Some(Ok(controller)), _) => Reply::Controller(Some(Box::new(controller))),
        (Some(Err(why)), _) => unreadable(&why),
        (None, Some(why)) => unreadable(why),
    };
    Ok(reply)
}

fn unreadable(why: &impl std::fmt::Display) -> Reply {
    warn!(%why, "cannot read a controller");
    Reply::Lost
}
