//! The parsed form of a request: verb, resource, name, options.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use http::{HeaderMap, Method};
use percent_encoding::percent_decode_str;

use super::failure::{Failure, Outcome};
use super::resource::{Registry, Served};
use super::users::User;

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// The form of the response that the caller requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Object,
    Table,
    Metadata,
}

/// The query parameters of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: Option<&str>) -> Self {
        Self(form_urlencoded::parse(text.unwrap_or_default().as_bytes()).into_owned().collect())
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The value of a parameter; empty if absent.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or_default()
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        matches!(self.get(key), Some("true" | "1" | "True" | "t" | "T" | "TRUE"))
    }

    pub(crate) fn number(&self, key: &str) -> Outcome<Option<u64>> {
        match self.get(key) {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                Failure::bad_request(format!("{key}: Invalid value: {text:?}: must be a number"))
            }),
        }
    }

    /// Whether this is a dry run. The only allowed value is `All`.
    pub(crate) fn dry_run(&self) -> Outcome<bool> {
        let mut dry_run = false;
        for (_, value) in self.0.iter().filter(|(k, _)| k == "dryRun") {
            match value.as_str() {
                "All" => dry_run = true,
                "" => {}
                other => {
                    return Err(Failure::invalid(
                        "meta.k8s.io",
                        "Options",
                        "",
                        &[super::failure::FieldError::not_supported("dryRun", other, &["All"])],
                    ));
                }
            }
        }
        Ok(dry_run)
    }
}

/// A path under `/api` or `/apis`, parsed but not yet resolved.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// `/api/v1` or `/apis/G/V`.
    Group { group: String, version: String },
    /// A resource, an object, or a subresource.
    Resource(ResourcePath),
    /// Anything else.
    Other,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: String,
    pub(crate) plural: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
}

impl Path {
    pub(crate) fn parse(path: &str) -> Self {
        let parts = path.split('/').filter(|part| !part.is_empty());
        let parts: Vec<_> = parts.map(|part| percent_decode_str(part).decode_utf8_lossy()).collect();
        let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Self::Other,
        };
        let (namespace, rest) = match rest {
            [] => return Self::Group { group: group.to_owned(), version: version.to_owned() },
            // `namespaces/x` and its own subresources address the namespace; all other paths are inside it.
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] if group.is_empty() => ("", rest),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            _ => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return Self::Other,
        };
        Self::Resource(ResourcePath {
            group: group.to_owned(),
            version: version.to_owned(),
            namespace: namespace.to_owned(),
            plural: plural.to_owned(),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
        })
    }
}

/// One request to a resource.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) user: User,
    pub(crate) verb: Verb,
    pub(crate) served: Served,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) subresource: String,
    pub(crate) query: Query,
    pub(crate) dry_run: bool,
    pub(crate) content_type: String,
    pub(crate) form: Form,
    pub(crate) body: Bytes,
    /// Whether a webhook did not answer, and its failure policy let the request pass.
    pub(crate) failed_open: Arc<AtomicBool>,
}

impl Call {
    /// Parses a request to a resource.
    pub(crate) fn new(
        user: User,
        method: &Method,
        path: &ResourcePath,
        query: Query,
        headers: &HeaderMap,
        registry: &Registry,
    ) -> Outcome<Self> {
        let served =
            registry.find(&path.group, &path.version, &path.plural).ok_or_else(Failure::no_such_resource)?;
        if !served.resource.namespaced && !path.namespace.is_empty() {
            return Err(Failure::no_such_resource());
        }
        let verb = verb(method, path, &query)?;
        let needs_namespace = !matches!(verb, Verb::List | Verb::Watch) && served.resource.namespaced;
        if needs_namespace && path.namespace.is_empty() {
            return Err(if verb == Verb::Create {
                Failure::bad_request("an empty namespace may not be set during creation")
            } else {
                Failure::method_not_allowed()
            });
        }
        let dry_run = query.dry_run()?;
        Ok(Self {
            user,
            verb,
            served,
            namespace: path.namespace.clone(),
            name: path.name.clone(),
            subresource: path.subresource.clone(),
            dry_run,
            content_type: header(headers, "content-type"),
            form: form(&header(headers, "accept"))?,
            query,
            body: Bytes::new(),
            failed_open: Arc::default(),
        })
    }

