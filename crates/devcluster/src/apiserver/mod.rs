//! An in-memory Kubernetes API server.
//!
//! It knows JSON objects, and of some kinds what the real API server asks of them. `kubectl` and kube-rs talk to it over
//! plain HTTP on a loopback port, or a [`kube::Client`] without any port in between.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use quorate_devcluster::apiserver::{Fault, Options, Server, Which};
//!
//! let server = Server::start(Options::default()).await?;
//! let client = server.client_as("jane", &["dev"])?;
//! // The next two writes of jane conflict.
//! let guard = server.faults().requests(Which::any().user("jane").writes(), Fault::Conflict).times(2);
//! # drop((client, guard));
//! # Ok(())
//! # }
//! ```
//!
//! # The way of a request
//!
//! `http` reads it, `request` finds out what it means, `faults` may strike it, `api` sends it to its verb:
//! `read`, `watching`, `create`, `update` (with `patching`), `delete`, `eviction`, `subresources`. What is written goes
//! through `conform` (types, unknown fields, defaults), `admission` (webhooks), `strategy` or `crd` (what is the server's
//! to set, and what is refused), and ends in the `store`. What is read comes out as bytes that are kept beside each
//! object, or as a `table`. `builtin` is the list of kinds; `discovery` and `openapi` tell clients about them.
//!
//! # Where it differs from the real one, on purpose
//!
//! What is missing is refused with a `Status` that says so (405, 415, 422 or 501); what differs is this:
//!
//! - **One release** is played, 1.36, whatever [`Options::version`] says; only the Workload API can be had in the shapes of
//!   others, see [`WorkloadApi`].
//! - **Authorization** is not enforced: everybody may do everything, impersonation included. RBAC objects are stored, and
//!   access reviews say yes and why. A request without a token is `system:anonymous`.
//! - **Built-in admission** is limited to namespace lifecycle, priority classes, default tolerations and the default
//!   service account's name. There are no quotas, limit ranges, token volumes or admission policies, and a pod's service
//!   account need not exist.
//! - **Validation of built-in kinds** covers types, names, labels, owner references, containers, selectors, the numbers of
//!   budgets and what may change later; not every rule of every field. Types are those of one release: fields that came
//!   later are dropped as unknown, but for the links of pods to groups, see [`WorkloadApi`].
//! - **Custom resources**: conversion strategy None only. CEL has the standard library and the string extensions;
//!   `optionalOldSelf`, cost limits, and a compile-time check of types are missing, so a rule that is wrong shows when it
//!   runs. Trouble that an object had before an update, and still has, is let be; the real one looks closer at what
//!   changed. Removing a definition removes its objects at once, finalizers or not.
//! - **Webhooks** are not asked a second time (`reinvocationPolicy`), those with `matchConditions` may not use
//!   `authorizer`, and `clientConfig.service` goes to the first ready endpoint. A webhook without a `caBundle` is never
//!   trusted.
//! - **Eviction** waits 5 ms between tries where the real one waits half a second, and needs no round through a watch
//!   cache.
//! - **Server-side apply** tracks those who apply, and not those who write otherwise: only appliers conflict. Lists of
//!   custom resources are replaced as a whole. The body must be JSON.
//! - **Managed fields** hold what was applied and nothing else.
//! - **Protobuf** is read where typed Go clients insist on it, and only there: delete options, and the small objects that
//!   `kubectl create` makes. Everything else is JSON; answers always are.
//! - **Watches** end with 410 when history is compacted, even if they were up to date. Bookmarks come every
//!   [`Options::bookmark_every`].
//! - **Lists** carry `apiVersion` and `kind` in each item. A resource version that has not happened yet is refused at
//!   once; the real one waits three seconds for it.
//! - **Not served at all**: logs, exec, attach, port-forward and proxy, ephemeral containers, aggregated APIs, metrics,
//!   audit, OpenAPI schemas of built-in kinds (`kubectl explain` knows custom ones only).

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
pub use options::{Options, WorkloadApi};
pub use server::{Server, ServerError};
pub use users::User;
