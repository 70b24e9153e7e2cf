//! `quorate server`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use quorate_server::certificates::{CertificateSource, Rotation};
use quorate_server::webhooks::{Endpoint, ManagedBy};
use quorate_server::{ClientCertificates, Options, ServePub};
use tokio_util::sync::CancellationToken;

use crate::cluster;
use crate::gates::Features;
use crate::process;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Path to the kubeconfig file; defaults to the kubeconfig that kubectl uses, then to the pod's service account
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Address to serve the admission webhooks on
    #[arg(long, default_value = "0.0.0.0:9443")]
    listen: SocketAddr,
    /// Address to serve /healthz, /readyz and /metrics on
    #[arg(long, default_value = "0.0.0.0:9090")]
    admin_listen: SocketAddr,
    /// URL at which the API server calls this process, as https://host:port; defaults to the --listen address
    #[arg(long, conflicts_with = "webhook_service")]
    webhook_url: Option<String>,
    /// Service in --namespace through which the API server calls this process, as name or name:port
    #[arg(long, value_parser = service)]
    webhook_service: Option<Endpoint>,
    /// Serving certificate, followed by its intermediate CAs; omit to issue one from Quorate's own CA
    #[arg(long, requires = "tls_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Private key of the serving certificate
    #[arg(long, requires = "tls_cert_file")]
    tls_key_file: Option<PathBuf>,
    /// CA bundle to publish; omit if managed elsewhere
    #[arg(long, requires = "tls_cert_file")]
    tls_ca_file: Option<PathBuf>,
    /// CA bundle that verifies the API server's client certificate; without it, every client may send reviews
    #[arg(long)]
    client_ca_file: Option<PathBuf>,
    /// Common name that the client certificate must have; repeat for several; without it, any name
    #[arg(long, requires = "client_ca_file")]
    client_name: Vec<String>,
    /// Feature gates to set, as Name=true,Other=false
    #[arg(long, value_parser = crate::gates::parse, default_value = "")]
    feature_gates: Features,
    /// Whether to serve OpenKruise's PodUnavailableBudgets: auto (unless OpenKruise's pod webhooks are registered),
    /// always (OpenKruise must have its PodUnavailableBudget gates off), or never
    #[arg(long, value_parser = serve_pub, default_value = "auto")]
    serve_pub: ServePub,
    /// Seconds until an unused admission expires
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(40..=3600))]
    claim_expiry_seconds: u64,
    /// Seconds to keep serving after SIGTERM
    #[arg(long, default_value_t = 20)]
    shutdown_delay_seconds: u64,
    /// Namespace of Quorate's own objects
    #[arg(long, default_value = "quorate-system")]
    namespace: String,
    /// Write the webhook configurations
    #[arg(long, conflicts_with = "keep_ca_bundle")]
    register_webhooks: bool,
    /// Update only the caBundle of webhook configurations that another tool writes, such as Helm
    #[arg(long)]
    keep_ca_bundle: bool,
    /// Safety rule to leave out, to show that a test notices. Only test builds have this flag
    #[cfg(feature = "mutations")]
    #[arg(long, hide = true)]
    without: Option<String>,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    process::log();
    #[cfg(feature = "mutations")]
    if let Some(rule) = &args.without {
        quorate_engine::leave_out(rule)?;
    }
    let options = Options {
        kubernetes: cluster::config(args.kubeconfig, None).await?,
        listen: args.listen,
        admin: args.admin_listen,
        endpoint: args.webhook_url.map(Endpoint::Url).or(args.webhook_service),
        namespace: args.namespace,
        webhooks: match (args.register_webhooks, args.keep_ca_bundle) {
            (true, _) => ManagedBy::Server,
            (false, true) => ManagedBy::CaBundleOnly,
            (false, false) => ManagedBy::Others,
        },
        certificates: match (args.tls_cert_file, args.tls_key_file) {
            (Some(certificate), Some(key)) => {
                CertificateSource::Files { certificate, key, authority: args.tls_ca_file }
            }
            _ => CertificateSource::Own(Rotation::default()),
        },
        clients: args
            .client_ca_file
            .map(|authority| ClientCertificates { authority, names: args.client_name }),
        gates: args.feature_gates.gates,
        propagate_owner_references: args.feature_gates.propagate_owner_references,
        serve_pub: if args.feature_gates.pod_unavailable_budget { args.serve_pub } else { ServePub::Never },
        claim_expiry: Duration::from_secs(args.claim_expiry_seconds),
        fresh_for: quorate_engine::FRESH_FOR,
        shutdown_delay: Duration::from_secs(args.shutdown_delay_seconds),
    };
    let stop = CancellationToken::new();
    let server = quorate_server::start(options, stop.clone()).await?;
    process::stop_on_signal(stop)?;
    server.ended().await
}

/// A Service name with an optional port; defaults to 443.
fn service(text: &str) -> Result<Endpoint, String> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => {
            let port = port.parse().map_err(|_| format!("{port} is not a port"))?;
            (name, port)
        }
        None => (text, 443),
    };
    Ok(Endpoint::Service { name: name.to_owned(), port })
}

/// The value of --serve-pub.
fn serve_pub(text: &str) -> Result<ServePub, String> {
    ServePub::named(text).ok_or_else(|| "must be auto, always or never".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_a_service_defaults_to_443() {
        let endpoint = |port| Ok(Endpoint::Service { name: "quorate".to_owned(), port });
        assert_eq!(service("quorate"), endpoint(443));
        assert_eq!(service("quorate:9443"), endpoint(9443));
        assert_eq!(service("quorate:x"), Err("x is not a port".to_owned()));
    }
}
