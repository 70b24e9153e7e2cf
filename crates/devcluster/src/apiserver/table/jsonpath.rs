//! The part of JSONPath that printer columns and scale paths use: fields, indexes, wildcards and simple filters.

use serde_json::Value;

/// A parsed path such as `.status.conditions[?(@.type=="Ready")].status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    Filter { field: Vec<String>, equal: bool, value: String },
}

impl JsonPath {
    /// Parses a path; `None` if it is not supported.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        let text = text.strip_prefix('$').unwrap_or(text);
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let end = closing(after)?;
                steps.push(bracket(&after[..end])?);
                rest = &after[end + 1..];
            } else {
                let after = rest.strip_prefix('.').unwrap_or(rest);
                let (field, next) = field(after)?;
                match field.as_str() {
                    "" if steps.is_empty() && next.is_empty() => {}
                    "" => return None,
                    "*" => steps.push(Step::All),
                    _ => steps.push(Step::Field(field)),
                }
                rest = next;
            }
        }
        Some(Self { steps })
    }

    /// All values that the path finds.
    pub(crate) fn find<'a>(&self, object: &'a Value) -> Vec<&'a Value> {
        self.steps
            .iter()
            .fold(vec![object], |found, step| found.into_iter().flat_map(|v| step.of(v)).collect())
    }

    /// The field names, if the path consists of fields only.
    pub(crate) fn fields(&self) -> Option<Vec<&str>> {
        self.steps
            .iter()
            .map(|step| match step {
                Step::Field(field) => Some(field.as_str()),
                _ => None,
            })
            .collect()
    }
}

/// A field name up to the next `.` or `[`; `\.` is a dot in the name.
fn field(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.push(chars.next()?.1),
            '.' | '[' => return Some((name, &text[at..])),
            other => name.push(other),
        }
    }
    Some((name, ""))
}

/// The position of the closing bracket. Ignores brackets in quotes.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, ']') => return Some(at),
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
    }
    None
}

fn bracket(text: &str) -> Option<Step> {
    let text = text.trim();
    let unquote = |t: &str| {
        let t = t.trim();
        t.strip_prefix(['\'', '"']).and_then(|t| t.strip_suffix(['\'', '"'])).map(str::to_owned)
    };
    if text == "*" {
        return Some(Step::All);
    }
    if let Some(name) = unquote(text) {
        return Some(Step::Field(name));
    }
    if let Some(filter) = text.strip_prefix("?(").and_then(|t| t.strip_suffix(')')) {
        let (sign, equal) = if filter.contains("!=") { ("!=", false) } else { ("==", true) };
        let (left, right) = filter.split_once(sign)?;
        let field = left.trim().strip_prefix("@.")?.split('.').map(str::to_owned).collect();
        let value = unquote(right).unwrap_or_else(|| right.trim().to_owned());
        return Some(Step::Filter { field, equal, value });
    }
    text.parse().ok().map(Step::Index)
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::Field(field) => value.get(field).into_iter().collect(),
            Self::Index(index) => {
                let list = value.as_array();
                let at = list.and_then(|l| {
                    let len = i64::try_from(l.len()).ok()?;
                    usize::try_from(if *index < 0 { len + index } else { *index }).ok()
                });
                list.zip(at).and_then(|(l, at)| l.get(at)).into_iter().collect()
            }
            Self::All => match value {
                Value::Array(list) => list.iter().collect(),
                Value::Object(map) => map.values().collect(),
                _ => Vec::new(),
            },
            Self::Filter { field, equal, value: wanted } => value
                .as_array()
                .into_iter()
                .flatten()
                .filter(|item| {
                    let found = field.iter().fold(*item, |v, f| &v[f]);
                    let text = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
                    (text == *wanted) == *equal
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::JsonPath;
    use serde_json::json;

    #[test]
    fn paths_of_printer_columns_are_supported() {
        let object = json!({
            "spec": {"a": [1, 2, 3], "b.c": "dotted"},
            "status": {"conditions": [{"type": "X", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let find = |path: &str| {
            JsonPath::parse(path).unwrap().find(&object).into_iter().cloned().collect::<Vec<_>>()
        };
        assert_eq!(find(".status.conditions[?(@.type==\"Ready\")].status"), [json!("True")]);
        assert_eq!(find(".spec.a[1]"), [json!(2)]);
        assert_eq!(find(".spec.a[-1]"), [json!(3)]);
        assert_eq!(find(".spec.a[*]").len(), 3);
        assert_eq!(find(r".spec.b\.c"), [json!("dotted")]);
        assert_eq!(find(".spec['b.c']"), [json!("dotted")]);
        assert!(find(".nothing.here").is_empty());
        assert!(JsonPath::parse(".a[").is_none());
        assert!(JsonPath::parse("..a").is_none());
    }
}
