//! Resources that a server temporarily cannot read: a 403, a discovery without a group or resource, an API server that
//! does not respond. No budget is disabled by that.

use quorate_devcluster::actors::Gang;
use quorate_devcluster::apiserver::{Fault, FaultGuard, RequestFilter, WatchFault, WorkloadApi};
use quorate_testbed::{Backend, Cluster, Kubernetes, Options, Setup, eventually};
use serde_json::{Value, json};

use crate::fixture::{TestNamespace, denial, spec_for_app};
use crate::gangs;
use crate::quorate::{NAMESPACE, Quorate, get, rendered, scrape, service_account};

// Without controllers: a controller manager that is still starting when the API server restarts would exit, and fail
// the story.
quorate_testbed::stories!(Bare(Options::default()): a_temporary_403_disables_no_pod_unavailable_budget);

const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/quorate-server";

/// The kinds without which no PodUnavailableBudget is served: the budgets, and the webhooks of OpenKruise.
const NEEDED: [&str; 2] =
    ["PodUnavailableBudget.policy.kruise.io", "ValidatingWebhookConfiguration.admissionregistration.k8s.io"];

/// The rights of the server are removed while the API server restarts, and restored later. On the embedded cluster a
/// fault does the same.
async fn a_temporary_403_disables_no_pod_unavailable_budget(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "refused").await;
    ns.create_pods("web", 3).await;
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 3), 0).await;
    denial(&ns.delete_pod("web-0").await);

    let admin = quorate.server.admin;
    if let Some(plane) = cluster.control_plane() {
        ns.wire.delete(BINDING, &json!({})).await.expect(200);
        plane.restart_api_server().await.expect("an API server");
    }
    let forbidden = cluster.embedded().map(|server| {
        let guard = server.faults().requests(cluster_wide(), Fault::Forbidden);
        server.faults().cut_watches(cluster_wide());
        guard
    });
    eventually("the server gets a 403", || async {
        let unreadable = unreadable(admin).await;
        if NEEDED.iter().all(|kind| unreadable.contains(&(*kind).to_owned())) {
            Ok(())
        } else {
            Err(unreadable)
        }
    })
    .await;
    await_denied_delete(&ns).await;

    drop(forbidden);
    if cluster.control_plane().is_some() {
        crate::quorate::apply(&cluster, &rendered(&["ClusterRoleBinding"])).await;
    }
    all_readable(admin).await;
    await_denied_delete(&ns).await;
    // New budgets are served again too.
    ns.create_pods("more", 1).await;
    ns.create_pub_allowing("more", spec_for_app("more", "minAvailable", 1), 0).await;
    denial(&ns.delete_pod("more-0").await);
}

/// The requests that need the ClusterRoleBinding: all but those in the namespace of the server.
fn cluster_wide() -> RequestFilter {
    RequestFilter::any().user(service_account().name()).and(|request| request.namespace != NAMESPACE)
}

/// Waits until the budget denies a delete. While the API server restarts, the denial may have another reason.
async fn await_denied_delete(ns: &TestNamespace) {
    eventually("the budget itself denies", || async {
        let answer = ns.delete_pod("web-1").await;
        assert_ne!(answer.code, 200, "the budget was switched off");
        if answer.code != 429 {
            return Err(answer.body);
        }
        let sentence = denial(&answer);
        if sentence.contains("/web keeps 3 of 3 pods") { Ok(()) } else { Err(json!(sentence)) }
    })
    .await;
}

/// The kinds that a server cannot read, from its metrics.
async fn unreadable(admin: std::net::SocketAddr) -> Vec<String> {
    let kind = |line: &str| {
        let labels = line.strip_prefix("quorate_watch_unreadable_seconds{")?;
        let (kind, value) = labels.strip_prefix("kind=\"")?.split_once("\"} ")?;
        (value != "0.0").then(|| kind.to_owned())
    };
    scrape(admin).await.lines().filter_map(kind).collect()
}

