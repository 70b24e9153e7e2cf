//! A kind that cannot be read for a while is not gone.

use serde_json::{Value, json};

use super::*;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A kind that not every cluster has: its path, an object, and the text of the event for a list of that many objects.
struct Row {
    path: &'static str,
    object: Value,
    listed: fn(usize) -> String,
    /// The text of the event when the kind is dropped.
    dropped: &'static str,
}

fn named(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name, "uid": name, "generation": 1, "resourceVersion": "4"},
        "spec": spec})
}

fn rows() -> Vec<Row> {
    vec![
        Row {
            path: "/apis/scheduling.k8s.io/v1alpha2/podgroups",
            object: group("g", 3, 4),
            listed: |count| format!("groups {count}"),
            dropped: "groups 0",
        },
        Row {
            path: "/apis/scheduling.k8s.io/v1alpha2/workloads",
            object: named("w", &json!({"podGroupTemplates": []})),
            listed: |count| format!("Upstream {count}"),
            dropped: "Upstream 0",
        },
        Row {
            path: "/apis/scheduling.quorate.dev/v1alpha1/workloads",
            object: named(
                "w",
                &json!({"podGroups": [{"name": "group", "replicas": 2, "policy": {"gang": {"minCount": 3}}}]}),
            ),
            listed: |count| format!("Own {count}"),
            dropped: "Own 0",
        },
        Row {
            path: "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",
            object: named("llm", &json!({"replicas": 2, "leaderWorkerTemplate": {"size": 3}})),
            listed: |_| "LeaderWorkerSet llm:Some(2)".to_owned(),
            dropped: "LeaderWorkerSet ",
        },
        Row {
            path: "/apis/policy.kruise.io/v1alpha1/podunavailablebudgets",
            object: named("web", &json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1})),
            listed: |count| format!("PodUnavailableBudget {count}"),
            dropped: "PodUnavailableBudget unwatched",
        },
        Row {
            path: FLEETS,
            object: named("web", &json!({"replicas": 4})),
            listed: |_| "Fleet web:None".to_owned(),
            dropped: "Fleet ",
        },
    ]
}

