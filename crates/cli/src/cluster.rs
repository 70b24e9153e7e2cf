//! Which cluster, and where in it: the flags that kubectl has too.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// A cluster.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Cluster {
    /// How to reach the API server; without it, as kubectl would
    #[arg(long, global = true)]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, global = true)]
    context: Option<String>,
    /// The namespace that Quorate itself runs in
    #[arg(long, default_value = "quorate-system", global = true)]
    pub(crate) quorate_namespace: String,
}

/// A place in a cluster.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Place {
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    /// The namespace; without it, that of the context
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
}

impl Cluster {
    /// A client that reports what it is answered, at once, and the namespace of the context.
    pub(crate) async fn connect(&self) -> Result<(Client, String)> {
        let mut config = config(self.kubeconfig.clone(), self.context.clone()).await?;
        config.default_retry = false;
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config).context("cannot make a client of the kubeconfig")?;
        Ok((client, namespace))
    }
}

/// How to reach a cluster: by a file that is named, as kubectl would find one, or as a pod does.
pub(crate) async fn config(file: Option<PathBuf>, context: Option<String>) -> Result<Config> {
    let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let kubeconfig = match &file {
        Some(file) => {
            Kubeconfig::read_from(file).with_context(|| format!("cannot read {}", file.display()))?
        }
        None => match Kubeconfig::read() {
            Ok(kubeconfig) => kubeconfig,
            Err(KubeconfigError::ReadConfig(..) | KubeconfigError::FindPath) if context.is_none() => {
                return Config::incluster().map_err(|_| {
                    anyhow::anyhow!(
                        "there is no kubeconfig: name one with --kubeconfig or KUBECONFIG, or put it at ~/.kube/config"
                    )
                });
            }
            Err(error) => return Err(error).context("cannot read the kubeconfig"),
        },
    };
    if let Some(wanted) = &context
        && !kubeconfig.contexts.iter().any(|named| named.name == *wanted)
    {
        let known: Vec<&str> = kubeconfig.contexts.iter().map(|named| named.name.as_str()).collect();
        bail!("there is no context {wanted} in the kubeconfig: it has {}", known.join(", "));
    }
    Config::from_custom_kubeconfig(kubeconfig, &options).await.context("cannot use the kubeconfig")
}
