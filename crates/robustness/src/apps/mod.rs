//! The applications of a simulated run: a workload, and the budgets over its pods.
//!
//! `ending`: pods that end by themselves. `beside`: pods of several sorts under one budget, and custom kinds.

mod beside;
mod ending;

use quorate_devcluster::apiserver::WorkloadApi;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// The label that forms the groups of LeaderWorkerSets.
const LWS_GROUP: &str = "leaderworkerset.sigs.k8s.io/group-index";

/// The annotation with what a PodUnavailableBudget protects against.
const OPERATIONS: &str = "kruise.io/pub-protect-operations";

/// The annotation with a disruption probe of the container.
const PROBE: &str = "quorate.dev/disruption-probe.main";

/// A kind of application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Deployment under a budget with a selector.
    Deployment,
    /// A Deployment under a budget with a `targetRef`, for all operations.
    Target,
    /// A StatefulSet under two budgets.
    StatefulSet,
    /// A LeaderWorkerSet under a budget over its groups.
    LeaderWorkerSet,
    /// Two LeaderWorkerSets under one budget.
    TwoLeaderWorkerSets,
    /// Pod groups of Quorate's own Workload, each a StatefulSet.
    Workload,
    /// Groups that nothing but a label defines, each a StatefulSet.
    LabelGroups,
    /// A Deployment under a PodUnavailableBudget.
    Kruise,
    /// A LeaderWorkerSet under an annotated PodDisruptionBudget.
    Native,
    /// A StatefulSet or a Deployment whose pods have disruption probes.
    Probed,
    /// PodGroups of the Workload API, each with the pods of a StatefulSet.
    PodGroups,
    /// Jobs, whose pods end.
    Jobs,
    /// Groups that complete: the pods of Jobs.
    JobGroups,
    /// Groups that complete, of pods without a controller.
    BareGroups,
    /// Sets of custom kinds with a scale.
    CustomSets,
    /// A workload and pods without a controller under one budget.
    WithBarePods,
    /// Groups by owner.
    OwnerGroups,
    /// Groups by label, and pods without a group under the same budget.
    Singles,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 18] = [
        Self::Deployment,
        Self::Target,
        Self::StatefulSet,
        Self::LeaderWorkerSet,
        Self::TwoLeaderWorkerSets,
        Self::Workload,
        Self::LabelGroups,
        Self::Kruise,
        Self::Native,
        Self::Probed,
        Self::PodGroups,
        Self::Jobs,
        Self::JobGroups,
        Self::BareGroups,
        Self::CustomSets,
        Self::WithBarePods,
        Self::OwnerGroups,
        Self::Singles,
    ];

    /// Whether only a simulated run has what such an application needs: agents, the Workload API, custom kinds, pods that
    /// end and pods that come back without a controller.
    pub fn is_only_simulated(self) -> bool {
        matches!(self, Self::Probed | Self::PodGroups) || self.is_mixed()
    }

    /// Whether its pods end, are of several sorts, or are not of a common workload.
    pub fn is_mixed(self) -> bool {
        matches!(
            self,
            Self::Jobs
                | Self::JobGroups
                | Self::BareGroups
                | Self::CustomSets
                | Self::WithBarePods
                | Self::OwnerGroups
                | Self::Singles
        )
    }

    /// How many percent of what happens to such an application is that pods end, and what only Jobs do.
    pub fn share_of_work(self) -> u32 {
        match self {
            Self::Jobs | Self::JobGroups => 50,
            Self::BareGroups => 40,
            Self::Singles => 20,
            Self::WithBarePods => 15,
            Self::Deployment | Self::Target | Self::StatefulSet | Self::LabelGroups | Self::OwnerGroups => 4,
            _ => 0,
        }
    }
}

/// An object to create, and where.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The path of the collection.
    pub path: String,
    /// The object.
    pub object: Value,
}

impl Manifest {
    fn new(namespace: &str, version: &str, kind: &str, name: &str, mut object: Value) -> Self {
        let root = if version.contains('/') { "apis" } else { "api" };
        let plural = format!("{}s", kind.to_lowercase());
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        object["metadata"]["name"] = json!(name);
        object["metadata"]["namespace"] = json!(namespace);
        Self { path: format!("/{root}/{version}/namespaces/{namespace}/{plural}"), object }
    }

