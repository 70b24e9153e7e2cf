//! Questions, asked.

mod exec;
mod health;
mod http;
mod lanes;
mod redirect;
mod tcp;
#[cfg(test)]
mod tests;
mod tls;
mod unary;

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::TlsConnector;

use crate::round::Answer;
use crate::target::{Question, Target};
use lanes::Lanes;

/// How much of what a target says is told to people.
const WORDS: usize = 200;

/// Asks questions: as many at a time as there are places, each on a connection of its own.
#[derive(Clone)]
pub(crate) struct Asker {
    lanes: Lanes,
    tls: TlsConnector,
    cri: Option<Arc<PathBuf>>,
}

impl Asker {
    /// `places` are the connections that may be open at a time; `cri` is the socket of the container runtime, where
    /// commands may be run.
    pub(crate) fn new(places: usize, cri: Option<PathBuf>) -> anyhow::Result<Self> {
        Ok(Self { lanes: Lanes::new(places), tls: tls::connector()?, cri: cri.map(Arc::new) })
    }

    /// Asks, and says what came of it. `hangs`: nothing was heard the last time.
    pub(crate) async fn ask(&self, question: &Question, hangs: bool) -> Answer {
        let limit = question.timeout;
        let Ok(place) = tokio::time::timeout(limit, self.lanes.place(hangs)).await else {
            return Answer::Failed("the agent has too many connections open that do not answer".to_owned());
        };
        let answer = tokio::time::timeout(limit, self.put(question)).await;
        drop(place);
        match answer {
            Ok(Ok(())) => Answer::Passed,
            Ok(Err(why)) => Answer::Failed(words(&why)),
            Err(_) => Answer::TimedOut(limit),
        }
    }

    async fn put(&self, question: &Question) -> Result<(), String> {
        match &question.target {
            Target::Http { https, host, port, path, headers } => {
                let first =
                    http::Address { https: *https, host: host.clone(), port: *port, path: path.clone() };
                http::get(first, headers, &self.tls).await
            }
            Target::Tcp { host, port } => tcp::connect(host, *port).await.map(drop),
            Target::Grpc { host, port, service } => health::check(host, *port, service).await,
            Target::Exec { container, command } => match &self.cri {
                Some(socket) => exec::run(socket, container, command, question.timeout).await,
                None => Err("exec probes are off on this node: the agent has no --cri-socket".to_owned()),
            },
            Target::Nobody(why) => Err(why.clone()),
        }
    }
}

/// What a target said, fit for a condition: one line, not too long, nothing that a terminal would act on.
fn words(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let mut words: String = line.chars().filter(|c| !c.is_control()).take(WORDS).collect();
    if line.chars().count() > WORDS {
        words.push('…');
    }
    words
}
