//! Stories: tests that are written once and run on several backends.
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

/// Timeout of a story, long enough for a busy machine. A hanging story fails instead of blocking all others.
const LONGEST: Duration = Duration::from_secs(600);

/// The kind of cluster that a story runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A real control plane.
    Real,
    /// The embedded cluster.
    Embedded,
}

/// What a story needs in the cluster.
///
/// A real control plane takes seconds to start, so the stories of one test binary share it if separate namespaces and
/// names keep them apart. An embedded cluster is never shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setup {
    /// Only an API server: nothing happens that the story does not do itself. Shared.
    ApiServer,
    /// An API server and the controllers of Kubernetes, but no nodes: no pod runs unless the story sets its status.
    /// Shared.
    Controllers,
    /// Controllers, a scheduler and LeaderWorkerSets; the story adds hollow nodes. Not shared.
    Whole,
    /// As `Whole`, but with these options. Not shared.
    Private(Options),
    /// With these options, and without actors beside a real control plane: pods run on real nodes. Not shared.
    Bare(Options),
}

type Shared = OnceCell<Result<Cluster, String>>;

/// Runs `story` on this backend with this setup; panics if it fails.
pub fn run_story<S, F>(backend: Backend, setup: Setup, story: S)
where
    S: FnOnce(Cluster) -> F,
    F: Future<Output = ()>,
{
    runtime().block_on(async {
        let cluster = match start_cluster(backend, setup).await {
            Ok(cluster) => cluster,
            Err(error) => panic!("{error}"),
        };
        if tokio::time::timeout(LONGEST, story(cluster)).await.is_err() {
            panic!("the story did not end within {} s", LONGEST.as_secs());
        }
    });
}

async fn start_cluster(backend: Backend, setup: Setup) -> Result<Cluster, String> {
    static API_SERVER: Shared = Shared::const_new();
    static CONTROLLERS: Shared = Shared::const_new();
    let with_controllers = || Options { controllers: true, ..Options::default() };
    match (backend, setup) {
        (Backend::Real, Setup::ApiServer) => shared(&API_SERVER, Options::default()).await,
        (Backend::Real, Setup::Controllers) => shared(&CONTROLLERS, with_controllers()).await,
        (Backend::Embedded, Setup::ApiServer) => readable(Cluster::bare(backend, Options::default()).await),
        (Backend::Embedded, Setup::Controllers) => readable(Cluster::bare(backend, with_controllers()).await),
        (_, Setup::Whole) => readable(Cluster::whole(backend, with_controllers()).await),
        (_, Setup::Private(options)) => readable(Cluster::whole(backend, options).await),
        (_, Setup::Bare(options)) => readable(Cluster::bare(backend, options).await),
    }
}

/// The real cluster in `cell`. The first story starts it. A failure is kept, so that the other stories do not wait for
/// another start. The cluster outlives the story, so it is started in a runtime that outlives the story too.
async fn shared(cell: &Shared, options: Options) -> Result<Cluster, String> {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    let start = || async {
        let starting = RUNTIME.get_or_init(runtime).spawn(Cluster::bare(Backend::Real, options));
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

/// Makes a test of each named story for each [`Backend`]: `stories!(Controllers: one, another);`.
///
/// The word before the colon is a variant of [`Setup`]; `Private` takes options: `stories!(Private(options()): …)`.
#[macro_export]
macro_rules! stories {
    ($setup:ident $(($options:expr))?: $($story:ident),+ $(,)?) => {
        fn setup_of_stories() -> $crate::Setup {
            $crate::Setup::$setup $(($options))?
        }

        mod real {
            $(
                #[test]
                fn $story() {
                    $crate::run_story($crate::Backend::Real, super::setup_of_stories(), super::$story);
                }
            )+
        }

        mod embedded {
            $(
                #[test]
                fn $story() {
                    $crate::run_story($crate::Backend::Embedded, super::setup_of_stories(), super::$story);
                }
            )+
        }
    };
}
