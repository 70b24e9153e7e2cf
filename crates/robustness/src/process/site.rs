//! The cluster of a run: the embedded API server, or a real control plane.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_devcluster::actors::{ActorOptions, Actors, Identities, Timing, groups_of};
use quorate_devcluster::apiserver::{self, Clock, Observer, Server};
use quorate_testbed::{ControlPlane, Options, User};

use crate::http::Http;
use crate::servers::OWN;

/// How long pods take on the hollow nodes.
const TIMING: Timing = Timing { start: Duration::from_millis(1500), termination: Duration::from_millis(500) };

/// Which cluster a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Cluster {
    /// The embedded API server: every fault that it offers
    Embedded,
    /// etcd, kube-apiserver and kube-controller-manager: faults of processes and of rights
    Real,
}

/// A running cluster.
pub(super) enum Site {
    Embedded(Arc<Server>),
    Real(Box<ControlPlane>),
}

impl Site {
    /// Starts a cluster. `observer` records what happens on an embedded one.
    pub(super) async fn start(cluster: Cluster, observer: Arc<dyn Observer>) -> Result<Self> {
        match cluster {
            Cluster::Embedded => {
                let options = apiserver::Options {
                    clock: Clock::system(),
                    observer: Some(observer),
                    bookmark_every: Duration::from_secs(20),
                    ..apiserver::Options::default()
                };
                Ok(Self::Embedded(Arc::new(Server::start(options).await?)))
            }
            Cluster::Real => {
                let options = Options { controllers: true, recorded: true, ..Options::default() };
                Ok(Self::Real(Box::new(ControlPlane::start(options).await?)))
            }
        }
    }

    /// The embedded API server.
    pub(super) fn embedded(&self) -> Option<&Arc<Server>> {
        match self {
            Self::Embedded(api) => Some(api),
            Self::Real(_) => None,
        }
    }

    /// The real control plane.
    pub(super) fn real(&self) -> Option<&ControlPlane> {
        match self {
            Self::Embedded(_) => None,
            Self::Real(plane) => Some(plane),
        }
    }

    /// A client that acts as this user.
    pub(super) fn client(&self, user: &User) -> Result<kube::Client> {
        match self {
            Self::Embedded(api) => Ok(api.local_client_as(user.name(), &groups(user))),
            Self::Real(plane) => Ok(kube::Client::try_from(plane.config(user))?),
        }
    }

    /// Plain requests of this user.
    pub(super) fn http(&self, user: &User) -> Result<Http> {
        Ok(Http::new(self.client(user)?))
    }

    /// A kubeconfig file to act as this user. That for the embedded API server is in `folder`.
    pub(super) fn kubeconfig(&self, user: &User, folder: &Path, name: &str) -> Result<PathBuf> {
        match self {
            Self::Embedded(api) => {
                let path = folder.join(format!("{name}.json"));
                std::fs::write(&path, api.kubeconfig(user.name(), &groups(user)).to_string())
                    .with_context(|| format!("cannot write {}", path.display()))?;
                Ok(path)
            }
            Self::Real(plane) => plane.kubeconfig(user),
        }
    }

    /// The user of a server. On the embedded API server, which has no RBAC, each has another, so that a fault can hit it
    /// alone. On a real one all have the account of the chart.
    pub(super) fn user_of_server(&self, name: &str) -> User {
        match self {
            Self::Embedded(_) => User::service_account(OWN, name),
            Self::Real(_) => User::service_account(OWN, "quorate-server"),
        }
    }

    /// The address on which servers listen: a real API server rejects endpoints on the loopback.
    pub(super) fn address(&self) -> Result<IpAddr> {
        if self.embedded().is_some() {
            return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        // Nothing is sent: the kernel only selects the local address.
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect("203.0.113.1:9").context("this machine has no address but its loopback")?;
        Ok(socket.local_addr()?.ip())
    }

    /// Starts the components that do not run as processes. LeaderWorkerSets must be defined before.
    pub(super) fn actors(&self) -> Result<Actors> {
        let (identities, options) = match self {
            Self::Embedded(api) => {
                let api = api.clone();
                let identities = Identities::new(move |user| {
                    let groups = groups_of(user);
                    api.local_client_as(user, &groups.iter().map(String::as_str).collect::<Vec<_>>())
                });
                (identities, ActorOptions::all())
            }
            Self::Real(_) => {
                let admin = self.client(&User::admin())?;
                (Identities::impersonating(admin), ActorOptions::beside_controller_manager())
            }
        };
        Ok(Actors::start(&identities, &ActorOptions { timing: TIMING, ..options }))
    }
}

fn groups(user: &User) -> Vec<&str> {
    user.groups().iter().map(String::as_str).collect()
}
