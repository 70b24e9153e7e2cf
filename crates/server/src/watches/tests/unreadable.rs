//! What cannot be read for a while is not gone.

use serde_json::{Value, json};

use super::*;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A kind that not every cluster has: where it is, an object of it, and what is told of a list of so many.
struct Row {
    path: &'static str,
    object: Value,
    told: fn(usize) -> String,
    /// What would be told if it were dropped.
    dropped: &'static str,
}

fn named(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name, "uid": name, "generation": 1, "resourceVersion": "4"},
        "spec": spec})
}

fn translate() -> Vec<Row> {
    vec![
        Row {
            path: "/apis/scheduling.k8s.io/v1alpha2/podgroups",
            object: group("g", 3, 4),
            told: |count| format!("groups {count}"),
            dropped: "groups 0",
        },
        Row {
            path: "/apis/scheduling.k8s.io/v1alpha2/workloads",
            object: named("w", &json!({"podGroupTemplates": []})),
            told: |count| format!("Upstream {count}"),
            dropped: "Upstream 0",
        },
        Row {
            path: "/apis/scheduling.quorate.dev/v1alpha1/workloads",
            object: named(
                "w",
                &json!({"podGroups": [{"name": "group", "replicas": 2, "policy": {"gang": {"minCount": 3}}}]}),
            ),
            told: |count| format!("Own {count}"),
            dropped: "Own 0",
        },
        Row {
            path: "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",
            object: named("llm", &json!({"replicas": 2, "leaderWorkerTemplate": {"size": 3}})),
            told: |_| "LeaderWorkerSet llm:Some(2)".to_owned(),
            dropped: "LeaderWorkerSet ",
        },
        Row {
            path: "/apis/policy.kruise.io/v1alpha1/podunavailablebudgets",
            object: named("web", &json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1})),
            told: |count| format!("PodUnavailableBudget {count}"),
            dropped: "PodUnavailableBudget unwatched",
        },
        Row {
            path: FLEETS,
            object: named("web", &json!({"replicas": 4})),
            told: |_| "Fleet web:None".to_owned(),
            dropped: "Fleet ",
        },
    ]
}

/// A cluster with an object of the row's kind, and a pod that refers to it where that makes it looked at.
fn cluster(row: &Row) -> FakeApi {
    let api = FakeApi::empty_cluster();
    api.serve(row.path, vec![row.object.clone()]);
    api.serve(PODS, vec![pod("a", 5, Some(fleet_owner()))]);
    api.serve(BUDGETS, vec![budget()]);
    api
}

