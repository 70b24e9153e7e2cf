//! The built-in kinds, one row for each.

use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, batch::v1 as batch,
    coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery, policy::v1 as policy,
    rbac::v1 as rbac, scheduling::v1 as scheduling,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::options::WorkloadApi;
use super::resource::{Registry, Resource, ResourceRules, StatusMeta};

/// Deserializes a value into its type and serializes it again. This checks the types and drops unknown fields.
type ThroughType = fn(Value) -> Result<Value, String>;

/// The rules of one built-in resource.
#[derive(Debug)]
pub(crate) struct BuiltIn {
    pub(crate) group: &'static str,
    pub(crate) versions: &'static [&'static str],
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) categories: &'static [&'static str],
    pub(crate) namespaced: bool,
    pub(crate) generation: bool,
    pub(crate) unconditional_update: bool,
    pub(crate) create_on_update: bool,
    pub(crate) status: Option<StatusMeta>,
    pub(crate) subresources: &'static [&'static str],
    pub(crate) fields: &'static [&'static str],
    /// `None` for kinds of newer releases: hand-written code validates them.
    pub(crate) through_type: Option<ThroughType>,
}

fn through<T: DeserializeOwned + Serialize>(value: Value) -> Result<Value, String> {
    let typed: T = serde_json::from_value(value).map_err(|e| e.to_string())?;
    serde_json::to_value(typed).map_err(|e| e.to_string())
}

/// The values that most rows share.
const PLAIN: BuiltIn = BuiltIn {
    group: "",
    versions: &["v1"],
    kind: "",
    plural: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    generation: false,
    unconditional_update: true,
    create_on_update: false,
    status: None,
    subresources: &[],
    fields: &[],
    through_type: None,
};

/// The values that the workload kinds share.
const WORKLOAD: BuiltIn = BuiltIn {
    group: "apps",
    categories: &["all"],
    generation: true,
    status: Some(StatusMeta::KeepLabels),
    subresources: &["scale"],
    ..PLAIN
};

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

