//! What happened on a real control plane.
//!
//! Objects come from etcd: one watch of all keys, from the first revision on, so that no revision is missing, whatever
//! becomes of the API server. Requests come from the audit log. It has times and no revisions, so the revision of etcd is
//! read every few milliseconds: a request is judged by the last revision that was read before it arrived, and by the first
//! one that was requested after it had ended. Both can only make the span of the request longer.

mod audit;
mod etcd;
mod revisions;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use quorate_testbed::ControlPlane;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::etcd::Etcd;
use self::revisions::Revisions;
use crate::history::{History, Request};
use crate::recorder::Recorder;

/// How often the revision is read.
const PERIOD: Duration = Duration::from_millis(20);

/// Longest time until the watch has shown the last revision.
const PATIENCE: Duration = Duration::from_secs(30);

/// Records a real control plane.
pub(in crate::process) struct Truth {
    recorder: Arc<Recorder>,
    etcd: Etcd,
    audit_log: PathBuf,
    /// The time of day when the recorder started.
    epoch: SystemTime,
    seen: Arc<Mutex<Seen>>,
    tasks: JoinSet<Result<()>>,
}

/// What was seen of etcd.
#[derive(Debug, Default)]
struct Seen {
    revisions: Revisions,
    /// The latest revision that the watch has shown.
    watched: u64,
}

impl Seen {
    /// Whether everything up to this revision was seen.
    fn has(&self, revision: u64) -> bool {
        self.watched >= revision && self.revisions.last().is_some_and(|read| read >= revision)
    }
}

impl Truth {
    /// Records from the first revision on.
    pub(in crate::process) fn start(plane: &ControlPlane, recorder: Arc<Recorder>) -> Result<Self> {
        let audit_log = plane.audit_log().context("the control plane has no audit log")?;
        let etcd = Etcd::at(&plane.etcd_url())?;
        let epoch = SystemTime::now() - recorder.now();
        let seen = Arc::<Mutex<Seen>>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(watch(etcd.clone(), recorder.clone(), seen.clone()));
        tasks.spawn(read(etcd.clone(), recorder.clone(), seen.clone()));
        Ok(Self { recorder, etcd, audit_log, epoch, seen, tasks })
    }

    /// Ends the recording. All clients have ended before.
    pub(in crate::process) async fn finish(mut self) -> Result<History> {
        let last = self.etcd.touch().await?;
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(ended) = self.tasks.try_join_next() {
                ended??;
                bail!("the recording of etcd ended");
            }
            if self.seen.lock().has(last) {
                break;
            }
            if Instant::now() > end {
                bail!("the watch of etcd has not shown revision {last} after {} s", PATIENCE.as_secs());
            }
            tokio::time::sleep(PERIOD).await;
        }
        self.tasks.shutdown().await;
        let log = std::fs::read_to_string(&self.audit_log)
            .with_context(|| format!("cannot read {}", self.audit_log.display()))?;
        let mut history = self.recorder.finish();
        let seen = self.seen.lock();
        for request in audit::requests(&log, self.epoch, history.length)? {
            let received_at = seen.revisions.before(request.received);
            let ended_at = seen.revisions.after(request.ended);
            history.requests.push(Request { received_at, ended_at, ..request });
        }
        history.requests.sort_by_key(|request| request.ended);
        Ok(history)
    }
}

/// Records all changes, in the order of their revisions.
async fn watch(etcd: Etcd, recorder: Arc<Recorder>, seen: Arc<Mutex<Seen>>) -> Result<()> {
    etcd.watch(|revision, at_once| {
        // The lock also keeps what was seen and what was recorded together.
        let mut seen = seen.lock();
        for change in at_once {
            change.record(&*recorder);
        }
        seen.watched = seen.watched.max(revision);
        seen.revisions.seen(recorder.now(), revision);
    })
    .await
}

/// Reads the revision for ever.
async fn read(etcd: Etcd, recorder: Arc<Recorder>, seen: Arc<Mutex<Seen>>) -> Result<()> {
    loop {
        let requested = recorder.now();
        if let Ok(revision) = etcd.revision().await {
            seen.lock().revisions.read(requested, recorder.now(), revision);
        }
        tokio::time::sleep(PERIOD).await;
    }
}
