//! Discovery: group, version and resource lists, plain and aggregated.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::api::Api;
use super::failure::{Failure, Outcome};
use super::resource::{Registry, Resource, group_version};
use super::reviews;

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// The content type by which clients recognize an aggregated response.
pub(crate) const AGGREGATED_TYPE: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Whether a client accepts aggregated discovery.
pub(crate) fn wants_aggregated(accept: &str) -> bool {
    accept.split(',').any(|clause| {
        let clause: String = clause.chars().filter(|c| !c.is_whitespace()).collect();
        clause.contains("g=apidiscovery.k8s.io")
            && clause.contains("v=v2;")
            && clause.contains("as=APIGroupDiscoveryList")
            || clause.ends_with("v=v2") && clause.contains("as=APIGroupDiscoveryList")
    })
}

impl Api {
    /// `/api`.
    pub(crate) fn core_versions(&self) -> Value {
        json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        })
    }

    /// `/apis`.
    pub(crate) fn groups(&self) -> Value {
        let groups: Vec<Value> = groups(&self.registry())
            .iter()
            .filter(|(g, _)| !g.is_empty() && !self.faults.hides(g, None))
            .map(|(g, v)| group(g, v))
            .collect();
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
    }

    /// `/apis/G`.
    pub(crate) fn group(&self, name: &str) -> Outcome<Value> {
        let groups = groups(&self.registry());
        let shown = !name.is_empty() && !self.faults.hides(name, None);
        let versions = groups.get(name).filter(|_| shown).ok_or_else(Failure::no_such_resource)?;
        let mut value = group(name, versions);
        value["kind"] = "APIGroup".into();
        value["apiVersion"] = "v1".into();
        Ok(value)
    }

    /// `/api/v1` and `/apis/G/V`.
    pub(crate) fn resources(&self, group: &str, version: &str) -> Outcome<Value> {
        let registry = self.registry();
        let served =
            groups(&registry).get(group).is_some_and(|versions| versions.iter().any(|v| v == version));
        if !served || self.faults.hides(group, None) {
            return Err(Failure::no_such_resource());
        }
        let mut list = Vec::new();
        for resource in of_version(&registry, group, version) {
            if self.faults.hides(group, Some(&resource.plural)) {
                continue;
            }
            list.push(plain_entry(resource, version));
            for subresource in resource.subresources(version) {
                list.push(plain_subresource(resource, subresource));
            }
        }
        for review in reviews::ALL.iter().filter(|r| r.group == group && r.version == version) {
            list.push(json!({
                "name": review.plural,
                "singularName": review.kind.to_lowercase(),
                "namespaced": review.namespaced,
                "kind": review.kind,
                "verbs": ["create"],
            }));
        }
        Ok(json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version(group, version),
            "resources": list,
        }))
    }

    /// `/api` or `/apis` in the aggregated form.
    pub(crate) fn aggregated(&self, core: bool) -> Value {
        let registry = self.registry();
        let items: Vec<Value> = groups(&registry)
            .iter()
            .filter(|(group, _)| group.is_empty() == core && !self.faults.hides(group, None))
            .map(|(group, versions)| {
                let versions: Vec<Value> = versions
                    .iter()
                    .map(|version| {
                        let mut resources: Vec<Value> = of_version(&registry, group, version)
                            .filter(|r| !self.faults.hides(group, Some(&r.plural)))
                            .map(|r| aggregated_entry(r, version))
                            .collect();
                        resources.extend(
                            reviews::ALL.iter().filter(|r| r.group == *group && r.version == *version).map(|r| {
                                json!({
                                    "resource": r.plural,
                                    "responseKind": {"group": r.group, "version": r.version, "kind": r.kind},
                                    "scope": if r.namespaced { "Namespaced" } else { "Cluster" },
                                    "singularResource": r.kind.to_lowercase(),
                                    "verbs": ["create"],
                                })
                            }),
                        );
                        json!({"version": version, "resources": resources, "freshness": "Current"})
                    })
                    .collect();
                json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
            })
            .collect();
        json!({
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": items,
        })
    }
}

