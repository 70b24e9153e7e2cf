//! The cluster that a story uses, on either backend.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, ObjectMeta, PostParams};
use quorate_devcluster::actors::{ActorOptions, Actors, Identities, install_leader_worker_sets};
use quorate_devcluster::apiserver::{self, Server};

use crate::control_plane;
use crate::embedded::Embedded;
use crate::{Backend, ControlPlane, Kubectl, Kubernetes, Options, User, Wire};

/// A cluster for a story. Clones are the same cluster.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    /// Declared before the cluster itself, so that the actors are dropped first.
    actors: Option<Actors>,
    running: Running,
}

/// What a cluster stored at one time.
pub struct Backup(BackupData);

enum BackupData {
    Real(control_plane::Backup),
    Embedded(apiserver::Backup),
}

enum Running {
    Real(Box<ControlPlane>),
    Embedded(Embedded),
}

/// Which actors to run in place of real processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActorSet {
    /// The controllers of Kubernetes.
    Controllers,
    /// The controllers of Kubernetes, a scheduler, hollow nodes and the LeaderWorkerSet controller.
    All,
}

impl Cluster {
    /// Starts a cluster, with controllers if the options have them, but without nodes.
    pub(crate) async fn bare(backend: Backend, options: Options) -> Result<Self> {
        let actor_set = options.controllers.then_some(ActorSet::Controllers);
        Self::start(backend, options, actor_set).await
    }

    /// Starts a private cluster: an API server and, if the options have controllers, also the controllers, a scheduler,
    /// hollow nodes and the LeaderWorkerSet controller. It belongs to the runtime it is started in.
    pub async fn whole(backend: Backend, options: Options) -> Result<Self> {
        let actor_set = options.controllers.then_some(ActorSet::All);
        Self::start(backend, options, actor_set).await
    }

    async fn start(backend: Backend, options: Options, actor_set: Option<ActorSet>) -> Result<Self> {
        let running = match backend {
            Backend::Real => Running::Real(Box::new(ControlPlane::start(options).await?)),
            Backend::Embedded => Running::Embedded(Embedded::start(&options).await?),
        };
        let actors = match actor_set {
            Some(actor_set) => start_actors(&running, actor_set).await?,
            None => None,
        };
        Ok(Self { inner: Arc::new(Inner { actors, running }) })
    }

    /// The backend of this cluster.
    pub fn backend(&self) -> Backend {
        match &self.inner.running {
            Running::Real(_) => Backend::Real,
            Running::Embedded(_) => Backend::Embedded,
        }
    }

    /// The Kubernetes release. The embedded cluster uses the kubectl and the Workload API version of this release, and
    /// otherwise behaves as the newest release.
    pub fn kubernetes(&self) -> Kubernetes {
        match &self.inner.running {
            Running::Real(plane) => plane.options().kubernetes,
            Running::Embedded(embedded) => embedded.kubernetes(),
        }
    }

    /// Whether it behaves as a Kubernetes release before this one.
    pub fn is_before(&self, release: Kubernetes) -> bool {
        self.backend() == Backend::Real && self.kubernetes() < release
    }

    /// The control plane, if it is a real one.
    pub fn control_plane(&self) -> Option<&ControlPlane> {
        match &self.inner.running {
            Running::Real(plane) => Some(plane),
            Running::Embedded(_) => None,
        }
    }

    /// The API server, if it is the embedded one. It can inject faults.
    pub fn embedded(&self) -> Option<&Server> {
        match &self.inner.running {
            Running::Real(_) => None,
            Running::Embedded(embedded) => Some(embedded.server()),
        }
    }

    /// What is stored now, to restore later.
    pub fn back_up(&self) -> Result<Backup> {
        Ok(Backup(match &self.inner.running {
            Running::Real(plane) => BackupData::Real(plane.back_up()?),
            Running::Embedded(embedded) => BackupData::Embedded(embedded.server().back_up()),
        }))
    }

