//! An in-memory Kubernetes API server.
//!
//! It stores JSON objects, and applies the rules of the real API server for some kinds. `kubectl` and kube-rs connect
//! to it over plain HTTP on a loopback port. A [`kube::Client`] can also connect in-process, without a port.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use quorate_devcluster::apiserver::{Fault, Options, RequestFilter, Server};
//!
//! let server = Server::start(Options::default()).await?;
//! let client = server.client_as("jane", &["dev"])?;
//! // The next two writes of jane conflict.
//! let guard = server.faults().requests(RequestFilter::any().user("jane").writes(), Fault::Conflict).times(2);
//! # drop((client, guard));
//! # Ok(())
//! # }
//! ```
//!
//! # Path of a request
//!
//! `http` reads the request, `request` parses it, `faults` may fail it, and `api` dispatches it to its verb: `read`,
//! `watching`, `create`, `update` (with `patching`), `delete`, `eviction` or `subresources`. A write goes through
//! `conform` (types, unknown fields, defaults), `admission` (webhooks), and `strategy` or `crd` (fields that the server
//! sets, and validation), and ends in the `store`. A read returns the bytes that are stored with each object, or a
//! `table`. `builtin` lists the built-in kinds; `discovery` and `openapi` describe all kinds to clients.
//!
//! # Deliberate differences from the real API server
//!
//! A request for a missing feature fails with a `Status` that says so (405, 415, 422 or 501). These behave differently:
//!
//! - **Release**: the server simulates release 1.36 only, whatever [`Options::version`] says. Only the Workload API is
//!   available in the versions of other releases, see [`WorkloadApi`].
//! - **Authorization** is not enforced: every user has all permissions, including impersonation. RBAC objects are
//!   stored. Access reviews always allow and state the reason. A request without a token is `system:anonymous`.
//! - **Built-in admission** is limited to namespace lifecycle, priority classes, default tolerations and the default
//!   service account's name. There are no quotas, limit ranges, token volumes or admission policies. The service
//!   account of a pod need not exist.
//! - **Validation of built-in kinds** covers types, names, labels, owner references, containers, selectors, the numbers
//!   of budgets and immutable fields, but not every rule of every field. Types are those of one release: fields of
//!   later releases are dropped as unknown, except the links from pods to groups, see [`WorkloadApi`].
//! - **Custom resources**: conversion strategy None only. CEL has the standard library and the string extensions. It
//!   has no `optionalOldSelf`, no cost limits and no type check at compile time, so a wrong rule fails only when it
//!   runs. An update may keep errors that the object already had; the real API server compares in more detail what
//!   changed. Removing a definition removes its objects at once, even those with finalizers.
//! - **Webhooks** are not called a second time (`reinvocationPolicy`), `matchConditions` cannot use `authorizer`, and
//!   calls to a `clientConfig.service` go to its ready endpoints in turn. A webhook without a `caBundle` is never
//!   trusted.
//! - **Eviction** waits 5 ms between attempts; the real API server waits half a second. Eviction does not depend on a
//!   watch cache.
//! - **Server-side apply** tracks appliers only, not other writers: only appliers conflict. Lists of custom resources
//!   are replaced as a whole. The body must be JSON.
//! - **Managed fields** hold the applied fields and nothing else.
//! - **Protobuf** is read only where typed Go clients require it: delete options, and the small objects that `kubectl
//!   create` sends. All other requests must be JSON, and responses are always JSON.
//! - **Watches** end with 410 when history is compacted, even if they were up to date. Bookmarks come every
//!   [`Options::bookmark_every`].
//! - **Lists** have `apiVersion` and `kind` in each item. A resource version in the future is rejected at once; the
//!   real API server waits three seconds for it.
//! - **Not served at all**: logs, exec, attach, port-forward and proxy, ephemeral containers, aggregated APIs, metrics,
//!   audit, OpenAPI schemas of built-in kinds (`kubectl explain` works for custom kinds only).

mod admission;
mod api;
mod builtin;
mod cel;
mod clock;
mod conform;
mod crd;
mod create;
mod delete;
mod discovery;
mod events;
mod eviction;
mod failure;
mod faults;
mod http;
mod names;
mod object;
mod observer;
mod openapi;
mod options;
mod patching;
mod protobuf;
mod read;
mod request;
mod resource;
mod reviews;
mod selector;
mod server;
mod store;
mod strategy;
mod subresources;
mod table;
mod update;
mod users;
mod watching;

pub use clock::Clock;
pub use faults::{Fault, FaultGuard, Faults, RequestFilter, RequestInfo, WatchFault};
pub use observer::{ObservedChange, ObservedRequest, Observer};
pub use options::{Options, WorkloadApi};
pub use server::{Server, ServerError};
pub use store::Backup;
pub use users::User;