    /// The path of the object itself.
    pub fn own_path(&self) -> String {
        format!("{}/{}", self.path, self.object["metadata"]["name"].as_str().unwrap_or_default())
    }
}

/// The workloads and the budgets of an application.
type Parts = (Vec<Manifest>, Vec<Manifest>);

/// An application.
#[derive(Clone, Debug)]
pub struct App {
    /// Its namespace.
    pub namespace: String,
    /// Its name, and the value of the label `app` of its pods.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The workloads, in the order in which to create them.
    pub workloads: Vec<Manifest>,
    /// The budgets.
    pub budgets: Vec<Manifest>,
}

fn template(app: &str, labels: &Value) -> Value {
    let mut all = json!({"app": app});
    if let (Some(all), Some(labels)) = (all.as_object_mut(), labels.as_object()) {
        all.extend(labels.clone());
    }
    json!({"metadata": {"labels": all}, "spec": {
        "terminationGracePeriodSeconds": 2, "containers": [{"name": "main", "image": format!("{app}:1")}]}})
}

fn set(namespace: &str, kind: &str, name: &str, replicas: u32, template: &Value) -> Manifest {
    let selector = template["metadata"]["labels"].clone();
    let spec = json!({"replicas": replicas, "serviceName": name, "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": selector}, "template": template});
    Manifest::new(namespace, "apps/v1", kind, name, json!({"spec": spec}))
}

/// A pod without a controller, as a template describes it.
fn bare_pod(namespace: &str, name: &str, template: &Value) -> Manifest {
    Manifest::new(namespace, "v1", "Pod", name, template.clone())
}

fn leader_worker_set(namespace: &str, app: &str, name: &str, groups: u32, size: u32) -> Manifest {
    let spec = json!({"replicas": groups,
        "leaderWorkerTemplate": {"size": size, "workerTemplate": template(app, &json!({}))}});
    Manifest::new(namespace, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, json!({"spec": spec}))
}

fn budget(namespace: &str, name: &str, spec: &Value) -> Manifest {
    Manifest::new(namespace, "policy.quorate.dev/v1alpha1", "DisruptionBudget", name, json!({"spec": spec}))
}

/// Annotations with a disruption probe.
pub(crate) fn probe() -> Value {
    let probe = json!({"httpGet": {"path": "/disruptable", "port": 8484}, "periodSeconds": 1});
    json!({PROBE: probe.to_string()})
}

/// One of the two rules, with room for about one unit of `expected`.
fn rule(random: &mut ChaCha8Rng, expected: u32) -> (&'static str, Value) {
    match random.random_range(0..4) {
        0 => ("minAvailable", json!(expected - 1)),
        1 => ("minAvailable", json!("60%")),
        2 => ("maxUnavailable", json!("30%")),
        _ => ("maxUnavailable", json!(random.random_range(1..=2_u32.min(expected - 1)))),
    }
}

/// What a budget protects against: evictions, and some more.
fn operations(random: &mut ChaCha8Rng) -> Value {
    let mut operations = vec!["Evict"];
    match random.random_range(0..3) {
        0 => {}
        1 => operations.push("Delete"),
        _ => operations.extend(["Delete", "Update"]),
    }
    if random.random_bool(0.5) {
        operations.push("Relabel");
    }
    json!(operations)
}

