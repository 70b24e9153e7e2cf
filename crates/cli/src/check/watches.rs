//! Checks how old what the servers know of each kind is. The servers write that into their Leases: a user who may run a
//! check can read those, and need not reach the metrics of each server.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use quorate_api::names::WATCH_AGES;
use quorate_engine::FRESH_FOR;

use super::report::Section;

/// The oldest age of a kind in seconds, or `None` if a server could never read it, and that server.
type Oldest = (Option<u64>, String);

/// One line for each kind; `None` if no server reports ages.
pub(super) fn check(alive: &[Lease]) -> Option<Section> {
    let mut kinds: BTreeMap<String, Oldest> = BTreeMap::new();
    for lease in alive {
        let Some(text) = lease.annotations().get(WATCH_AGES) else { continue };
        let ages: BTreeMap<String, Option<u64>> = serde_json::from_str(text).unwrap_or_default();
        for (kind, age) in ages {
            let oldest = kinds.entry(kind).or_insert_with(|| (Some(0), lease.name_any()));
            if is_older(age, oldest.0) {
                *oldest = (age, lease.name_any());
            }
        }
    }
    if kinds.is_empty() {
        return None;
    }
    let mut section = Section::new("watches");
    for (kind, (age, server)) in kinds {
        match age {
            Some(age) if age > FRESH_FOR.as_secs() => section.bad(
                format!("{kind} is stale: {server} has received nothing about it for {age} s"),
                "budgets that depend on it deny; check that the servers may list and watch it, and their logs",
            ),
            Some(age) => section.good(format!("{kind} is current: received {age} s ago or later")),
            None => section.warn(
                format!("{kind} cannot be read by {server}"),
                "what depends on it is not known; check that the servers may list and watch it, and their logs",
            ),
        }
    }
    Some(section)
}

/// Whether an age is older. A kind that could never be read counts as the oldest.
fn is_older(age: Option<u64>, than: Option<u64>) -> bool {
    match (age, than) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(age), Some(than)) => age > than,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;
    use crate::check::report::Outcome;

    fn lease(name: &str, ages: Option<&str>) -> Lease {
        let annotations = ages.map(|ages| [(WATCH_AGES.to_owned(), ages.to_owned())].into());
        Lease {
            metadata: ObjectMeta { name: Some(name.to_owned()), annotations, ..ObjectMeta::default() },
            spec: None,
        }
    }

    #[test]
    fn each_kind_has_a_line_with_its_oldest_age() {
        let leases = [
            lease("a", Some(r#"{"Pod":3,"Deployment.apps":91,"Fleet.example.com":7}"#)),
            lease("b", Some(r#"{"Pod":60,"Deployment.apps":2,"Fleet.example.com":null}"#)),
            lease("older", None),
            lease("odd", Some("no JSON")),
        ];
        let section = check(&leases).unwrap();
        let found: Vec<_> = section.findings.iter().map(|f| (f.outcome, f.what.as_str())).collect();
        assert_eq!(
            found,
            [
                (Outcome::Bad, "Deployment.apps is stale: a has received nothing about it for 91 s"),
                (Outcome::Warning, "Fleet.example.com cannot be read by b"),
                (Outcome::Good, "Pod is current: received 60 s ago or later"),
            ]
        );
        assert!(check(&[lease("older", None)]).is_none());
    }
}
