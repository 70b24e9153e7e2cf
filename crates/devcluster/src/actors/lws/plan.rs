//! Plans the StatefulSets of a LeaderWorkerSet. Pure functions.

use serde_json::{Value, json};

use super::super::kinds::resolve;
use super::super::pods;
use super::super::revisions::hash;
use super::api::{GROUP_INDEX, GROUP_KEY, LEADER_NAME, NAME, REPLICAS, REVISION, SIZE, Spec, WORKER_INDEX};

/// Scheduling gate of a pod until it has the labels that depend on its name. The real controller adds them in a
/// webhook. Here, the first update adds them, so that no running pod is without them.
pub(super) const GATE: &str = "leaderworkerset.sigs.k8s.io/labels";

/// The state of a group, according to its pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) updated: bool,
    pub(super) ready: bool,
}

/// The current state of the leader StatefulSet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaders {
    pub(super) replicas: i32,
    pub(super) partition: i32,
    /// The replicas of the LeaderWorkerSet when the StatefulSet was last written.
    pub(super) lws_replicas: i32,
    pub(super) of_newest_revision: bool,
}

/// The number of leaders, and the first ordinal that gets the newest revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rollout {
    pub(super) replicas: i32,
    pub(super) partition: i32,
}

/// The next step of a rollout. `groups` is ordered by index and has one entry for each desired leader.
pub(super) fn rollout(spec: &Spec, leaders: Option<Leaders>, groups: &[Group]) -> Rollout {
    let replicas = spec.replicas;
    let Some(leaders) = leaders else { return Rollout { replicas, partition: 0 } };
    let config = &spec.rollout_strategy.rolling_update_configuration;
    let surge =
        config.max_surge.as_ref().map_or(0, |surge| resolve(surge, replicas, true)).clamp(0, replicas);
    // Surge groups are kept while they replace other groups, and are removed one by one at the end.
    let with_surge = |unfinished: i32| {
        if unfinished <= surge { replicas + (unfinished - 1).max(0) } else { replicas + surge }
    };
    if !leaders.of_newest_revision {
        return Rollout { partition: replicas.min(leaders.replicas), replicas: with_surge(replicas) };
    }
    if leaders.partition == 0 && leaders.replicas <= replicas {
        return Rollout { replicas, partition: 0 };
    }
    let group =
        |index: i32| usize::try_from(index).ok().and_then(|at| groups.get(at)).copied().unwrap_or_default();
    let unfinished =
        (0..replicas).filter(|index| group(*index) != Group { updated: true, ready: true }).count();
    let next_replicas = with_surge(i32::try_from(unfinished).unwrap_or(i32::MAX));
    if leaders.lws_replicas != replicas {
        return Rollout { partition: leaders.partition.min(replicas + surge), replicas: next_replicas };
    }
    let max_unavailable = config.max_unavailable.as_ref().map_or(1, |max| resolve(max, replicas, false));
    // If both were 0, the rollout could not progress.
    let max_unavailable = if max_unavailable <= 0 && surge == 0 { 1 } else { max_unavailable.max(0) };
    let step = max_unavailable + surge - (replicas + surge - leaders.replicas);
    let partition = lower_partition(leaders, step, group);
    Rollout { replicas: next_replicas, partition }
}

fn lower_partition(leaders: Leaders, step: i32, group: impl Fn(i32) -> Group) -> i32 {
    let finished =
        (0..leaders.replicas).rev().take_while(|index| group(*index) == Group { updated: true, ready: true });
    let finished = i32::try_from(finished.count()).unwrap_or(i32::MAX);
    let reached = (leaders.replicas - finished - step).max(0);
    // Broken groups at lower indexes already count as unavailable.
    let broken = (0..reached).filter(|index| !group(*index).ready).count();
    let mut partition = reached + i32::try_from(broken).unwrap_or(i32::MAX);
    // But a broken group directly below the partition can be updated without loss.
    let mut index = partition.min(leaders.replicas - 1);
    while index >= 0 && (!group(index).ready || group(index).updated) {
        partition = index;
        index -= 1;
    }
    partition.min(leaders.partition)
}

