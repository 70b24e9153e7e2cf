//! Plans the next steps of a StatefulSet. Pure functions.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::super::kinds::{StatefulSetSpec, StatefulSetStatus, resolve};
use super::super::pods;

/// The label with the revision of a pod.
pub(crate) const REVISION: &str = "controller-revision-hash";

/// The input of the plan.
pub(super) struct Facts<'a> {
    pub(super) name: &'a str,
    pub(super) spec: &'a StatefulSetSpec,
    pub(super) current: &'a str,
    pub(super) update: &'a str,
    /// Pods at the current revision, as last reported.
    pub(super) current_replicas: i32,
    pub(super) now: Timestamp,
}

/// Pods to create, by ordinal and revision, and pods to delete.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) create: Vec<(i32, String)>,
    pub(super) delete: Vec<Arc<Pod>>,
}

/// The ordinal at the end of a pod's name.
pub(crate) fn ordinal_of(set: &str, pod: &str) -> Option<i32> {
    let digits = pod.strip_prefix(set)?.strip_prefix('-')?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

fn revision(pod: &Pod) -> &str {
    pod.labels().get(REVISION).map(String::as_str).unwrap_or_default()
}

impl Facts<'_> {
    fn start(&self) -> i32 {
        self.spec.ordinals.as_ref().map_or(0, |ordinals| ordinals.start)
    }

    fn one_by_one(&self) -> bool {
        self.spec.pod_management_policy != "Parallel"
    }

    fn rolls(&self) -> bool {
        self.spec.update_strategy.kind != "OnDelete"
    }

    fn partition(&self) -> Option<i32> {
        let rolling = self.spec.update_strategy.rolling_update.as_ref()?;
        Some(rolling.partition.unwrap_or(0))
    }

    fn is_healthy(&self, pod: &Pod) -> bool {
        pods::phase(pod) == "Running"
            && !pods::is_terminating(pod)
            && pods::is_available(pod, self.spec.min_ready_seconds, self.now)
    }

    /// The revision for a new pod. During a rollout, ordinals that the rollout has not reached get the old revision.
    fn revision_for(&self, ordinal: i32) -> &str {
        let untouched = match self.partition() {
            Some(partition) => ordinal < self.start() + partition,
            None => ordinal < self.start() + self.current_replicas,
        };
        if self.rolls() && untouched { self.current } else { self.update }
    }

    /// The next steps. An ordered set takes one step at a time, and each step waits for the one before.
    pub(super) fn plan(&self, members: &[Arc<Pod>]) -> Plan {
        let mut by_ordinal: BTreeMap<i32, &Arc<Pod>> = BTreeMap::new();
        for pod in members {
            if let Some(ordinal) = ordinal_of(self.name, &pod.name_any()) {
                by_ordinal.insert(ordinal, pod);
            }
        }
        let wanted = self.start()..self.start() + self.spec.replicas.max(0);
        let mut plan = Plan::default();

        let mut removes_ended = false;
        for ordinal in wanted.clone() {
            match by_ordinal.get(&ordinal) {
                None => {
                    plan.create.push((ordinal, self.revision_for(ordinal).to_owned()));
                    if self.one_by_one() {
                        return plan;
                    }
                }
                Some(pod) if pods::is_terminal(pod) => {
                    // Its successor is created once the name is free.
                    if !pods::is_terminating(pod) {
                        plan.delete.push(Arc::clone(pod));
                    }
                    removes_ended = true;
                    if self.one_by_one() {
                        return plan;
                    }
                }
                Some(pod) => {
                    if self.one_by_one() && !self.is_healthy(pod) {
                        return plan;
                    }
                }
            }
        }
        if removes_ended {
            return plan;
        }

        let first_unhealthy = by_ordinal.values().find(|pod| !self.is_healthy(pod)).map(|pod| pod.name_any());
        for (_, pod) in by_ordinal.iter().rev().filter(|(ordinal, _)| !wanted.contains(ordinal)) {
            if pods::is_terminating(pod) {
                if self.one_by_one() {
                    return plan;
                }
                continue;
            }
            if self.one_by_one() && !self.is_healthy(pod) && first_unhealthy != Some(pod.name_any()) {
                return plan;
            }
            plan.delete.push(Arc::clone(pod));
            if self.one_by_one() {
                return plan;
            }
        }

        if self.rolls() {
            let replicas: Vec<_> = by_ordinal.range(wanted).map(|(ordinal, pod)| (*ordinal, *pod)).collect();
            self.roll(&replicas, &mut plan);
        }
        plan
    }

    /// Rolls out the update from the highest ordinal down to the partition.
    fn roll(&self, replicas: &[(i32, &Arc<Pod>)], plan: &mut Plan) {
        let from = self.start() + self.partition().unwrap_or(0);
        let rolling = self.spec.update_strategy.rolling_update.as_ref();
        let max_unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let may_go = |pod: &Pod| revision(pod) != self.update && !pods::is_terminating(pod);
        if let Some(max_unavailable) = max_unavailable {
            let bound = resolve(max_unavailable, self.spec.replicas, true).max(1);
            let down = replicas.iter().filter(|(_, pod)| !self.is_healthy(pod)).count()
                + usize::try_from(self.spec.replicas).unwrap_or(0).saturating_sub(replicas.len());
            let room = usize::try_from(bound).unwrap_or(1).saturating_sub(down);
            let old = replicas.iter().rev().filter(|(ordinal, pod)| *ordinal >= from && may_go(pod));
            plan.delete.extend(old.take(room).map(|(_, pod)| Arc::clone(pod)));
            return;
        }
        for (_, pod) in replicas.iter().rev().filter(|(ordinal, _)| *ordinal >= from) {
            if may_go(pod) {
                plan.delete.push(Arc::clone(pod));
                return;
            }
            if !self.is_healthy(pod) {
                return;
            }
        }
    }

    /// The status to report.
    pub(super) fn status(&self, members: &[Arc<Pod>], generation: i64) -> StatefulSetStatus {
        let count = |what: &dyn Fn(&Pod) -> bool| {
            i32::try_from(members.iter().filter(|pod| what(pod)).count()).unwrap_or(i32::MAX)
        };
        let running_and_ready = |pod: &Pod| pods::phase(pod) == "Running" && pods::is_ready(pod);
        let of = |wanted: &str, pod: &Pod| !pods::is_terminating(pod) && revision(pod) == wanted;
        let mut status = StatefulSetStatus {
            replicas: count(&|_| true),
            ready_replicas: count(&running_and_ready),
            available_replicas: count(&|pod| {
                running_and_ready(pod) && pods::is_available(pod, self.spec.min_ready_seconds, self.now)
            }),
            current_replicas: count(&|pod| of(self.current, pod)),
            updated_replicas: count(&|pod| of(self.update, pod)),
            current_revision: self.current.to_owned(),
            update_revision: self.update.to_owned(),
            collision_count: 0,
            observed_generation: generation,
        };
        let complete = status.updated_replicas == status.replicas && status.ready_replicas == status.replicas;
        if self.rolls() && complete && status.replicas == self.spec.replicas {
            status.current_revision = status.update_revision.clone();
            status.current_replicas = status.updated_replicas;
        }
        status
    }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "json!(…) stands where it is used")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// `db-1:new!` is ready, `db-1:new` is not ready, `db-1:new~` is terminating, `db-1:new+` has failed.
    fn pod(text: &str) -> Arc<Pod> {
        let (mark, rest) = match text.chars().last() {
            Some(mark @ ('!' | '~' | '+')) => (mark, &text[..text.len() - 1]),
            _ => (' ', text),
        };
        let (name, revision) = rest.split_once(':').unwrap();
        let phase = if mark == '+' { "Failed" } else { "Running" };
        let mut pod = json!({
            "metadata": {"name": name, "labels": {REVISION: revision}},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": if mark == '!' { "True" } else { "False" }}]},
        });
        if mark == '~' {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    /// The steps of the plan: `+db-1:new` creates, `-db-1` deletes.
    fn steps(spec: Value, pods: &[&str]) -> Vec<String> {
        let mut whole =
            json!({"replicas": 3, "selector": {}, "updateStrategy": {"rollingUpdate": {"partition": 0}}});
        json_patch::merge(&mut whole, &spec);
        let spec: StatefulSetSpec = serde_json::from_value(whole).unwrap();
        let facts = Facts {
            name: "db",
            spec: &spec,
            current: "old",
            update: "new",
            current_replicas: 3,
            now: Timestamp::UNIX_EPOCH,
        };
        let plan = facts.plan(&pods.iter().map(|text| pod(text)).collect::<Vec<_>>());
        let made = plan.create.iter().map(|(ordinal, revision)| format!("+db-{ordinal}:{revision}"));
        made.chain(plan.delete.iter().map(|pod| format!("-{}", pod.name_any()))).collect()
    }

    #[test]
    fn ordered_sets_take_one_step_at_a_time() {
        let ordered = json!({});
        let table: &[(&[&str], &[&str])] = &[
            (&[], &["+db-0:new"]),
            (&["db-0:new"], &[]),
            (&["db-0:new!"], &["+db-1:new"]),
            (&["db-0:new!", "db-1:new~", "db-2:new!"], &[]),
            (&["db-0:new!", "db-2:new!"], &["+db-1:new"]),
            (&["db-0:new!", "db-1:new+"], &["-db-1"]),
            (&["db-0:new!", "db-1:new!", "db-2:new!"], &[]),
            (&["db-0:new!", "db-1:new!", "db-2:new!", "db-3:new!", "db-4:new!"], &["-db-4"]),
            (&["db-0:new!", "db-1:new!", "db-2:new!", "db-3:new!", "db-4:new~"], &[]),
            (&["db-0:new!", "db-1:new", "db-2:new!", "db-3:new!"], &[]),
        ];
        for (pods, expected) in table {
            assert_eq!(steps(ordered.clone(), pods), *expected, "{pods:?}");
        }
    }

    #[test]
    fn parallel_sets_take_all_steps_at_once() {
        let parallel = json!({"podManagementPolicy": "Parallel"});
        assert_eq!(steps(parallel.clone(), &[]), ["+db-0:new", "+db-1:new", "+db-2:new"]);
        assert_eq!(steps(parallel, &["db-0:new", "db-2:new~"]), ["+db-1:new"]);
        assert_eq!(
            steps(
                json!({"podManagementPolicy": "Parallel", "replicas": 1}),
                &["db-0:new", "db-1:new", "db-2:new!"]
            ),
            ["-db-2", "-db-1"]
        );
        assert_eq!(
            steps(
                json!({"podManagementPolicy": "Parallel", "replicas": 2, "ordinals": {"start": 1}}),
                &["db-0:new!"]
            ),
            ["+db-1:new", "+db-2:new", "-db-0"]
        );
    }

    #[test]
    fn a_rollout_goes_from_the_top_down_to_the_partition() {
        let all_old = ["db-0:old!", "db-1:old!", "db-2:old!"];
        let table: &[(Value, &[&str], &[&str])] = &[
            (json!({}), &all_old, &["-db-2"]),
            (json!({}), &["db-0:old!", "db-1:old!", "db-2:old~"], &[]),
            (json!({}), &["db-0:old!", "db-1:old!"], &["+db-2:new"]),
            (json!({}), &["db-0:old!", "db-1:old!", "db-2:new"], &[]),
            (json!({}), &["db-0:old!", "db-1:old!", "db-2:new!"], &["-db-1"]),
            (
                json!({"updateStrategy": {"rollingUpdate": {"partition": 2}}}),
                &["db-0:old!", "db-1:old!", "db-2:new!"],
                &[],
            ),
            (
                json!({"updateStrategy": {"rollingUpdate": {"partition": 2}}}),
                &["db-1:old!", "db-2:new!"],
                &["+db-0:old"],
            ),
            (json!({"updateStrategy": {"type": "OnDelete"}}), &all_old, &[]),
            (
                json!({"podManagementPolicy": "Parallel", "updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}),
                &all_old,
                &["-db-2", "-db-1"],
            ),
            (
                json!({"podManagementPolicy": "Parallel", "updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}}),
                &["db-0:old!", "db-1:old!", "db-2:new"],
                &["-db-1"],
            ),
        ];
        for (spec, pods, expected) in table {
            assert_eq!(steps(spec.clone(), pods), *expected, "{spec} {pods:?}");
        }
    }

    #[test]
    fn ordinals_are_parsed_from_pod_names() {
        assert_eq!(ordinal_of("db", "db-12"), Some(12));
        for other in ["db", "db-", "db-x", "dbx-1", "db-1-2", "db-+1"] {
            assert_eq!(ordinal_of("db", other), None, "{other}");
        }
    }
}
