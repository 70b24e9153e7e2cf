//! The watches against an API server that serves the objects of the test.

mod ages;
mod api;
mod served;
mod unreadable;

use std::sync::Arc;
use std::time::Duration;

use quorate_engine::Snapshot;
use quorate_engine::basics::Version;
use quorate_engine::facts::Input;
use quorate_engine::ledger::Event;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::WatchScope;
use crate::actor::{Message, ReplicaHandle};
use crate::kruise::{self, ServePub};
use crate::raw_budgets::RawBudgets;
use crate::twins;
use api::FakeApi;

const PODS: &str = "/api/v1/pods";
const BUDGETS: &str = "/apis/policy.quorate.dev/v1alpha1/disruptionbudgets";
const FLEETS: &str = "/apis/example.com/v1/fleets";

/// Running watches, and the messages that they send to the actor.
struct Fixture {
    api: FakeApi,
    scope: WatchScope,
    inbox: mpsc::Receiver<Message>,
    _watches: JoinSet<()>,
}

impl Fixture {
    fn start(api: FakeApi) -> Self {
        Self::start_with(api, ServePub::Always)
    }

    fn start_with(api: FakeApi, serve: ServePub) -> Self {
        let (replica, inbox) = ReplicaHandle::listening();
        let (raw_budgets, unread) = (Arc::new(RawBudgets::default()), twins::Inbox::unread());
        let scope = WatchScope::everything();
        let kruise = kruise::follow(api.client(), serve, &scope, None);
        let watches = super::start(&api.client(), &scope, &replica, &raw_budgets, "quorate", &unread, kruise);
        Self { api, scope, inbox, _watches: watches }
    }

    async fn next_of_any_kind(&mut self) -> Event {
        match self.inbox.recv().await {
            Some(Message::Event(event)) => event,
            _ => panic!("the watches send only events"),
        }
    }

    /// The next event, except those that only say that a watch received something.
    async fn next(&mut self) -> Event {
        loop {
            match self.next_of_any_kind().await {
                Event::Heard(..) => {}
                event => return event,
            }
        }
    }

    /// The next event for which `pick` returns a value; skips the events before it.
    async fn until<T>(&mut self, pick: impl Fn(Event) -> Option<T>) -> T {
        let found = async {
            loop {
                if let Some(found) = pick(self.next().await) {
                    return found;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(300), found).await.expect("the event did not come")
    }

    /// All events until the initial sync is complete, as text.
    async fn until_synced(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                Event::Synced => return events,
                event => events.push(describe(&event)),
            }
        }
    }

    /// All events within a number of seconds, as text.
    async fn events_within(&mut self, seconds: u64) -> Vec<String> {
        let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
        let mut events = Vec::new();
        while let Ok(event) = tokio::time::timeout_at(end, self.next()).await {
            events.push(describe(&event));
        }
        events
    }
}

fn describe(event: &Event) -> String {
    match event {
        Event::List(Snapshot::Pods(pods, _)) => {
            let pods: Vec<_> = pods.iter().map(|p| format!("{}:{}", p.key.name, p.ready)).collect();
            format!("pods {}", pods.join(","))
        }
        Event::List(Snapshot::Controllers(kind, list)) => {
            let all: Vec<_> = list.iter().map(|c| format!("{}:{:?}", c.key.name, c.replicas)).collect();
            format!("{} {}", kind.kind, all.join(","))
        }
        Event::List(Snapshot::PodGroups(list)) => format!("groups {}", list.len()),
        Event::List(Snapshot::Workloads(source, list)) => format!("{source:?} {}", list.len()),
        Event::Fact(input) => match &**input {
            Input::Pod(pod) => format!("{}:{}", pod.key.name, pod.ready),
            Input::PodGone(uid, version) => format!("-{uid}@{}", version.0),
            Input::PodGroup(key, group) => format!("{}={:?}", key.name, group.as_ref().map(|g| g.min_count)),
            _ => "fact".to_owned(),
        },
        Event::List(Snapshot::Budgets(kind, list)) => format!("{kind:?} {}", list.len()),
        Event::Unwatched(kind) => format!("{kind:?} unwatched"),
        Event::Doubted(kind) => format!("doubted {kind}"),
        Event::Forgotten(kind) => format!("forgotten {kind}"),
        _ => "other".to_owned(),
    }
}

