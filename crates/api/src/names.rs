//! Labels, annotations, conditions and kinds by name.

pub use quorate_engine::names::{SCHEDULING_GROUP, UPSTREAM_SCHEDULING_GROUP, WORKLOAD};

/// Links a pod to a [`Workload`](crate::Workload): the pod group's name. A label.
pub const POD_GROUP: &str = "quorate.dev/pod-group";
/// Links a pod to a [`Workload`](crate::Workload): the replica of the pod group. A label.
pub const POD_GROUP_REPLICA: &str = "quorate.dev/pod-group-replica";

/// On a `PodDisruptionBudget`: the scope of its group budget. An annotation.
pub const BUDGET_SCOPE: &str = "quorate.dev/budget-scope";
/// On a `PodDisruptionBudget`: the label that forms groups. An annotation.
pub const GROUP_LABEL_KEY: &str = "quorate.dev/group-label-key";
/// On a `PodDisruptionBudget`: how many groups must stay available. An annotation.
pub const MIN_AVAILABLE: &str = "quorate.dev/min-available";
/// On a `PodDisruptionBudget`: how many groups may be unavailable. An annotation.
pub const MAX_UNAVAILABLE: &str = "quorate.dev/max-unavailable";

/// On a namespace that has an enforcing budget. A label.
pub const ENFORCED: &str = "quorate.dev/enforced";
/// Prefix of the annotation that declares a disruption probe; the container's name follows.
pub const DISRUPTION_PROBE_PREFIX: &str = "quorate.dev/disruption-probe.";
/// On a pod template: owner references to add to its pods. An annotation.
pub const OWNER_REFERENCES: &str = "quorate.dev/owner-references";

/// On a Lease of Quorate: the component that renews it. A label.
pub const COMPONENT: &str = "quorate.dev/component";
/// The [`COMPONENT`] that probes pods, one on each node. The `holderIdentity` of its Lease is the node's name. The
/// Lease is in Quorate's own namespace.
pub const AGENT: &str = "agent";
/// The [`COMPONENT`] that decides on requests. A cluster can have any number of servers.
pub const SERVER: &str = "server";
/// The leader election Lease in Quorate's own namespace. The leader writes status, webhook configurations and namespace
/// labels.
pub const LEADER_LEASE: &str = "quorate-server";
/// On the Lease of a server: the resourceVersion up to which the server has seen every `DisruptionBudget`. An annotation.
pub const ACKNOWLEDGED: &str = "quorate.dev/acknowledged";
/// The same for `PodUnavailableBudget`s. An annotation.
pub const ACKNOWLEDGED_UNAVAILABLE_BUDGETS: &str = "quorate.dev/acknowledged-unavailable-budgets";

/// Annotation of a server's Lease: whether the server may admit requests, `true` or `false`. Servers of earlier releases
/// do not write it, and may.
pub const SERVING: &str = "quorate.dev/serving";

/// Annotation of the Lease of a server that has ended: what it admitted shortly before, as JSON.
pub const ADMITTED: &str = "quorate.dev/admitted";

/// Annotation of the Lease of a server that was killed: for how many seconds another server has seen no renewal, and the
/// last renewal.
pub const SILENT: &str = "quorate.dev/silent";

/// On the Lease of a server: for each watched kind, the seconds since its watch last received something, as a JSON
/// object; null for a kind that could not be read yet. An annotation.
pub const WATCH_AGES: &str = "quorate.dev/watch-ages";

/// On the Lease of a server: how it was started, as far as its decisions depend on it, as a JSON object. An annotation.
pub const SETTINGS: &str = "quorate.dev/settings";

/// Stands for a relabel in the label of a token whose operation is an update. The release before knows no relabels: it
/// could not read the token and would drop it. It keeps an update whose label it does not see on the pod until the pod
/// has changed, or until the token expires; that is what a relabel needs. No pod has this label.
pub const RELABELLED: &str = "quorate.dev/relabelled";

/// The condition of a pod that its disruption probes set.
pub const DISRUPTABLE: &str = "Disruptable";

/// Names that OpenKruise reads and writes on pods and on `PodUnavailableBudget`s.
pub mod kruise {
    pub use quorate_engine::names::kruise::{PROTECT_OPERATIONS, PROTECT_TOTAL_REPLICAS};

    /// On a pod: not True while an in-place update is about to begin or is in progress. A condition, and a readiness
    /// gate of the pods that OpenKruise updates in place.
    pub const INPLACE_UPDATE_READY: &str = "InPlaceUpdateReady";
    /// On a pod: not True while a lifecycle hook with `markPodNotReady`, or a ContainerRecreateRequest, keeps the pod
    /// unready. A condition, and a readiness gate of all pods that OpenKruise owns.
    pub const POD_READY: &str = "KruisePodReady";
    /// In the message of that condition: the hook that runs before the pod is deleted.
    pub const PRE_DELETE_HOOK: &str = "preDeleteHook";
    /// On a pod: an in-place update is about to begin. An annotation.
    pub const INPLACE_UPDATE_GRACE: &str = "apps.kruise.io/inplace-update-grace";
    /// On a pod: the state of its last in-place update. An annotation.
    pub const INPLACE_UPDATE_STATE: &str = "apps.kruise.io/inplace-update-state";
    /// On a pod: the state of the last in-place update of each SidecarSet. An annotation.
    pub const SIDECARSET_UPDATE_STATE: &str = "kruise.io/sidecarset-inplace-update-state";
    /// The ValidatingWebhookConfiguration that OpenKruise writes.
    pub const WEBHOOKS: &str = "kruise-validating-webhook-configuration";
    /// The entries of [`WEBHOOKS`] for pods and evictions.
    pub const POD_WEBHOOKS: [&str; 2] = ["vpod.kb.io", "vpodeviction.kb.io"];
    /// Prefix of the labels that make a pod count as unavailable for a `PodUnavailableBudget`.
    pub const UNAVAILABLE_POD_PREFIX: &str = "unavailable-pod.kruise.io/";
    /// Exempts a pod from `PodUnavailableBudget`s. An annotation.
    pub const NO_PROTECT: &str = "pub.kruise.io/no-protect";
}
