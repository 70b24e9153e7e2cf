//! How a server is made.

use std::time::Duration;

use super::clock::Clock;
use super::users::User;

/// Which form of the gang-scheduling API is served; releases differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkloadApi {
    /// None, as on a default cluster; the links from pods to groups are dropped.
    #[default]
    Off,
    /// `scheduling.k8s.io/v1alpha1` Workload, as in 1.35.
    V1Alpha1,
    /// `scheduling.k8s.io/v1alpha2` Workload and PodGroup, as in 1.36.
    V1Alpha2,
    /// `scheduling.k8s.io/v1beta1` Workload and PodGroup, as in 1.37.
    V1Beta1,
}

/// How a server is made; the default is a plain cluster of the current release.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens that are known from the start.
    pub tokens: Vec<(String, User)>,
    /// Which gang-scheduling API is served.
    pub workload_api: WorkloadApi,
    /// Where the time of day comes from.
    pub clock: Clock,
    /// How many changes per resource a watch can catch up on.
    pub history: usize,
    /// How often a watch that asked for bookmarks gets one.
    pub bookmark_every: Duration,
    /// What `/version` says.
    pub version: String,
    /// The port of the HTTP face; zero takes a free one.
    pub port: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            workload_api: WorkloadApi::Off,
            clock: Clock::system(),
            history: 16_384,
            bookmark_every: Duration::from_secs(10),
            version: "v1.36.3".to_owned(),
            port: 0,
        }
    }
}
