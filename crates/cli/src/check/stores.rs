//! Checks that pods and budgets are in one etcd: servers compare their versions.

use kube::Client;
use kube::api::{ListParams, Request};
use serde_json::Value;

use super::report::Section;

const PODS: &str = "/api/v1/pods";
const BUDGETS: &str = "/apis/policy.quorate.dev/v1alpha1/disruptionbudgets";

/// Three consistent lists, one after another. The versions of one etcd only grow.
pub(super) async fn check(client: &Client, section: &mut Section) {
    let (before, budgets, after) =
        (version(client, PODS).await, version(client, BUDGETS).await, version(client, PODS).await);
    match (before, budgets, after) {
        (Some(before), Some(budgets), Some(after)) if is_one_etcd(before, budgets, after) => {
            section.good("pods and budgets are stored in the same etcd");
        }
        (Some(_), Some(_), Some(_)) => section.bad(
            "pods and budgets are stored in different etcds: a claim may end before its pod has gone",
            "remove pods from --etcd-servers-overrides of the API server; their versions must be those of one etcd",
        ),
        // Other findings report what cannot be read.
        _ => {}
    }
}

/// The version of the store at a list. A list without a version that it names is consistent.
async fn version(client: &Client, path: &str) -> Option<u64> {
    let request = Request::new(path).list(&ListParams::default().limit(1)).ok()?;
    let listed: Value = client.request(request).await.ok()?;
    listed["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

fn is_one_etcd(before: u64, budgets: u64, after: u64) -> bool {
    (before..=after).contains(&budgets)
}

#[cfg(test)]
mod tests {
    use super::is_one_etcd;

    #[test]
    fn the_versions_of_one_etcd_only_grow() {
        for (before, budgets, after, one) in
            [(7, 7, 7, true), (7, 9, 12, true), (7, 6, 7, false), (7, 13, 12, false)]
        {
            assert_eq!(is_one_etcd(before, budgets, after), one, "{before} {budgets} {after}");
        }
    }
}