static BUILT_INS: &[BuiltIn] = &[
    BuiltIn {
        kind: "Namespace",
        plural: "namespaces",
        short_names: &["ns"],
        namespaced: false,
        status: Some(StatusMeta::Free),
        subresources: &["finalize"],
        fields: &["status.phase"],
        through_type: Some(through::<core::Namespace>),
        ..PLAIN
    },
    BuiltIn {
        kind: "Node",
        plural: "nodes",
        short_names: &["no"],
        namespaced: false,
        status: Some(StatusMeta::Free),
        fields: &["spec.unschedulable"],
        through_type: Some(through::<core::Node>),
        ..PLAIN
    },
    BuiltIn {
        kind: "Pod",
        plural: "pods",
        short_names: &["po"],
        categories: &["all"],
        generation: true,
        status: Some(StatusMeta::Free),
        subresources: &["binding", "eviction", "resize", "ephemeralcontainers", "log"],
        fields: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        through_type: Some(through::<core::Pod>),
        ..PLAIN
    },
    BuiltIn {
        kind: "Service",
        plural: "services",
        short_names: &["svc"],
        categories: &["all"],
        status: Some(StatusMeta::Free),
        fields: &["spec.clusterIP", "spec.type"],
        through_type: Some(through::<core::Service>),
        ..PLAIN
    },
    BuiltIn {
        kind: "ConfigMap",
        plural: "configmaps",
        short_names: &["cm"],
        through_type: Some(through::<core::ConfigMap>),
        ..PLAIN
    },
    BuiltIn {
        kind: "Secret",
        plural: "secrets",
        fields: &["type"],
        through_type: Some(through::<core::Secret>),
        ..PLAIN
    },
    BuiltIn {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        short_names: &["sa"],
        subresources: &["token"],
        through_type: Some(through::<core::ServiceAccount>),
        ..PLAIN
    },
    BuiltIn {
        kind: "Event",
        plural: "events",
        short_names: &["ev"],
        create_on_update: true,
        fields: EVENT_FIELDS,
        through_type: Some(through::<core::Event>),
        ..PLAIN
    },
    BuiltIn {
        group: "events.k8s.io",
        kind: "Event",
        plural: "events",
        short_names: &["ev"],
        create_on_update: true,
        fields: EVENT_FIELDS,
        through_type: Some(through::<core::Event>),
        ..PLAIN
    },
    BuiltIn {
        kind: "Endpoints",
        plural: "endpoints",
        short_names: &["ep"],
        create_on_update: true,
        through_type: Some(through::<core::Endpoints>),
        ..PLAIN
    },
    BuiltIn {
        group: "",
        kind: "ReplicationController",
        plural: "replicationcontrollers",
        short_names: &["rc"],
        fields: &["status.replicas"],
        status: Some(StatusMeta::Free),
        through_type: Some(through::<core::ReplicationController>),
        ..WORKLOAD
    },
    BuiltIn {
        kind: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        short_names: &["pvc"],
        status: Some(StatusMeta::Free),
        through_type: Some(through::<core::PersistentVolumeClaim>),
        ..PLAIN
    },
    BuiltIn {
        kind: "PersistentVolume",
        plural: "persistentvolumes",
        short_names: &["pv"],
        namespaced: false,
        status: Some(StatusMeta::Free),
        through_type: Some(through::<core::PersistentVolume>),
        ..PLAIN
    },
    BuiltIn {
        kind: "LimitRange",
        plural: "limitranges",
        short_names: &["limits"],
        through_type: Some(through::<core::LimitRange>),
        ..PLAIN
    },
    BuiltIn {
        kind: "ResourceQuota",
        plural: "resourcequotas",
        short_names: &["quota"],
        status: Some(StatusMeta::Free),
        through_type: Some(through::<core::ResourceQuota>),
        ..PLAIN
    },
    BuiltIn {
        kind: "Deployment",
        plural: "deployments",
        short_names: &["deploy"],
        through_type: Some(through::<apps::Deployment>),
        ..WORKLOAD
    },
    BuiltIn {
        kind: "ReplicaSet",
        plural: "replicasets",
        short_names: &["rs"],
        fields: &["status.replicas"],
        status: Some(StatusMeta::Free),
        through_type: Some(through::<apps::ReplicaSet>),
        ..WORKLOAD
    },
    BuiltIn {
        kind: "StatefulSet",
        plural: "statefulsets",
        short_names: &["sts"],
        status: Some(StatusMeta::Free),
        through_type: Some(through::<apps::StatefulSet>),
        ..WORKLOAD
    },
    BuiltIn {
        kind: "DaemonSet",
        plural: "daemonsets",
        short_names: &["ds"],
        status: Some(StatusMeta::Free),
        subresources: &[],
        through_type: Some(through::<apps::DaemonSet>),
        ..WORKLOAD
    },
    BuiltIn {
        group: "apps",
        kind: "ControllerRevision",
        plural: "controllerrevisions",
        through_type: Some(through::<apps::ControllerRevision>),
        ..PLAIN
    },
    BuiltIn {
        group: "batch",
        kind: "Job",
        plural: "jobs",
        status: Some(StatusMeta::Free),
        subresources: &[],
        fields: &["status.successful"],
        through_type: Some(through::<batch::Job>),
        ..WORKLOAD
    },
    BuiltIn {
        group: "policy",
        kind: "PodDisruptionBudget",
        plural: "poddisruptionbudgets",
        short_names: &["pdb"],
        generation: true,
        unconditional_update: false,
        status: Some(StatusMeta::Free),
        through_type: Some(through::<policy::PodDisruptionBudget>),
        ..PLAIN
    },
    BuiltIn {
        group: "coordination.k8s.io",
        kind: "Lease",
        plural: "leases",
        unconditional_update: false,
        create_on_update: true,
        through_type: Some(through::<coordination::Lease>),
        ..PLAIN
    },
    BuiltIn {
        group: "discovery.k8s.io",
        kind: "EndpointSlice",
        plural: "endpointslices",
        generation: true,
        through_type: Some(through::<discovery::EndpointSlice>),
        ..PLAIN
    },
    BuiltIn {
        group: "admissionregistration.k8s.io",
        kind: "ValidatingWebhookConfiguration",
        plural: "validatingwebhookconfigurations",
        categories: &["api-extensions"],
        namespaced: false,
        generation: true,
        unconditional_update: false,
        through_type: Some(through::<admission::ValidatingWebhookConfiguration>),
        ..PLAIN
    },
    BuiltIn {
        group: "admissionregistration.k8s.io",
        kind: "MutatingWebhookConfiguration",
        plural: "mutatingwebhookconfigurations",
        categories: &["api-extensions"],
        namespaced: false,
        generation: true,
        unconditional_update: false,
        through_type: Some(through::<admission::MutatingWebhookConfiguration>),
        ..PLAIN
    },
    BuiltIn {
        group: "apiextensions.k8s.io",
        kind: "CustomResourceDefinition",
        plural: "customresourcedefinitions",
        short_names: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        generation: true,
        unconditional_update: false,
        status: Some(StatusMeta::Free),
        through_type: Some(through::<apiextensions::CustomResourceDefinition>),
        ..PLAIN
    },
    BuiltIn {
        group: "scheduling.k8s.io",
        kind: "PriorityClass",
        plural: "priorityclasses",
        short_names: &["pc"],
        namespaced: false,
        generation: true,
        through_type: Some(through::<scheduling::PriorityClass>),
        ..PLAIN
    },
    BuiltIn {
        group: "rbac.authorization.k8s.io",
        kind: "Role",
        plural: "roles",
        create_on_update: true,
        through_type: Some(through::<rbac::Role>),
        ..PLAIN
    },
    BuiltIn {
        group: "rbac.authorization.k8s.io",
        kind: "RoleBinding",
        plural: "rolebindings",
        create_on_update: true,
        through_type: Some(through::<rbac::RoleBinding>),
        ..PLAIN
    },
    BuiltIn {
        group: "rbac.authorization.k8s.io",
        kind: "ClusterRole",
        plural: "clusterroles",
        namespaced: false,
        create_on_update: true,
        through_type: Some(through::<rbac::ClusterRole>),
        ..PLAIN
    },
    BuiltIn {
        group: "rbac.authorization.k8s.io",
        kind: "ClusterRoleBinding",
        plural: "clusterrolebindings",
        namespaced: false,
        create_on_update: true,
        through_type: Some(through::<rbac::ClusterRoleBinding>),
        ..PLAIN
    },
];

