//! Objects that say how many pods or groups there should be, or own what does.

use std::ops::Range;

use serde_json::Value;

use super::pod::LWS_NAME;
use super::{Ids, Labels, Meta, api_group, condition_status, labels, list, number, text};

/// The API group of LeaderWorkerSet.
pub(in crate::checker) const LWS_GROUP: &str = "leaderworkerset.x-k8s.io";

/// A controller, or an object that describes groups.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::checker) struct Source {
    pub(in crate::checker) meta: Meta,
    pub(in crate::checker) group: String,
    pub(in crate::checker) kind: String,
    /// How many pods it wants, or groups. Unknown for kinds without a scale.
    pub(in crate::checker) wants: Option<u32>,
    /// The labels of its pod templates.
    pub(in crate::checker) templates: Vec<Labels>,
    /// Whether its controller accepts that all its pods are down at once.
    pub(in crate::checker) recreates: bool,
    pub(in crate::checker) detail: Detail,
}

/// What only some kinds have.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::checker) enum Detail {
    /// Nothing more.
    Controller,
    /// The size of its groups, and whether the loss of a pod takes the whole group down.
    LeaderWorkerSet { size: usize, falls_whole: bool },
    /// The pod groups: name, number of replicas if it has one, pods that a replica needs.
    Workload(Vec<(String, Option<u32>, usize)>),
    /// A PodGroup.
    PodGroup(PodGroup),
}

/// A PodGroup of the Workload API.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::checker) struct PodGroup {
    pub(in crate::checker) minimum: usize,
    /// Whether the loss of a pod takes the whole group down.
    pub(in crate::checker) falls_whole: bool,
    /// The workload and the template that it was made from.
    pub(in crate::checker) template: Option<(String, String)>,
}

impl Source {
    /// Reads an object of a resource such as `deployments.apps`, if it can be a source.
    pub(in crate::checker) fn read(resource: &str, object: &Value, ids: &mut Ids) -> Option<Self> {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let spec = &object["spec"];
        let kind = match plural {
            "deployments" => "Deployment",
            "replicasets" => "ReplicaSet",
            "statefulsets" => "StatefulSet",
            "replicationcontrollers" => "ReplicationController",
            "daemonsets" => "DaemonSet",
            "jobs" => "Job",
            "leaderworkersets" => "LeaderWorkerSet",
            "workloads" => "Workload",
            "podgroups" => "PodGroup",
            _ if spec["replicas"].is_number() => object["kind"].as_str()?,
            _ => return None,
        };
        let meta = Meta::read(object, ids);
        let (wants, detail) = match (kind, group) {
            ("Job", _) => (Some(job_wants(object)), Detail::Controller),
            ("DaemonSet", _) => (None, Detail::Controller),
            ("Workload", _) => (None, Detail::Workload(pod_groups(spec))),
            ("PodGroup", _) => (None, Detail::PodGroup(pod_group(spec))),
            ("LeaderWorkerSet", LWS_GROUP) => {
                let template = &spec["leaderWorkerTemplate"];
                let size = number(&template["size"]).unwrap_or(1) as usize;
                let falls_whole = template["restartPolicy"] != "None";
                (Some(replicas(spec)), Detail::LeaderWorkerSet { size, falls_whole })
            }
            _ => (Some(replicas(spec)), Detail::Controller),
        };
        Some(Self {
            templates: if creates_from_template(group, kind) {
                templates(&detail, spec, &meta)
            } else {
                Vec::new()
            },
            recreates: spec["strategy"]["type"] == "Recreate" || (kind, group) == ("Job", "batch"),
            group: group.to_owned(),
            kind: kind.to_owned(),
            meta,
            wants,
            detail,
        })
    }

    /// Whether it is of this kind, in any version of the API group.
    pub(in crate::checker) fn is(&self, group: &str, kind: &str, name: &str) -> bool {
        self.kind == kind && self.group == group && self.meta.name == name
    }
}

/// Whether a kind is known to create its pods from the template in its spec.
fn creates_from_template(group: &str, kind: &str) -> bool {
    matches!(group, "apps" | LWS_GROUP)
        || matches!(
            (group, kind),
            ("batch", "Job") | ("", "ReplicationController") | ("apps.kruise.io", "CloneSet" | "StatefulSet")
        )
}

