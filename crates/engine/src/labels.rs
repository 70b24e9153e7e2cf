//! Label sets, each in one piece: a million pods are compared with what is known of them, and every text that lies by
//! itself would have to be fetched by itself.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A set of labels, sorted by key.
///
/// Keys and values stand one behind the other, each after its length, which is written as one character.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(Arc<str>);

/// The longest text whose length is a character. The API server takes none that is nearly as long.
const LONGEST: usize = 0xd7ff;
/// How many bytes a length is likely to need.
const CHARACTER: usize = 1;

impl Labels {
    /// Builds a set; of two values for one key the last one stays.
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

    /// The set itself, to be shared.
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
    fn the_last_of_two_values_for_a_label_stays() {
        let labels = Labels::new([("b", "1"), ("a", "2"), ("b", "3")]);
        assert_eq!(labels.get("b"), Some("3"));
        assert_eq!(labels.get("c"), None);
    }

    #[test]
    fn what_was_written_is_read_again() {
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
    fn sets_that_read_alike_in_a_row_are_not_equal() {
        assert_ne!(Labels::new([("ab", "c")]), Labels::new([("a", "bc")]));
    }

    #[test]
    fn a_text_that_no_api_server_takes_is_left_out() {
        let labels =
            Labels::new([("a", "1".to_owned()), ("b", "v".repeat(LONGEST + 1)), ("c", "3".to_owned())]);
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("a", "1"), ("c", "3")]);
    }
}
