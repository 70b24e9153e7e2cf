//! Label sets, each in one allocation. The engine compares the labels of a million pods, and every separate text would
//! cost another memory access.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A set of labels, sorted by key.
///
/// Keys and values follow each other. Each is preceded by its length, encoded as one character.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(Arc<str>);

/// The longest text whose length is a valid character. The API server accepts only much shorter ones.
const LONGEST: usize = 0xd7ff;
/// The bytes that a length usually needs.
const CHARACTER: usize = 1;

impl Labels {
    /// Builds a set. If a key occurs twice, the last value wins.
    pub fn new<K: AsRef<str> + Ord, V: AsRef<str>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        let sorted: BTreeMap<K, V> = pairs.into_iter().collect();
        let length = |(key, value): (&K, &V)| key.as_ref().len() + value.as_ref().len() + 2 * CHARACTER;
        let mut written = String::with_capacity(sorted.iter().map(length).sum());
        for (key, value) in &sorted {
            let pair = [key.as_ref(), value.as_ref()];
            if pair.iter().all(|text| text.len() <= LONGEST) {
                pair.into_iter().for_each(|text| write(&mut written, text));
            }
        }
        Self(written.into())
    }

    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// All pairs, in order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || Some((read(&mut rest)?, read(&mut rest)?)))
    }

    /// The encoded set, for interning.
    pub(crate) fn shared(&mut self) -> &mut Arc<str> {
        &mut self.0
    }
}

fn write(to: &mut String, text: &str) {
    to.extend(char::from_u32(text.len() as u32));
    to.push_str(text);
}

fn read<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let mut after = rest.chars();
    let length = after.next()?;
    let (text, others) = after.as_str().split_at_checked(length as usize)?;
    *rest = others;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_key_wins() {
        let labels = Labels::new([("b", "1"), ("a", "2"), ("b", "3")]);
        assert_eq!(labels.get("b"), Some("3"));
        assert_eq!(labels.get("c"), None);
    }

    #[test]
    fn labels_are_read_as_they_were_written() {
        let long = "l".repeat(300);
        let longer = "v".repeat(LONGEST);
        let pairs = [("", "empty"), ("a", ""), ("naïve", "ﬁn"), (&long, &longer)];
        let labels = Labels::new(pairs.into_iter().rev());
        let mut sorted = pairs;
        sorted.sort_unstable();
        assert_eq!(labels.iter().collect::<Vec<_>>(), sorted);
        assert_eq!(labels.get(&long), Some(&*longer));
        assert_eq!(Labels::default().iter().count(), 0);
    }

    #[test]
    fn sets_with_the_same_concatenation_are_not_equal() {
        assert_ne!(Labels::new([("ab", "c")]), Labels::new([("a", "bc")]));
    }

    #[test]
    fn labels_that_are_too_long_are_left_out() {
        let labels =
            Labels::new([("a", "1".to_owned()), ("b", "v".repeat(LONGEST + 1)), ("c", "3".to_owned())]);
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", "1"), ("c", "3")]);
    }
}
