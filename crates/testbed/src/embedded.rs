//! The embedded cluster, with the files that kubectl needs.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use quorate_devcluster::apiserver::{self, Server};

use crate::control_plane::Kubernetes;
use crate::folder::Folder;
use crate::{Options, User};

/// An API server in this process, and a folder for kubeconfigs.
#[derive(Debug)]
pub(crate) struct Embedded {
    server: Server,
    kubernetes: Kubernetes,
    /// Created with the first kubeconfig: most stories need none.
    folder: OnceLock<Folder>,
}

impl Embedded {
    /// Starts an embedded cluster with the same options as a real one.
    pub(crate) async fn start(options: &Options) -> Result<Self> {
        let server = apiserver::Options { workload_api: options.workload_api(), ..Default::default() };
        let server = Server::start(server).await.context("the embedded cluster does not start")?;
        Ok(Self { server, kubernetes: options.kubernetes, folder: OnceLock::new() })
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) fn kubernetes(&self) -> Kubernetes {
        self.kubernetes
    }

    pub(crate) fn config(&self, user: &User) -> kube::Config {
        self.server.config_as(user.name(), &groups(user))
    }

    pub(crate) fn kubeconfig(&self, user: &User) -> Result<PathBuf> {
        let path = tempfile::Builder::new()
            .prefix("kubeconfig-")
            .suffix(".json")
            .tempfile_in(self.folder()?.path())?
            .into_temp_path()
            .keep()?;
        let text = self.server.kubeconfig(user.name(), &groups(user));
        std::fs::write(&path, text.to_string())
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    fn folder(&self) -> Result<&Folder> {
        if let Some(folder) = self.folder.get() {
            return Ok(folder);
        }
        let folder = Folder::new("quorate-embedded-").context("cannot create a folder for kubeconfigs")?;
        // If another thread was faster, its folder is used and this one is dropped.
        Ok(self.folder.get_or_init(|| folder))
    }

    /// The path of a real program: kubectl is not embedded.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        crate::control_plane::find(self.kubernetes, name)
    }
}

fn groups(user: &User) -> Vec<&str> {
    user.groups().iter().map(String::as_str).collect()
}
