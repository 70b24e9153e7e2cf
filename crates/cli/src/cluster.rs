//! Flags that select a cluster and a namespace, as in kubectl.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use quorate_kit::Plain;

/// Flags that select a cluster.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Cluster {
    /// Path to the kubeconfig file; defaults to the kubeconfig that kubectl uses
    #[arg(long, global = true)]
    kubeconfig: Option<PathBuf>,
    /// Kubeconfig context to use
    #[arg(long, global = true)]
    context: Option<String>,
    /// Namespace that Quorate runs in
    #[arg(long, default_value = "quorate-system", global = true)]
    pub(crate) quorate_namespace: String,
}

/// Flags that select a cluster and a namespace.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Location {
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    /// Namespace; defaults to the namespace of the context
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// Explain the budgets of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
}

/// A connection to a cluster.
pub(crate) struct Connection {
    /// Returns errors at once, without retries.
    pub(crate) client: Client,
    /// The namespace of the context.
    pub(crate) namespace: String,
    address: String,
}

/// The oldest minor release that Quorate is tested on.
pub(crate) const OLDEST: u32 = 32;

/// Whether a release is older than the oldest tested one. A version that cannot be parsed is a custom build and passes.
pub(crate) fn is_too_old(release: &Info) -> bool {
    let minor: Option<u32> = release.minor.trim_end_matches('+').parse().ok();
    release.major == "1" && minor.is_some_and(|minor| minor < OLDEST)
}

impl Cluster {
    pub(crate) async fn connect(&self) -> Result<Connection> {
        let mut config = config(self.kubeconfig.clone(), self.context.clone()).await?;
        config.default_retry = false;
        let (namespace, address) = (config.default_namespace.clone(), config.cluster_url.to_string());
        let client = Client::try_from(config).context("cannot make a client of the kubeconfig")?;
        Ok(Connection { client, namespace, address })
    }
}

/// The API server does not answer.
#[derive(Debug)]
pub(crate) struct NoAnswer {
    address: String,
    why: String,
}

/// The remedy if the API server does not answer.
pub(crate) const CHECK_ADDRESS: &str =
    "check the address in the kubeconfig, or select another cluster with --context";

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { address, why } = self;
        write!(f, "the API server at {} does not answer ({why})", address.trim_end_matches('/'))
    }
}

impl Connection {
    /// The release of the API server; `None` if the API server answers but does not return its version.
    pub(crate) async fn release(&self) -> Result<Option<Info>, NoAnswer> {
        match self.client.apiserver_version().await {
            Ok(release) => Ok(Some(release)),
            Err(kube::Error::Api(_)) => Ok(None),
            Err(error) => Err(NoAnswer { address: self.address.clone(), why: Plain(&error).to_string() }),
        }
    }
}

/// The client configuration: from the given file, from the kubeconfig that kubectl uses, or from the pod's service
/// account.
pub(crate) async fn config(file: Option<PathBuf>, context: Option<String>) -> Result<Config> {
    let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let kubeconfig = match &file {
        Some(file) => {
            Kubeconfig::read_from(file).map_err(|error| unusable(&file.display().to_string(), &error))?
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
            Err(error) => return Err(unusable("the kubeconfig", &error)),
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

/// The error for a kubeconfig that cannot be read: its root cause and the remedy.
fn unusable(what: &str, error: &KubeconfigError) -> anyhow::Error {
    let mut cause: &dyn std::error::Error = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    // Some errors also show the lines around the mistake.
    let cause = cause.to_string();
    let why = cause.lines().next().unwrap_or_default();
    anyhow::anyhow!("cannot read {what}: {why}; name another with --kubeconfig or KUBECONFIG")
}
