//! JSON values with their paths, and readers that collect problems.

use serde_json::Value;

use crate::error::Problem;

/// A value and its path.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    pub(crate) path: String,
    pub(crate) value: &'a Value,
}

impl<'a> Field<'a> {
    pub(crate) fn new(path: impl Into<String>, value: &'a Value) -> Self {
        Self { path: path.into(), value }
    }

    /// A member of an object. As in Kubernetes, `null` is the same as a missing member.
    pub(crate) fn get(&self, name: &str) -> Option<Self> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Some(Self { path, value })
    }

    /// A problem with this value.
    pub(crate) fn problem(&self, message: impl Into<String>) -> Problem {
        let given = match self.value {
            Value::Object(_) => "an object".to_owned(),
            Value::Array(_) => "a list".to_owned(),
            other => other.to_string(),
        };
        Problem::with(&self.path, given, message)
    }

    /// Adds a problem if this is not an object. Otherwise all its members would be reported as missing.
    pub(crate) fn must_be_object(&self, problems: &mut Vec<Problem>) {
        if !self.value.is_object() {
            problems.push(self.problem("must be an object"));
        }
    }

    /// The members of an object, with their names.
    pub(crate) fn members(&self, problems: &mut Vec<Problem>) -> Vec<(&'a str, Self)> {
        let Some(members) = self.value.as_object() else {
            problems.push(self.problem("must be an object"));
            return Vec::new();
        };
        members
            .iter()
            .map(|(name, value)| {
                let path = if is_plain(name) {
                    format!("{}.{name}", self.path)
                } else {
                    format!("{}[{name}]", self.path)
                };
                (name.as_str(), Self { path, value })
            })
            .collect()
    }

    /// The items of a list.
    pub(crate) fn items(&self, problems: &mut Vec<Problem>) -> Vec<Self> {
        let Some(items) = self.value.as_array() else {
            problems.push(self.problem("must be a list"));
            return Vec::new();
        };
        items
            .iter()
            .enumerate()
            .map(|(i, value)| Self { path: format!("{}[{i}]", self.path), value })
            .collect()
    }

    pub(crate) fn text(&self, problems: &mut Vec<Problem>) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            problems.push(self.problem("must be a string"));
        }
        text
    }

    /// A whole number between two bounds, both included.
    pub(crate) fn number(&self, low: u32, high: u32, problems: &mut Vec<Problem>) -> Option<u32> {
        let number =
            self.value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| (low..=high).contains(n));
        if number.is_none() {
            problems.push(self.problem(format!("must be a whole number from {low} to {high}")));
        }
        number
    }

    /// One of a fixed set of words, each with its meaning.
    pub(crate) fn word<T: Copy>(&self, words: &[(&str, T)], problems: &mut Vec<Problem>) -> Option<T> {
        let found = self
            .value
            .as_str()
            .and_then(|text| words.iter().find(|(word, _)| *word == text))
            .map(|(_, t)| *t);
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            problems.push(self.problem(format!("must be {}", one_of(&words))));
        }
        found
    }
}

/// "a, b or c".
pub(crate) fn one_of(words: &[&str]) -> String {
    match words {
        [] => "nothing".to_owned(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Whether a path can contain the name after a dot, without brackets.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}
