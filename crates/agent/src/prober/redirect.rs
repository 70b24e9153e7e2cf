//! Resolves HTTP redirects.

use fluent_uri::component::Scheme;
use fluent_uri::{Uri, UriRef};
use percent_encoding::{AsciiSet, utf8_percent_encode};

use super::http::{Address, UNSENDABLE};
use super::tcp;

const HTTP: &Scheme = Scheme::new_or_panic("http");
const HTTPS: &Scheme = Scheme::new_or_panic("https");

/// Brackets are common in queries, but RFC 3986 allows them only around the address of a host.
const NOT_IN_PATHS: &AsciiSet = &UNSENDABLE.add(b'[').add(b']');

/// Resolves a `Location` header against an address; `None` if it is not a valid HTTP address.
pub(super) fn follow(from: &Address, location: &str) -> Option<Address> {
    let scheme = if from.https { HTTPS } else { HTTP };
    let authority = tcp::authority(&from.host, from.port);
    let path = utf8_percent_encode(&from.path, NOT_IN_PATHS);
    let base = Uri::parse(format!("{}://{authority}{path}", scheme.as_str())).ok()?;
    let location = location.trim();
    let encoded = if location.contains("//[") { UNSENDABLE } else { NOT_IN_PATHS };
    let location = UriRef::parse(utf8_percent_encode(location, encoded).to_string()).ok()?;
    let to = location.resolve_against(&base.strip_fragment()).ok()?;

    let https = match to.scheme() {
        scheme if scheme == HTTP => false,
        scheme if scheme == HTTPS => true,
        _ => return None,
    };
    let authority = to.authority().filter(|authority| !authority.host().is_empty())?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = authority.port_to_u16().ok()?.unwrap_or(if https { 443 } else { 80 });
    let path = if to.path().is_empty() { "/" } else { to.path().as_str() };
    let query = to.query().map(|query| format!("?{query}")).unwrap_or_default();
    Some(Address { https, host, port, path: format!("{path}{query}") })
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
            ("#top", at(false, "10.0.0.1", 8080, "/health/disruptable?deep=1")),
            ("../ok", at(false, "10.0.0.1", 8080, "/ok")),
            (
                "/sign-in?next=http://db.example/",
                at(false, "10.0.0.1", 8080, "/sign-in?next=http://db.example/"),
            ),
            ("/größe 1?of[0]=a", at(false, "10.0.0.1", 8080, "/gr%C3%B6%C3%9Fe%201?of%5B0%5D=a")),
            ("https://10.0.0.1/ok#top", at(true, "10.0.0.1", 443, "/ok")),
            ("HTTPS://10.0.0.1?x", at(true, "10.0.0.1", 443, "/?x")),
            ("//db.example:81", at(false, "db.example", 81, "/")),
            ("http://user@db.example/a", at(false, "db.example", 80, "/a")),
            ("http://[fd00::1]:9/a", at(false, "fd00::1", 9, "/a")),
            ("ftp://10.0.0.1/ok", None),
            ("http://", None),
            ("http://10.0.0.1:99999/", None),
            ("mailto:ops@db.example", None),
            ("/50%", None),
        ] {
            assert_eq!(follow(&from, location), expected, "{location}");
        }
    }
}
