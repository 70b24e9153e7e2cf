//! Clocks that are wrong: a server uses the clock of the API server for times of day.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use quorate_testbed::{Backend, Setup};
use serde_json::Value;

use crate::fixture::{TestNamespace, condition, spec_for_app};
use crate::replicas::Replicas;

/// The machine of the servers is an hour behind or ahead of the API server, as before its clock is first corrected. The
/// times in the status are from the clock of the API server: a server on another machine reads them.
#[test]
fn times_of_day_are_those_of_the_api_server() {
    for hours in [1, -1] {
        quorate_testbed::run_story(Backend::Embedded, Setup::Whole, async |cluster| {
            let server = cluster.embedded().expect("the embedded cluster");
            let _stepped = server.faults().step_clock(SignedDuration::from_hours(hours));
            let _replicas = Replicas::start(&cluster, 1, &[]).await;
            let ns = TestNamespace::with_manual_pods(&cluster, "clocks").await;
            ns.create_pods("web", 2).await;
            ns.create_budget_allowing("web", spec_for_app("web", "minAvailable", 1), 1).await;
            let budget = ns.budget("web").await;
            let read = |value: &Value| -> Timestamp {
                value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{value}"))
            };
            let created = read(&budget["metadata"]["creationTimestamp"]);
            let enforced = read(&condition(&budget["status"], "Enforced")["lastTransitionTime"]);
            let apart = enforced.duration_since(created).abs();
            assert!(apart < SignedDuration::from_mins(5), "{hours}: created {created}, enforced {enforced}");
        });
    }
}