    /// Restores what was stored earlier, as an administrator restores etcd from a snapshot: the API server restarts, and
    /// resource versions go back.
    pub async fn restore(&self, backup: &Backup) -> Result<()> {
        match (&self.inner.running, &backup.0) {
            (Running::Real(plane), BackupData::Real(backup)) => plane.restore(backup).await?,
            (Running::Embedded(embedded), BackupData::Embedded(backup)) => embedded.server().restore(backup),
            _ => bail!("the backup is of another cluster"),
        }
        Ok(())
    }

    /// The hollow nodes and the other actors.
    pub fn actors(&self) -> &Actors {
        self.inner.actors.as_ref().expect("a setup with actors: stories!(Whole: …)")
    }

    /// The configuration of a client that acts as `user`, without kube's own retries.
    pub fn config(&self, user: &User) -> kube::Config {
        self.inner.running.config(user)
    }

    /// A client that acts as `user`. It belongs to the runtime it is made in.
    pub fn client(&self, user: &User) -> kube::Client {
        self.inner.running.client(user)
    }

    /// A client with all rights.
    pub fn admin(&self) -> kube::Client {
        self.client(&User::admin())
    }

    /// Plain HTTP with all rights.
    pub fn wire(&self) -> Wire {
        Wire::new(self.admin())
    }

    /// A kubeconfig file to act as `user`. It is removed with the cluster.
    pub fn kubeconfig(&self, user: &User) -> Result<PathBuf> {
        match &self.inner.running {
            Running::Real(plane) => plane.kubeconfig(user),
            Running::Embedded(embedded) => embedded.kubeconfig(user),
        }
    }

    /// The real kubectl, acting as `user`.
    pub fn kubectl(&self, user: &User) -> Result<Kubectl> {
        let program = match &self.inner.running {
            Running::Real(plane) => plane.program("kubectl")?,
            Running::Embedded(embedded) => embedded.program("kubectl")?,
        };
        Ok(Kubectl::new(program, self.kubeconfig(user)?))
    }

    /// A name that is unique in this cluster.
    pub fn unique(&self, stem: &str) -> String {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        format!("{stem}-{}", COUNTER.fetch_add(1, Ordering::Relaxed))
    }

    /// Creates a namespace in which pods can be created.
    pub async fn namespace(&self, stem: &str) -> Result<String> {
        let name = self.unique(stem);
        let client = self.admin();
        let namespace = Namespace { metadata: named(&name), ..Default::default() };
        Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("cannot create the namespace {name}"))?;
        // The API server rejects a pod until its namespace has a default service account. Without controllers, the
        // testbed must create it; a conflict means that a controller was faster.
        let account = ServiceAccount { metadata: named("default"), ..Default::default() };
        match Api::<ServiceAccount>::namespaced(client, &name).create(&PostParams::default(), &account).await
        {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            outcome => {
                outcome.with_context(|| format!("cannot create the default service account of {name}"))?;
            }
        }
        Ok(name)
    }
}

impl Running {
    fn config(&self, user: &User) -> kube::Config {
        match self {
            Self::Real(plane) => plane.config(user),
            Self::Embedded(embedded) => embedded.config(user),
        }
    }

    fn client(&self, user: &User) -> kube::Client {
        kube::Client::try_from(self.config(user)).expect("a client from the testbed's own configuration")
    }
}

/// Starts actors for the components that do not run as processes.
async fn start_actors(running: &Running, actor_set: ActorSet) -> Result<Option<Actors>> {
    let admin = running.client(&User::admin());
    let identities = Identities::impersonating(admin.clone());
    let options = match (running, actor_set) {
        (Running::Real(_), ActorSet::Controllers) => return Ok(None),
        (Running::Real(_), ActorSet::All) => ActorOptions::beside_controller_manager(),
        (Running::Embedded(_), ActorSet::Controllers) => {
            ActorOptions { scheduler: false, leader_worker_sets: false, ..ActorOptions::all() }
        }
        (Running::Embedded(_), ActorSet::All) => ActorOptions::all(),
    };
    if options.leader_worker_sets {
        install_leader_worker_sets(&admin).await.context("cannot install the LeaderWorkerSets")?;
    }
    Ok(Some(Actors::start(&identities, &options)))
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..Default::default() }
}
