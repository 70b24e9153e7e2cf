//! The pods and budgets of each namespace.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::pod_list::PodList;
use crate::basics::{GroupKind, Text};
use crate::engine::Engine;
use crate::selector::{NO_SELECTORS, SelectorIndex};

/// The pods and budgets of a namespace.
#[derive(Clone, Debug)]
pub(super) struct NamespaceIndex {
    /// Its name, shared by everything in the namespace.
    pub(super) name: Text,
    pub(super) pods: PodList,
    pub(super) budgets: BTreeSet<u32>,
    pub(super) selectors: SelectorIndex,
    /// A new number for each change of the selectors.
    pub(super) edition: u64,
    pub(super) targets: FxHashMap<(GroupKind, Text), SmallVec<[u32; 2]>>,
}

impl NamespaceIndex {
    /// The index of a namespace; creates it if necessary.
    pub(super) fn find<'a>(all: &'a mut FxHashMap<Text, Self>, name: &Text) -> &'a mut Self {
        all.entry(name.clone()).or_insert_with(|| Self {
            name: name.clone(),
            pods: PodList::new(),
            budgets: BTreeSet::new(),
            selectors: SelectorIndex::default(),
            edition: NO_SELECTORS,
            targets: FxHashMap::default(),
        })
    }
}

impl Engine {
    /// Drops the index of a namespace that has neither pods nor budgets. Otherwise the index of a cluster that makes a
    /// namespace for each test run would grow for ever.
    pub(super) fn drop_empty_namespace(&mut self, name: &Text) {
        if self.namespaces.get(name).is_some_and(|index| index.pods.is_empty() && index.budgets.is_empty()) {
            self.namespaces.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gates;
    use crate::basics::{ObjectKey, Time, Version};
    use crate::claims::Ledger;
    use crate::facts::{Budget, BudgetKey, BudgetKind, Covers, Input, Memory, Pod, RuleAnnotations, Rules};
    use crate::selector::Selector;

    fn pod(namespace: &str) -> Pod {
        Pod::ready(ObjectKey::new(namespace, "web-0"), namespace, 1)
    }

    fn key(namespace: &str) -> BudgetKey {
        let object = ObjectKey::new(namespace, "web");
        BudgetKey { object, kind: BudgetKind::DisruptionBudget }
    }

    fn budget(namespace: &str) -> Budget {
        Budget {
            key: key(namespace),
            uid: "budget".into(),
            generation: 1,
            version: Version(1),
            spec: Ok(Rules::new(Covers::Selector(Selector::default()))),
            annotations: RuleAnnotations::default(),
            is_twin: false,
            ledger: Ledger::default(),
            gone: Box::default(),
            memory: Memory::default(),
        }
    }

    #[test]
    fn a_namespace_is_dropped_with_its_last_pod_and_budget() {
        let (a, b) = ("a", "b");
        let pod_gone = || Input::PodGone(a.into(), Version(2));
        let budget_gone = || Input::BudgetGone(key(a));
        let cases: [(&str, Vec<Input>, &[&str]); 5] = [
            ("a pod", vec![Input::Pod(pod(a))], &[a]),
            ("a pod that goes", vec![Input::Pod(pod(a)), pod_gone()], &[]),
            ("a budget is left", vec![Input::Pod(pod(a)), Input::Budget(budget(a)), pod_gone()], &[a]),
            ("a pod is left", vec![Input::Pod(pod(a)), Input::Budget(budget(a)), budget_gone()], &[a]),
            ("another one", vec![Input::Budget(budget(a)), Input::Pod(pod(b)), budget_gone()], &[b]),
        ];
        for (name, inputs, expected) in cases {
            let mut engine = Engine::new(Gates::default());
            for input in inputs {
                engine.apply(input, Time(0));
            }
            let known: Vec<&str> = engine.namespaces.keys().map(|name| &**name).collect();
            assert_eq!(known, expected, "{name}");
        }
    }
}