async fn all_readable(admin: std::net::SocketAddr) {
    eventually("the server reads everything again", || async {
        let unreadable = unreadable(admin).await;
        if unreadable.is_empty() { Ok(()) } else { Err(unreadable) }
    })
    .await;
}

/// An optional kind that defines groups.
struct Row {
    group: &'static str,
    resource: &'static str,
    /// The namespace of its budget.
    stem: &'static str,
}

const ROWS: [Row; 3] = [
    Row { group: "leaderworkerset.x-k8s.io", resource: "leaderworkersets", stem: "sets" },
    Row { group: "scheduling.k8s.io", resource: "podgroups", stem: "groups" },
    Row { group: "scheduling.quorate.dev", resource: "workloads", stem: "workloads" },
];

/// A fault of the reads of a kind.
#[derive(Clone, Copy, Debug)]
enum ReadFault {
    /// Lists and watches get a 403.
    Forbidden,
    /// Watches get a 403, lists do not.
    ForbiddenWatch,
    /// Discovery has no such group.
    GroupLeftOut,
    /// Discovery has no such resource in the group.
    ResourceLeftOut,
    /// Lists and watches get no response.
    Hang,
}

const READ_FAULTS: [ReadFault; 5] = [
    ReadFault::Forbidden,
    ReadFault::ForbiddenWatch,
    ReadFault::GroupLeftOut,
    ReadFault::ResourceLeftOut,
    ReadFault::Hang,
];

#[test]
fn groups_count_as_before_while_their_kind_cannot_be_read() {
    let setup = Setup::Private(gangs::options(Kubernetes::V1_36));
    quorate_testbed::run_story(Backend::Embedded, setup, async |cluster| {
        let first = TestNamespace::with_server_and_node(cluster, "first").await;
        for row in &ROWS {
            let ns = first.another(row.stem).await;
            create_groups(&ns, row).await;
            let before = settled_status(&ns).await;
            for fault in READ_FAULTS {
                let guard = start_fault(&first, row, fault).await;
                // The status of this budget is written after the server has felt the fault.
                let marker = format!("after-{fault:?}").to_lowercase();
                ns.create_enforced_budget(
                    &marker,
                    json!({"selector": {"matchLabels": {"none": "x"}}, "maxUnavailable": 1}),
                )
                .await;
                assert_eq!(settled_status(&ns).await, before, "{} {fault:?}", row.resource);
                drop(guard);
            }
            all_readable(first.server().admin).await;
            assert_eq!(settled_status(&ns).await, before, "{}", row.resource);
        }
    });
}

mod rights {
    //! The rights to read the kinds of groups are removed while the API server restarts, and restored later. On the
    //! embedded cluster a fault does the same.

    use super::*;

    quorate_testbed::stories!(Private(gangs::options(Kubernetes::V1_36)):
        groups_count_as_before_while_their_kinds_are_forbidden,
    );

    const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/quorate-server";

    const KINDS: [&str; 3] = [
        "LeaderWorkerSet.leaderworkerset.x-k8s.io",
        "PodGroup.scheduling.k8s.io",
        "Workload.scheduling.quorate.dev",
    ];

