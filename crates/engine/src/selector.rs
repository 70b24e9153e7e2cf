//! Label selectors, and an index that finds the budgets which may select a pod without asking each.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::basics::{Labels, Text};

/// A label selector: all requirements must hold. Without any it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector(pub Box<[Requirement]>);

/// One requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// The label it is about.
    pub key: Text,
    /// What it asks of that label.
    pub ask: Ask,
}

/// What a requirement asks of its label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// It has one of these values.
    In(Box<[Text]>),
    /// It has none of these values, or is absent.
    NotIn(Box<[Text]>),
    /// It is there.
    Exists,
    /// It is absent.
    Absent,
}

impl Selector {
    /// The selector that asks for these labels.
    pub fn labels<K: Into<Text>, V: Into<Text>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        Self(
            pairs
                .into_iter()
                .map(|(key, value)| Requirement { key: key.into(), ask: Ask::In([value.into()].into()) })
                .collect(),
        )
    }

    /// Whether it selects an object with these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            match &requirement.ask {
                Ask::In(values) => value.is_some_and(|v| values.contains(v)),
                Ask::NotIn(values) => value.is_none_or(|v| !values.contains(v)),
                Ask::Exists => value.is_some(),
                Ask::Absent => value.is_none(),
            }
        })
    }

    /// The places in the index where it is filed: under the first requirement that a pod must fulfil by having a
    /// label. Under everything, where there is none.
    fn anchors(&self) -> SmallVec<[Anchor; 2]> {
        for requirement in &self.0 {
            if let Ask::In(values) = &requirement.ask {
                return values.iter().map(|v| Anchor::Pair(requirement.key.clone(), v.clone())).collect();
            }
        }
        for requirement in &self.0 {
            if requirement.ask == Ask::Exists {
                return [Anchor::Key(requirement.key.clone())].into_iter().collect();
            }
        }
        [Anchor::All].into_iter().collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Anchor {
    Pair(Text, Text),
    Key(Text),
    All,
}

/// Files selectors of one namespace by a label that their pods must have.
#[derive(Clone, Debug, Default)]
pub(crate) struct SelectorIndex {
    filed: FxHashMap<Anchor, SmallVec<[u32; 2]>>,
}

impl SelectorIndex {
    pub(crate) fn insert(&mut self, selector: &Selector, id: u32) {
        for anchor in selector.anchors() {
            self.filed.entry(anchor).or_default().push(id);
        }
    }

    pub(crate) fn remove(&mut self, selector: &Selector, id: u32) {
        for anchor in selector.anchors() {
            if let Some(ids) = self.filed.get_mut(&anchor) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.filed.remove(&anchor);
                }
            }
        }
    }

    /// Whoever may select an object with these labels: each still has to be asked.
    pub(crate) fn candidates(&self, labels: &Labels) -> SmallVec<[u32; 4]> {
        let mut found = SmallVec::new();
        let mut take = |anchor: &Anchor| {
            if let Some(ids) = self.filed.get(anchor) {
                found.extend_from_slice(ids);
            }
        };
        for (key, value) in labels.iter() {
            take(&Anchor::Pair(key.clone(), value.clone()));
            take(&Anchor::Key(key.clone()));
        }
        take(&Anchor::All);
        found.sort_unstable();
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(key: &str, ask: Ask) -> Selector {
        Selector([Requirement { key: key.into(), ask }].into())
    }

    fn values(list: &[&str]) -> Box<[Text]> {
        list.iter().map(|v| Text::from(*v)).collect()
    }

    #[test]
    fn selects_as_kubernetes_does() {
        let pod = Labels::new([("app", "web"), ("tier", "front")]);
        let cases = [
            (Selector::default(), true),
            (Selector::labels([("app", "web")]), true),
            (Selector::labels([("app", "db")]), false),
            (Selector::labels([("app", "web"), ("tier", "back")]), false),
            (ask("app", Ask::In(values(&["db", "web"]))), true),
            (ask("app", Ask::NotIn(values(&["web"]))), false),
            (ask("zone", Ask::NotIn(values(&["a"]))), true),
            (ask("tier", Ask::Exists), true),
            (ask("tier", Ask::Absent), false),
            (ask("zone", Ask::Absent), true),
        ];
        let mut index = SelectorIndex::default();
        for (id, (selector, _)) in cases.iter().enumerate() {
            index.insert(selector, id as u32);
        }
        let candidates = index.candidates(&pod);
        for (id, (selector, expected)) in cases.iter().enumerate() {
            assert_eq!(selector.matches(&pod), *expected, "{selector:?}");
            if *expected {
                assert!(candidates.contains(&(id as u32)), "the index lost {selector:?}");
            }
        }
        for (id, (selector, _)) in cases.iter().enumerate() {
            index.remove(selector, id as u32);
        }
        assert!(index.filed.is_empty());
    }
}
