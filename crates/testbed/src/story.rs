//! Stories: tests that are written once and told in several places.
//!
//! ```
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

use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::OnceCell;

use crate::{Cluster, Options};

/// No story takes longer, also on a busy machine; a hanging one fails instead of blocking all others.
const LONGEST: Duration = Duration::from_secs(180);

/// Where a story is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A real control plane.
    Real,
    /// The embedded cluster.
    Embedded,
}

/// What a story needs to find there.
///
/// A real control plane takes seconds to start, so the stories of one test binary share it where namespaces and names
/// of their own are enough to keep them apart. An embedded one is always the story's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setup {
    /// An API server and nobody else: nothing happens that the story does not do. Shared.
    ApiServer,
    /// The controllers of Kubernetes as well, but no nodes: no pod runs unless the story says so. Shared.
    Controllers,
    /// Controllers, scheduler, hollow nodes to be added, LeaderWorkerSets. The story's own.
    Whole,
    /// As the options say; the story's own.
    Private(Options),
    /// As the options say, and nobody plays: what is to run on nodes runs on real ones. The story's own.
    Bare(Options),
}

type Shared = OnceCell<Result<Cluster, String>>;

/// Tells `story` at `place` on `stage`; panics if it fails.
pub fn run_story<S, F>(place: Backend, stage: Setup, story: S)
where
    S: FnOnce(Cluster) -> F,
    F: Future<Output = ()>,
{
    runtime().block_on(async {
        let cluster = match set(place, stage).await {
            Ok(cluster) => cluster,
            Err(error) => panic!("{error}"),
        };
        if tokio::time::timeout(LONGEST, story(cluster)).await.is_err() {
            panic!("the story did not end within {} s", LONGEST.as_secs());
        }
    });
}

async fn set(place: Backend, stage: Setup) -> Result<Cluster, String> {
    static API_SERVER: Shared = Shared::const_new();
    static CONTROLLERS: Shared = Shared::const_new();
    let with_controllers = || Options { controllers: true, ..Options::default() };
    match (place, stage) {
        (Backend::Real, Setup::ApiServer) => shared(&API_SERVER, Options::default()).await,
        (Backend::Real, Setup::Controllers) => shared(&CONTROLLERS, with_controllers()).await,
        (Backend::Embedded, Setup::ApiServer) => readable(Cluster::bare(place, Options::default()).await),
        (Backend::Embedded, Setup::Controllers) => readable(Cluster::bare(place, with_controllers()).await),
        (_, Setup::Whole) => readable(Cluster::whole(place, with_controllers()).await),
        (_, Setup::Private(options)) => readable(Cluster::whole(place, options).await),
        (_, Setup::Bare(options)) => readable(Cluster::bare(place, options).await),
    }
}

/// The real cluster in `cell`, started by whoever comes first. A failure is kept, so that the others need not wait for
/// theirs. It outlives the story, so it is started in a runtime that does too.
async fn shared(cell: &Shared, options: Options) -> Result<Cluster, String> {
    static BACKSTAGE: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    let start = || async {
        let starting = BACKSTAGE.get_or_init(runtime).spawn(Cluster::bare(Backend::Real, options));
        readable(starting.await.unwrap_or_else(|panic| Err(panic.into())))
    };
    cell.get_or_init(start).await.clone()
}

fn readable(outcome: anyhow::Result<Cluster>) -> Result<Cluster, String> {
    outcome.map_err(|error| format!("{error:#}"))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime for the story")
}

/// Makes a test of each named story for each place: `stories!(Controllers: one, another);`.
///
/// The word before the colon is one of [`Stage`]'s; `Private` takes its options along: `stories!(Private(options()): …)`.
#[macro_export]
macro_rules! stories {
    ($stage:ident $(($options:expr))?: $($story:ident),+ $(,)?) => {
        fn stage_of_these_stories() -> $crate::Setup {
            $crate::Setup::$stage $(($options))?
        }

        mod real {
            $(
                #[test]
                fn $story() {
                    $crate::run_story($crate::Backend::Real, super::stage_of_these_stories(), super::$story);
                }
            )+
        }

        mod embedded {
            $(
                #[test]
                fn $story() {
                    $crate::run_story($crate::Backend::Embedded, super::stage_of_these_stories(), super::$story);
                }
            )+
        }
    };
}
