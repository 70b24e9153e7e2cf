//! The face that a story sees: a cluster, whichever it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, ObjectMeta, PostParams};

use crate::{ControlPlane, Kubectl, Options, User, Wire};

/// A cluster to tell a story on. Clones are the same cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    place: Arc<Place>,
}

#[derive(Debug)]
enum Place {
    Real(ControlPlane),
}

impl Cluster {
    /// A real control plane of its own.
    pub async fn real(options: Options) -> Result<Self> {
        Ok(Self { place: Arc::new(Place::Real(ControlPlane::start(options).await?)) })
    }

    /// The control plane behind it, if it is a real one.
    pub fn control_plane(&self) -> Option<&ControlPlane> {
        match &*self.place {
            Place::Real(plane) => Some(plane),
        }
    }

    /// The configuration of a client that acts as `user`, without kube's own retries.
    pub fn config(&self, user: &User) -> kube::Config {
        match &*self.place {
            Place::Real(plane) => plane.config(user),
        }
    }

    /// A client that acts as `user`. It belongs to the runtime it is made in.
    pub fn client(&self, user: &User) -> kube::Client {
        kube::Client::try_from(self.config(user)).expect("the testbed's own configuration makes a client")
    }

    /// A client that may do everything.
    pub fn admin(&self) -> kube::Client {
        self.client(&User::admin())
    }

    /// Plain HTTP, as somebody who may do everything.
    pub fn wire(&self) -> Wire {
        Wire::new(self.admin())
    }

    /// The real kubectl, acting as `user`.
    pub fn kubectl(&self, user: &User) -> Result<Kubectl> {
        match &*self.place {
            Place::Real(plane) => Ok(Kubectl::new(plane.program("kubectl")?, plane.kubeconfig(user)?)),
        }
    }

    /// A name that nothing else in this cluster has.
    pub fn unique(&self, stem: &str) -> String {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        format!("{stem}-{}", COUNTER.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes a namespace in which pods can be made.
    pub async fn namespace(&self, stem: &str) -> Result<String> {
        let name = self.unique(stem);
        let client = self.admin();
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(name.clone()), ..Default::default() },
            ..Default::default()
        };
        Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("cannot make the namespace {name}"))?;
        // A pod is refused until its namespace has a default service account; without a controller nobody makes one.
        // A controller that was faster is no reason to fail.
        let account = ServiceAccount {
            metadata: ObjectMeta { name: Some("default".to_owned()), ..Default::default() },
            ..Default::default()
        };
        match Api::<ServiceAccount>::namespaced(client, &name).create(&PostParams::default(), &account).await
        {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            outcome => {
                outcome.with_context(|| format!("cannot make the default service account of {name}"))?;
            }
        }
        Ok(name)
    }
}
