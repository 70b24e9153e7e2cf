//! Names of the API that messages and the status contain. `quorate_api::names` has them too, with all others.

/// Links a pod to a Workload of [`SCHEDULING_GROUP`]: the workload's name. A label.
pub const WORKLOAD: &str = "quorate.dev/workload";

/// The API group of Quorate's own Workloads.
pub const SCHEDULING_GROUP: &str = "scheduling.quorate.dev";
/// The API group of the Workload API of Kubernetes.
pub const UPSTREAM_SCHEDULING_GROUP: &str = "scheduling.k8s.io";

/// Names of OpenKruise.
pub mod kruise {
    /// On a `PodUnavailableBudget`: the operations it protects against, as DELETE,UPDATE,EVICT,RESIZE. An annotation.
    pub const PROTECT_OPERATIONS: &str = "kruise.io/pub-protect-operations";
    /// On a `PodUnavailableBudget`: the expected number of pods or groups. An annotation.
    pub const PROTECT_TOTAL_REPLICAS: &str = "pub.kruise.io/protect-total-replicas";
}