/// The size of a group of this revision.
pub(super) fn size_of(content: &Value) -> i32 {
    let size = content.pointer("/spec/leaderWorkerTemplate/size").and_then(Value::as_i64);
    size.and_then(|size| i32::try_from(size).ok()).unwrap_or(1)
}

/// The group key of this leader's group.
pub(super) fn group_key(namespace: &str, leader: &str) -> String {
    hash(&json!(format!("{namespace}/{leader}")))
}

/// The names that identify the set in its objects.
pub(super) struct Names<'a> {
    pub(super) namespace: &'a str,
    pub(super) set: &'a str,
    pub(super) uid: &'a str,
}

/// The StatefulSet of the leaders.
pub(super) fn leader_set(
    names: &Names<'_>,
    spec: &Spec,
    content: &Value,
    revision: &str,
    rollout: Rollout,
) -> Value {
    let templates = &content["spec"]["leaderWorkerTemplate"];
    let mut template = templates["leaderTemplate"].clone();
    if template.is_null() {
        template = templates["workerTemplate"].clone();
    }
    for (label, value) in [(NAME, names.set), (WORKER_INDEX, "0"), (REVISION, revision)] {
        pods::set(&mut template, "labels", label, value);
    }
    pods::set(&mut template, "annotations", SIZE, &size_of(content).to_string());
    close(&mut template);
    let max_unavailable = spec.rollout_strategy.rolling_update_configuration.max_unavailable.clone();
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {
            "name": names.set, "namespace": names.namespace,
            "labels": {NAME: names.set, REVISION: revision},
            "annotations": {REPLICAS: spec.replicas.to_string()},
            "ownerReferences": [pods::controller_ref("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", names.set, names.uid)],
        },
        "spec": {
            "replicas": rollout.replicas, "serviceName": names.set, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {NAME: names.set, WORKER_INDEX: "0"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {
                "partition": rollout.partition, "maxUnavailable": max_unavailable}},
            "template": template,
        },
    })
}

/// The leader of the workers in a StatefulSet.
pub(super) struct Leader<'a> {
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
    pub(super) index: &'a str,
    pub(super) revision: &'a str,
}

/// The StatefulSet of one group's workers. The leader pod owns it, so it is deleted with the leader.
pub(super) fn worker_set(names: &Names<'_>, leader: &Leader<'_>, content: &Value) -> Value {
    let key = group_key(names.namespace, leader.name);
    let mut template = content["spec"]["leaderWorkerTemplate"]["workerTemplate"].clone();
    let labels =
        [(NAME, names.set), (GROUP_INDEX, leader.index), (GROUP_KEY, &key), (REVISION, leader.revision)];
    for (label, value) in labels {
        pods::set(&mut template, "labels", label, value);
    }
    pods::set(&mut template, "annotations", SIZE, &size_of(content).to_string());
    pods::set(&mut template, "annotations", LEADER_NAME, leader.name);
    close(&mut template);
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {
            "name": leader.name, "namespace": names.namespace,
            "labels": {NAME: names.set, GROUP_INDEX: leader.index, GROUP_KEY: key, REVISION: leader.revision},
            "ownerReferences": [pods::controller_ref("v1", "Pod", leader.name, leader.uid)],
        },
        "spec": {
            "replicas": size_of(content) - 1, "serviceName": names.set, "podManagementPolicy": "Parallel",
            "ordinals": {"start": 1},
            "selector": {"matchLabels": {NAME: names.set, GROUP_INDEX: leader.index, GROUP_KEY: key}},
            "template": template,
        },
    })
}

fn close(template: &mut Value) {
    if let Some(gates) = template["spec"]["schedulingGates"].as_array_mut() {
        gates.push(json!({"name": GATE}));
    } else {
        template["spec"]["schedulingGates"] = json!([{"name": GATE}]);
    }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "json!(…) stands where it is used")]
mod tests {
    use super::*;

