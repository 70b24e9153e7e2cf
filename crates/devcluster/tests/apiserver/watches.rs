//! Tests of watches.

use futures::{StreamExt, TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher;
use quorate_devcluster::apiserver::RequestFilter;
use serde_json::{Value, json};

use crate::fixture::{admin, delete_now, get, pod, pods, server};

async fn label(client: &kube::Client, name: &str, value: &str) {
    let patch = Patch::Merge(json!({"metadata": {"labels": {"app": value}}}));
    pods(client).patch(name, &PatchParams::default(), &patch).await.unwrap();
}

fn summary(event: &WatchEvent<Pod>) -> String {
    match event {
        WatchEvent::Added(p) => format!("added {}", p.metadata.name.as_deref().unwrap()),
        WatchEvent::Modified(p) => format!("modified {}", p.metadata.name.as_deref().unwrap()),
        WatchEvent::Deleted(p) => format!("deleted {}", p.metadata.name.as_deref().unwrap()),
        WatchEvent::Bookmark(b) => format!("bookmark {}", b.metadata.annotations.len()),
        WatchEvent::Error(e) => format!("error {}", e.code),
    }
}

#[tokio::test]
async fn a_selector_turns_changes_into_added_and_deleted_events() {
    let server = server().await;
    let client = admin(&server);
    let params = WatchParams::default().labels("app=web").disable_bookmarks();
    let from = pods(&client).list(&Default::default()).await.unwrap().metadata.resource_version.unwrap();
    let stream = pods(&client).watch(&params, &from).await.unwrap();
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    label(&client, "a", "db").await;
    label(&client, "a", "db2").await;
    label(&client, "a", "web").await;
    delete_now(&client, "a").await;
    let events: Vec<_> = stream.take(5).try_collect().await.unwrap();
    let events: Vec<String> = events.iter().map(summary).collect();
    assert_eq!(events, ["added a", "deleted a", "added a", "modified a", "deleted a"]);
}

#[tokio::test]
async fn initial_events_end_with_a_marked_bookmark() {
    let server = server().await;
    let client = admin(&server);
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    pods(&client).create(&PostParams::default(), &pod("b")).await.unwrap();
    let stream = pods(&client).watch(&WatchParams::default().initial_events(), "0").await.unwrap();
    let events: Vec<_> = stream.take(3).try_collect().await.unwrap();
    let texts: Vec<String> = events.iter().map(summary).collect();
    assert_eq!(texts, ["added a", "added b", "bookmark 1"]);
    let WatchEvent::Bookmark(mark) = &events[2] else { panic!("no bookmark") };
    assert_eq!(mark.metadata.annotations["k8s.io/initial-events-end"], "true");
    let (code, status) = get(&client, "/api/v1/pods?watch=1&sendInitialEvents=true", "").await;
    assert_eq!(code, 422, "{status}");
}

#[tokio::test]
async fn a_watch_from_an_old_version_expires_in_the_stream() {
    let server = server().await;
    let client = admin(&server);
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    let from = server.revision().to_string();
    let live = pods(&client).watch(&WatchParams::default(), &from).await.unwrap();
    server.faults().compact();
    let late = pods(&client).watch(&WatchParams::default(), &from).await.unwrap();
    for stream in [live.boxed(), late.boxed()] {
        let events: Vec<_> = stream.try_collect().await.unwrap();
        assert_eq!(events.iter().map(summary).collect::<Vec<_>>(), ["error 410"], "and then it ends");
    }
}

#[tokio::test]
async fn a_watcher_recovers_from_compaction_without_loss() {
    let server = server().await;
    let client = admin(&server);
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    let stream = watcher(pods(&client), watcher::Config::default());
    pin_mut!(stream);
    let mut seen = std::collections::BTreeSet::new();
    let mut lists = 0;
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::InitApply(p) | watcher::Event::Apply(p)) => {
                seen.insert(p.metadata.name.unwrap());
            }
            Ok(watcher::Event::InitDone) => {
                lists += 1;
                if lists == 1 {
                    server.faults().compact();
                    pods(&client).create(&PostParams::default(), &pod("b")).await.unwrap();
                }
            }
            _ => {}
        }
        if lists == 2 && seen.len() == 2 {
            return;
        }
    }
    panic!("the watcher ended");
}

#[tokio::test]
async fn cut_watches_end_and_others_continue() {
    let server = server().await;
    let client = admin(&server);
    let other = server.client_as("jane", &[]).unwrap();
    let from = server.revision().to_string();
    let cut = pods(&client).watch(&WatchParams::default(), &from).await.unwrap();
    let kept = pods(&other).watch(&WatchParams::default(), &from).await.unwrap();
    server.faults().cut_watches(RequestFilter::any().user("kubernetes-admin"));
    assert!(cut.try_collect::<Vec<_>>().await.unwrap().is_empty());
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    let kept: Vec<_> = kept.take(1).try_collect().await.unwrap();
    assert_eq!(summary(&kept[0]), "added a");
}

#[tokio::test]
async fn bookmarks_carry_the_global_revision() {
    let options = quorate_devcluster::apiserver::Options {
        bookmark_every: std::time::Duration::from_millis(20),
        ..Default::default()
    };
    let server = quorate_devcluster::apiserver::Server::start(options).await.unwrap();
    let client = admin(&server);
    let from = server.revision().to_string();
    let stream = pods(&client).watch(&WatchParams::default(), &from).await.unwrap();
    let namespace: Value = json!({"metadata": {"name": "elsewhere"}});
    crate::fixture::post(&client, "/api/v1/namespaces", namespace).await;
    let now = server.revision();
    pin_mut!(stream);
    while let Some(event) = stream.next().await {
        if let WatchEvent::Bookmark(mark) = event.unwrap()
            && mark.metadata.resource_version == now.to_string()
        {
            return;
        }
    }
    panic!("no bookmark for a write elsewhere");
}

#[tokio::test(start_paused = true)]
async fn the_last_bookmark_comes_before_the_watch_ends() {
    let server = server().await;
    let client = server.local_client_as("jane", &[]);
    let params = WatchParams::default().timeout(5);
    let stream = pods(&client).watch(&params, &server.revision().to_string()).await.unwrap();
    let events: Vec<_> = stream.try_collect().await.unwrap();
    assert_eq!(events.iter().map(summary).collect::<Vec<_>>(), ["bookmark 0"]);
}

#[tokio::test]
async fn a_new_kind_has_no_history_before_its_definition() {
    let server = server().await;
    let client = admin(&server);
    let definition = json!({
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    crate::fixture::post(&client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        .await;
    let (code, event) = get(&client, "/apis/example.com/v1/things?watch=1&resourceVersion=1", "").await;
    assert_eq!((code, &event["type"], &event["object"]["code"]), (200, &json!("ERROR"), &json!(410)));
}
