//! Label selectors.

use serde_json::Value;

use super::{Labels, labels, list, text};

/// A label selector. The empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::checker) struct Selector {
    labels: Labels,
    expressions: Vec<Expression>,
}

#[derive(Clone, Debug, PartialEq)]
struct Expression {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl Selector {
    pub(super) fn read(value: &Value) -> Option<Self> {
        value.is_object().then(|| Self {
            labels: labels(&value["matchLabels"]),
            expressions: list(&value["matchExpressions"])
                .iter()
                .map(|expression| Expression {
                    key: text(&expression["key"]),
                    operator: text(&expression["operator"]),
                    values: list(&expression["values"]).iter().map(text).collect(),
                })
                .collect(),
        })
    }

    /// Whether these labels meet all requirements.
    pub(in crate::checker) fn matches(&self, labels: &Labels) -> bool {
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.expressions.iter().all(|expression| expression.matches(labels))
    }
}

impl Expression {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}
