//! What a server cannot read for a while: a 403 that passes, a discovery that leaves something out, an API server that does
//! not answer. Nothing is switched off by it.

use quorate_devcluster::actors::Gang;
use quorate_devcluster::apiserver::{Fault, FaultGuard, RequestFilter, WatchFault, WorkloadApi};
use quorate_testbed::{Backend, Cluster, Kubernetes, Options, Setup, eventually};
use serde_json::{Value, json};

use crate::gangs;
use crate::pubs::over;
use crate::quorate::{NAMESPACE, Quorate, get, rendered, scrape, service_account};
use crate::space::Space;
use crate::town::{Town, refusal};

// Without controllers: those that are still starting when the API server restarts would end, and the stage with them.
quorate_testbed::stories!(Bare(Options::default()): a_403_that_passes_switches_no_pod_unavailable_budget_off);

const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/quorate-server";

/// The kinds without which no PodUnavailableBudget is served: the budgets, and what tells whether OpenKruise serves them.
const NEEDED: [&str; 2] =
    ["PodUnavailableBudget.policy.kruise.io", "ValidatingWebhookConfiguration.admissionregistration.k8s.io"];

/// The rights of the server are gone while the API server restarts, and come back. On the embedded cluster a fault
/// does the same.
async fn a_403_that_passes_switches_no_pod_unavailable_budget_off(cluster: Cluster) {
    let quorate = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "refused").await;
    town.pods_of("web", 3).await;
    town.pub_over("web", over("web", "minAvailable", 3), 0).await;
    refusal(&town.delete("web-0").await);

    let admin = quorate.server.admin;
    if let Some(plane) = cluster.control_plane() {
        town.wire.delete(BINDING, &json!({})).await.expect(200);
        plane.restart_api_server().await.expect("an API server");
    }
    let forbidden = cluster.embedded().map(|server| {
        let guard = server.faults().requests(cluster_wide(), Fault::Forbidden);
        server.faults().cut_watches(cluster_wide());
        guard
    });
    eventually("the server is refused", || async {
        let unreadable = unreadable(admin).await;
        if NEEDED.iter().all(|kind| unreadable.contains(&(*kind).to_owned())) {
            Ok(())
        } else {
            Err(unreadable)
        }
    })
    .await;
    is_kept(&town).await;

    drop(forbidden);
    if cluster.control_plane().is_some() {
        crate::quorate::apply(&cluster, &rendered(&["ClusterRoleBinding"])).await;
    }
    all_readable(admin).await;
    is_kept(&town).await;
    // It is served, not only remembered.
    town.pods_of("more", 1).await;
    town.pub_over("more", over("more", "minAvailable", 1), 0).await;
    refusal(&town.delete("more-0").await);
}

/// What a ClusterRoleBinding gives the server; its Leases are in its own namespace.
fn cluster_wide() -> RequestFilter {
    RequestFilter::any().user(service_account().name()).and(|asked| asked.namespace != NAMESPACE)
}

/// The pods of the budget are not deleted. While the API server restarts the server may say that it cannot decide.
async fn is_kept(town: &Town) {
    eventually("the budget itself refuses", || async {
        let answer = town.delete("web-1").await;
        assert_ne!(answer.code, 200, "the budget was switched off");
        if answer.code != 429 {
            return Err(answer.body);
        }
        let sentence = refusal(&answer);
        if sentence.contains("/web keeps 3 of 3 pods") { Ok(()) } else { Err(json!(sentence)) }
    })
    .await;
}

/// The kinds that a server says it cannot read.
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

/// A kind that not every cluster has, and what rests on it.
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

/// What a kind goes through.
#[derive(Clone, Copy, Debug)]
enum Trial {
    /// Lists and watches are refused with 403.
    Forbidden,
    /// Watches are refused, lists are not.
    ForbiddenWatch,
    /// Discovery has no such group.
    GroupLeftOut,
    /// Discovery has no such resource in the group.
    ResourceLeftOut,
    /// Lists and watches are not answered at all.
    Hang,
}

