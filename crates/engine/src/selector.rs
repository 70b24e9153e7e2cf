//! Label selectors, and an index that finds the budgets that may select a pod without checking each of them.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::basics::{Labels, Text};

/// A label selector: all requirements must hold. A selector without requirements selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector(pub Box<[Requirement]>);

/// One requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// The key of the label.
    pub key: Text,
    /// The condition on the label.
    pub operator: Operator,
}

/// The condition of a requirement on its label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The label has one of these values.
    In(Box<[Text]>),
    /// The label has none of these values, or is absent.
    NotIn(Box<[Text]>),
    /// The label is present.
    Exists,
    /// The label is absent.
    Absent,
}

impl Selector {
    /// The selector that requires these labels.
    pub fn labels<K: Into<Text>, V: Into<Text>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        Self(
            pairs
                .into_iter()
                .map(|(key, value)| Requirement {
                    key: key.into(),
                    operator: Operator::In([value.into()].into()),
                })
                .collect(),
        )
    }

    /// Whether it selects an object with these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels.get(&requirement.key)))
    }

    /// The entries of the index for this selector: those of its first requirement that needs a label on the pod, values
    /// before presence. Without such a requirement, the entry for all pods.
    fn anchors(&self) -> SmallVec<[Anchor; 2]> {
        for requirement in &self.0 {
            if let Operator::In(values) = &requirement.operator {
                return values.iter().map(|v| Anchor::Pair(requirement.key.clone(), v.clone())).collect();
            }
        }
        for requirement in &self.0 {
            if requirement.operator == Operator::Exists {
                return [Anchor::Key(requirement.key.clone())].into_iter().collect();
            }
        }
        [Anchor::All].into_iter().collect()
    }

    /// Whether its entry in the index is its only requirement.
    fn is_its_anchor(&self) -> bool {
        match &*self.0 {
            [] => true,
            [only] => matches!(only.operator, Operator::In(_) | Operator::Exists),
            _ => false,
        }
    }
}

impl Requirement {
    /// Whether it holds for a label with this value; `None` if the label is absent.
    pub(crate) fn holds(&self, value: Option<&str>) -> bool {
        match &self.operator {
            Operator::In(values) => value.is_some_and(|v| values.iter().any(|required| **required == *v)),
            Operator::NotIn(values) => value.is_none_or(|v| values.iter().all(|required| **required != *v)),
            Operator::Exists => value.is_some(),
            Operator::Absent => value.is_none(),
        }
    }
}

enum Anchor {
    Pair(Text, Text),
    Key(Text),
    All,
}

type Ids = SmallVec<[Found; 2]>;

/// A selector that may select an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    pub(crate) id: u32,
    /// It selects the object for certain: its entry in the index is its only requirement.
    pub(crate) sure: bool,
}

/// The selectors of one namespace, by a label that their pods must have.
#[derive(Clone, Debug, Default)]
pub(crate) struct SelectorIndex {
    by_key: FxHashMap<Text, ByValue>,
    all: Ids,
}

/// Selectors that require one label, with a certain value or with any.
#[derive(Clone, Debug, Default)]
struct ByValue {
    values: FxHashMap<Text, Ids>,
    any: Ids,
}

impl SelectorIndex {
    pub(crate) fn insert(&mut self, selector: &Selector, id: u32) {
        let found = Found { id, sure: selector.is_its_anchor() };
        for anchor in selector.anchors() {
            match anchor {
                Anchor::Pair(key, value) => {
                    self.by_key.entry(key).or_default().values.entry(value).or_default().push(found);
                }
                Anchor::Key(key) => self.by_key.entry(key).or_default().any.push(found),
                Anchor::All => self.all.push(found),
            }
        }
    }

    pub(crate) fn remove(&mut self, selector: &Selector, id: u32) {
        for anchor in selector.anchors() {
            let (Anchor::Pair(key, _) | Anchor::Key(key)) = &anchor else {
                self.all.retain(|other| other.id != id);
                continue;
            };
            let Some(by_value) = self.by_key.get_mut(key) else { continue };
            if let Anchor::Pair(_, value) = &anchor {
                if let Some(ids) = by_value.values.get_mut(value) {
                    ids.retain(|other| other.id != id);
                    if ids.is_empty() {
                        by_value.values.remove(value);
                    }
                }
            } else {
                by_value.any.retain(|other| other.id != id);
            }
            if by_value.values.is_empty() && by_value.any.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    /// The selectors that may select an object with these labels. The caller must check each one that is not `sure`.
    pub(crate) fn candidates(&self, labels: &Labels) -> SmallVec<[Found; 4]> {
        let mut found: SmallVec<[Found; 4]> = SmallVec::from_slice(&self.all);
        for (key, value) in labels.iter() {
            let Some(by_value) = self.by_key.get(key) else { continue };
            found.extend_from_slice(&by_value.any);
            found.extend(by_value.values.get(value).into_iter().flatten().copied());
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// The budgets that cover a pod.
pub(crate) type Budgets = SmallVec<[u32; 4]>;

/// The budgets that select pods with one label set. Cached with the set, since most pods share theirs with other pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selected {
    /// The edition of the namespace's selectors for which this holds. Without selectors, no budget selects anything.
    edition: u64,
    by: [u32; 2],
}

/// No budget has this ID.
const NO_POD: u32 = u32::MAX;

impl Default for Selected {
    fn default() -> Self {
        Self { edition: NO_SELECTORS, by: [NO_POD; 2] }
    }
}

/// The edition of a namespace that never had selectors. Each change of the selectors gets a new edition, unique across
/// all namespaces.
pub(crate) const NO_SELECTORS: u64 = 0;

impl Selected {
    /// The budgets, if they are known for this edition.
    pub(crate) fn by(&self, edition: u64) -> Option<Budgets> {
        (self.edition == edition).then(|| self.by.into_iter().filter(|id| *id != NO_POD).collect())
    }

    /// Caches the budgets. More than two do not fit and are searched each time.
    pub(crate) fn keep(&mut self, edition: u64, found: &Budgets) {
        let by = match **found {
            [] => [NO_POD; 2],
            [one] => [one, NO_POD],
            [one, two] => [one, two],
            _ => return,
        };
        *self = Self { edition, by };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(key: &str, operator: Operator) -> Selector {
        Selector([Requirement { key: key.into(), operator }].into())
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
            (with("app", Operator::In(values(&["db", "web"]))), true),
            (with("app", Operator::NotIn(values(&["web"]))), false),
            (with("zone", Operator::NotIn(values(&["a"]))), true),
            (with("tier", Operator::Exists), true),
            (with("tier", Operator::Absent), false),
            (with("zone", Operator::Absent), true),
        ];
        let mut index = SelectorIndex::default();
        for (id, (selector, _)) in cases.iter().enumerate() {
            index.insert(selector, id as u32);
        }
        let candidates = index.candidates(&pod);
        for (id, (selector, expected)) in cases.iter().enumerate() {
            assert_eq!(selector.matches(&pod), *expected, "{selector:?}");
            let found = candidates.iter().find(|found| found.id == id as u32);
            match found {
                Some(found) => assert!(*expected || !found.sure, "the index is sure of {selector:?}"),
                None => assert!(!expected, "the index lost {selector:?}"),
            }
        }
        for (id, (selector, _)) in cases.iter().enumerate() {
            index.remove(selector, id as u32);
        }
        assert!(index.by_key.is_empty() && index.all.is_empty());
    }
}
