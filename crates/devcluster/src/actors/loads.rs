//! The number of pods on each node, updated with every change of a pod, so that scheduling need not count all pods.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;

use super::pods;

/// The load of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) pods: usize,
    /// Pods of the same spread group (see [`spread_group`]).
    pub(crate) same_group: usize,
}

/// The spread group of a pod, by UID: its controller, or the pod itself. The scheduler spreads the pods of a group
/// over nodes.
pub(crate) fn spread_group(pod: &Pod) -> &str {
    pods::controller_of(pod).map_or_else(|| pods::uid(pod), |owner| owner.uid.as_str())
}

#[derive(Default)]
pub(crate) struct Loads {
    by_node: HashMap<String, usize>,
    by_group: HashMap<String, HashMap<String, usize>>,
    /// Pods that the scheduler has bound but whose binding is not yet seen: pod UID, with node and spread group.
    assumed: HashMap<String, (String, String)>,
}

impl Loads {
    pub(crate) fn of(&self, node: &str, spread_group: &str) -> Load {
        let same_group = self.by_group.get(spread_group).and_then(|nodes| nodes.get(node));
        Load {
            pods: self.by_node.get(node).copied().unwrap_or(0),
            same_group: same_group.copied().unwrap_or(0),
        }
    }

    pub(crate) fn is_assumed(&self, uid: &str) -> bool {
        self.assumed.contains_key(uid)
    }

    /// Counts a pod on a node before the watch shows its binding.
    pub(crate) fn assume(&mut self, pod: &Pod, node: &str) {
        let assumption = (node.to_owned(), spread_group(pod).to_owned());
        self.add(&assumption.0, &assumption.1, 1);
        self.assumed.insert(pods::uid(pod).to_owned(), assumption);
    }

    /// Withdraws an assumption: the binding was seen, or it failed.
    pub(crate) fn settle(&mut self, uid: &str) {
        if let Some((node, spread_group)) = self.assumed.remove(uid) {
            self.add(&node, &spread_group, -1);
        }
    }

    /// Applies a change of a pod.
    pub(crate) fn change(&mut self, before: Option<&Pod>, after: Option<&Pod>) {
        if let Some(pod) = before
            && let Some(node) = node_in_use(pod)
        {
            self.add(node, spread_group(pod), -1);
        }
        if let Some(pod) = after
            && let Some(node) = node_in_use(pod)
        {
            self.settle(pods::uid(pod));
            self.add(node, spread_group(pod), 1);
        }
        if let (Some(gone), None) = (before, after) {
            self.settle(pods::uid(gone));
        }
    }

    fn add(&mut self, node: &str, spread_group: &str, difference: isize) {
        fn bump(counts: &mut HashMap<String, usize>, name: &str, difference: isize) {
            let count = counts.entry(name.to_owned()).or_default();
            *count = count.saturating_add_signed(difference);
            if *count == 0 {
                counts.remove(name);
            }
        }
        bump(&mut self.by_node, node, difference);
        let nodes = self.by_group.entry(spread_group.to_owned()).or_default();
        bump(nodes, node, difference);
        if nodes.is_empty() {
            self.by_group.remove(spread_group);
        }
    }
}

/// The node on which a pod takes up room.
fn node_in_use(pod: &Pod) -> Option<&str> {
    pods::node_of(pod).filter(|_| !pods::is_terminal(pod))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, node: Option<&str>, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"uid": uid, "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": true}]},
            "spec": {"containers": [], "nodeName": node}, "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_counts_once_from_the_scheduling_decision_until_it_ends() {
        let mut loads = Loads::default();
        let (waiting, bound, ended) =
            (pod("1", None, "Pending"), pod("1", Some("a"), "Running"), pod("1", Some("a"), "Succeeded"));
        loads.change(None, Some(&waiting));
        assert_eq!(loads.of("a", "web"), Load { pods: 0, same_group: 0 });
        loads.assume(&waiting, "a");
        assert_eq!(loads.of("a", "web"), Load { pods: 1, same_group: 1 });
        loads.change(Some(&waiting), Some(&bound));
        assert!(!loads.is_assumed("1"));
        assert_eq!(loads.of("a", "web"), Load { pods: 1, same_group: 1 });
        assert_eq!(loads.of("a", "other"), Load { pods: 1, same_group: 0 });
        loads.change(Some(&bound), Some(&ended));
        loads.change(Some(&ended), None);
        assert_eq!(loads.of("a", "web"), Load::default());
    }

    #[test]
    fn a_failed_binding_is_not_counted() {
        let mut loads = Loads::default();
        let waiting = pod("1", None, "Pending");
        loads.assume(&waiting, "a");
        loads.settle("1");
        assert_eq!(loads.of("a", "web"), Load::default());
    }
}
