//! Each watch reports when it received something. A quiet kind must not become stale by itself.
//!
//! The API server of these tests sends no bookmarks by itself.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::*;

const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
const POD_GROUPS: &str = "/apis/scheduling.k8s.io/v1alpha2/podgroups";

/// The kinds of a cluster that serves everything, by the path of each.
const KINDS: [(&str, &str); 14] = [
    ("Pod", PODS),
    ("Namespace", "/api/v1/namespaces"),
    ("Node", "/api/v1/nodes"),
    ("Lease.coordination.k8s.io", "/apis/coordination.k8s.io/v1/namespaces/quorate/leases"),
    ("ReplicaSet.apps", "/apis/apps/v1/replicasets"),
    ("StatefulSet.apps", "/apis/apps/v1/statefulsets"),
    ("Deployment.apps", DEPLOYMENTS),
    ("PodDisruptionBudget.policy", "/apis/policy/v1/poddisruptionbudgets"),
    ("DisruptionBudget.policy.quorate.dev", BUDGETS),
    ("PodUnavailableBudget.policy.kruise.io", "/apis/policy.kruise.io/v1alpha1/podunavailablebudgets"),
    ("PodGroup.scheduling.k8s.io", POD_GROUPS),
    ("Workload.scheduling.k8s.io", "/apis/scheduling.k8s.io/v1alpha2/workloads"),
    ("Workload.scheduling.quorate.dev", "/apis/scheduling.quorate.dev/v1alpha1/workloads"),
    ("LeaderWorkerSet.leaderworkerset.x-k8s.io", "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets"),
];

fn cluster() -> FakeApi {
    let api = FakeApi::empty_cluster();
    for (_, path) in KINDS {
        api.serve(path, Vec::new());
    }
    api.serve(FLEETS, Vec::new());
    api.serve(PODS, vec![pod("a", 5, Some(fleet_owner()))]);
    api.serve(BUDGETS, vec![budget()]);
    api
}

/// For each kind, when its watch was heard, in seconds.
async fn heard_within(fixture: &mut Fixture, seconds: u64) -> BTreeMap<String, Vec<u64>> {
    let began = Instant::now();
    let mut heard: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let end = began + Duration::from_secs(seconds);
    while let Ok(event) = tokio::time::timeout_at(end, fixture.next_of_any_kind()).await {
        if let Event::Heard(kind, _) = event {
            heard.entry(kind.to_string()).or_default().push(began.elapsed().as_secs());
        }
    }
    heard
}

/// The longest silence of a kind.
fn silence(times: &[u64], until: u64) -> u64 {
    let ends = times.iter().copied().chain([until]);
    std::iter::once(0)
        .chain(times.iter().copied())
        .zip(ends)
        .map(|(from, to)| to - from)
        .max()
        .unwrap_or(until)
}

#[tokio::test(start_paused = true)]
async fn no_quiet_kind_becomes_stale_without_bookmarks() {
    let mut fixture = Fixture::start(cluster());
    fixture.until_synced().await;
    let heard = heard_within(&mut fixture, 900).await;
    for kind in KINDS.iter().map(|(kind, _)| *kind).chain(["Fleet.example.com"]) {
        let longest = silence(heard.get(kind).map_or(&[], Vec::as_slice), 900);
        assert!(longest < 90, "{kind} was silent for {longest} s: {heard:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bookmarks_spare_the_list_and_a_kind_without_them_is_listed_again() {
    let mut fixture = Fixture::start(cluster());
    fixture.until_synced().await;
    let silent = "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets";
    let with_bookmarks = || KINDS.iter().filter(|(_, path)| *path != silent);
    let lists = |fixture: &Fixture, path: &str| fixture.api.list_count(path);
    let before: Vec<usize> = with_bookmarks().map(|(_, path)| lists(&fixture, path)).collect();
    let silent_before = lists(&fixture, silent);
    let mut longest: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..10 {
        for (_, path) in with_bookmarks() {
            fixture.api.change(path, "BOOKMARK", &json!({"metadata": {"resourceVersion": "50"}}));
        }
        for (kind, times) in heard_within(&mut fixture, 60).await {
            let known = longest.entry(kind).or_default();
            *known = (*known).max(silence(&times, 60));
        }
    }
    let after: Vec<usize> = with_bookmarks().map(|(_, path)| lists(&fixture, path)).collect();
    assert_eq!(before, after, "bookmarks are enough");
    let relisted = lists(&fixture, silent) - silent_before;
    assert!((7..=10).contains(&relisted), "{relisted} lists in 600 s");
    assert_eq!(longest.len(), KINDS.len() + 1, "{longest:?}");
}

/// A watch that receives many events does not send as many messages.
#[tokio::test(start_paused = true)]
async fn the_age_is_reported_once_a_second_at_most() {
    let mut fixture = Fixture::start(cluster());
    fixture.until_synced().await;
    heard_within(&mut fixture, 2).await;
    let api = fixture.api.clone();
    let writing = tokio::spawn(async move {
        for version in 0..100 {
            api.change(PODS, "MODIFIED", &pod("a", 100 + version, Some(fleet_owner())));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let heard = heard_within(&mut fixture, 10).await;
    writing.await.unwrap();
    assert!((9..=11).contains(&heard["Pod"].len()), "{heard:?}");
}

/// A kind that cannot be read is not heard of, so it becomes stale, and others do not.
#[tokio::test(start_paused = true)]
async fn an_unreadable_kind_is_not_heard_of() {
    let mut fixture = Fixture::start(cluster());
    fixture.until_synced().await;
    heard_within(&mut fixture, 1).await;
    fixture.api.forbid(DEPLOYMENTS);
    let heard = heard_within(&mut fixture, 300).await;
    assert_eq!(heard.get("Deployment.apps"), None);
    assert!(silence(&heard["ReplicaSet.apps"], 300) < 90, "{heard:?}");
    fixture.api.permit(DEPLOYMENTS);
    let heard = heard_within(&mut fixture, 30).await;
    assert!(heard.contains_key("Deployment.apps"), "{heard:?}");
}

/// Budgets that depend on a kind that is gone deny until all other kinds have been listed again, and then do without.
#[tokio::test(start_paused = true)]
async fn a_kind_that_is_gone_is_in_doubt_until_it_is_dropped() {
    let mut fixture = Fixture::start(cluster());
    fixture.until_synced().await;
    fixture.api.forbid(DEPLOYMENTS);
    fixture.api.withdraw(POD_GROUPS);
    fixture.until(|event| (describe(&event) == "doubted PodGroup.scheduling.k8s.io").then_some(())).await;
    // Deployments cannot be listed, so the kind is kept, and stays in doubt.
    let kept = async {
        loop {
            let event = describe(&fixture.next().await);
            assert!(event != "groups 0" && !event.starts_with("forgotten"), "{event}");
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(100), kept).await.is_err());
    fixture.api.permit(DEPLOYMENTS);
    for expected in ["groups 0", "forgotten PodGroup.scheduling.k8s.io"] {
        fixture.until(|event| (describe(&event) == expected).then_some(())).await;
    }
}