/// Groups and their versions, the preferred version first.
pub(crate) fn groups(registry: &Registry) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let served = registry.all().flat_map(|r| r.versions.iter().map(|v| (r.group.clone(), v.clone())));
    let reviews = reviews::ALL.iter().map(|r| (r.group.to_owned(), r.version.to_owned()));
    for (group, version) in served.chain(reviews) {
        let versions = all.entry(group).or_default();
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    for versions in all.values_mut() {
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
    }
    all
}

/// The priority of a version by maturity: `v2` before `v1` before `v1beta1` before `v1alpha1` before all others.
pub(crate) fn priority(version: &str) -> (u8, u64, u64) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major = rest[..end].parse().ok()?;
        let stage = &rest[end..];
        if stage.is_empty() {
            return Some((3, major, 0));
        }
        if let Some(minor) = stage.strip_prefix("beta") {
            return Some((2, major, minor.parse().ok()?));
        }
        Some((1, major, stage.strip_prefix("alpha")?.parse().ok()?))
    };
    parse().unwrap_or((0, 0, 0))
}

fn of_version<'a>(registry: &'a Registry, group: &str, version: &str) -> impl Iterator<Item = &'a Resource> {
    let (group, version) = (group.to_owned(), version.to_owned());
    registry.all().map(AsRef::as_ref).filter(move |r| r.group == group && r.versions.contains(&version))
}

fn group(name: &str, versions: &[String]) -> Value {
    let all: Vec<Value> =
        versions.iter().map(|v| json!({"groupVersion": group_version(name, v), "version": v})).collect();
    json!({"name": name, "versions": all, "preferredVersion": all.first()})
}

fn plain_entry(resource: &Resource, version: &str) -> Value {
    let mut entry = json!({
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": VERBS,
        "storageVersionHash": format!("{}-{version}", resource.storage_version),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    entry
}

/// Group, version and kind of a subresource, and its verbs. Empty group and version: the same as the resource.
fn subresource_shape<'a>(
    resource: &'a Resource,
    name: &str,
) -> (&'a str, &'a str, &'a str, &'static [&'static str]) {
    match name {
        "scale" => ("autoscaling", "v1", "Scale", &["get", "patch", "update"]),
        "eviction" => ("policy", "v1", "Eviction", &["create"]),
        "binding" => ("", "", "Binding", &["create"]),
        "token" => ("authentication.k8s.io", "v1", "TokenRequest", &["create"]),
        "finalize" => ("", "", &resource.kind, &["update"]),
        "log" => ("", "", &resource.kind, &["get"]),
        _ => ("", "", &resource.kind, &["get", "patch", "update"]),
    }
}

fn plain_subresource(resource: &Resource, name: &str) -> Value {
    let (group, version, kind, verbs) = subresource_shape(resource, name);
    let mut entry = json!({
        "name": format!("{}/{name}", resource.plural),
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": kind,
        "verbs": verbs,
    });
    if !version.is_empty() {
        entry["group"] = group.into();
        entry["version"] = version.into();
    }
    entry
}

fn aggregated_entry(resource: &Resource, version: &str) -> Value {
    let scope = if resource.namespaced { "Namespaced" } else { "Cluster" };
    let subresources: Vec<Value> = resource
        .subresources(version)
        .into_iter()
        .map(|name| {
            let (sub_group, sub_version, kind, verbs) = subresource_shape(resource, name);
            let (g, v) = if sub_version.is_empty() { (resource.group.as_str(), version) } else { (sub_group, sub_version) };
            json!({"subresource": name, "responseKind": {"group": g, "version": v, "kind": kind}, "verbs": verbs})
        })
        .collect();
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": version, "kind": resource.kind},
        "scope": scope,
        "singularResource": resource.singular,
        "verbs": VERBS,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::{priority, wants_aggregated};

    #[test]
    fn versions_are_ordered_by_maturity() {
        let mut versions = ["v1alpha1", "v2", "foo", "v1", "v1beta2", "v1beta1", "v10"];
        versions.sort_by_key(|v| std::cmp::Reverse(priority(v)));
        assert_eq!(versions, ["v10", "v2", "v1", "v1beta2", "v1beta1", "v1alpha1", "foo"]);
    }

    #[test]
    fn only_clients_that_accept_aggregated_discovery_get_it() {
        assert!(wants_aggregated(
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
        ));
        assert!(!wants_aggregated(
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
        ));
        assert!(!wants_aggregated("application/json"));
    }
}