fn pod(name: &str, version: u32, owner: Option<Value>) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "uid": name, "resourceVersion": version.to_string(),
            "labels": {"app": "web"}, "ownerReferences": owner.into_iter().collect::<Vec<_>>()},
        "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn damaged(name: &str, version: u32) -> Value {
    let mut pod = pod(name, version, None);
    pod["spec"]["containers"] = json!("many");
    pod
}

fn budget() -> Value {
    json!({"metadata": {"namespace": "shop", "name": "web", "uid": "b", "generation": 1, "resourceVersion": "13"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1}})
}

fn fleet_owner() -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Fleet", "name": "web", "uid": "f", "controller": true})
}

fn group(name: &str, min_count: u32, version: u32) -> Value {
    json!({"metadata": {"namespace": "shop", "name": name, "uid": name, "resourceVersion": version.to_string()},
        "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}}})
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_read_stays_and_is_not_healthy() {
    let api = FakeApi::empty_cluster();
    let nameless = json!({"metadata": {"uid": 7}, "spec": {"containers": "many"}});
    api.serve(PODS, vec![pod("a", 5, None), damaged("b", 6), nameless.clone()]);
    let mut fixture = Fixture::start(api);
    assert!(fixture.until_synced().await.contains(&"pods a:true,b:false".to_owned()));

    fixture.api.change(PODS, "MODIFIED", &damaged("a", 11));
    fixture.api.change(PODS, "MODIFIED", &nameless);
    fixture.api.change(PODS, "MODIFIED", &pod("b", 12, None));
    fixture.api.change(PODS, "DELETED", &damaged("a", 13));
    for expected in ["a:false", "b:true", "-a@13"] {
        assert_eq!(describe(&fixture.next().await), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn synced_means_that_all_kinds_found_at_first_are_listed() {
    let api = FakeApi::empty_cluster();
    api.serve("/apis/scheduling.k8s.io/v1alpha2/podgroups", vec![group("g", 3, 4)]);
    api.serve("/apis/scheduling.k8s.io/v1alpha2/workloads", vec![]);
    let mut fixture = Fixture::start(api);
    let events = fixture.until_synced().await;
    assert!(
        events.contains(&"groups 1".to_owned()) && events.contains(&"Upstream 0".to_owned()),
        "{events:?}"
    );
    assert!(!events.iter().any(|event| event.starts_with("Own")), "that kind is not served: {events:?}");

    // A kind that comes later is listed, and the replica stays synced.
    fixture.api.serve("/apis/scheduling.quorate.dev/v1alpha1/workloads", vec![]);
    let next =
        fixture.until(|event| (!matches!(event, Event::BudgetsAt(..))).then(|| describe(&event))).await;
    assert_eq!(next, "Own 0");
}

#[tokio::test(start_paused = true)]
async fn the_best_version_of_pod_groups_is_used_and_their_numbers_may_change() {
    let api = FakeApi::empty_cluster();
    for version in ["v1alpha2", "v1beta1"] {
        api.serve(&format!("/apis/scheduling.k8s.io/{version}/podgroups"), vec![group("g", 3, 4)]);
    }
    let mut fixture = Fixture::start(api);
    fixture.until_synced().await;
    assert_eq!(fixture.api.request_count("/apis/scheduling.k8s.io/v1alpha2/podgroups"), 0);
    fixture.api.change("/apis/scheduling.k8s.io/v1beta1/podgroups", "MODIFIED", &group("g", 5, 19));
    assert_eq!(fixture.until(|event| Some(describe(&event))).await, "g=Some(5)");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_removed_is_empty_and_may_come_back() {
    let api = FakeApi::empty_cluster();
    let path = "/apis/scheduling.k8s.io/v1alpha2/podgroups";
    api.serve(path, vec![group("g", 3, 4)]);
    let mut fixture = Fixture::start(api);
    fixture.until_synced().await;
    fixture.api.withdraw(path);
    let groups = |event| match event {
        Event::List(Snapshot::PodGroups(list)) => Some(list.len()),
        _ => None,
    };
    assert_eq!(fixture.until(groups).await, 0);
    let before = fixture.api.request_count(path);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(fixture.api.request_count(path) - before < 5, "a kind that is not served is not requested");
    fixture.api.serve(path, vec![group("g", 3, 4), group("h", 3, 5)]);
    assert_eq!(fixture.until(groups).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_watched_while_a_budget_needs_it() {
    let api = FakeApi::empty_cluster();
    let fleet = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "f", "resourceVersion": "2"},
        "spec": {"ships": 4, "replicas": 9}});
    api.serve(FLEETS, vec![fleet]);
    api.serve(&format!("{FLEETS}/scale"), vec![]);
    api.serve(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        vec![
            json!({"metadata": {"name": "fleets.example.com", "uid": "d", "resourceVersion": "1"}, "spec": {
            "group": "example.com", "names": {"kind": "Fleet"},
            "versions": [{"name": "v1", "subresources": {"scale": {"specReplicasPath": ".spec.ships"}}}]}}),
        ],
    );
    api.serve(PODS, vec![pod("a", 5, Some(fleet_owner()))]);
    let mut fixture = Fixture::start(api);
    fixture.until_synced().await;
    assert_eq!(fixture.api.request_count(FLEETS), 0, "there is no budget");

    let fleets = |event| match event {
        Event::List(Snapshot::Controllers(kind, list)) if &*kind.kind == "Fleet" => {
            Some(list.iter().map(|c| c.replicas).collect::<Vec<_>>())
        }
        _ => None,
    };
    fixture.api.change(BUDGETS, "ADDED", &budget());
    assert_eq!(fixture.until(fleets).await, [Some(4)]);
    // A kind that is already known does not trigger discovery.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = fixture.api.request_count("/apis");
    let mut elsewhere = pod("z", 20, Some(fleet_owner()));
    elsewhere["metadata"]["namespace"] = json!("lab");
    fixture.api.change(PODS, "ADDED", &elsewhere);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.api.request_count("/apis"), before);
    fixture.api.change(BUDGETS, "DELETED", &budget());
    assert_eq!(fixture.until(fleets).await, []);
}

/// A reply that shows a deleted budget may come right after its end. By then it must be known how old that reply is.
#[tokio::test(start_paused = true)]
async fn the_version_of_a_deletion_is_known_before_the_budget_is_gone() {
    let mut unreadable = budget();
    unreadable["metadata"]["labels"] = json!("many");
    for mut deleted in [budget(), unreadable] {
        let api = FakeApi::empty_cluster();
        api.serve(BUDGETS, vec![budget()]);
        let mut fixture = Fixture::start(api);
        fixture.until_synced().await;
        deleted["metadata"]["resourceVersion"] = json!("30");
        fixture.api.change(BUDGETS, "DELETED", &deleted);
        let shown = fixture.until(|event| match event {
            Event::BudgetsAt(_, Version(30)) => Some("the version"),
            Event::Fact(input) => matches!(*input, Input::BudgetGone(_)).then_some("the end"),
            _ => None,
        });
        assert_eq!(shown.await, "the version");
        let is_gone = |event| match event {
            Event::Fact(input) => matches!(*input, Input::BudgetGone(_)).then_some(()),
            _ => None,
        };
        fixture.until(is_gone).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_referred_kind_is_listed_before_the_first_decision() {
    let api = FakeApi::empty_cluster();
    let job = json!({"metadata": {"namespace": "shop", "name": "once", "uid": "j", "resourceVersion": "2"}});
    api.serve("/apis/batch/v1/jobs", vec![job]);
    let owner =
        json!({"apiVersion": "batch/v1", "kind": "Job", "name": "once", "uid": "j", "controller": true});
    api.serve(PODS, vec![pod("a", 5, Some(owner))]);
    api.serve(BUDGETS, vec![budget()]);
    // The referred kinds are known only when the pods are listed.
    api.slow(PODS);
    let mut fixture = Fixture::start(api);
    let events = fixture.until_synced().await;
    assert!(events.contains(&"Job once:Some(1)".to_owned()), "{events:?}");
}
