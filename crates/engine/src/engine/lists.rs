//! Complete lists: known objects that are not in a list are gone.

use rustc_hash::FxHashSet;

use crate::basics::{ObjectKey, Uid};
use crate::engine::{Engine, Snapshot};
use crate::facts::{BudgetKey, Input};
use crate::sources;

impl Engine {
    pub(super) fn take_snapshot(&mut self, snapshot: Snapshot) {
        match snapshot {
            Snapshot::Pods(pods, version) => {
                let listed: FxHashSet<Uid> = pods.iter().map(|pod| pod.uid.clone()).collect();
                let mut gone: Vec<u32> = self
                    .pods
                    .iter()
                    .filter(|(_, record)| {
                        !listed.contains(&record.fact.uid) && record.fact.version <= version
                    })
                    .map(|(id, _)| id as u32)
                    .collect();
                self.sort_succeeded_first(&mut gone);
                let gone: Vec<Uid> = gone.iter().map(|id| self.pods[*id as usize].fact.uid.clone()).collect();
                gone.iter().for_each(|uid| self.remove_pod(uid));
                pods.into_iter().for_each(|pod| self.set_pod(pod, version));
                self.pods_at(version);
            }
            Snapshot::Budgets(kind, budgets) => {
                let listed: FxHashSet<BudgetKey> = budgets.iter().map(|b| b.key.clone()).collect();
                let of_front = self.by_key.keys().filter(|key| key.kind == kind);
                let gone: Vec<BudgetKey> = of_front.filter(|key| !listed.contains(*key)).cloned().collect();
                gone.iter().for_each(|key| self.remove_budget(key));
                budgets.into_iter().for_each(|budget| self.set_budget(budget));
            }
            Snapshot::Controllers(kind, controllers) => {
                self.cluster.watches(&kind);
                let listed: FxHashSet<Uid> = controllers.iter().map(|c| c.uid.clone()).collect();
                let gone: Vec<Uid> = self
                    .cluster
                    .controllers_of(&kind)
                    .filter(|controller| !listed.contains(&controller.uid))
                    .map(|controller| controller.uid.clone())
                    .collect();
                gone.into_iter().for_each(|uid| self.take(Input::ControllerGone(uid)));
                controllers.into_iter().for_each(|controller| self.take(Input::Controller(controller)));
                self.forget_unlisted(&kind);
            }
            Snapshot::PodGroups(list) => {
                let gone = missing(self.cluster.pod_group_keys(), &list);
                gone.into_iter().for_each(|key| self.take(Input::PodGroup(key, None)));
                list.into_iter().for_each(|(key, group)| self.take(Input::PodGroup(key, Some(group))));
                self.forget_unlisted(&sources::pod_group_kind());
            }
            Snapshot::Workloads(source, list) => {
                let gone = missing(self.cluster.workload_keys(source), &list);
                gone.into_iter().for_each(|key| self.take(Input::Workload(source, key, None)));
                list.into_iter().for_each(|(key, w)| self.take(Input::Workload(source, key, Some(w))));
                self.forget_unlisted(&sources::workload_kind(source));
            }
            Snapshot::Namespaces(list) => {
                let gone = missing(self.cluster.namespaces.keys(), &list);
                gone.into_iter().for_each(|name| self.take(Input::Namespace(name, None)));
                list.into_iter().for_each(|(name, n)| self.take(Input::Namespace(name, Some(n))));
            }
            Snapshot::Nodes(list) => {
                let gone = missing(self.cluster.node_names(), &list);
                gone.into_iter().for_each(|name| self.take(Input::Node(name, None)));
                list.into_iter().for_each(|(name, node)| self.take(Input::Node(name, Some(node))));
            }
            Snapshot::Agents(list) => {
                let gone = missing(self.cluster.agent_names(), &list);
                gone.into_iter().for_each(|name| self.take(Input::Agent(name, None)));
                list.into_iter().for_each(|(name, agent)| self.take(Input::Agent(name, Some(agent))));
            }
            Snapshot::NativeBudgets(list) => {
                let known: Vec<ObjectKey> = self.cluster.native_keys().collect();
                let gone = missing(known.iter(), &list);
                gone.into_iter().for_each(|key| self.take(Input::NativeBudget(key, None)));
                list.into_iter().for_each(|(key, b)| self.take(Input::NativeBudget(key, Some(b))));
            }
        }
    }
}

fn missing<'a, K: Eq + std::hash::Hash + Clone + 'a, V>(
    known: impl Iterator<Item = &'a K>,
    listed: &[(K, V)],
) -> Vec<K> {
    let listed: FxHashSet<&K> = listed.iter().map(|(key, _)| key).collect();
    known.filter(|key| !listed.contains(key)).cloned().collect()
}
