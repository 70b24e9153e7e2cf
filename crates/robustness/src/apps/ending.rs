//! Applications whose pods end by themselves: Jobs, and groups that complete.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::{App, Manifest, Parts, budget, set, template};

/// What forms the groups of an application whose groups complete.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grouping {
    Label,
    Owner,
    Workload,
}

/// A pod template as a Job requires it.
fn ending(app: &str, labels: &Value) -> Value {
    let mut template = template(app, labels);
    template["spec"]["restartPolicy"] = json!("Never");
    template
}

fn job(namespace: &str, name: &str, mut spec: Value, template: &Value) -> Manifest {
    spec["template"] = template.clone();
    Manifest::new(namespace, "batch/v1", "Job", name, json!({"spec": spec}))
}

/// Jobs fail after this many failed pods, some soon.
fn backoff_limit(random: &mut ChaCha8Rng) -> u32 {
    if random.random_bool(0.3) { 3 } else { 100 }
}

impl App {
    /// Jobs of both completion modes under one budget, sometimes with a Deployment. Or one Job and a budget that names it.
    pub(super) fn jobs(
        namespace: &str,
        name: &str,
        (amount, value): (&str, &Value),
        operations: &Value,
        random: &mut ChaCha8Rng,
    ) -> Parts {
        let (wide, indexes) = (random.random_range(2..=4), random.random_range(2..=4));
        let template = ending(name, &json!({}));
        let many = json!({"parallelism": wide, "completions": wide * random.random_range(3..8),
            "backoffLimit": backoff_limit(random)});
        if random.random_bool(0.25) {
            let target = json!({"apiVersion": "batch/v1", "kind": "Job", "name": name});
            let spec = json!({"targetRef": target, "maxUnavailable": 1, "operations": operations});
            return (vec![job(namespace, name, many, &template)], vec![budget(namespace, name, &spec)]);
        }
        let indexed = json!({"parallelism": indexes, "completions": indexes, "completionMode": "Indexed",
            "backoffLimit": backoff_limit(random)});
        let mut workloads = vec![
            job(namespace, &format!("{name}-many"), many, &template),
            job(namespace, &format!("{name}-indexed"), indexed, &template),
        ];
        match random.random_range(0..3) {
            0 => {
                // A work queue: any pod that succeeds ends it.
                let queue = json!({"parallelism": 2, "backoffLimit": backoff_limit(random)});
                workloads.push(job(namespace, &format!("{name}-queue"), queue, &template));
            }
            1 => {
                let beside = super::template(name, &json!({"part": "beside"}));
                workloads.push(set(namespace, "Deployment", &format!("{name}-beside"), 2, &beside));
            }
            _ => {}
        }
        let spec =
            json!({"selector": {"matchLabels": {"app": name}}, amount: value, "operations": operations});
        (workloads, vec![budget(namespace, name, &spec)])
    }

    /// Groups that complete: each is an indexed Job.
    pub(super) fn job_groups(
        namespace: &str,
        name: &str,
        (count, size): (u32, u32),
        operations: &Value,
        random: &mut ChaCha8Rng,
    ) -> Parts {
        let grouping = match random.random_range(0..3) {
            0 => Grouping::Label,
            1 => Grouping::Owner,
            _ => Grouping::Workload,
        };
        let mut workloads = Vec::new();
        if grouping == Grouping::Workload {
            workloads.push(workload(namespace, name, count, size, random));
        }
        for group in 0..count {
            let template = ending(name, &labels(grouping, name, group));
            let spec = json!({"parallelism": size, "completions": size, "completionMode": "Indexed",
                "backoffLimit": backoff_limit(random)});
            workloads.push(job(namespace, &format!("{name}-{group}"), spec, &template));
        }
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job"});
        let spec = groups(name, grouping, &owner, (count, size), operations, random);
        (workloads, vec![budget(namespace, name, &spec)])
    }

    /// Groups that complete, of pods without a controller: one that goes is created again later, or never.
    pub(super) fn bare_groups(
        namespace: &str,
        name: &str,
        (count, size): (u32, u32),
        operations: &Value,
        random: &mut ChaCha8Rng,
    ) -> Parts {
        let grouping = if random.random_bool(0.5) { Grouping::Label } else { Grouping::Workload };
        let mut workloads = Vec::new();
        if grouping == Grouping::Workload {
            workloads.push(workload(namespace, name, count, size, random));
        }
        for group in 0..count {
            let template = ending(name, &labels(grouping, name, group));
            for number in 0..size {
                workloads.push(super::bare_pod(namespace, &format!("{name}-{group}-{number}"), &template));
            }
        }
        let spec = groups(name, grouping, &Value::Null, (count, size), operations, random);
        (workloads, vec![budget(namespace, name, &spec)])
    }
}

fn labels(grouping: Grouping, name: &str, group: u32) -> Value {
    match grouping {
        Grouping::Label => json!({"shard": group.to_string()}),
        Grouping::Owner => json!({}),
        Grouping::Workload => json!({"quorate.dev/workload": name, "quorate.dev/pod-group": "worker",
            "quorate.dev/pod-group-replica": group.to_string()}),
    }
}

/// A Workload of Quorate's own kind with one pod group of so many replicas.
fn workload(namespace: &str, name: &str, count: u32, size: u32, random: &mut ChaCha8Rng) -> Manifest {
    let policy = json!({"gang": {"minCount": random.random_range(1..=size)}});
    let group = json!({"name": "worker", "replicas": count, "policy": policy});
    let object = json!({"spec": {"podGroups": [group]}});
    Manifest::new(namespace, "scheduling.quorate.dev/v1alpha1", "Workload", name, object)
}

/// A budget over groups, of which one may be down.
fn groups(
    name: &str,
    grouping: Grouping,
    owner: &Value,
    (count, size): (u32, u32),
    operations: &Value,
    random: &mut ChaCha8Rng,
) -> Value {
    let mut spec =
        json!({"selector": {"matchLabels": {"app": name}}, "maxUnavailable": 1, "operations": operations});
    let least = random.random_range(1..=size);
    match grouping {
        Grouping::Label => {
            spec["podGroupPolicy"] = json!({"groupLabelKey": "shard", "minReadyReplicas": least});
        }
        Grouping::Owner => spec["podGroupPolicy"] = json!({"groupOwner": owner, "minReadyReplicas": least}),
        Grouping::Workload => spec["budgetScope"] = json!("Workload"),
    }
    if grouping != Grouping::Workload && random.random_bool(0.33) {
        spec["expectedReplicas"] = json!(count);
    }
    spec
}