impl Stage {
    /// Everything that is told within so many seconds, as words.
    async fn told_within(&mut self, seconds: u64) -> Vec<String> {
        let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
        let mut told = Vec::new();
        while let Ok(event) = tokio::time::timeout_at(end, self.next()).await {
            told.push(word(&event));
        }
        told
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_refused_stays_as_it_was() {
    for row in translate() {
        let mut stage = Stage::set(cluster(&row));
        let told = stage.until_synced().await;
        assert!(told.contains(&(row.told)(1)), "{}: {told:?}", row.path);
        stage.api.forbid(row.path);
        let told = stage.told_within(1800).await;
        assert!(!told.iter().any(|word| word == row.dropped), "{}: {told:?}", row.path);
        // And it is looked at again as soon as that is possible.
        stage.api.permit(row.path);
        let told = stage.told_within(90).await;
        assert!(told.contains(&(row.told)(1)), "{}: {told:?}", row.path);
    }
}

#[tokio::test(start_paused = true)]
async fn a_discovery_that_leaves_something_out_drops_nothing() {
    for row in translate() {
        for hidden in [row.path, row.path.rsplit_once('/').map(|(version, _)| version).unwrap_or_default()] {
            let mut stage = Stage::set(cluster(&row));
            stage.until_synced().await;
            stage.api.hide(hidden);
            let told = stage.told_within(1800).await;
            assert!(!told.iter().any(|word| word == row.dropped), "{hidden}: {told:?}");
        }
    }
}

/// For less than a minute, say while an API server starts, nothing is served of it at all.
#[tokio::test(start_paused = true)]
async fn a_kind_that_is_absent_for_a_moment_stays() {
    for row in translate() {
        let mut stage = Stage::set(cluster(&row));
        stage.until_synced().await;
        for _ in 0..3 {
            stage.api.withdraw(row.path);
            // Whoever looks hears of it.
            stage.api.change(DEFINITIONS, "MODIFIED", &json!({"metadata": {"name": "any"}}));
            let told = stage.told_within(45).await;
            assert!(!told.iter().any(|word| word == row.dropped), "{}: {told:?}", row.path);
            stage.api.serve(row.path, vec![row.object.clone()]);
            let told = stage.told_within(60).await;
            assert!(told.contains(&(row.told)(1)), "{}: {told:?}", row.path);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_gone_is_dropped_after_everything_else_was_listed_again() {
    for row in translate() {
        let mut stage = Stage::set(cluster(&row));
        stage.until_synced().await;
        let began = tokio::time::Instant::now();
        stage.api.withdraw(row.path);
        stage.until(|event| (word(&event) == row.dropped).then_some(())).await;
        let after = began.elapsed().as_secs();
        assert!((60..=130).contains(&after), "{}: {after} s", row.path);
    }
    // Pods come last before it.
    let row = &translate()[0];
    let mut stage = Stage::set(cluster(row));
    stage.until_synced().await;
    stage.told_within(1).await;
    // Nothing is silent for so long that it would be listed by itself.
    for round in 0..3 {
        stage.api.change(PODS, "MODIFIED", &pod("a", 20 + round, Some(fleet_owner())));
        stage.told_within(1).await;
    }
    stage.api.withdraw(row.path);
    let mut told = Vec::new();
    while told.last().is_none_or(|word| word != row.dropped) {
        told.extend(stage.told_within(10).await);
        stage.api.change(PODS, "MODIFIED", &pod("a", 30, Some(fleet_owner())));
    }
    assert!(told.iter().any(|word| word == "pods a:true"), "{told:?}");

    // While something else cannot be listed, it is kept.
    let mut stage = Stage::set(cluster(row));
    stage.until_synced().await;
    stage.api.forbid("/apis/apps/v1/deployments");
    stage.api.withdraw(row.path);
    let told = stage.told_within(600).await;
    assert!(!told.iter().any(|word| word == row.dropped), "{told:?}");
    stage.api.permit("/apis/apps/v1/deployments");
    stage.until(|event| (word(&event) == row.dropped).then_some(())).await;
}

/// 403 from the very beginning: an API server that has just started. What comes within half a minute is in before the
/// first decision.
#[tokio::test(start_paused = true)]
async fn what_is_refused_at_first_is_waited_for() {
    for row in translate() {
        let api = cluster(&row);
        for path in [PODS, row.path] {
            api.forbid(path);
        }
        let mut stage = Stage::set(api);
        stage.told_within(300).await;
        stage.api.permit(PODS);
        // Who only refers to a kind need not have the rights to it: that is not waited for.
        if row.path == FLEETS {
            continue;
        }
        stage.told_within(15).await;
        stage.api.permit(row.path);
        let told = stage.until_synced().await;
        assert!(told.contains(&(row.told)(1)), "{}: {told:?}", row.path);
    }
}

/// A kind that can never be read is nothing to wait for: what rests on it is not known, and the rest is decided.
#[tokio::test(start_paused = true)]
async fn what_can_never_be_read_holds_nothing_up() {
    for row in translate() {
        let api = cluster(&row);
        api.forbid(row.path);
        let mut stage = Stage::set(api);
        let began = tokio::time::Instant::now();
        stage.until_synced().await;
        let waited = began.elapsed().as_secs();
        assert!(waited <= 61, "{}: {waited} s", row.path);
        // It is tried on.
        stage.api.permit(row.path);
        let told = stage.told_within(60).await;
        assert!(told.contains(&(row.told)(1)), "{}: {told:?}", row.path);
    }
}

/// It is defined, and discovery does not know it yet.
#[tokio::test(start_paused = true)]
async fn a_kind_that_is_defined_is_waited_for_though_discovery_leaves_it_out() {
    let row = &translate()[4];
    let api = cluster(row);
    let version = json!({"name": "v1alpha1", "served": true});
    let definition = json!({"metadata": {"name": "podunavailablebudgets.policy.kruise.io", "uid": "d",
        "resourceVersion": "1"}, "spec": {"group": "policy.kruise.io",
        "names": {"kind": "PodUnavailableBudget"}, "versions": [version]}});
    api.serve(DEFINITIONS, vec![definition]);
    api.hide("/apis/policy.kruise.io");
    let mut stage = Stage::set(api);
    stage.told_within(10).await;
    stage.api.show("/apis/policy.kruise.io");
    let told = stage.until_synced().await;
    assert!(told.contains(&(row.told)(1)), "{told:?}");
}
