//! Resolves HTTP redirects.

use http::Uri;

use super::http::Address;

/// Resolves a `Location` header against an address; `None` if it is not a valid HTTP address.
pub(super) fn follow(from: &Address, location: &str) -> Option<Address> {
    let location = location.trim();
    let location = location.split('#').next().unwrap_or_default();
    if let Some(rest) = location.strip_prefix("//") {
        let scheme = if from.https { "https" } else { "http" };
        return absolute(&format!("{scheme}://{rest}"));
    }
    if location.contains("://") {
        return absolute(location);
    }
    let (path, _) = from.path.split_once('?').unwrap_or((&from.path, ""));
    let path = if location.starts_with('/') {
        location.to_owned()
    } else if location.is_empty() || location.starts_with('?') {
        format!("{path}{location}")
    } else {
        let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
        format!("{folder}{location}")
    };
    Some(Address { path, ..from.clone() })
}

fn absolute(location: &str) -> Option<Address> {
    let uri: Uri = location.parse().ok()?;
    let https = match uri.scheme_str()? {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    Some(Address { https, host, port, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_resolves_against_the_address() {
        let from = Address {
            https: false,
            host: "10.0.0.1".to_owned(),
            port: 8080,
            path: "/health/disruptable?deep=1".to_owned(),
        };
        let at = |https, host: &str, port, path: &str| {
            Some(Address { https, host: host.to_owned(), port, path: path.to_owned() })
        };
        for (location, expected) in [
            ("/ok", at(false, "10.0.0.1", 8080, "/ok")),
            ("ok?x=1", at(false, "10.0.0.1", 8080, "/health/ok?x=1")),
            ("?deep=2", at(false, "10.0.0.1", 8080, "/health/disruptable?deep=2")),
            ("https://10.0.0.1/ok#top", at(true, "10.0.0.1", 443, "/ok")),
            ("//db.example:81", at(false, "db.example", 81, "/")),
            ("http://[fd00::1]:9/a", at(false, "fd00::1", 9, "/a")),
            ("ftp://10.0.0.1/ok", None),
            ("http://", None),
        ] {
            assert_eq!(follow(&from, location), expected, "{location}");
        }
    }
}
