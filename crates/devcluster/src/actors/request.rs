//! Requests with plain JSON bodies, and the meaning of their errors.
//!
//! Templates are passed on as JSON: a typed Pod would lose fields that are newer than its type.

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, Object, Request};
use kube::{Client, Error, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::cache::Key;

/// The meaning of an API server error for a controller.
pub(crate) trait ErrorExt {
    /// The object does not exist.
    fn is_not_found(&self) -> bool;
    /// Another write came first, or a precondition failed.
    fn is_conflict(&self) -> bool;
    /// The name is in use.
    fn is_already_exists(&self) -> bool;
    /// The namespace is terminating and accepts no new objects.
    fn is_namespace_ending(&self) -> bool;
    /// The human-readable message.
    fn message(&self) -> String;
}

impl ErrorExt for Error {
    fn is_not_found(&self) -> bool {
        matches!(self, Error::Api(status) if status.code == 404)
    }

    fn is_conflict(&self) -> bool {
        matches!(self, Error::Api(status) if status.code == 409 && status.reason != "AlreadyExists")
    }

    fn is_already_exists(&self) -> bool {
        matches!(self, Error::Api(status) if status.reason == "AlreadyExists")
    }

    fn is_namespace_ending(&self) -> bool {
        let Error::Api(status) = self else { return false };
        let mut causes = status.details.iter().flat_map(|details| &details.causes);
        status.code == 403 && causes.any(|cause| cause.reason == "NamespaceTerminating")
    }

    fn message(&self) -> String {
        match self {
            Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        }
    }
}

fn path<K: Resource>(kind: &K::DynamicType, namespace: &str) -> Request {
    Request::new(K::url_path(kind, (!namespace.is_empty()).then_some(namespace)))
}

fn body(value: &Value) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(Error::SerdeError)
}

async fn send<T: DeserializeOwned>(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<T, Error> {
    client.request(request.map_err(Error::BuildRequest)?).await
}

pub(crate) async fn create<K: Resource + DeserializeOwned>(
    client: &Client,
    kind: &K::DynamicType,
    namespace: &str,
    object: &Value,
) -> Result<K, Error> {
    send(client, path::<K>(kind, namespace).create(&PostParams::default(), body(object)?)).await
}

/// Posts to a subresource that returns a Status.
pub(crate) async fn post_to<K: Resource>(
    client: &Client,
    kind: &K::DynamicType,
    key: &Key,
    subresource: &str,
    object: &Value,
) -> Result<kube::core::Status, Error> {
    let request = path::<K>(kind, &key.namespace).create_subresource(
        subresource,
        &key.name,
        &PostParams::default(),
        body(object)?,
    );
    send(client, request).await
}

pub(crate) async fn replace<K: Resource + DeserializeOwned>(
    client: &Client,
    kind: &K::DynamicType,
    key: &Key,
    subresource: Option<&str>,
    object: &Value,
) -> Result<K, Error> {
    let (path, params) = (path::<K>(kind, &key.namespace), PostParams::default());
    let request = match subresource {
        Some(name) => path.replace_subresource(name, &key.name, &params, body(object)?),
        None => path.replace(&key.name, &params, body(object)?),
    };
    send(client, request).await
}

/// Writes a status as the built-in controllers do: updates the whole object, and fails if the object has changed in the
/// meantime. The built-in controllers have no permission to patch it.
pub(crate) async fn write_status<S, U>(
    client: &Client,
    kind: &ApiResource,
    object: &Object<S, U>,
    status: &Value,
) -> Result<Object<S, U>, Error>
where
    S: Clone + Serialize + DeserializeOwned,
    U: Clone + Default + Serialize + DeserializeOwned,
{
    let mut whole = serde_json::to_value(object).map_err(Error::SerdeError)?;
    // Objects from a list do not have these two fields.
    whole["apiVersion"] = Value::String(kind.api_version.clone());
    whole["kind"] = Value::String(kind.kind.clone());
    whole["status"] = status.clone();
    replace(client, kind, &Key::of(object), Some("status"), &whole).await
}

/// A JSON merge patch. With a `metadata.resourceVersion` in it, it is a compare-and-set.
pub(crate) async fn merge<K: Resource + DeserializeOwned>(
    client: &Client,
    kind: &K::DynamicType,
    key: &Key,
    subresource: Option<&str>,
    patch: &Value,
) -> Result<K, Error> {
    send_patch(client, kind, key, subresource, &Patch::Merge(patch)).await
}

/// A strategic merge patch: lists such as conditions are merged by key, so that the entries of other writers stay.
pub(crate) async fn strategic<K: Resource + DeserializeOwned>(
    client: &Client,
    kind: &K::DynamicType,
    key: &Key,
    subresource: Option<&str>,
    patch: &Value,
) -> Result<K, Error> {
    send_patch(client, kind, key, subresource, &Patch::Strategic(patch)).await
}

async fn send_patch<K: Resource + DeserializeOwned>(
    client: &Client,
    kind: &K::DynamicType,
    key: &Key,
    subresource: Option<&str>,
    patch: &Patch<&Value>,
) -> Result<K, Error> {
    let (path, params) = (path::<K>(kind, &key.namespace), PatchParams::default());
    let request = match subresource {
        Some(name) => path.patch_subresource(name, &key.name, &params, patch),
        None => path.patch(&key.name, &params, patch),
    };
    send(client, request).await
}

/// The state after an accepted delete.
pub(crate) enum Deleted<K> {
    /// The object still exists: it has a grace period or finalizers.
    Ending(Box<K>),
    /// The object is removed.
    Gone,
}

pub(crate) async fn delete<K: Resource + DeserializeOwned>(
    client: &Client,
    kind: &K::DynamicType,
    key: &Key,
    params: &DeleteParams,
) -> Result<Deleted<K>, Error> {
    let request = path::<K>(kind, &key.namespace).delete(&key.name, params).map_err(Error::BuildRequest)?;
    let Some(object) = client.request_status::<K>(request).await?.left() else { return Ok(Deleted::Gone) };
    let meta = object.meta();
    // The response may be the last state of a removed object.
    let stays = meta.deletion_timestamp.is_some()
        && (meta.finalizers.as_ref().is_some_and(|f| !f.is_empty())
            || meta.deletion_grace_period_seconds.is_some_and(|seconds| seconds > 0));
    Ok(if stays { Deleted::Ending(Box::new(object)) } else { Deleted::Gone })
}

/// Preconditions that match only this object, not a successor with the same name.
pub(crate) fn only(uid: &str) -> Preconditions {
    Preconditions { uid: Some(uid.to_owned()), resource_version: None }
}
