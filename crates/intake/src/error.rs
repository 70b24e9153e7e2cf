//! Validation errors, with the field and the correction.

use std::fmt;

/// An object that cannot be decoded or validated. It affects only itself: the caller continues with the next object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {object}: {problem}")]
pub struct Unreadable {
    /// The object's kind.
    pub kind: &'static str,
    /// The object's namespace and name, if it has them.
    pub object: String,
    /// The problem.
    pub problem: Problem,
}

/// A problem with one field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The path of the field, such as `spec.selector.matchExpressions[0].values`.
    pub path: String,
    /// The value of the field, if the message shows it.
    pub given: Option<String>,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// Maximum length of a value in a message. Longer values are truncated.
const MAX_GIVEN: usize = 80;

impl Problem {
    /// A problem with the value of a field.
    pub fn with(path: impl Into<String>, given: impl fmt::Display, message: impl Into<String>) -> Self {
        let given = given.to_string();
        let given = if given.chars().count() > MAX_GIVEN {
            given.chars().take(MAX_GIVEN - 1).chain(['…']).collect()
        } else {
            given
        };
        Self { path: path.into(), given: Some(given), message: message.into() }
    }

    /// A problem with a field that is missing, or whose value does not help the reader.
    pub fn at(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), given: None, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.given {
            Some(given) => write!(f, "{}: {given} {}", self.path, self.message),
            None => write!(f, "{}: {}", self.path, self.message),
        }
    }
}
