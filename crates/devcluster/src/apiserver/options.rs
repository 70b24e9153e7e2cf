//! The options of a server.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::observer::Observer;
use super::users::User;

/// The version of the gang-scheduling API that is served. It differs between releases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkloadApi {
    /// Not served, as on a default cluster. The links from pods to groups are dropped.
    #[default]
    Off,
    /// `scheduling.k8s.io/v1alpha1` Workload, as in 1.35.
    V1Alpha1,
    /// `scheduling.k8s.io/v1alpha2` Workload and PodGroup, as in 1.36.
    V1Alpha2,
    /// `scheduling.k8s.io/v1beta1` Workload and PodGroup, as in 1.37.
    V1Beta1,
}

/// The options of a server. The default is a plain cluster of the current release.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bearer tokens that are valid from the start.
    pub tokens: Vec<(String, User)>,
    /// The gang-scheduling API that is served.
    pub workload_api: WorkloadApi,
    /// The source of the current time.
    pub clock: Clock,
    /// Number of changes per resource that are kept for watches to catch up.
    pub history: usize,
    /// Interval of bookmarks, for watches that request them.
    pub bookmark_every: Duration,
    /// The version that `/version` reports.
    pub version: String,
    /// The HTTP port; zero selects a free one.
    pub port: u16,
    /// Receives every change and every write.
    pub observer: Option<Arc<dyn Observer>>,
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
            observer: None,
        }
    }
}
