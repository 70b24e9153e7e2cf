//! Applications with pods of several sorts under one budget, and of kinds that servers watch only while something names
//! them.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::{App, Parts, bare_pod, budget, set, template};

/// Custom kinds with a scale: one whose pod template Quorate knows, and one whose template it does not know.
const CUSTOM: [(&str, &str); 2] = [("apps.kruise.io/v1alpha1", "CloneSet"), ("example.com/v1", "Fleet")];

impl App {
    /// One or two sets of custom kinds under one budget, which may name its only set.
    pub(super) fn custom_sets(
        namespace: &str,
        name: &str,
        (amount, value): (&str, &Value),
        operations: &Value,
        random: &mut ChaCha8Rng,
    ) -> Parts {
        let mut rule = json!({amount: value, "operations": operations});
        let custom = |random: &mut ChaCha8Rng, name: &str, template: &Value| {
            let (version, kind) = CUSTOM[random.random_range(0..CUSTOM.len())];
            let mut manifest = set(namespace, "ReplicaSet", name, random.random_range(2..=4), template);
            manifest.object["kind"] = json!(kind);
            manifest.object["apiVersion"] = json!(version);
            manifest.path = format!("/apis/{version}/namespaces/{namespace}/{}s", kind.to_lowercase());
            manifest
        };
        if random.random_bool(0.33) {
            let only = custom(random, name, &template(name, &json!({})));
            rule["targetRef"] = json!({"apiVersion": only.object["apiVersion"], "kind": only.object["kind"],
                "name": name});
            return (vec![only], vec![budget(namespace, name, &rule)]);
        }
        let sets = ["a", "b"]
            .map(|half| custom(random, &format!("{name}-{half}"), &template(name, &json!({"half": half}))));
        rule["selector"] = json!({"matchLabels": {"app": name}});
        (sets.into(), vec![budget(namespace, name, &rule)])
    }

    /// A workload, and pods without a controller, under one budget. Such a budget counts the pods that exist, or states how
    /// many it expects.
    pub(super) fn with_bare_pods(
        namespace: &str,
        name: &str,
        operations: &Value,
        random: &mut ChaCha8Rng,
    ) -> Parts {
        let (managed, bare) = (random.random_range(2..=4), random.random_range(2..=3));
        let kind = if random.random_bool(0.5) { "Deployment" } else { "StatefulSet" };
        let mut workloads =
            vec![set(namespace, kind, name, managed, &template(name, &json!({"part": "managed"})))];
        let alone = template(name, &json!({"part": "bare"}));
        workloads
            .extend((0..bare).map(|number| bare_pod(namespace, &format!("{name}-bare-{number}"), &alone)));
        let mut spec = json!({"selector": {"matchLabels": {"app": name}}, "operations": operations});
        match random.random_range(0..4) {
            0 => {
                spec["expectedReplicas"] = json!(managed + bare);
                spec["maxUnavailable"] = json!("30%");
            }
            1 => spec["minAvailable"] = json!(managed + bare - 2),
            _ => spec["minAvailable"] = json!(managed + bare - 1),
        }
        (workloads, vec![budget(namespace, name, &spec)])
    }

    /// Groups by owner: the pods of each StatefulSet, or of each CloneSet.
    pub(super) fn owner_groups(
        namespace: &str,
        name: &str,
        (count, size): (u32, u32),
        (amount, value): (&str, &Value),
        operations: &Value,
        random: &mut ChaCha8Rng,
    ) -> Parts {
        let custom = random.random_bool(0.4);
        let (version, kind) = if custom { CUSTOM[0] } else { ("apps/v1", "StatefulSet") };
        let sets = (0..count).map(|group| {
            let template = template(name, &json!({"part": group.to_string()}));
            let mut manifest = set(namespace, "StatefulSet", &format!("{name}-{group}"), size, &template);
            manifest.object["kind"] = json!(kind);
            manifest.object["apiVersion"] = json!(version);
            manifest.path = format!("/apis/{version}/namespaces/{namespace}/{}s", kind.to_lowercase());
            manifest
        });
        let sets = sets.collect();
        let owner = json!({"apiVersion": version, "kind": kind});
        let mut spec = json!({"selector": {"matchLabels": {"app": name}}, amount: value, "operations": operations,
            "podGroupPolicy": {"groupOwner": owner, "minReadyReplicas": random.random_range(1..=size)}});
        if random.random_bool(0.5) {
            spec["expectedReplicas"] = json!(count);
        }
        (sets, vec![budget(namespace, name, &spec)])
    }

    /// Groups by label, and a Deployment whose pods have no group. They are counted one by one.
    pub(super) fn singles(
        namespace: &str,
        name: &str,
        (count, size): (u32, u32),
        operations: &Value,
        random: &mut ChaCha8Rng,
    ) -> Parts {
        let mut workloads: Vec<_> = (0..count)
            .map(|group| {
                let template = template(name, &json!({"shard": group.to_string()}));
                set(namespace, "StatefulSet", &format!("{name}-{group}"), size, &template)
            })
            .collect();
        let alone = template(name, &json!({"part": "alone"}));
        let replicas = random.random_range(3..=4);
        workloads.push(set(namespace, "Deployment", &format!("{name}-alone"), replicas, &alone));
        let most = [json!(1), json!(1), json!("30%")];
        let spec = json!({"selector": {"matchLabels": {"app": name}}, "operations": operations,
            "maxUnavailable": most[random.random_range(0..most.len())],
            "podGroupPolicy": {"groupLabelKey": "shard", "minReadyReplicas": random.random_range(1..=size)}});
        (workloads, vec![budget(namespace, name, &spec)])
    }
}
