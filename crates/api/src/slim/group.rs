//! Pod groups and workloads of the upstream Workload API, in each of its shapes.
//!
//! | Kubernetes | version | how groups are described |
//! |---|---|---|
//! | 1.35 | `v1alpha1` | within the `Workload`, in `podGroups` |
//! | 1.36 | `v1alpha2` | one `PodGroup` each; templates in the `Workload` |
//! | 1.37 | `v1beta1`, `v1alpha3` | the same with other field names |

use kube::core::{ApiResource, GroupVersionKind, ObjectMeta};
use serde::{Deserialize, Deserializer, de::IgnoredAny};

use super::{by_discovery, meta, or_default};
use crate::names::UPSTREAM_SCHEDULING_GROUP;

/// A pod group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodGroup {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(deserialize_with = "or_default")]
    pub spec: PodGroupSpec,
}
by_discovery!(PodGroup);

impl PodGroup {
    /// The versions that have this shape, in order of preference.
    pub const VERSIONS: [&str; 3] = ["v1beta1", "v1alpha3", "v1alpha2"];

    /// The resource to request from the API server.
    pub fn resource(version: &str) -> ApiResource {
        ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk(UPSTREAM_SCHEDULING_GROUP, version, "PodGroup"),
            "podgroups",
        )
    }

    /// The template it was created from, if it names one.
    pub fn template(&self) -> Option<&TemplateReference> {
        let old = || self.spec.pod_group_template_ref.as_ref().and_then(|r| r.workload.as_ref());
        self.spec.workload_ref.as_ref().or_else(old)
    }
}

/// The spec of a pod group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupSpec {
    /// Defines when the group can be scheduled.
    #[serde(deserialize_with = "or_default")]
    pub scheduling_policy: SchedulingPolicy,
    /// Whether the group is disrupted as a whole.
    #[serde(deserialize_with = "or_default")]
    pub disruption_mode: DisruptionMode,
    /// The template it was created from, from 1.37 on.
    workload_ref: Option<TemplateReference>,
    /// The template it was created from, in 1.36.
    pod_group_template_ref: Option<OldTemplateReference>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct OldTemplateReference {
    workload: Option<TemplateReference>,
}

/// Refers to a template within a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TemplateReference {
    /// The workload.
    #[serde(deserialize_with = "or_default")]
    pub workload_name: String,
    /// The template.
    #[serde(alias = "podGroupTemplateName", deserialize_with = "or_default")]
    pub template_name: String,
}

/// Defines when a group can be scheduled. The same numbers define when it is healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SchedulingPolicy {
    /// The pods are scheduled only together.
    pub gang: Option<GangPolicy>,
    /// The pods are scheduled one by one.
    pub basic: Option<BasicPolicy>,
}

impl SchedulingPolicy {
    /// The minimum number of pods in a healthy group.
    pub fn min_count(&self) -> i32 {
        self.gang.as_ref().map_or(1, |gang| gang.min_count)
    }
}

/// A group whose pods are scheduled only together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GangPolicy {
    /// Number of pods that must fit at the same time.
    #[serde(deserialize_with = "or_default")]
    pub min_count: i32,
}

/// A group whose pods are scheduled one by one. This object has no fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct BasicPolicy {}

/// Whether a group is disrupted as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DisruptionMode {
    /// Pods may be disrupted one at a time. `Pod` in 1.36, `{single: {}}` in 1.37, and all values that Quorate does not
    /// know.
    #[default]
    Single,
    /// The group is disrupted as a whole. `PodGroup` in 1.36, `{all: {}}` in 1.37.
    All,
}

impl<'de> Deserialize<'de> for DisruptionMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Word(String),
            Member {
                #[serde(default)]
                all: Option<IgnoredAny>,
            },
            Other(IgnoredAny),
        }

        Ok(match Form::deserialize(deserializer)? {
            Form::Word(word) if word == "PodGroup" || word == "All" => Self::All,
            Form::Member { all: Some(_) } => Self::All,
            Form::Word(_) | Form::Member { all: None } | Form::Other(_) => Self::Single,
        })
    }
}

/// An upstream workload.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Workload {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(deserialize_with = "or_default")]
    pub spec: WorkloadSpec,
}
by_discovery!(Workload);

impl Workload {
    /// The supported versions, in order of preference.
    pub const VERSIONS: [&str; 4] = ["v1beta1", "v1alpha3", "v1alpha2", "v1alpha1"];

    /// The resource to request from the API server.
    pub fn resource(version: &str) -> ApiResource {
        ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk(UPSTREAM_SCHEDULING_GROUP, version, "Workload"),
            "workloads",
        )
    }

    /// Its groups or templates, under the field name of any version.
    pub fn groups(&self) -> impl Iterator<Item = &GroupTemplate> {
        self.spec.pod_groups.iter().chain(&self.spec.pod_group_templates)
    }
}

/// A `scheduling.quorate.dev` workload. Its spec is not decoded yet, so that an invalid spec affects only this object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct OwnWorkload {
    /// Its metadata, trimmed.
    #[serde(deserialize_with = "meta::metadata")]
    pub metadata: ObjectMeta,
    /// The spec, not decoded.
    pub spec: serde_json::Value,
}

/// The spec of a workload.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSpec {
    /// The groups, in 1.35.
    #[serde(deserialize_with = "or_default")]
    pod_groups: Vec<GroupTemplate>,
    /// The templates, from 1.36 on.
    #[serde(deserialize_with = "or_default")]
    pod_group_templates: Vec<GroupTemplate>,
}

/// A group of 1.35, or a group template of later versions.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupTemplate {
    /// Its name.
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    /// Defines when such a group can be scheduled; `policy` in 1.35.
    #[serde(alias = "policy", deserialize_with = "or_default")]
    pub scheduling_policy: SchedulingPolicy,
    /// Whether such a group is disrupted as a whole.
    #[serde(deserialize_with = "or_default")]
    pub disruption_mode: DisruptionMode,
}
