//! Checks the servers by the Leases that they renew.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use quorate_api::names::{ACKNOWLEDGED, COMPONENT, LEADER_LEASE, SERVER};

use super::report::Section;
use super::watches::serves;

/// A live server renews its Lease within this time. Comparing two reads does not depend on clocks.
const RENEWAL: Duration = Duration::from_secs(5);

/// The findings, and the Leases of the servers that are alive.
pub(super) async fn check(client: &Client, own: &str) -> (Section, Vec<Lease>) {
    let mut section = Section::new("servers");
    let leases: Api<Lease> = Api::namespaced(client.clone(), own);
    let servers = ListParams::default().labels(&format!("{COMPONENT}={SERVER}"));
    let look = async || -> Result<(Vec<Lease>, Option<Lease>), kube::Error> {
        Ok((leases.list(&servers).await?.items, leases.get_opt(LEADER_LEASE).await?))
    };
    let (before, after) = match look().await {
        Ok(before) => {
            tokio::time::sleep(RENEWAL).await;
            (before, look().await)
        }
        Err(error) => {
            section.unlisted(&format!("leases.coordination.k8s.io in {own}"), &error);
            return (section, Vec::new());
        }
    };
    let after = match after {
        Ok(after) => after,
        Err(error) => {
            section.unlisted(&format!("leases.coordination.k8s.io in {own}"), &error);
            return (section, Vec::new());
        }
    };
    let renewed = |name: &str| {
        let written = |leases: &[Lease]| {
            leases
                .iter()
                .find(|lease| lease.name_any() == name)
                .and_then(|lease| lease.spec.clone()?.renew_time)
        };
        let now = written(&after.0);
        now.is_some() && now != written(&before.0)
    };
    let alive: Vec<&Lease> = after.0.iter().filter(|lease| renewed(&lease.name_any())).collect();
    match alive.len() {
        0 => section.bad(
            format!("no server is alive in {own}"),
            "start one; until then evictions and deletes fail in namespaces with an enforcing budget",
        ),
        1 => section.warn("one server is alive", "with two or more, no request waits while one restarts"),
        several => section.good(format!("{several} servers are alive")),
    }
    check_serving(&alive, &mut section);
    let holder = after.1.and_then(|lease| lease.spec?.holder_identity);
    match holder.filter(|holder| alive.iter().any(|lease| lease.name_any() == *holder)) {
        Some(holder) => section.good(format!("{holder} is the leader")),
        None if alive.is_empty() => {}
        None => section.bad(
            format!("there is no leader: no live server holds the Lease {LEADER_LEASE}"),
            "wait 15 s; if it stays, check the logs of the servers",
        ),
    }
    let alive = alive.into_iter().cloned().collect();
    (section, alive)
}

/// Checks that the servers that are alive serve, and know every budget.
fn check_serving(alive: &[&Lease], section: &mut Section) {
    let names =
        |leases: &[&&Lease]| leases.iter().map(|lease| lease.name_any()).collect::<Vec<_>>().join(", ");
    let (serving, starting): (Vec<&&Lease>, Vec<&&Lease>) = alive.iter().partition(|lease| serves(lease));
    if !starting.is_empty() {
        section.warn(
            format!("servers that do not serve yet: {}", names(&starting)),
            "wait a few seconds; if it stays, check what their /readyz says",
        );
    }
    let knows = |lease: &Lease| lease.annotations().get(ACKNOWLEDGED).is_some_and(|version| version != "0");
    let behind: Vec<&&Lease> = serving.into_iter().filter(|lease| !knows(lease)).collect();
    if !behind.is_empty() {
        section.warn(
            format!("servers that have not seen every budget yet: {}", names(&behind)),
            "wait a few seconds; if it stays, check their logs",
        );
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use quorate_api::names::SERVING;

    use super::*;

    #[test]
    fn servers_that_do_not_serve_or_have_acknowledged_nothing_are_named() {
        let lease = |name: &str, annotations: &[(&str, &str)]| {
            let annotations =
                annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let annotations = Some(annotations.collect());
            let metadata = ObjectMeta { name: Some(name.to_owned()), annotations, ..ObjectMeta::default() };
            Lease { metadata, spec: None }
        };
        let leases = [
            lease("good", &[(SERVING, "true"), (ACKNOWLEDGED, "7")]),
            lease("starting", &[(SERVING, "false"), (ACKNOWLEDGED, "0")]),
            lease("behind", &[(SERVING, "true"), (ACKNOWLEDGED, "0")]),
            lease("older", &[]),
        ];
        let mut section = Section::new("servers");
        check_serving(&leases.iter().collect::<Vec<_>>(), &mut section);
        let found: Vec<_> = section.findings.iter().map(|found| found.what.as_str()).collect();
        assert_eq!(
            found,
            [
                "servers that do not serve yet: starting",
                "servers that have not seen every budget yet: behind, older"
            ]
        );
    }
}
