//! Stories: tests that are written once and told in several places.
//!
//! ```no_run
//! # // `no_run`: a story needs a built control plane.
//! use quorate_testbed::{Cluster, stories};
//!
//! stories!(ApiServer: a_namespace_is_empty_at_first);
//!
//! async fn a_namespace_is_empty_at_first(cluster: Cluster) {
//!     let namespace = cluster.namespace("empty").await.expect("a namespace");
//!     // …
//! }
//! # fn main() {}
//! ```
//!
//! makes the tests `real::a_namespace_is_empty_at_first` and `embedded::a_namespace_is_empty_at_first`.

use std::time::Duration;

use tokio::sync::OnceCell;

use crate::{Cluster, Options};

/// No story takes longer, also on a busy machine; a hanging one fails instead of blocking all others.
const LONGEST: Duration = Duration::from_secs(180);

/// Where a story is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A real control plane.
    Real,
}

/// What a story needs to find there. The stories of one test binary that need the same share one cluster, each with
/// namespaces and names of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// An API server and nobody else: nothing happens that the story does not do.
    ApiServer,
    /// The controllers of Kubernetes as well.
    Controllers,
    /// A cluster that no other story sees.
    Private(Options),
}

type Shared = OnceCell<Result<Cluster, String>>;

/// Tells `story` at `place` on `stage`; panics if it fails.
pub fn tell<S, F>(place: Place, stage: Stage, story: S)
where
    S: FnOnce(Cluster) -> F,
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime for the story");
    runtime.block_on(async {
        let cluster = match set(place, stage).await {
            Ok(cluster) => cluster,
            Err(error) => panic!("{error}"),
        };
        if tokio::time::timeout(LONGEST, story(cluster)).await.is_err() {
            panic!("the story did not end within {} s", LONGEST.as_secs());
        }
    });
}

async fn set(place: Place, stage: Stage) -> Result<Cluster, String> {
    static REAL_API_SERVER: Shared = Shared::const_new();
    static REAL_CONTROLLERS: Shared = Shared::const_new();
    match (place, stage) {
        (Place::Real, Stage::ApiServer) => shared(&REAL_API_SERVER, Options::default()).await,
        (Place::Real, Stage::Controllers) => {
            shared(&REAL_CONTROLLERS, Options { controllers: true, ..Options::default() }).await
        }
        (Place::Real, Stage::Private(options)) => real(options).await,
    }
}

/// The cluster in `cell`, started by whoever comes first. A failure is kept, so that the others need not wait for
/// theirs.
async fn shared(cell: &Shared, options: Options) -> Result<Cluster, String> {
    cell.get_or_init(|| real(options)).await.clone()
}

async fn real(options: Options) -> Result<Cluster, String> {
    Cluster::real(options).await.map_err(|error| format!("{error:#}"))
}

/// Makes a test of each named story for each place: `stories!(Controllers: one, another);`.
#[macro_export]
macro_rules! stories {
    ($stage:ident: $($story:ident),+ $(,)?) => {
        mod real {
            $(
                #[test]
                fn $story() {
                    $crate::tell($crate::Place::Real, $crate::Stage::$stage, super::$story);
                }
            )+
        }
    };
}