    fn spec(replicas: i32, max_unavailable: Value, max_surge: Value) -> Spec {
        serde_json::from_value(json!({
            "replicas": replicas, "leaderWorkerTemplate": {"size": 3, "workerTemplate": {}},
            "rolloutStrategy": {"rollingUpdateConfiguration": {"maxUnavailable": max_unavailable, "maxSurge": max_surge}},
        }))
        .unwrap()
    }

    /// One letter per group: `o`ld or `n`ew, capital when ready.
    fn step(spec: &Spec, leaders: (i32, i32, bool), groups: &str) -> (i32, i32) {
        let groups: Vec<_> = groups
            .chars()
            .map(|letter| Group { updated: letter.eq_ignore_ascii_case(&'n'), ready: letter.is_uppercase() })
            .collect();
        let (replicas, partition, of_newest_revision) = leaders;
        let leaders = Leaders { replicas, partition, lws_replicas: spec.replicas, of_newest_revision };
        let next = rollout(spec, Some(leaders), &groups);
        (next.replicas, next.partition)
    }

    #[test]
    fn a_rollout_without_surge_takes_max_unavailable_groups_at_a_time() {
        let one = spec(3, json!(1), json!(0));
        assert_eq!(rollout(&one, None, &[]), Rollout { replicas: 3, partition: 0 });
        let table = [
            ((3, 0, false), "OOO", (3, 3)),
            ((3, 3, true), "OOO", (3, 2)),
            ((3, 2, true), "OOo", (3, 2)),
            ((3, 2, true), "OOn", (3, 2)),
            ((3, 2, true), "OON", (3, 1)),
            ((3, 1, true), "ONN", (3, 0)),
            ((3, 0, true), "NNN", (3, 0)),
        ];
        for (leaders, groups, expected) in table {
            assert_eq!(step(&one, leaders, groups), expected, "{groups}");
        }
        assert_eq!(step(&spec(4, json!(2), json!(0)), (4, 4, true), "OOOO"), (4, 2));
        assert_eq!(step(&spec(4, json!("50%"), json!(0)), (4, 4, true), "OOOO"), (4, 2));
    }

    #[test]
    fn a_broken_group_counts_as_unavailable_but_is_updated_if_it_is_next() {
        let one = spec(4, json!(1), json!(0));
        assert_eq!(step(&one, (4, 4, true), "oOOO"), (4, 4), "one is down already");
        assert_eq!(step(&one, (4, 4, true), "OOOo"), (4, 3));
        assert_eq!(step(&one, (4, 4, true), "oooo"), (4, 0), "nothing to lose");
    }

    #[test]
    fn surge_groups_are_created_first_and_removed_last() {
        let surge = spec(3, json!(0), json!(1));
        let table = [
            ((3, 0, false), "OOO", (4, 3)),
            ((4, 3, true), "OOOn", (4, 3)),
            ((4, 3, true), "OOON", (4, 2)),
            ((4, 2, true), "OOnN", (4, 2)),
            ((4, 2, true), "OONN", (4, 1)),
            ((4, 1, true), "ONNN", (3, 0)),
        ];
        for (leaders, groups, expected) in table {
            assert_eq!(step(&surge, leaders, groups), expected, "{groups}");
        }
    }

    #[test]
    fn workers_belong_to_their_leader_pod_and_start_at_one() {
        let content = json!({"spec": {"leaderWorkerTemplate": {"size": 3, "workerTemplate": {"spec": {"containers": []}}}}});
        let names = Names { namespace: "ns", set: "llm", uid: "u" };
        let leader = Leader { name: "llm-2", uid: "pod", index: "2", revision: "r" };
        let set = worker_set(&names, &leader, &content);
        assert_eq!(set["metadata"]["ownerReferences"][0]["kind"], "Pod");
        assert_eq!(set["spec"]["replicas"], 2);
        assert_eq!(set["spec"]["ordinals"]["start"], 1);
        let labels = &set["spec"]["template"]["metadata"]["labels"];
        assert_eq!(labels[GROUP_INDEX], "2");
        assert_eq!(labels[GROUP_KEY], set["spec"]["selector"]["matchLabels"][GROUP_KEY]);
        assert_eq!(set["spec"]["template"]["metadata"]["annotations"][SIZE], "3");
    }
}
