//! Runs probes.

mod exec;
mod grpc;
mod health;
mod http;
mod redirect;
mod slots;
mod tcp;
#[cfg(test)]
mod tests;
mod tls;

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::TlsConnector;

use crate::container_probe::ProbeResult;
use crate::target::{ProbeRequest, ProbeTarget};
use slots::ProbeSlots;

/// Longest text of a target that goes into a condition, in characters.
const MAX_TEXT: usize = 200;

/// Runs probes, each on its own connection. The number of slots limits the probes that run at a time.
#[derive(Clone)]
pub(crate) struct Prober {
    slots: ProbeSlots,
    tls: TlsConnector,
    cri: Option<Arc<PathBuf>>,
}

impl Prober {
    /// `slots` is the maximum number of open connections; `cri` is the socket of the container runtime, or `None` if
    /// exec probes are off.
    pub(crate) fn new(slots: usize, cri: Option<PathBuf>) -> anyhow::Result<Self> {
        Ok(Self { slots: ProbeSlots::new(slots), tls: tls::connector()?, cri: cri.map(Arc::new) })
    }

    /// Runs a probe and returns its result. `hangs` means that the last probe of this target timed out.
    pub(crate) async fn probe(&self, request: &ProbeRequest, hangs: bool) -> ProbeResult {
        let limit = request.timeout;
        let Ok(slot) = tokio::time::timeout(limit, self.slots.acquire(hangs)).await else {
            return ProbeResult::Failed(
                "the agent has too many open connections to targets that do not answer".to_owned(),
            );
        };
        let answer = tokio::time::timeout(limit, self.run(request)).await;
        drop(slot);
        match answer {
            Ok(Ok(())) => ProbeResult::Passed,
            Ok(Err(why)) => ProbeResult::Failed(one_line(&why)),
            Err(_) => ProbeResult::TimedOut(limit),
        }
    }

    async fn run(&self, request: &ProbeRequest) -> Result<(), String> {
        match &request.target {
            ProbeTarget::Http { https, host, port, path, headers } => {
                let first =
                    http::Address { https: *https, host: host.clone(), port: *port, path: path.clone() };
                http::get(first, headers, &self.tls).await
            }
            ProbeTarget::Tcp { host, port } => tcp::connect(host, *port).await.map(drop),
            ProbeTarget::Grpc { host, port, service } => health::check(host, *port, service).await,
            ProbeTarget::Exec { container, command } => match &self.cri {
                Some(socket) => exec::run(socket, container, command, request.timeout).await,
                None => Err("exec probes are off on this node: the agent has no --cri-socket".to_owned()),
            },
            ProbeTarget::Unknown(why) => Err(why.clone()),
        }
    }
}

/// The text of a target in a form fit for a condition: one line, limited length, no control characters for a terminal.
fn one_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let mut kept: String = line.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect();
    if line.chars().count() > MAX_TEXT {
        kept.push('…');
    }
    kept
}
