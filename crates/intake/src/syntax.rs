//! The Kubernetes syntax of names.

/// Checks a label key; the error is the message for the user.
pub(crate) fn label_key(key: &str) -> Result<(), &'static str> {
    const SYNTAX: &str = "must be a label key: a name of letters, digits, '-', '_' and '.', with a domain and '/' \
                          before it where there is one, such as example.com/group";
    const LENGTH: &str = "is too long for a label key: at most 253 characters before the '/' and 63 after it";
    let (domain, name) = match key.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, key),
    };
    if domain.is_some_and(|domain| domain.len() > 253) || name.len() > 63 {
        return Err(LENGTH);
    }
    let domain_fits = domain.is_none_or(is_subdomain);
    if domain_fits && !name.is_empty() && is_label_text(name) { Ok(()) } else { Err(SYNTAX) }
}

/// Checks a label value; the error is the message for the user.
pub(crate) fn label_value(value: &str) -> Result<(), &'static str> {
    if value.len() > 63 {
        return Err("is too long for a label value: at most 63 characters");
    }
    if value.is_empty() || is_label_text(value) {
        return Ok(());
    }
    Err(
        "must be a label value: empty, or letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
    )
}

/// Letters, digits, '-', '_' and '.', with a letter or digit at both ends.
fn is_label_text(text: &str) -> bool {
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Labels of lower-case letters, digits and '-', joined by dots.
pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|part| !part.is_empty() && is_lower_name(part))
}

/// One label of lower-case letters, digits and '-', at most 63 of them.
pub(crate) fn is_dns_label(text: &str) -> bool {
    !text.is_empty() && text.len() <= 63 && is_lower_name(text)
}

fn is_lower_name(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// `v1`, or `group/v1`.
pub(crate) fn is_api_version(text: &str) -> bool {
    let (group, version) = match text.split_once('/') {
        Some((group, version)) => (Some(group), version),
        None => (None, text),
    };
    let version_fits = version
        .strip_prefix('v')
        .is_some_and(|v| !v.is_empty() && v.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()));
    version_fits && group.is_none_or(is_subdomain)
}

/// `version`, or `group/version`. The version can have any name, because custom kinds may not use `v1` and the like.
pub(crate) fn is_group_version(text: &str) -> bool {
    match text.split_once('/') {
        Some((group, version)) => is_subdomain(group) && is_dns_label(version),
        None => is_dns_label(text),
    }
}

/// Whether a URL path can contain the text as the name of an object. Each kind has narrower rules.
pub(crate) fn is_object_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_graphic() && !b"/%?#".contains(&b);
    !text.is_empty() && text.len() <= 253 && text.bytes().all(fits) && text != "." && text != ".."
}

/// The name of a port: at most 15 lower-case letters, digits and single '-', with at least one letter.
pub(crate) fn is_port_name(text: &str) -> bool {
    text.len() <= 15
        && is_dns_label(text)
        && !text.contains("--")
        && text.bytes().any(|b| b.is_ascii_lowercase())
}

/// The name of an HTTP header.
pub(crate) fn is_header_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}
