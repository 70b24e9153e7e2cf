//! The lifecycle of one pod on a hollow node. Pure functions: the time is an argument.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as ContainerSpec, Pod};

use super::super::pods;

/// Durations on a hollow node.
#[derive(Clone, Debug)]
pub struct Timing {
    /// From the binding to a node, or from a restart, until the containers run and are ready.
    pub start: Duration,
    /// From the start of termination until the containers have ended; at most the pod's own grace period.
    pub termination: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { start: Duration::ZERO, termination: Duration::ZERO }
    }
}

/// The next step for a pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing until this time, or until something changes.
    Rest(Option<Timestamp>),
    /// All containers have ended: report that, then remove the pod.
    Remove,
}

/// A simulated container on a hollow node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) id: String,
    pub(crate) restarts: i32,
    pub(crate) started_at: Timestamp,
    /// The time from which the container is up.
    pub(crate) up_at: Timestamp,
    /// The previous run of the container: its ID, and when it ended.
    pub(crate) previous: Option<(String, Timestamp)>,
    pub(crate) ended: Option<(i32, Timestamp)>,
}

#[derive(Clone, Debug)]
pub(crate) struct PodLifecycle {
    pub(crate) uid: String,
    pub(crate) begun: Timestamp,
    pub(crate) containers: Vec<Container>,
    /// The result that the application's readiness probe would have.
    pub(crate) wants_ready: bool,
    ends_at: Option<Timestamp>,
    pub(crate) over: bool,
}

impl PodLifecycle {
    /// Starts tracking a pod. A pod that already runs, from an earlier kubelet, continues unchanged.
    pub(crate) fn begin(pod: &Pod, now: Timestamp) -> Self {
        let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        let containers = statuses.filter_map(|status| {
            let running = status.state.as_ref()?.running.as_ref()?;
            let started_at = running.started_at.as_ref().map_or(now, |time| time.0);
            Some(Container {
                name: status.name.clone(),
                image: status.image.clone(),
                id: status.container_id.clone()?,
                restarts: status.restart_count,
                started_at,
                up_at: started_at,
                previous: None,
                ended: None,
            })
        });
        let containers: Vec<_> = containers.collect();
        let ran = !containers.is_empty();
        Self {
            uid: pods::uid(pod).to_owned(),
            begun: now,
            containers,
            wants_ready: !ran || pods::is_ready(pod),
            ends_at: None,
            over: pods::is_terminal(pod),
        }
    }

    /// Advances to `now`. Afterwards, [`PodLifecycle::is_up`] and the containers have the values for the pod's status.
    pub(crate) fn advance(&mut self, pod: &Pod, timing: &Timing, now: Timestamp) -> Step {
        if pods::is_terminating(pod) {
            return self.wind_down(pod, timing, now);
        }
        if self.over {
            return Step::Rest(None);
        }
        let specs = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
        for spec in specs {
            let image = spec.image.as_deref().unwrap_or_default();
            match self.containers.iter().position(|container| container.name == spec.name) {
                None => {
                    let up_at = self.begun + timing.start;
                    self.containers.push(Container::new(spec, up_at));
                }
                Some(at) if self.containers[at].image != image => self.replace(at, image, timing, now),
                Some(_) => {}
            }
        }
        let next = self.containers.iter().map(|container| container.up_at).filter(|at| *at > now).min();
        Step::Rest(next)
    }

    fn wind_down(&mut self, pod: &Pod, timing: &Timing, now: Timestamp) -> Step {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let by = now + timing.termination.min(grace);
        // A second delete can shorten the grace period, but never extend it.
        let ends_at = self.ends_at.map_or(by, |at| at.min(by));
        self.ends_at = Some(ends_at);
        if ends_at > now {
            return Step::Rest(Some(ends_at));
        }
        self.finish(0, now);
        Step::Remove
    }

    /// Ends all containers with this exit code.
    pub(crate) fn finish(&mut self, exit_code: i32, now: Timestamp) {
        for container in &mut self.containers {
            container.ended.get_or_insert((exit_code, now));
        }
        self.over = true;
    }

    /// Restarts one container, or all of them.
    pub(crate) fn restart(&mut self, name: Option<&str>, timing: &Timing, now: Timestamp) {
        for at in 0..self.containers.len() {
            if name.is_none_or(|name| name == self.containers[at].name) {
                let image = self.containers[at].image.clone();
                self.replace(at, &image, timing, now);
            }
        }
    }

    fn replace(&mut self, at: usize, image: &str, timing: &Timing, now: Timestamp) {
        let old = &mut self.containers[at];
        let previous = Some((std::mem::replace(&mut old.id, new_id()), now));
        old.image = image.to_owned();
        old.restarts += 1;
        old.previous = previous;
        old.up_at = now + timing.start;
        old.started_at = old.up_at;
    }

    /// Whether every container is up.
    pub(crate) fn is_up(&self, now: Timestamp) -> bool {
        !self.over
            && !self.containers.is_empty()
            && self.containers.iter().all(|container| container.up_at <= now)
    }
}

impl Container {
    fn new(spec: &ContainerSpec, up_at: Timestamp) -> Self {
        Self {
            name: spec.name.clone(),
            image: spec.image.clone().unwrap_or_default(),
            id: new_id(),
            restarts: 0,
            started_at: up_at,
            up_at,
            previous: None,
            ended: None,
        }
    }
}

fn new_id() -> String {
    let half = || uuid::Uuid::new_v4().simple().to_string();
    format!("containerd://{}{}", half(), half())
}