    async fn groups_count_as_before_while_their_kinds_are_forbidden(cluster: Cluster) {
        let first = TestNamespace::with_server_and_node(cluster.clone(), "first").await;
        let mut namespaces = Vec::new();
        for row in &ROWS {
            let ns = first.another(row.stem).await;
            create_groups(&ns, row).await;
            let before = settled_status(&ns).await;
            namespaces.push((row, ns, before));
        }

        let forbidden = forbid(&cluster).await;
        eventually("the server cannot read the kinds of groups", || async {
            let unreadable = unreadable(first.server().admin).await;
            if KINDS.iter().all(|kind| unreadable.iter().any(|found| found == kind)) {
                Ok(())
            } else {
                Err(unreadable)
            }
        })
        .await;
        for (row, ns, before) in &namespaces {
            // The status of a budget that is created now is written after the server got the 403.
            ns.create_enforced_budget(
                "during",
                json!({"selector": {"matchLabels": {"none": "x"}}, "maxUnavailable": 1}),
            )
            .await;
            assert_eq!(settled_status(ns).await, *before, "{} while it is forbidden", row.resource);
        }

        drop(forbidden);
        if cluster.control_plane().is_some() {
            crate::quorate::apply(&cluster, &rendered(&["ClusterRole"])).await;
        }
        all_readable(first.server().admin).await;
        for (row, ns, before) in &namespaces {
            assert_eq!(settled_status(ns).await, *before, "{} when it is allowed again", row.resource);
        }
    }

    /// Removes the rights to the kinds of groups, and ends the watches that were started with them.
    async fn forbid(cluster: &Cluster) -> Option<FaultGuard> {
        let Some(plane) = cluster.control_plane() else {
            let faults = cluster.embedded().expect("the embedded cluster").faults();
            let of_rows = || {
                let user = RequestFilter::any().user(service_account().name());
                user.and(|request| {
                    ROWS.iter().any(|r| (r.group, r.resource) == (request.group, request.resource))
                })
            };
            let guard = faults.requests(of_rows(), Fault::Forbidden);
            faults.cut_watches(of_rows());
            return Some(guard);
        };
        let mut role = cluster.wire().get(ROLE).await.expect(200);
        let rules = role["rules"].as_array_mut().expect("rules");
        let granted = rules.len();
        rules.retain(|rule| !ROWS.iter().any(|row| rule["apiGroups"] == json!([row.group])));
        assert_eq!(rules.len(), granted - ROWS.len(), "the role has one rule for each kind");
        cluster.wire().put(ROLE, &role).await.expect(200);
        plane.restart_api_server().await.expect("an API server");
        None
    }
}

/// Creates two groups of three pods of the kind, and a budget that keeps one group.
async fn create_groups(ns: &TestNamespace, row: &Row) {
    let api = match row.resource {
        "podgroups" => WorkloadApi::V1Alpha2,
        "workloads" => WorkloadApi::Off,
        _ => {
            let pod = json!({"metadata": {"labels": {"app": "llm"}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "serve", "image": "llm:1"}]}});
            let set = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
                "metadata": {"name": "llm"},
                "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": pod}}});
            ns.create("leaderworkerset.x-k8s.io/v1", "leaderworkersets", &set).await;
            ns.await_ready_pods(6).await;
            let policy = json!({"groupLabelKey": crate::fixture::GROUP});
            let spec = json!({"selector": {"matchLabels": {"app": "llm"}}, "podGroupPolicy": policy, "maxUnavailable": 1});
            ns.create_enforced_budget(gangs::BUDGET, spec).await;
            return;
        }
    };
    gangs::create_gang(ns, &Gang::new("gang", 2, 3), api).await;
    ns.create_enforced_budget(gangs::BUDGET, gangs::budget_spec(&json!({"minAvailable": 1}))).await;
}

/// The numbers and conditions of the budget, once it allows one.
async fn settled_status(ns: &TestNamespace) -> Value {
    let status =
        ns.await_status(gangs::BUDGET, "one may go", |status| status["disruptionsAllowed"] == 1).await;
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let words = |condition: &Value| {
        json!([condition["type"], condition["status"], condition["reason"], condition["message"]])
    };
    json!({
        "expected": [status["expectedReplicas"], status["expectedPods"], status["expectedGroups"]],
        "conditions": conditions.iter().map(words).collect::<Vec<_>>(),
    })
}