impl App {
    /// A random application of this kind, for a cluster that serves the Workload API in this version.
    pub fn random(
        kind: Kind,
        namespace: &str,
        name: &str,
        api: WorkloadApi,
        random: &mut ChaCha8Rng,
    ) -> Self {
        let count = random.random_range(3..=6);
        let size = random.random_range(2..=3);
        let selector = json!({"matchLabels": {"app": name}});
        let (amount, value) = rule(random, count);
        let operations = operations(random);
        let plain = template(name, &json!({}));
        let grouped = |key: &str| {
            json!({"selector": selector, amount: value, "operations": operations,
            "podGroupPolicy": {"groupLabelKey": key}})
        };
        let (workloads, budgets) = match kind {
            Kind::Deployment => {
                let spec = json!({"selector": selector, amount: value, "operations": operations});
                (
                    vec![set(namespace, "Deployment", name, count, &plain)],
                    vec![budget(namespace, name, &spec)],
                )
            }
            Kind::Target => {
                let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name});
                let decided: &[&str] = if random.random_bool(0.5) { &["Relabel"] } else { &[] };
                let operations = [&["Evict", "Delete"], decided].concat();
                let spec = json!({"targetRef": target, amount: value, "operations": operations});
                (
                    vec![set(namespace, "Deployment", name, count, &plain)],
                    vec![budget(namespace, name, &spec)],
                )
            }
            Kind::StatefulSet => {
                let first = json!({"selector": selector, amount: value, "operations": operations});
                let second = json!({"selector": selector, "maxUnavailable": 2, "operations": ["Evict"]});
                let budgets = [(name.to_owned(), first), (format!("{name}-wide"), second)]
                    .map(|(n, s)| budget(namespace, &n, &s));
                (vec![set(namespace, "StatefulSet", name, count, &plain)], budgets.into())
            }
            Kind::LeaderWorkerSet => {
                let workload = leader_worker_set(namespace, name, name, count, size);
                (vec![workload], vec![budget(namespace, name, &grouped(LWS_GROUP))])
            }
            Kind::TwoLeaderWorkerSets => {
                let sets = ["a", "b"]
                    .map(|half| leader_worker_set(namespace, name, &format!("{name}-{half}"), 2, size));
                let spec = json!({"selector": selector, "maxUnavailable": 1, "operations": operations,
                    "podGroupPolicy": {"groupLabelKey": LWS_GROUP}});
                (sets.into(), vec![budget(namespace, name, &spec)])
            }
            Kind::Workload => Self::workload(namespace, name, &operations, random),
            Kind::LabelGroups => {
                let sets = (0..count).map(|group| {
                    let template = template(name, &json!({"shard": group.to_string()}));
                    set(namespace, "StatefulSet", &format!("{name}-{group}"), size, &template)
                });
                let mut spec = grouped("shard");
                spec["podGroupPolicy"]["minReadyReplicas"] = json!(random.random_range(1..=size));
                if random.random_bool(0.5) {
                    spec["expectedReplicas"] = json!(count);
                }
                (sets.collect(), vec![budget(namespace, name, &spec)])
            }
            Kind::Kruise => {
                let spec = json!({"selector": selector, "maxUnavailable": random.random_range(1..=2)});
                let version = "policy.kruise.io/v1alpha1";
                let mut object = json!({"spec": spec});
                if random.random_bool(0.5) {
                    object["metadata"]["annotations"] = json!({OPERATIONS: "DELETE,UPDATE,EVICT,RELABEL"});
                }
                let budget = Manifest::new(namespace, version, "PodUnavailableBudget", name, object);
                (vec![set(namespace, "Deployment", name, count, &plain)], vec![budget])
            }
            Kind::Native => {
                let workload = leader_worker_set(namespace, name, name, count, size);
                let annotations =
                    json!({"quorate.dev/group-label-key": LWS_GROUP, "quorate.dev/max-unavailable": "1"});
                let spec = json!({"selector": selector, "maxUnavailable": "90%"});
                let object = json!({"metadata": {"annotations": annotations}, "spec": spec});
                let budget = Manifest::new(namespace, "policy/v1", "PodDisruptionBudget", name, object);
                (vec![workload], vec![budget])
            }
            Kind::Probed => {
                let mut template = plain;
                template["metadata"]["annotations"] = probe();
                let workload = if random.random_bool(0.5) { "StatefulSet" } else { "Deployment" };
                let spec = json!({"selector": selector, amount: value, "operations": operations});
                let budget = budget(namespace, name, &spec);
                (vec![set(namespace, workload, name, count, &template)], vec![budget])
            }
            Kind::PodGroups => {
                let spec = json!({"selector": selector, amount: value, "operations": operations,
                    "budgetScope": "Workload"});
                let groups = Self::pod_groups(namespace, name, api, (count, size), random);
                (groups, vec![budget(namespace, name, &spec)])
            }
            Kind::Jobs => Self::jobs(namespace, name, (amount, &value), &operations, random),
            Kind::JobGroups => Self::job_groups(namespace, name, (count.min(4), size), &operations, random),
            Kind::BareGroups => Self::bare_groups(namespace, name, (count.min(4), 2), &operations, random),
            Kind::CustomSets => Self::custom_sets(namespace, name, (amount, &value), &operations, random),
            Kind::WithBarePods => Self::with_bare_pods(namespace, name, &operations, random),
            Kind::OwnerGroups => {
                let shape = (count.min(4), size);
                Self::owner_groups(namespace, name, shape, (amount, &value), &operations, random)
            }
            Kind::Singles => Self::singles(namespace, name, (3, size), &operations, random),
        };
        Self { namespace: namespace.to_owned(), name: name.to_owned(), kind, workloads, budgets }
    }

    /// A Workload with one template, its PodGroups and their pods. The loss of a pod may take its group down.
    fn pod_groups(
        namespace: &str,
        name: &str,
        api: WorkloadApi,
        (count, size): (u32, u32),
        random: &mut ChaCha8Rng,
    ) -> Vec<Manifest> {
        let falls_whole = random.random_bool(0.5);
        let needs = if falls_whole { size } else { random.random_range(1..=size) };
        let policy = json!({"gang": {"minCount": needs}});
        let (version, (link, reference), [single, whole]) = if api == WorkloadApi::V1Alpha2 {
            let reference = json!({"workload": {"workloadName": name, "podGroupTemplateName": "group"}});
            ("v1alpha2", ("podGroupTemplateRef", reference), [json!("Pod"), json!("PodGroup")])
        } else {
            let reference = json!({"workloadName": name, "templateName": "group"});
            ("v1beta1", ("workloadRef", reference), [json!({"single": {}}), json!({"all": {}})])
        };
        let version = format!("scheduling.k8s.io/{version}");
        let mode = if falls_whole { whole } else { single };
        let described = json!({"name": "group", "schedulingPolicy": policy, "disruptionMode": mode});
        let object = json!({"spec": {"podGroupTemplates": [described]}});
        let mut manifests = vec![Manifest::new(namespace, &version, "Workload", name, object)];
        for group in 0..count {
            let object =
                json!({"spec": {"schedulingPolicy": policy, "disruptionMode": mode, link: reference}});
            let group = format!("{name}-{group}");
            manifests.push(Manifest::new(namespace, &version, "PodGroup", &group, object));
        }
        for group in 0..count {
            let own = format!("{name}-{group}");
            let mut template = template(name, &json!({"gang": own}));
            template["spec"]["schedulingGroup"] = json!({"podGroupName": own});
            manifests.push(set(namespace, "StatefulSet", &own, size, &template));
        }
        manifests
    }

    /// Pod groups of one Workload: one or two replicas each, so that all pods of a group can be gone at once.
    fn workload(
        namespace: &str,
        name: &str,
        operations: &Value,
        random: &mut ChaCha8Rng,
    ) -> (Vec<Manifest>, Vec<Manifest>) {
        let size = random.random_range(1..=2);
        let groups: Vec<(&str, u32)> =
            ["ps", "worker", "eval"].iter().map(|group| (*group, random.random_range(1..=2))).collect();
        let listed: Vec<Value> = groups
            .iter()
            .map(|(group, replicas)| json!({"name": group, "replicas": replicas, "policy": {"gang": {"minCount": size}}}))
            .collect();
        let object = json!({"spec": {"podGroups": listed}});
        let mut workloads =
            vec![Manifest::new(namespace, "scheduling.quorate.dev/v1alpha1", "Workload", name, object)];
        for (group, replicas) in groups {
            for replica in 0..replicas {
                let labels = json!({"quorate.dev/workload": name, "quorate.dev/pod-group": group,
                    "quorate.dev/pod-group-replica": replica.to_string()});
                let template = template(name, &labels);
                workloads.push(set(
                    namespace,
                    "StatefulSet",
                    &format!("{name}-{group}-{replica}"),
                    size,
                    &template,
                ));
            }
        }
        let spec = json!({"selector": {"matchLabels": {"app": name}}, "maxUnavailable": 1, "budgetScope": "Workload",
            "operations": operations});
        (workloads, vec![budget(namespace, name, &spec)])
    }
}