/// The gang-scheduling kinds. Their group version depends on the simulated release.
const GANG: BuiltIn =
    BuiltIn { group: "scheduling.k8s.io", generation: true, unconditional_update: false, ..PLAIN };

static WORKLOAD_V1ALPHA1: BuiltIn =
    BuiltIn { versions: &["v1alpha1"], kind: "Workload", plural: "workloads", ..GANG };
static WORKLOAD_V1ALPHA2: BuiltIn =
    BuiltIn { versions: &["v1alpha2"], kind: "Workload", plural: "workloads", ..GANG };
static WORKLOAD_V1BETA1: BuiltIn =
    BuiltIn { versions: &["v1beta1"], kind: "Workload", plural: "workloads", ..GANG };
static POD_GROUP_V1ALPHA2: BuiltIn = BuiltIn {
    versions: &["v1alpha2"],
    kind: "PodGroup",
    plural: "podgroups",
    status: Some(StatusMeta::KeepAll),
    ..GANG
};
static POD_GROUP_V1BETA1: BuiltIn = BuiltIn {
    versions: &["v1beta1"],
    kind: "PodGroup",
    plural: "podgroups",
    status: Some(StatusMeta::KeepAll),
    ..GANG
};

/// All resources that are served before the first CustomResourceDefinition is created.
pub(crate) fn registry(workload_api: WorkloadApi) -> Registry {
    let mut registry = Registry::default();
    for row in BUILT_INS {
        registry.insert(resource(row));
    }
    let gang: &[&'static BuiltIn] = match workload_api {
        WorkloadApi::Off => &[],
        WorkloadApi::V1Alpha1 => &[&WORKLOAD_V1ALPHA1],
        WorkloadApi::V1Alpha2 => &[&WORKLOAD_V1ALPHA2, &POD_GROUP_V1ALPHA2],
        WorkloadApi::V1Beta1 => &[&WORKLOAD_V1BETA1, &POD_GROUP_V1BETA1],
    };
    for row in gang {
        registry.insert(resource(row));
    }
    registry
}

fn resource(row: &'static BuiltIn) -> Resource {
    let owned = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
    // Both event APIs serve the same objects.
    let group_of_table = if row.kind == "Event" { "" } else { row.group };
    Resource {
        group: row.group.to_owned(),
        kind: row.kind.to_owned(),
        list_kind: format!("{}List", row.kind),
        plural: row.plural.to_owned(),
        singular: row.kind.to_lowercase(),
        short_names: owned(row.short_names),
        categories: owned(row.categories),
        namespaced: row.namespaced,
        versions: owned(row.versions),
        storage_version: row.versions.first().copied().unwrap_or("v1").to_owned(),
        table: table_id(group_of_table, row.plural),
        rules: ResourceRules::BuiltIn(row),
    }
}

/// The table of a resource.
pub(crate) fn table_id(group: &str, plural: &str) -> super::store::TableId {
    if group.is_empty() { plural.into() } else { format!("{plural}.{group}").into() }
}