/// Starts a fault, and waits until it has affected the server more than once.
async fn start_fault(ns: &TestNamespace, row: &Row, fault: ReadFault) -> FaultGuard {
    let faults = ns.cluster.embedded().expect("the embedded cluster").faults();
    let of_kind = || {
        let group = row.group;
        RequestFilter::any()
            .user(service_account().name())
            .resource(row.resource)
            .and(move |request| request.group == group)
    };
    let mut guard = match fault {
        ReadFault::Forbidden => faults.requests(of_kind(), Fault::Forbidden),
        ReadFault::ForbiddenWatch => faults.requests(of_kind().verb("watch"), Fault::Forbidden),
        ReadFault::GroupLeftOut => faults.partial_discovery(row.group, None),
        ReadFault::ResourceLeftOut => faults.partial_discovery(row.group, Some(row.resource)),
        ReadFault::Hang => faults.requests(of_kind(), Fault::Hang),
    };
    faults.cut_watches(of_kind());
    let times = match fault {
        ReadFault::Forbidden | ReadFault::ForbiddenWatch => 2,
        ReadFault::GroupLeftOut | ReadFault::ResourceLeftOut => {
            // After a change of a definition the server reads the discovery, more than once.
            define(ns, fault).await;
            3
        }
        // The next attempt comes half a minute later.
        ReadFault::Hang => 1,
    };
    guard.struck(times).await;
    guard
}

async fn define(ns: &TestNamespace, fault: ReadFault) {
    define_kind(ns, &fault_name(fault)).await;
}

/// Defines another kind, so that the server reads the discovery.
pub(crate) async fn define_kind(ns: &TestNamespace, name: &str) {
    let plural = format!("{name}s{}", &ns.cluster.unique("x").replace('-', ""));
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": plural, "plural": plural, "singular": plural, "listKind": format!("{plural}List")},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    ns.wire.post(definitions, &definition).await.expect(201);
}

fn fault_name(fault: ReadFault) -> String {
    format!("{fault:?}").to_lowercase()
}

/// Pods cannot be listed or watched: the server becomes unready with a reason, denies, and recovers.
#[test]
fn a_server_whose_pods_are_stale_is_not_ready() {
    quorate_testbed::run_story(Backend::Embedded, Setup::Whole, async |cluster| {
        let quorate = Quorate::start(&cluster).await;
        let ns = TestNamespace::with_manual_pods(&cluster, "hanging").await;
        ns.create_pods("web", 2).await;
        ns.create_budget_allowing("web", spec_for_app("web", "minAvailable", 1), 1).await;
        let faults = cluster.embedded().expect("the embedded cluster").faults();
        let hung = ["pods", "deployments", "podunavailablebudgets"];
        let reads = || {
            let user = RequestFilter::any().user(service_account().name());
            user.and(move |request| {
                hung.contains(&request.resource) && matches!(request.verb, "list" | "watch")
            })
        };
        let hanging = faults.requests(reads(), Fault::Hang);
        let silent = faults.watches(reads(), WatchFault::Hold);
        faults.cut_watches(reads());

        let unready = eventually("the server is not ready", || async {
            let answer = get(quorate.server.admin, "/readyz").await.expect("an answer");
            if answer.contains("200 OK") { Err(answer) } else { Ok(answer) }
        })
        .await;
        let seconds = unready.split_once("pods are stale: no watch event for ").map(|(_, rest)| rest);
        let seconds = seconds.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        assert!(seconds.is_some_and(|seconds| seconds >= 90), "{unready}");
        let denied = denial(&ns.evict("web-0").await);
        assert!(denied.contains("not now"), "{denied}");

        // Created while the server cannot see it.
        ns.create_budget("late", spec_for_app("late", "minAvailable", 1)).await.expect(201);
        drop((hanging, silent));
        eventually("the server is ready", || async {
            if crate::quorate::is_ready(quorate.server.admin).await { Ok(()) } else { Err("it is not") }
        })
        .await;
        ns.evict("web-0").await.expect(201);
        denial(&ns.evict("web-1").await);
        all_readable(quorate.server.admin).await;
    });
}
