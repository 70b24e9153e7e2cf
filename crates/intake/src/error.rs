//! What is wrong with an object, for whoever has to put it right.

use std::fmt;

/// An object that cannot be taken in. It costs no more than itself: whoever meets one goes on with the next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {object}: {problem}")]
pub struct Unreadable {
    /// The object's kind.
    pub kind: &'static str,
    /// The object's namespace and name, as far as it has them.
    pub object: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// Something wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Where, such as `spec.selector.matchExpressions[0].values`.
    pub path: String,
    /// What is there, where showing it helps.
    pub given: Option<String>,
    /// What is wrong with that, and what would be right.
    pub message: String,
}

/// Longer values are shown in part.
const MAX_GIVEN: usize = 80;

impl Problem {
    /// A problem with what stands in a field.
    pub fn with(path: impl Into<String>, given: impl fmt::Display, message: impl Into<String>) -> Self {
        let given = given.to_string();
        let given = if given.chars().count() > MAX_GIVEN {
            given.chars().take(MAX_GIVEN - 1).chain(['…']).collect()
        } else {
            given
        };
        Self { path: path.into(), given: Some(given), message: message.into() }
    }

    /// A problem with a field that is missing, or that showing its value would not explain.
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
