//! One process, from its Lease to its end.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use kube::Client;
use quorate_engine::basics::Version;
use quorate_engine::ledger::Event;
use quorate_kit::{Plain, https, tls};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::admission::{self, Desk};
use crate::calls::Calls;
use crate::keeper::{self, Outbox};
use crate::members::{self, Members};
use crate::stored::Stored;
use crate::webhooks::{self, Address};
use crate::{adoption, feed, status};

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The API server, and who we are there.
    pub kubernetes: kube::Config,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where the API server reaches us, as `https://host:port`. Without it, where we listen.
    pub webhook_url: Option<String>,
    /// The namespace of our own objects.
    pub namespace: String,
    /// Tell the API server to ask us.
    pub register_webhooks: bool,
}

/// A server at work.
#[derive(Debug)]
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    task: JoinHandle<Result<()>>,
}

impl Running {
    /// Waits for its end.
    ///
    /// # Errors
    /// It did not end because it was told to.
    pub async fn ended(self) -> Result<()> {
        self.task.await.context("the server's task broke off")?
    }
}

/// Starts a server; it ends when `stop` is cancelled.
///
/// The order matters. First the Lease, then a list of the budgets: whoever opens a budget waits for every process that
/// could decide without knowing it, and finds them by their Leases.
///
/// # Errors
/// It cannot listen, or the API server does not take its Lease or its webhooks.
pub async fn start(options: Options, stop: CancellationToken) -> Result<Running> {
    let mut config = options.kubernetes;
    // Whether a write was refused is for the protocol to know, at once.
    config.default_retry = false;
    let client = Client::try_from(config).context("cannot make a client")?;
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("cannot listen on {}", options.listen))?;
    let address = listener.local_addr()?;
    let url = options.webhook_url.unwrap_or_else(|| format!("https://{address}"));
    let authority = tls::Authority::generate("Quorate")?;
    let tls = authority.issue(&[host(&url)?])?.server_config()?;

    let name = members::unique_name();
    let members = Arc::new(Members::new(client.clone(), options.namespace.clone(), name.clone()));
    members.join().await?;

    let stored = Arc::new(Stored::default());
    let calls = Arc::new(Calls::new(client.clone(), stored.clone(), members.clone()));
    let (changed, changes) = mpsc::unbounded_channel();
    let (acknowledged, acknowledgements) = watch::channel(Version(0));
    let keeper = keeper::start(&name, calls.clone(), Outbox { changed, acknowledged });
    let (holder, holds) = watch::channel(true);
    let (twins, adoption) = adoption::start(&client, holds);
    let watches = feed::start(&client, &keeper, &stored, &options.namespace, &twins);
    keeper.tell(Event::Holder(true)).await;
    let writer = tokio::spawn(status::run(changes, keeper.clone(), calls, stored));

    let current = members.clone();
    let router = admission::router(Desk::new(keeper.clone(), move || current.is_current()));
    let serving = tokio::spawn(https::serve(listener, tls, router, stop.child_token()));
    if options.register_webhooks {
        let address = Address { url, ca: authority.pem().to_owned(), namespace: options.namespace };
        if let Err(error) = webhooks::register(&client, &address).await {
            stop.cancel();
            anyhow::bail!("cannot register the webhooks: {}", Plain(&error));
        }
    }
    info!(%address, name, "serving");

    let task = tokio::spawn(async move {
        let outcome = members.stay(acknowledgements, &keeper, stop.clone()).await;
        stop.cancel();
        let _ = serving.await;
        writer.abort();
        adoption.abort();
        drop((watches, holder));
        outcome
    });
    Ok(Running { address, task })
}

/// The host of a URL, as certificates name it.
fn host(url: &str) -> Result<String> {
    let uri: http::Uri = url.parse().with_context(|| format!("{url} is not a URL"))?;
    let host = uri.host().with_context(|| format!("{url} names no host"))?;
    anyhow::ensure!(uri.scheme_str() == Some("https"), "{url} must begin with https://");
    Ok(host.trim_matches(['[', ']']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::host;

    #[test]
    fn the_host_of_a_url() {
        assert_eq!(host("https://127.0.0.1:8443").unwrap(), "127.0.0.1");
        assert_eq!(host("https://[::1]:8443").unwrap(), "::1");
        assert_eq!(host("https://quorate.example/base").unwrap(), "quorate.example");
        assert!(host("http://127.0.0.1").is_err());
        assert!(host("nonsense").is_err());
    }
}
