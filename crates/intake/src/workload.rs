//! The `scheduling.quorate.dev` Workload: parsing and validation.

use quorate_engine::facts::WorkloadGroup;
use serde_json::Value;

use crate::error::Problem;
use crate::field::Field;
use crate::syntax;

/// Maximum number of pod groups in one Workload.
const MAX_GROUPS: usize = 8;

/// All problems of the spec of a `Workload`.
pub fn validate(spec: &Value) -> Vec<Problem> {
    read(spec).1
}

pub(crate) fn read(spec: &Value) -> (Vec<WorkloadGroup>, Vec<Problem>) {
    let mut problems = Vec::new();
    let spec = Field::new("spec", spec);
    let mut groups: Vec<WorkloadGroup> = Vec::new();
    let items = match spec.get("podGroups") {
        Some(list) => list.items(&mut problems),
        None => Vec::new(),
    };
    if problems.is_empty() && !(1..=MAX_GROUPS).contains(&items.len()) {
        let message = format!("must have from 1 to {MAX_GROUPS} groups, and has {}", items.len());
        problems.push(Problem::at("spec.podGroups", message));
    }
    for item in items {
        let Some(group) = read_group(&item, &mut problems) else { continue };
        if groups.iter().any(|other| other.name == group.name) {
            problems.push(Problem::with(
                format!("{}.name", item.path),
                &group.name,
                "is the name of an earlier group: names must be unique within the workload",
            ));
        }
        groups.push(group);
    }
    (groups, problems)
}

fn read_group(group: &Field<'_>, problems: &mut Vec<Problem>) -> Option<WorkloadGroup> {
    let missing =
        |name: &str, what: &str| Problem::at(format!("{}.{name}", group.path), format!("is missing: {what}"));
    let name = match group.get("name") {
        Some(field) => field.text(problems).filter(|name| {
            let fits = syntax::is_dns_label(name);
            if !fits {
                problems.push(field.problem(
                    "must be at most 63 lower-case letters, digits and '-', beginning and ending with a letter or digit",
                ));
            }
            fits
        }),
        None => {
            problems.push(missing("name", "pods refer to the group by its name"));
            None
        }
    };
    let replicas = match group.get("replicas") {
        Some(field) => field.number(0, i32::MAX as u32, problems),
        None => {
            problems.push(missing("replicas", "set the expected number of replicas of the group"));
            None
        }
    };
    let min_count = match group.get("policy") {
        Some(policy) => read_policy(&policy, problems),
        None => {
            problems.push(missing("policy", "set gang with a minCount, or basic: {}"));
            None
        }
    };
    Some(WorkloadGroup { name: name?.into(), min_count: min_count?, replicas: Some(replicas?) })
}

fn read_policy(policy: &Field<'_>, problems: &mut Vec<Problem>) -> Option<u32> {
    match (policy.get("gang"), policy.get("basic")) {
        (Some(gang), None) => match gang.get("minCount") {
            Some(count) => count.number(1, i32::MAX as u32, problems),
            None => {
                let path = format!("{}.minCount", gang.path);
                problems.push(Problem::at(path, "is missing: set how many pods a healthy replica needs"));
                None
            }
        },
        (None, Some(_)) => Some(1),
        (Some(_), Some(_)) => {
            problems
                .push(Problem::at(&policy.path, "has gang and basic, which exclude each other: keep one"));
            None
        }
        (None, None) => {
            problems.push(Problem::at(&policy.path, "is empty: set gang with a minCount, or basic: {}"));
            None
        }
    }
}
