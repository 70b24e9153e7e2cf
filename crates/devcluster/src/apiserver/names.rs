//! The syntax rules of names and label values.

/// Lower-case letters, digits and `-`, beginning and ending with a letter or digit; at most 63.
pub(crate) fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len()) && is_label_shape(text)
}

fn is_label_shape(text: &str) -> bool {
    let edge = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = text.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(&a), Some(&b)) if edge(a) && edge(b))
        && bytes.iter().all(|&c| edge(c) || c == b'-')
}

/// Labels joined by dots; at most 253.
pub(crate) fn is_subdomain(text: &str) -> bool {
    (1..=253).contains(&text.len()) && text.split('.').all(is_label_shape)
}

/// Letters, digits, `-`, `_` and `.`, beginning and ending with a letter or digit.
pub(crate) fn is_qualified_name(text: &str) -> bool {
    let edge = |c: u8| c.is_ascii_alphanumeric();
    let bytes = text.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(&a), Some(&b)) if edge(a) && edge(b))
        && bytes.iter().all(|&c| edge(c) || matches!(c, b'-' | b'_' | b'.'))
}

/// A label's value: empty, or a qualified name of at most 63.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.is_empty() || (text.len() <= 63 && is_qualified_name(text))
}

/// The rule of `is_subdomain`, in Kubernetes' words.
pub(crate) const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// The rule of `is_label`, in Kubernetes' words.
pub(crate) const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

/// The rule of `is_label_value`, in Kubernetes' words.
pub(crate) const LABEL_VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

#[cfg(test)]
mod tests {
    use super::{is_label, is_label_value, is_subdomain};

    #[test]
    fn names_and_label_values_follow_the_rules() {
        assert!(
            is_subdomain("a.b-c.d") && !is_subdomain("A") && !is_subdomain("-a") && !is_subdomain("a..b")
        );
        assert!(is_label("a-1") && !is_label("a.b") && !is_label(&"a".repeat(64)));
        assert!(is_label_value("") && is_label_value("A_b.c") && !is_label_value("-a"));
    }
}
