//! The loop against a scripted API server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;

#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Thing {
    metadata: Identity,
    size: u32,
}

/// What the server answers next: a status, and lines.
type Script = Arc<Mutex<VecDeque<(u16, Vec<String>)>>>;

fn thing(name: &str, version: u32, size: impl Into<Value>) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": version.to_string()}, "size": size.into()})
}

fn page(version: u32, next: &str, items: &[Value]) -> (u16, Vec<String>) {
    let metadata = json!({"resourceVersion": version.to_string(), "continue": next});
    (200, vec![json!({"metadata": metadata, "items": items}).to_string()])
}

fn changes(lines: &[(&str, Value)]) -> (u16, Vec<String>) {
    let lines = lines.iter().map(|(kind, object)| json!({"type": kind, "object": object}).to_string());
    (200, lines.map(|line| line + "\n").collect())
}

fn failure(code: u16) -> (u16, Vec<String>) {
    (code, vec![json!({"kind": "Status", "status": "Failure", "code": code, "message": "no"}).to_string()])
}

/// Runs the loop through a script; returns what it told, as text, and what it asked for.
async fn told(
    script: impl IntoIterator<Item = (u16, Vec<String>)>,
    optional: bool,
) -> (Vec<String>, Vec<String>) {
    let script: Script = Arc::new(Mutex::new(script.into_iter().collect()));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (server, log) = (script.clone(), asked.clone());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (script, log) = (server.clone(), log.clone());
        async move {
            let Some((code, lines)) = script.lock().unwrap().pop_front() else {
                return std::future::pending().await;
            };
            log.lock().unwrap().push(request.uri().to_string());
            let frames =
                lines.into_iter().map(|line| Ok::<_, std::io::Error>(Frame::data(Bytes::from(line))));
            let body = StreamBody::new(futures::stream::iter(frames));
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(code).body(body).unwrap())
        }
    });
    let client = Client::new(service, "default");
    let source =
        Source::<Thing> { optional, ..Source::new(client, "Thing".to_owned(), "/things".to_owned()) };
    let events = Arc::new(Mutex::new(Vec::new()));
    let tell = |event: Event<Thing>| {
        let names = |listed: &Listed<Thing>| {
            let bad = listed.unreadable.iter().map(|bad| format!("!{}", bad.identity.name));
            let good = listed.objects.iter().map(|thing| thing.metadata.name.clone());
            good.chain(bad).collect::<Vec<_>>().join(",")
        };
        events.lock().unwrap().push(match &event {
            Event::Listed(listed) => format!("list {} @{}", names(listed), listed.version),
            Event::Applied(thing) => format!("{}={}", thing.metadata.name, thing.size),
            Event::Deleted(thing) => format!("-{}", thing.metadata.name),
            Event::Unreadable(bad) if bad.deleted => format!("-!{}", bad.identity.name),
            Event::Unreadable(bad) => format!("!{}", bad.identity.name),
            Event::Bookmark(version) => format!("@{version}"),
        });
        std::future::ready(())
    };
    // Time is paused: it passes as soon as everything waits.
    if let Ok(missing) = tokio::time::timeout(Duration::from_secs(30), run(source, tell)).await {
        events.lock().unwrap().push(format!("ended: {missing}"));
    }
    assert!(script.lock().unwrap().is_empty(), "the script was not played to its end");
    let (events, asked) = (events.lock().unwrap().clone(), asked.lock().unwrap().clone());
    (events, asked)
}

