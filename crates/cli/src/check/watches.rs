//! Checks how old what the servers know of each kind is. The servers write that into their Leases: a user who may run a
//! check can read those, and need not reach the metrics of each server.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use quorate_api::names::{SERVING, WATCH_AGES};
use quorate_engine::FRESH_FOR;

use super::report::Section;

/// What a server needs before it serves.
const GRANT: &str = "check that the servers may list and watch it, and what their /readyz says";

/// The oldest age of a kind in seconds, or `None` if a server could never read it, and that server.
type Oldest = (Option<u64>, String);

/// The webhooks of OpenKruise: they show whether the servers decide on PodUnavailableBudgets.
const OPENKRUISE: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io";

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
    let waiting: BTreeSet<String> =
        alive.iter().filter(|lease| !serves(lease)).map(Lease::name_any).collect();
    let mut section = Section::new("watches");
    for (kind, (age, server)) in kinds {
        match age {
            Some(age) if age > FRESH_FOR.as_secs() => section.bad(
                format!("{kind} is stale: {server} has received nothing about it for {age} s"),
                "budgets that depend on it deny; check that the servers may list and watch it, and their logs",
            ),
            Some(age) => section.good(format!("{kind} is current: received {age} s ago or later")),
            None if waiting.contains(&server) => section.bad(
                format!("{server} does not serve: it cannot read {kind}"),
                match kind == OPENKRUISE {
                    true => format!("{GRANT}; or set --serve-pub to always or never"),
                    false => GRANT.to_owned(),
                },
            ),
            None => section.warn(
                format!("{kind} cannot be read by {server}"),
                "what depends on it is not known; check that the servers may list and watch it, and their logs",
            ),
        }
    }
    Some(section)
}

/// Whether a server has begun to serve. Servers of earlier releases do not say it.
pub(super) fn serves(lease: &Lease) -> bool {
    lease.annotations().get(SERVING).is_none_or(|serves| serves != "false")
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
    use crate::output::Mark;

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
                (Mark::Bad, "Deployment.apps is stale: a has received nothing about it for 91 s"),
                (Mark::Warning, "Fleet.example.com cannot be read by b"),
                (Mark::Good, "Pod is current: received 60 s ago or later"),
            ]
        );
        assert!(check(&[lease("older", None)]).is_none());
    }

    #[test]
    fn a_server_that_waits_for_a_kind_before_it_serves_is_a_problem() {
        let webhooks = format!(r#"{{"{OPENKRUISE}":null,"Pod":3}}"#);
        let mut waiting = lease("a", Some(&webhooks));
        waiting.annotations_mut().insert(SERVING.to_owned(), "false".to_owned());
        let section = check(&[waiting]).unwrap();
        let bad: Vec<_> = section.findings.iter().filter(|found| found.outcome == Mark::Bad).collect();
        assert_eq!(bad.len(), 1, "{bad:?}");
        assert_eq!(bad[0].what, format!("a does not serve: it cannot read {OPENKRUISE}"));
        assert!(bad[0].hint.as_ref().unwrap().contains("--serve-pub"), "{bad:?}");
    }
}
