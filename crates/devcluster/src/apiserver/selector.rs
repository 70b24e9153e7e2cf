//! Label and field selectors, from the query string and from objects.

use serde_json::{Map, Value};

use super::failure::{Failure, Outcome};

/// A label selector.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Labels {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

impl Labels {
    pub(crate) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Parses `a=b,c!=d,e in (f,g),!h` and the other forms of a query string.
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(text) {
            let part = part.trim();
            if part.is_empty() {
                continue;
            }
            requirements.push(requirement(part).ok_or_else(|| {
                Failure::bad_request(format!(
                    "unable to parse requirement: found '{part}', expected a label selector"
                ))
            })?);
        }
        Ok(Self { requirements })
    }

    /// Reads a `metav1.LabelSelector`; `Err` describes what is invalid.
    pub(crate) fn from_object(selector: &Value) -> Result<Self, String> {
        let mut requirements = Vec::new();
        if let Some(map) = selector["matchLabels"].as_object() {
            for (key, value) in map {
                check_label_key(key)?;
                let value = value.as_str().unwrap_or_default().to_owned();
                requirements.push(Requirement { key: key.clone(), test: Test::In(vec![value]) });
            }
        }
        for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
            let key = expression["key"].as_str().unwrap_or_default().to_owned();
            check_label_key(&key)?;
            let values: Vec<String> = expression["values"]
                .as_array()
                .map(|list| list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
                .unwrap_or_default();
            let test = match expression["operator"].as_str().unwrap_or_default() {
                "In" if !values.is_empty() => Test::In(values),
                "NotIn" if !values.is_empty() => Test::NotIn(values),
                "Exists" if values.is_empty() => Test::Exists,
                "DoesNotExist" if values.is_empty() => Test::Absent,
                operator @ ("In" | "NotIn") => {
                    return Err(format!("for {operator} the values must not be empty"));
                }
                operator @ ("Exists" | "DoesNotExist") => {
                    return Err(format!("for {operator} the values must be empty"));
                }
                other => return Err(format!("{other:?} is not a valid label selector operator")),
            };
            requirements.push(Requirement { key, test });
        }
        Ok(Self { requirements })
    }

    /// Whether the selector matches an object with these labels.
    pub(crate) fn matches(&self, labels: Option<&Map<String, Value>>) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = labels.and_then(|map| map.get(&requirement.key)).and_then(Value::as_str);
            match &requirement.test {
                Test::In(values) => value.is_some_and(|v| values.iter().any(|x| x == v)),
                Test::NotIn(values) => value.is_none_or(|v| values.iter().all(|x| x != v)),
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
                Test::Greater(bound) => value.and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v > *bound),
                Test::Less(bound) => value.and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v < *bound),
            }
        })
    }

    /// The selector in the form of a query string, as in `Scale.status.selector`.
    pub(crate) fn text(&self) -> String {
        let parts: Vec<String> = self
            .requirements
            .iter()
            .map(|r| match &r.test {
                Test::In(values) => match values.as_slice() {
                    [one] => format!("{}={one}", r.key),
                    many => format!("{} in ({})", r.key, many.join(",")),
                },
                Test::NotIn(values) => format!("{} notin ({})", r.key, values.join(",")),
                Test::Exists => r.key.clone(),
                Test::Absent => format!("!{}", r.key),
                Test::Greater(bound) => format!("{}>{bound}", r.key),
                Test::Less(bound) => format!("{}<{bound}", r.key),
            })
            .collect();
        parts.join(",")
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn requirement(part: &str) -> Option<Requirement> {
    let new = |key: &str, test: Test| {
        let key = key.trim();
        check_label_key(key).ok()?;
        Some(Requirement { key: key.to_owned(), test })
    };
    if let Some(key) = part.strip_prefix('!') {
        return new(key, Test::Absent);
    }
    if let Some((head, set)) = part.split_once('(') {
        let values: Vec<String> = set.strip_suffix(')')?.split(',').map(|v| v.trim().to_owned()).collect();
        let head = head.trim_end();
        return if let Some(key) = head.strip_suffix(" notin") {
            new(key, Test::NotIn(values))
        } else {
            new(head.strip_suffix(" in")?, Test::In(values))
        };
    }
    for (sign, negated) in [("!=", true), ("==", false), ("=", false)] {
        if let Some((key, value)) = part.split_once(sign) {
            let values = vec![value.trim().to_owned()];
            return new(key, if negated { Test::NotIn(values) } else { Test::In(values) });
        }
    }
    if let Some((key, bound)) = part.split_once('>') {
        return new(key, Test::Greater(bound.trim().parse().ok()?));
    }
    if let Some((key, bound)) = part.split_once('<') {
        return new(key, Test::Less(bound.trim().parse().ok()?));
    }
    new(part, Test::Exists)
}

/// Validates a label key.
pub(crate) fn check_label_key(key: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("{key:?} is not a valid label key: {why}"));
    let name = match key.split('/').collect::<Vec<_>>().as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() || !super::names::is_subdomain(prefix) {
                return wrong("the prefix part must be a DNS subdomain");
            }
            name
        }
        _ => return wrong("a qualified name has at most one '/'"),
    };
    if name.is_empty() || name.len() > 63 || !super::names::is_qualified_name(name) {
        return wrong("the name part must consist of alphanumeric characters, '-', '_' or '.', at most 63");
    }
    Ok(())
}