fn replicas(spec: &Value) -> u32 {
    number(&spec["replicas"]).unwrap_or(1)
}

/// What a Job wants: min(parallelism, completions − succeeded − failed indexes), and nothing when it is suspended or
/// finished. One without completions replaces no pod once the first one has succeeded.
fn job_wants(job: &Value) -> u32 {
    let over = ["Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"]
        .iter()
        .any(|condition| condition_status(job, condition) == Some(true));
    if over || job["spec"]["suspend"] == true {
        return 0;
    }
    let parallelism = number(&job["spec"]["parallelism"]).unwrap_or(1);
    let succeeded = number(&job["status"]["succeeded"]).unwrap_or(0);
    let left = match number(&job["spec"]["completions"]) {
        Some(all) => all.saturating_sub(succeeded).saturating_sub(failed_indexes(job, all)),
        None if succeeded > 0 => number(&job["status"]["active"]).unwrap_or(0),
        None => parallelism,
    };
    parallelism.min(left)
}

/// How many of a Job's indexes have failed; none if its list is not one of rising numbers and ranges.
fn failed_indexes(job: &Value, all: u32) -> u32 {
    let spec = &job["spec"];
    if spec["completionMode"] != "Indexed" || !spec["backoffLimitPerIndex"].is_number() {
        return 0;
    }
    let list = job["status"]["failedIndexes"].as_str().unwrap_or_default();
    let ranges: Option<Vec<Range<u32>>> = list
        .split(',')
        .map(|range| {
            let ends: Option<Vec<u32>> = range.split('-').map(|end| end.parse().ok()).collect();
            match ends?[..] {
                [only] => Some(only..only.checked_add(1)?),
                [first, last] if first <= last => Some(first..last.checked_add(1)?),
                _ => None,
            }
        })
        .collect();
    let rising = ranges.filter(|ranges| ranges.is_sorted_by(|one, next| one.end <= next.start));
    rising.iter().flatten().map(|range| range.end.min(all).saturating_sub(range.start)).sum()
}

fn templates(detail: &Detail, spec: &Value, meta: &Meta) -> Vec<Labels> {
    let of = |template: &Value| template.is_object().then(|| labels(&template["metadata"]["labels"]));
    match detail {
        Detail::LeaderWorkerSet { .. } => {
            let both = &spec["leaderWorkerTemplate"];
            [&both["leaderTemplate"], &both["workerTemplate"]]
                .into_iter()
                .filter_map(of)
                .map(|mut labels| {
                    labels.insert(LWS_NAME.to_owned(), meta.name.clone());
                    labels
                })
                .collect()
        }
        _ => of(&spec["template"]).into_iter().collect(),
    }
}

fn minimum(policy: &Value) -> usize {
    number(&policy["gang"]["minCount"]).unwrap_or(1) as usize
}

fn pod_groups(spec: &Value) -> Vec<(String, Option<u32>, usize)> {
    list(&spec["podGroups"])
        .iter()
        .map(|group| (text(&group["name"]), number(&group["replicas"]), minimum(&group["policy"])))
        .collect()
}

fn pod_group(spec: &Value) -> PodGroup {
    let mode = &spec["disruptionMode"];
    let old = &spec["podGroupTemplateRef"]["workload"];
    let new = &spec["workloadRef"];
    let template = match (old["workloadName"].as_str(), new["workloadName"].as_str()) {
        (Some(workload), _) => Some((workload.to_owned(), text(&old["podGroupTemplateName"]))),
        (None, Some(workload)) => Some((workload.to_owned(), text(&new["templateName"]))),
        (None, None) => None,
    };
    PodGroup {
        minimum: minimum(&spec["schedulingPolicy"]),
        falls_whole: mode == "PodGroup" || mode["all"].is_object(),
        template,
    }
}

/// The API group and kind that an owner of groups has.
pub(super) fn owner_kind(value: &Value) -> Option<(String, String)> {
    let version = value["apiVersion"].as_str()?;
    Some((api_group(version).to_owned(), text(&value["kind"])))
}
