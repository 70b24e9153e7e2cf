//! A proxy from a node to the API server, which listens only on this machine's loopback.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Forwards connections until it is dropped.
#[derive(Debug)]
pub(super) struct ApiServerProxy {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl ApiServerProxy {
    /// Listens on this address of this machine, and forwards to `port` on its loopback.
    pub(super) async fn open(address: Ipv4Addr, port: u16) -> Result<Self> {
        let listener = TcpListener::bind((address, 0)).await;
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((mut inside, _)) = listener.accept().await {
                open.spawn(async move {
                    if let Ok(mut outside) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                        // The client and the API server see errors of the connection themselves.
                        let _ = copy_bidirectional(&mut inside, &mut outside).await;
                    }
                });
                while open.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, task })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ApiServerProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}
