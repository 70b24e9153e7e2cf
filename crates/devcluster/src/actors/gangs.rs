//! Gangs: groups of pods with the objects of the Workload API, in each version of that API.
//!
//! Each group is a StatefulSet, so that lost pods are recreated. No controller in this crate creates groups by itself.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::apiserver::WorkloadApi;

/// Several groups of pods, all of the same size.
#[derive(Clone, Debug)]
pub struct Gang {
    /// The name of the Workload, and the prefix of all other names.
    pub name: String,
    /// Number of groups.
    pub groups: u32,
    /// Number of pods in each group.
    pub size: u32,
    /// Minimum number of pods that a group needs.
    pub min_count: u32,
    /// Labels of the pods, besides `gang` and `gang-group`.
    pub labels: BTreeMap<String, String>,
    /// Image of the only container.
    pub image: String,
}

/// The name of the template from which all groups of a gang are created.
const TEMPLATE: &str = "group";

impl Gang {
    /// A gang whose groups need all their pods.
    #[must_use]
    pub fn new(name: &str, groups: u32, size: u32) -> Self {
        Self {
            name: name.to_owned(),
            groups,
            size,
            min_count: size,
            labels: BTreeMap::new(),
            image: "registry.example/gang:1".to_owned(),
        }
    }

    /// The name of a group: of its StatefulSet, and of its PodGroup if the API version has PodGroups.
    #[must_use]
    pub fn group_name(&self, group: u32) -> String {
        format!("{}-{group}", self.name)
    }

    /// The Workload and its PodGroups, in the order in which they must be created.
    #[must_use]
    pub fn workload(&self, api: WorkloadApi) -> Vec<Value> {
        let policy = json!({"gang": {"minCount": self.min_count}});
        let (version, templates) = match api {
            WorkloadApi::Off => return Vec::new(),
            WorkloadApi::V1Alpha1 => {
                ("v1alpha1", json!({"podGroups": [{"name": TEMPLATE, "policy": policy}]}))
            }
            WorkloadApi::V1Alpha2 => ("v1alpha2", json!({"podGroupTemplates": [Self::template(&policy)]})),
            WorkloadApi::V1Beta1 => ("v1beta1", json!({"podGroupTemplates": [Self::template(&policy)]})),
        };
        let version = format!("scheduling.k8s.io/{version}");
        let workload = json!({"apiVersion": version, "kind": "Workload", "metadata": {"name": self.name}, "spec": templates});
        if api == WorkloadApi::V1Alpha1 {
            return vec![workload];
        }
        let mut spec = json!({"schedulingPolicy": policy});
        if api == WorkloadApi::V1Alpha2 {
            spec["podGroupTemplateRef"] =
                json!({"workload": {"workloadName": self.name, "podGroupTemplateName": TEMPLATE}});
        } else {
            spec["workloadRef"] = json!({"workloadName": self.name, "templateName": TEMPLATE});
        }
        let group = |number: u32| {
            let metadata = json!({"name": self.group_name(number)});
            json!({"apiVersion": version, "kind": "PodGroup", "metadata": metadata, "spec": spec})
        };
        std::iter::once(workload).chain((0..self.groups).map(group)).collect()
    }

    fn template(policy: &Value) -> Value {
        json!({"name": TEMPLATE, "schedulingPolicy": policy})
    }

    /// The StatefulSets of the groups.
    #[must_use]
    pub fn stateful_sets(&self, api: WorkloadApi) -> Vec<Value> {
        (0..self.groups).map(|group| self.stateful_set(api, group)).collect()
    }

    fn stateful_set(&self, api: WorkloadApi, group: u32) -> Value {
        let name = self.group_name(group);
        let selector = json!({"gang": self.name, "gang-group": group.to_string()});
        let mut labels = selector.clone();
        for (label, value) in &self.labels {
            labels[label.as_str()] = json!(value);
        }
        let mut spec = json!({
            "terminationGracePeriodSeconds": 5, "containers": [{"name": "app", "image": self.image}]});
        match api {
            WorkloadApi::V1Alpha1 => {
                spec["workloadRef"] =
                    json!({"name": self.name, "podGroup": TEMPLATE, "podGroupReplicaKey": group.to_string()});
            }
            WorkloadApi::V1Alpha2 | WorkloadApi::V1Beta1 => {
                spec["schedulingGroup"] = json!({"podGroupName": name});
            }
            WorkloadApi::Off => {}
        }
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name, "labels": selector},
            "spec": {
                "replicas": self.size, "serviceName": self.name, "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": selector},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_is_linked_as_its_api_version_requires() {
        let gang = Gang::new("train", 2, 3);
        let alpha2 = gang.workload(WorkloadApi::V1Alpha2);
        assert_eq!(
            alpha2.iter().map(|object| object["kind"].clone()).collect::<Vec<_>>(),
            ["Workload", "PodGroup", "PodGroup"]
        );
        let sets = gang.stateful_sets(WorkloadApi::V1Alpha2);
        assert_eq!(
            sets[1]["spec"]["template"]["spec"]["schedulingGroup"]["podGroupName"],
            alpha2[2]["metadata"]["name"]
        );
        let alpha1 = gang.workload(WorkloadApi::V1Alpha1);
        assert_eq!(alpha1[0]["spec"]["podGroups"][0]["policy"]["gang"]["minCount"], 3);
        let link = &gang.stateful_sets(WorkloadApi::V1Alpha1)[1]["spec"]["template"]["spec"]["workloadRef"];
        assert_eq!(link["podGroupReplicaKey"], "1");
        assert_eq!(link["podGroup"], alpha1[0]["spec"]["podGroups"][0]["name"]);
    }
}