const TRIALS: [Trial; 5] =
    [Trial::Forbidden, Trial::ForbiddenWatch, Trial::GroupLeftOut, Trial::ResourceLeftOut, Trial::Hang];

#[test]
fn groups_count_as_before_while_their_kind_cannot_be_read() {
    let stage = Setup::Private(gangs::options(Kubernetes::V1_36));
    quorate_testbed::run_story(Backend::Embedded, stage, async |cluster| {
        let first = Space::with_node(cluster, "first").await;
        for row in &ROWS {
            let space = first.beside(row.stem).await;
            describe(&space, row).await;
            let before = settled(&space).await;
            for trial in TRIALS {
                let guard = begin(&first, row, trial).await;
                // Of what the trial did to the server, this is told after it.
                let marker = format!("after-{trial:?}").to_lowercase();
                space
                    .budget(&marker, json!({"selector": {"matchLabels": {"none": "x"}}, "maxUnavailable": 1}))
                    .await;
                assert_eq!(settled(&space).await, before, "{} {trial:?}", row.resource);
                drop(guard);
            }
            all_readable(first.admin()).await;
            assert_eq!(settled(&space).await, before, "{}", row.resource);
        }
    });
}

mod rights {
    //! The rights to read the kinds of groups are gone while the API server restarts, and come back. On the embedded
    //! cluster a fault does the same.

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
        let first = Space::with_node(cluster.clone(), "first").await;
        let mut spaces = Vec::new();
        for row in &ROWS {
            let space = first.beside(row.stem).await;
            describe(&space, row).await;
            let before = settled(&space).await;
            spaces.push((row, space, before));
        }

        let forbidden = forbid(&cluster).await;
        eventually("the server cannot read the kinds of groups", || async {
            let unreadable = unreadable(first.admin()).await;
            if KINDS.iter().all(|kind| unreadable.iter().any(|found| found == kind)) {
                Ok(())
            } else {
                Err(unreadable)
            }
        })
        .await;
        for (row, space, before) in &spaces {
            // The status of a budget that is created now is written after the server was refused.
            space
                .budget("during", json!({"selector": {"matchLabels": {"none": "x"}}, "maxUnavailable": 1}))
                .await;
            assert_eq!(settled(space).await, *before, "{} while it is forbidden", row.resource);
        }

        drop(forbidden);
        if cluster.control_plane().is_some() {
            crate::quorate::apply(&cluster, &rendered(&["ClusterRole"])).await;
        }
        all_readable(first.admin()).await;
        for (row, space, before) in &spaces {
            assert_eq!(settled(space).await, *before, "{} when it is allowed again", row.resource);
        }
    }

    /// Takes the rights to the kinds of groups away, and ends the watches that were started with them.
    async fn forbid(cluster: &Cluster) -> Option<FaultGuard> {
        let Some(plane) = cluster.control_plane() else {
            let faults = cluster.embedded().expect("the embedded cluster").faults();
            let of_rows = || {
                let user = RequestFilter::any().user(service_account().name());
                user.and(|asked| ROWS.iter().any(|r| (r.group, r.resource) == (asked.group, asked.resource)))
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

/// Two groups of three of the row's kind, and a budget that keeps one.
async fn describe(space: &Space, row: &Row) {
    let api = match row.resource {
        "podgroups" => WorkloadApi::V1Alpha2,
        "workloads" => WorkloadApi::Off,
        _ => {
            let pod = json!({"metadata": {"labels": {"app": "llm"}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "serve", "image": "llm:1"}]}});
            let set = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
                "metadata": {"name": "llm"},
                "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": pod}}});
            space.create("leaderworkerset.x-k8s.io/v1", "leaderworkersets", &set).await;
            space.ready(6).await;
            let policy = json!({"groupLabelKey": crate::scene::GROUP});
            let spec = json!({"selector": {"matchLabels": {"app": "llm"}}, "podGroupPolicy": policy, "maxUnavailable": 1});
            space.budget(gangs::BUDGET, spec).await;
            return;
        }
    };
    gangs::perform(space, &Gang::new("gang", 2, 3), api).await;
    space.budget(gangs::BUDGET, gangs::budget(&json!({"minAvailable": 1}))).await;
}