/// A cluster with an object of the row's kind, and a pod and a budget that make `Fleet` a referred kind.
fn cluster(row: &Row) -> FakeApi {
    let api = FakeApi::empty_cluster();
    api.serve(row.path, vec![row.object.clone()]);
    api.serve(PODS, vec![pod("a", 5, Some(fleet_owner()))]);
    api.serve(BUDGETS, vec![budget()]);
    api
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_forbidden_keeps_its_objects() {
    for row in rows() {
        let mut fixture = Fixture::start(cluster(&row));
        let events = fixture.until_synced().await;
        assert!(events.contains(&(row.listed)(1)), "{}: {events:?}", row.path);
        fixture.api.forbid(row.path);
        let events = fixture.events_within(1800).await;
        assert!(!events.iter().any(|event| event == row.dropped), "{}: {events:?}", row.path);
        // It is listed again as soon as that is possible.
        fixture.api.permit(row.path);
        let events = fixture.events_within(90).await;
        assert!(events.contains(&(row.listed)(1)), "{}: {events:?}", row.path);
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_discovery_omits_keeps_its_objects() {
    for row in rows() {
        for hidden in [row.path, row.path.rsplit_once('/').map(|(version, _)| version).unwrap_or_default()] {
            let mut fixture = Fixture::start(cluster(&row));
            fixture.until_synced().await;
            fixture.api.hide(hidden);
            let events = fixture.events_within(1800).await;
            assert!(!events.iter().any(|event| event == row.dropped), "{hidden}: {events:?}");
        }
    }
}

/// For less than a minute, for example while an API server starts, the kind is not served at all.
#[tokio::test(start_paused = true)]
async fn a_kind_that_is_absent_for_a_moment_keeps_its_objects() {
    for row in rows() {
        let mut fixture = Fixture::start(cluster(&row));
        fixture.until_synced().await;
        for _ in 0..3 {
            fixture.api.withdraw(row.path);
            // A changed definition triggers discovery.
            fixture.api.change(DEFINITIONS, "MODIFIED", &json!({"metadata": {"name": "any"}}));
            let events = fixture.events_within(45).await;
            assert!(!events.iter().any(|event| event == row.dropped), "{}: {events:?}", row.path);
            fixture.api.serve(row.path, vec![row.object.clone()]);
            let events = fixture.events_within(60).await;
            assert!(events.contains(&(row.listed)(1)), "{}: {events:?}", row.path);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_gone_is_dropped_after_all_other_kinds_were_listed_again() {
    for row in rows() {
        let mut fixture = Fixture::start(cluster(&row));
        fixture.until_synced().await;
        let began = tokio::time::Instant::now();
        fixture.api.withdraw(row.path);
        fixture.until(|event| (describe(&event) == row.dropped).then_some(())).await;
        let after = began.elapsed().as_secs();
        assert!((60..=130).contains(&after), "{}: {after} s", row.path);
    }
    // The pods are listed again before it is dropped.
    let row = &rows()[0];
    let mut fixture = Fixture::start(cluster(row));
    fixture.until_synced().await;
    fixture.events_within(1).await;
    // The pod watch is never silent for so long that it lists again by itself.
    for round in 0..3 {
        fixture.api.change(PODS, "MODIFIED", &pod("a", 20 + round, Some(fleet_owner())));
        fixture.events_within(1).await;
    }
    fixture.api.withdraw(row.path);
    let mut events = Vec::new();
    let at = |events: &[String], wanted: &str| events.iter().position(|event| event == wanted);
    while at(&events, row.dropped).is_none() {
        events.extend(fixture.events_within(10).await);
        fixture.api.change(PODS, "MODIFIED", &pod("a", 30, Some(fleet_owner())));
    }
    let (listed, dropped) = (at(&events, "pods a:true"), at(&events, row.dropped));
    assert!(listed.is_some() && listed < dropped, "{events:?}");

    // While another kind cannot be listed, the objects are kept.
    let mut fixture = Fixture::start(cluster(row));
    fixture.until_synced().await;
    fixture.api.forbid("/apis/apps/v1/deployments");
    fixture.api.withdraw(row.path);
    let events = fixture.events_within(600).await;
    assert!(!events.iter().any(|event| event == row.dropped), "{events:?}");
    fixture.api.permit("/apis/apps/v1/deployments");
    fixture.until(|event| (describe(&event) == row.dropped).then_some(())).await;
}

/// As when two operators are uninstalled together. Neither kind waits for a list of the other.
#[tokio::test(start_paused = true)]
async fn two_kinds_that_are_gone_together_are_both_dropped() {
    let (groups, set) = (&rows()[0], &rows()[3]);
    let api = cluster(groups);
    api.serve(set.path, vec![set.object.clone()]);
    let mut fixture = Fixture::start(api);
    fixture.until_synced().await;
    fixture.api.withdraw(groups.path);
    fixture.api.withdraw(set.path);
    let events = fixture.events_within(200).await;
    for row in [groups, set] {
        assert!(events.iter().any(|event| event == row.dropped), "{}: {events:?}", row.path);
    }
}

/// 403 from the beginning, as from an API server that has just started. A kind that can be read within half a minute is
/// listed before the first decision.
#[tokio::test(start_paused = true)]
async fn a_kind_that_is_forbidden_at_first_is_waited_for() {
    for row in rows() {
        let api = cluster(&row);
        for path in [PODS, row.path] {
            api.forbid(path);
        }
        let mut fixture = Fixture::start(api);
        fixture.events_within(300).await;
        fixture.api.permit(PODS);
        // Quorate may have no permissions for a kind that is only referred to, so it does not wait for that kind.
        if row.path == FLEETS {
            continue;
        }
        fixture.events_within(15).await;
        fixture.api.permit(row.path);
        let events = fixture.until_synced().await;
        assert!(events.contains(&(row.listed)(1)), "{}: {events:?}", row.path);
    }
}

/// There is no point in waiting for a kind that can never be read: what depends on it is unknown, the rest is decided.
#[tokio::test(start_paused = true)]
async fn a_kind_that_can_never_be_read_does_not_block_the_initial_sync() {
    for row in rows().into_iter().filter(|row| !row.path.ends_with("budgets")) {
        let api = cluster(&row);
        api.forbid(row.path);
        let mut fixture = Fixture::start(api);
        let began = tokio::time::Instant::now();
        fixture.until_synced().await;
        let waited = began.elapsed().as_secs();
        assert!(waited <= 61, "{}: {waited} s", row.path);
        // The watch keeps retrying.
        fixture.api.permit(row.path);
        let events = fixture.events_within(60).await;
        assert!(events.contains(&(row.listed)(1)), "{}: {events:?}", row.path);
    }
}

/// A server that does not know the budgets of a kind would admit what they deny.
#[tokio::test(start_paused = true)]
async fn a_kind_of_budgets_that_cannot_be_read_blocks_the_initial_sync() {
    let row = &rows()[4];
    let api = cluster(row);
    api.forbid(row.path);
    let mut fixture = Fixture::start(api);
    let unsynced = tokio::time::timeout(Duration::from_secs(600), fixture.until_synced()).await;
    assert!(unsynced.is_err(), "it is synced without the budgets: {unsynced:?}");
    fixture.api.permit(row.path);
    let events = fixture.until_synced().await;
    assert!(events.contains(&(row.listed)(1)), "{events:?}");
}

/// A definition serves the kind, but discovery does not show it yet.
#[tokio::test(start_paused = true)]
async fn a_defined_kind_is_waited_for_although_discovery_omits_it() {
    let row = &rows()[4];
    let api = cluster(row);
    let version = json!({"name": "v1alpha1", "served": true});
    let definition = json!({"metadata": {"name": "podunavailablebudgets.policy.kruise.io", "uid": "d",
        "resourceVersion": "1"}, "spec": {"group": "policy.kruise.io",
        "names": {"kind": "PodUnavailableBudget"}, "versions": [version]}});
    api.serve(DEFINITIONS, vec![definition]);
    api.hide("/apis/policy.kruise.io");
    let mut fixture = Fixture::start(api);
    fixture.events_within(10).await;
    fixture.api.show("/apis/policy.kruise.io");
    let events = fixture.until_synced().await;
    assert!(events.contains(&(row.listed)(1)), "{events:?}");
}

/// A budget that remembers an object of this kind.
fn remembering(group: &str, kind: &str) -> Value {
    let mut budget = budget();
    let source = json!({"group": group, "kind": kind, "name": "chess", "uid": "u"});
    budget["status"] = json!({"rememberedFor": "0000000000000007", "sources": [source]});
    budget
}

/// A budget remembers objects from before the process started. Of a kind that is certainly not served, there are none.
#[tokio::test(start_paused = true)]
async fn a_kind_that_a_budget_remembers_and_that_is_not_served_has_no_objects() {
    let kinds = [
        ("example.com", "Game", "Game "),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "LeaderWorkerSet "),
        ("scheduling.k8s.io", "PodGroup", "groups 0"),
    ];
    for (group, kind, expected) in kinds {
        let api = FakeApi::empty_cluster();
        api.serve(BUDGETS, vec![remembering(group, kind)]);
        let mut fixture = Fixture::start(api);
        let mut events = fixture.until_synced().await;
        events.extend(fixture.events_within(50).await);
        assert!(!events.contains(&expected.to_owned()), "it may be served in a moment: {events:?}");
        let events = fixture.events_within(80).await;
        assert!(events.contains(&expected.to_owned()), "{events:?}");
    }
    // No budget names it.
    let mut fixture = Fixture::start(FakeApi::empty_cluster());
    fixture.until_synced().await;
    assert_eq!(fixture.events_within(600).await.iter().filter(|event| *event == "groups 0").count(), 0);
}

/// While API servers restart, one of them shows a kind, and another one refuses to list it and omits it.
#[tokio::test(start_paused = true)]
async fn a_kind_that_a_budget_remembers_and_that_was_never_read_may_be_served_in_a_moment() {
    let kinds = [
        ("batch", "Job", "/apis/batch/v1/jobs", "Job "),
        ("scheduling.k8s.io", "PodGroup", "/apis/scheduling.k8s.io/v1alpha2/podgroups", "groups 0"),
    ];
    for (group, kind, path, dropped) in kinds {
        let api = FakeApi::empty_cluster();
        api.serve(path, vec![]);
        api.forbid(path);
        api.serve(BUDGETS, vec![remembering(group, kind)]);
        let mut fixture = Fixture::start(api);
        let mut events = fixture.until_synced().await;
        fixture.api.hide(&format!("/apis/{group}"));
        events.extend(fixture.events_within(50).await);
        assert!(!events.contains(&dropped.to_owned()), "{kind}: {events:?}");
        let events = fixture.events_within(120).await;
        assert!(events.contains(&dropped.to_owned()), "{kind}: {events:?}");
    }
}