    pub(crate) fn key(&self) -> super::object::Key {
        super::object::Key::new(&self.namespace, &self.name)
    }

    pub(crate) fn not_found(&self) -> Failure {
        self.served.not_found(&self.name)
    }
}

fn header(headers: &HeaderMap, name: &str) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).collect();
    values.join(",")
}

fn verb(method: &Method, path: &ResourcePath, query: &Query) -> Outcome<Verb> {
    let named = !path.name.is_empty();
    let subresource = !path.subresource.is_empty();
    Ok(match (method.as_str(), named) {
        ("GET" | "HEAD", _) if query.flag("watch") && !subresource => Verb::Watch,
        ("GET" | "HEAD", true) => Verb::Get,
        ("GET" | "HEAD", false) => Verb::List,
        ("POST", false) => Verb::Create,
        ("POST", true) if subresource => Verb::Create,
        ("PUT", true) => Verb::Update,
        ("PATCH", true) => Verb::Patch,
        ("DELETE", true) => Verb::Delete,
        ("DELETE", false) => Verb::DeleteCollection,
        _ => return Err(Failure::method_not_allowed()),
    })
}

/// Selects the first form in the `Accept` header that the server supports.
pub(crate) fn form(accept: &str) -> Outcome<Form> {
    if accept.trim().is_empty() {
        return Ok(Form::Object);
    }
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        if !matches!(media, "application/json" | "*/*" | "application/*") {
            continue;
        }
        match parts.find_map(|p| p.strip_prefix("as=")) {
            Some("Table") => return Ok(Form::Table),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") => return Ok(Form::Metadata),
            Some(_) => {}
            None => return Ok(Form::Object),
        }
    }
    Err(Failure::new(406, "NotAcceptable", "only the following media types are accepted: application/json"))
}

#[cfg(test)]
mod tests {
    use super::{Form, Path, Query, form};

    fn resource(path: &str) -> (String, String, String, String, String) {
        match Path::parse(path) {
            Path::Resource(r) => (r.group, r.namespace, r.plural, r.name, r.subresource),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn paths_are_parsed() {
        let s = |a: &str, b: &str, c: &str, d: &str, e: &str| {
            (a.to_owned(), b.to_owned(), c.to_owned(), d.to_owned(), e.to_owned())
        };
        assert_eq!(resource("/api/v1/pods"), s("", "", "pods", "", ""));
        assert_eq!(resource("/api/v1/namespaces/d/pods/a/eviction"), s("", "d", "pods", "a", "eviction"));
        assert_eq!(resource("/api/v1/namespaces/d/status"), s("", "", "namespaces", "d", "status"));
        assert_eq!(
            resource("/apis/apps/v1/namespaces/d/deployments/x/scale"),
            s("apps", "d", "deployments", "x", "scale")
        );
        // A `%` that does not start an escape stays.
        for (encoded, name) in
            [("a%2eb", "a.b"), ("a%2Fb", "a/b"), ("gr%C3%B6%C3%9Fe", "größe"), ("%zz%", "%zz%")]
        {
            assert_eq!(resource(&format!("/api/v1/pods/{encoded}")), s("", "", "pods", name, ""));
        }
        assert_eq!(Path::parse("/api/v1"), Path::Group { group: String::new(), version: "v1".into() });
        assert_eq!(Path::parse("/api"), Path::Other);
    }

    #[test]
    fn queries_are_parsed_and_escapes_decoded() {
        let query = Query::parse(Some("labelSelector=a%3Db%2Cc&watch=1&x=%zz+1"));
        assert_eq!(query.text("labelSelector"), "a=b,c");
        assert!(query.flag("watch"));
        assert_eq!(query.text("x"), "%zz 1");
        assert_eq!(Query::parse(Some("&a=%&&b")).0, [("a".into(), "%".into()), ("b".into(), String::new())]);
        assert!(Query::parse(Some("dryRun=Some")).dry_run().is_err());
    }

    #[test]
    fn the_first_supported_form_is_selected() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(form(kubectl).unwrap(), Form::Table);
        assert_eq!(form("application/vnd.kubernetes.protobuf,application/json").unwrap(), Form::Object);
        assert_eq!(form("").unwrap(), Form::Object);
        assert!(form("application/yaml").is_err());
    }
}