/// The numbers and conditions of the budget, once it allows one.
async fn settled(space: &Space) -> Value {
    let status =
        space.budget_is(gangs::BUDGET, "one may go", |status| status["disruptionsAllowed"] == 1).await;
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let words = |condition: &Value| {
        json!([condition["type"], condition["status"], condition["reason"], condition["message"]])
    };
    json!({
        "expected": [status["expectedReplicas"], status["expectedPods"], status["expectedGroups"]],
        "conditions": conditions.iter().map(words).collect::<Vec<_>>(),
    })
}

/// Begins a trial, and waits until the server has felt it more than once.
async fn begin(space: &Space, row: &Row, trial: Trial) -> FaultGuard {
    let faults = space.cluster.embedded().expect("the embedded cluster").faults();
    let of_kind = || {
        let group = row.group;
        RequestFilter::any()
            .user(service_account().name())
            .resource(row.resource)
            .and(move |asked| asked.group == group)
    };
    let mut guard = match trial {
        Trial::Forbidden => faults.requests(of_kind(), Fault::Forbidden),
        Trial::ForbiddenWatch => faults.requests(of_kind().verb("watch"), Fault::Forbidden),
        Trial::GroupLeftOut => faults.partial_discovery(row.group, None),
        Trial::ResourceLeftOut => faults.partial_discovery(row.group, Some(row.resource)),
        Trial::Hang => faults.requests(of_kind(), Fault::Hang),
    };
    faults.cut_watches(of_kind());
    let times = match trial {
        Trial::Forbidden | Trial::ForbiddenWatch => 2,
        Trial::GroupLeftOut | Trial::ResourceLeftOut => {
            // A definition that changes makes the server look at what is served, more than once.
            define(space, trial).await;
            3
        }
        // The next attempt comes half a minute later.
        Trial::Hang => 1,
    };
    guard.struck(times).await;
    guard
}

async fn define(space: &Space, trial: Trial) {
    let plural = format!("{}s{}", trial_name(trial), &space.cluster.unique("x").replace('-', ""));
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
    space.cluster.wire().post(definitions, &definition).await.expect(201);
}

fn trial_name(trial: Trial) -> String {
    format!("{trial:?}").to_lowercase()
}

/// Pods are not listed, nor watched: the server turns unready and says why, denies, and heals.
#[test]
fn a_server_whose_pods_are_stale_is_not_ready() {
    quorate_testbed::run_story(Backend::Embedded, Setup::Whole, async |cluster| {
        let quorate = Quorate::start(&cluster).await;
        let town = Town::found(&cluster, "hanging").await;
        town.pods_of("web", 2).await;
        town.budget("web", over("web", "minAvailable", 1), 1).await;
        let faults = cluster.embedded().expect("the embedded cluster").faults();
        let hung = ["pods", "deployments", "podunavailablebudgets"];
        let reads = || {
            let user = RequestFilter::any().user(service_account().name());
            user.and(move |asked| hung.contains(&asked.resource) && matches!(asked.verb, "list" | "watch"))
        };
        let hanging = faults.requests(reads(), Fault::Hang);
        let silent = faults.watches(reads(), WatchFault::Hold);
        faults.cut_watches(reads());

        let unready = eventually("the server is not ready", || async {
            let answer = get(quorate.server.admin, "/readyz").await.expect("an answer");
            if answer.contains("200 OK") { Err(answer) } else { Ok(answer) }
        })
        .await;
        assert!(unready.contains("pods are stale: no watch event for 9"), "{unready}");
        let denied = refusal(&town.evict("web-0").await);
        assert!(denied.contains("not now"), "{denied}");

        // Made while nobody saw it.
        town.new_budget("late", over("late", "minAvailable", 1)).await.expect(201);
        drop((hanging, silent));
        eventually("the server is ready", || async {
            if crate::quorate::is_ready(quorate.server.admin).await { Ok(()) } else { Err("it is not") }
        })
        .await;
        town.evict("web-0").await.expect(201);
        refusal(&town.evict("web-1").await);
        all_readable(quorate.server.admin).await;
    });
}