/// A field selector: paths that must, or must not, have certain values.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fields {
    tests: Vec<(String, bool, String)>,
}

impl Fields {
    pub(crate) fn is_empty(&self) -> bool {
        self.tests.is_empty()
    }

    /// Parses `a=b,c!=d`; `known` are the paths that the resource supports besides name and namespace.
    pub(crate) fn parse(text: &str, known: &[&str]) -> Outcome<Self> {
        let mut tests = Vec::new();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            let (path, equal, value) = if let Some((p, v)) = part.split_once("!=") {
                (p, false, v)
            } else if let Some((p, v)) = part.split_once("==") {
                (p, true, v)
            } else if let Some((p, v)) = part.split_once('=') {
                (p, true, v)
            } else {
                return Err(Failure::bad_request(format!("invalid field selector: {part}")));
            };
            if !matches!(path, "metadata.name" | "metadata.namespace") && !known.contains(&path) {
                return Err(Failure::bad_request(format!(
                    "Unable to find a field selector for {path:?}: field label not supported: {path}"
                )));
            }
            tests.push((path.to_owned(), equal, value.to_owned()));
        }
        Ok(Self { tests })
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.tests.iter().all(|(path, equal, wanted)| {
            let found = path.split('.').fold(object, |value, step| &value[step]);
            let same = match found {
                Value::Null => wanted.is_empty() || (wanted == "false" && path.ends_with("unschedulable")),
                Value::String(text) => text == wanted,
                Value::Bool(flag) => wanted.parse() == Ok(*flag),
                other => serde_json::from_str::<Value>(wanted).is_ok_and(|wanted| wanted == *other),
            };
            same == *equal
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Fields, Labels};
    use serde_json::json;

    fn matches(selector: &str, labels: &serde_json::Value) -> bool {
        Labels::parse(selector).unwrap().matches(labels.as_object())
    }

    #[test]
    fn label_selectors_are_parsed_in_all_forms() {
        let labels = || json!({"app": "web", "n": "5"});
        for yes in [
            "app=web",
            "app==web",
            "app!=db",
            "x!=y",
            "app in (db, web)",
            "x notin (a)",
            "app",
            "!x",
            "n>4",
            "n<6",
            "",
        ] {
            assert!(matches(yes, &labels()), "{yes}");
        }
        for no in ["app=db", "app!=web", "app in (db)", "app notin (web)", "x", "!app", "n>5", "app=web,x"] {
            assert!(!matches(no, &labels()), "{no}");
        }
        assert!(Labels::parse("a/b/c=d").is_err());
        assert!(Labels::parse("app in (a").is_err());
    }

    #[test]
    fn an_unknown_operator_or_key_is_an_error() {
        assert!(
            Labels::from_object(&json!({"matchExpressions": [{"key": "a", "operator": "illegal"}]})).is_err()
        );
        assert!(Labels::from_object(&json!({"matchLabels": {"k8s.io/too/many/slashes": "x"}})).is_err());
        assert!(Labels::from_object(&json!({})).unwrap().is_empty());
    }

    #[test]
    fn field_selectors_accept_only_supported_paths() {
        let pod = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n1"}});
        let known = ["spec.nodeName"];
        assert!(Fields::parse("spec.nodeName=n1,metadata.name!=b", &known).unwrap().matches(&pod));
        assert!(!Fields::parse("spec.nodeName!=n1", &known).unwrap().matches(&pod));
        assert!(Fields::parse("spec.hostname=x", &known).is_err());
    }
}