#[tokio::test(start_paused = true)]
async fn a_bad_object_costs_no_more_than_itself() {
    let script = [
        page(7, "", &[thing("a", 5, 1), thing("bad", 6, "large"), thing("c", 7, 3)]),
        changes(&[
            ("MODIFIED", thing("a", 8, -1)),
            ("ADDED", json!("nonsense")),
            ("SOMETHING", json!({})),
            ("MODIFIED", thing("c", 9, 4)),
            ("DELETED", thing("c", 10, 4)),
            ("DELETED", thing("bad", 11, "large")),
        ]),
    ];
    let (told, asked) = told(script, false).await;
    assert_eq!(told, ["list a,c,!bad @7", "!a", "!", "c=4", "-c", "-!bad"]);
    assert!(
        asked[1].contains("resourceVersion=7") && asked[1].contains("allowWatchBookmarks=true"),
        "{asked:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_from_the_last_thing_it_showed() {
    let bookmark = json!({"metadata": {"resourceVersion": "20"}});
    let script = [
        page(7, "", &[]),
        changes(&[("ADDED", thing("a", 8, 1)), ("BOOKMARK", bookmark)]),
        failure(503),
        changes(&[("MODIFIED", thing("a", 21, 2))]),
        changes(&[]),
    ];
    let (told, asked) = told(script, false).await;
    assert_eq!(told, ["list  @7", "a=1", "@20", "a=2"]);
    let versions: Vec<&str> = asked.iter().filter_map(|url| url.split("resourceVersion=").nth(1)).collect();
    assert_eq!(versions, ["7", "20", "20", "21"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_told_whole_or_not_at_all() {
    let script = [
        page(7, "next", &[thing("a", 1, 1)]),
        failure(500),
        page(9, "next", &[thing("a", 1, 1)]),
        page(9, "", &[thing("b", 2, 1)]),
    ];
    let (told, asked) = told(script, false).await;
    assert_eq!(told, ["list a,b @9"]);
    assert!(asked[1].contains("continue=next") && !asked[2].contains("continue="), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_fell_behind_lists_again() {
    for expired in [failure(410), changes(&[("ERROR", json!({"code": 410, "message": "too old"}))])] {
        let script = [page(7, "", &[thing("a", 1, 1)]), expired, page(30, "", &[thing("b", 29, 1)])];
        let (told, _) = told(script, false).await;
        assert_eq!(told, ["list a @7", "list b @30"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_optional_kind_that_is_not_there_ends_the_watch() {
    let (there, _) = told([failure(404)], true).await;
    assert_eq!(there, ["ended: the API server does not serve it"]);
    let (forbidden, _) = told([failure(403)], true).await;
    assert_eq!(forbidden, ["ended: no"]);
}

#[tokio::test(start_paused = true)]
async fn an_optional_kind_that_goes_ends_the_watch() {
    let script = [page(7, "", &[thing("a", 1, 1)]), failure(404), failure(404)];
    assert_eq!(told(script, true).await.0, ["list a @7", "ended: the API server does not serve it"]);
    // Gone and back again in between: nothing is lost.
    let script = [page(7, "", &[thing("a", 1, 1)]), failure(404), page(9, "", &[thing("b", 8, 1)])];
    assert_eq!(told(script, true).await.0, ["list a @7", "list b @9"]);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_must_be_there_is_waited_for() {
    let script = [failure(404), failure(403), page(7, "", &[thing("a", 1, 1)])];
    assert_eq!(told(script, false).await.0, ["list a @7"]);
}

#[tokio::test]
async fn a_part_of_an_identity_that_cannot_be_read_does_not_hide_the_others() {
    let line = json!({"type": "DELETED", "object":
        {"metadata": {"name": 7, "uid": "u", "resourceVersion": "3", "labels": []}, "size": "x"}});
    let read: Read<Thing> = Arc::new(|_| Err("no".to_owned()));
    let Ok(Some(Line::Change { event: Event::Unreadable(bad), at })) = Line::read(&line.to_string(), &read)
    else {
        panic!("an unreadable object");
    };
    assert_eq!((bad.identity.uid.as_str(), bad.identity.name.as_str(), bad.deleted), ("u", "", true));
    assert_eq!(at.as_deref(), Some("3"));
}

#[tokio::test(start_paused = true)]
async fn a_line_that_breaks_off_is_asked_for_again() {
    let script = [
        page(7, "", &[]),
        (200, vec![r#"{"type":"ADDED","object":{"metada"#.to_owned()]),
        changes(&[("ADDED", thing("a", 8, 1))]),
    ];
    let (told, asked) = told(script, false).await;
    assert_eq!(told, ["list  @7", "a=1"]);
    assert!(asked[2].contains("resourceVersion=7"), "{asked:?}");
}
