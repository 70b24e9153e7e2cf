//! The watch loop against a scripted API server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::StreamExt as _;
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

/// The next response of the server.
enum FakeResponse {
    /// A status and lines; then the response ends.
    Lines(u16, Vec<String>),
    /// Lines of a watch, each after a delay in seconds; then the connection stays open without further lines.
    Open(Vec<(u64, String)>),
    /// No response.
    Hang,
}

type Script = Arc<Mutex<VecDeque<FakeResponse>>>;

fn thing(name: &str, version: u32, size: impl Into<Value>) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": version.to_string()}, "size": size.into()})
}

fn page(version: u32, next: &str, items: &[Value]) -> FakeResponse {
    let metadata = json!({"resourceVersion": version.to_string(), "continue": next});
    FakeResponse::Lines(200, vec![json!({"metadata": metadata, "items": items}).to_string()])
}

fn changes(lines: &[(&str, Value)]) -> FakeResponse {
    let lines = lines.iter().map(|(kind, object)| json!({"type": kind, "object": object}).to_string());
    FakeResponse::Lines(200, lines.map(|line| line + "\n").collect())
}

/// A watch that stays open: each event with its delay after the previous one, in seconds.
fn open(lines: &[(u64, &str, Value)]) -> FakeResponse {
    let line = |(after, kind, object): &(u64, &str, Value)| {
        (*after, json!({"type": kind, "object": object}).to_string() + "\n")
    };
    FakeResponse::Open(lines.iter().map(line).collect())
}

fn bookmark(version: u32) -> Value {
    json!({"metadata": {"resourceVersion": version.to_string()}})
}

fn failure(code: u16) -> FakeResponse {
    FakeResponse::Lines(
        code,
        vec![json!({"kind": "Status", "status": "Failure", "code": code, "message": "no"}).to_string()],
    )
}

/// The outcome of a script.
struct Outcome {
    /// The events that the loop delivered, as text.
    delivered: Vec<String>,
    /// The requests of the loop, and after how many seconds they came.
    requests: Vec<(u64, String)>,
    /// The health of the watch at the end.
    progress: Progress,
    interruptions: u64,
}

impl Outcome {
    fn urls(&self) -> Vec<&str> {
        self.requests.iter().map(|(_, url)| url.as_str()).collect()
    }

    /// When each request came, and whether it was a list or a watch.
    fn times(&self) -> Vec<(u64, &str)> {
        let verb = |url: &str| if url.contains("watch=") { "watch" } else { "list" };
        self.requests.iter().map(|(at, url)| (*at, verb(url))).collect()
    }
}

/// Runs the loop against a script for 30 seconds.
async fn play(script: impl IntoIterator<Item = FakeResponse>) -> Outcome {
    play_for(30, script).await
}

async fn play_for(seconds: u64, script: impl IntoIterator<Item = FakeResponse>) -> Outcome {
    let script: Script = Arc::new(Mutex::new(script.into_iter().collect()));
    let requests = Arc::new(Mutex::new(Vec::new()));
    let began = Instant::now();
    let (server, log) = (script.clone(), requests.clone());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (script, log) = (server.clone(), log.clone());
        async move {
            let Some(answer) = script.lock().unwrap().pop_front() else {
                return std::future::pending().await;
            };
            log.lock().unwrap().push((began.elapsed().as_secs(), request.uri().to_string()));
            let (code, frames) = match answer {
                FakeResponse::Lines(code, lines) => (code, futures::stream::iter(lines).boxed()),
                FakeResponse::Open(lines) => {
                    let later = futures::stream::iter(lines).then(|(after, line)| async move {
                        tokio::time::sleep(Duration::from_secs(after)).await;
                        line
                    });
                    (200, later.chain(futures::stream::pending()).boxed())
                }
                FakeResponse::Hang => return std::future::pending().await,
            };
            let frames = frames.map(|line| Ok::<_, std::io::Error>(Frame::data(Bytes::from(line))));
            let response = http::Response::builder().status(code).body(StreamBody::new(frames)).unwrap();
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let client = Client::new(service, "default");
    let interruptions = Interruptions::default();
    let health = Health::counting(interruptions.clone());
    let source = WatchSource::<Thing>::new(client, "Thing".to_owned(), "/things".to_owned());
    let source = source.reporting_to(health.clone());
    let events = Arc::new(Mutex::new(Vec::new()));
    let deliver = |event: WatchEvent<Thing>| {
        let names = |listed: &Listed<Thing>| {
            let bad = listed.unreadable.iter().map(|bad| format!("!{}", bad.identity.name));
            let good = listed.objects.iter().map(|thing| thing.metadata.name.clone());
            good.chain(bad).collect::<Vec<_>>().join(",")
        };
        events.lock().unwrap().push(match &event {
            WatchEvent::Listed(listed) => format!("list {} @{}", names(listed), listed.version),
            WatchEvent::Applied(thing) => format!("{}={}", thing.metadata.name, thing.size),
            WatchEvent::Deleted(thing) => format!("-{}", thing.metadata.name),
            WatchEvent::Unreadable(bad) if bad.deleted => format!("-!{}", bad.identity.name),
            WatchEvent::Unreadable(bad) => format!("!{}", bad.identity.name),
            WatchEvent::Bookmark(version) => format!("@{version}"),
        });
        std::future::ready(())
    };
    // Time is paused: it jumps ahead as soon as all tasks wait.
    let ended = tokio::time::timeout(Duration::from_secs(seconds), run(source, deliver)).await;
    assert!(ended.is_err(), "a watch must not end");
    assert!(script.lock().unwrap().is_empty(), "the script was not played to its end");
    let (delivered, requests) = (events.lock().unwrap().clone(), requests.lock().unwrap().clone());
    Outcome { delivered, requests, progress: health.progress(), interruptions: interruptions.count() }
}

#[tokio::test(start_paused = true)]
async fn a_malformed_object_does_not_affect_others() {
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
    let played = play(script).await;
    let (delivered, urls) = (played.delivered.clone(), played.urls());
    assert_eq!(delivered, ["list a,c,!bad @7", "!a", "!", "c=4", "-c", "-!bad"]);
    assert!(
        urls[1].contains("resourceVersion=7") && urls[1].contains("allowWatchBookmarks=true"),
        "{urls:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_from_the_last_delivered_version() {
    let script = [
        page(7, "", &[]),
        changes(&[("ADDED", thing("a", 8, 1)), ("BOOKMARK", bookmark(20))]),
        failure(503),
        changes(&[("MODIFIED", thing("a", 21, 2))]),
        changes(&[]),
    ];
    let played = play(script).await;
    let (delivered, urls) = (played.delivered.clone(), played.urls());
    assert_eq!(delivered, ["list  @7", "a=1", "@20", "a=2"]);
    let versions: Vec<&str> = urls.iter().filter_map(|url| url.split("resourceVersion=").nth(1)).collect();
    assert_eq!(versions, ["7", "20", "20", "21"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_is_delivered_whole_or_not_at_all() {
    let script = [
        page(7, "next", &[thing("a", 1, 1)]),
        failure(500),
        page(9, "next", &[thing("a", 1, 1)]),
        page(9, "", &[thing("b", 2, 1)]),
    ];
    let played = play(script).await;
    let (delivered, urls) = (played.delivered.clone(), played.urls());
    assert_eq!(delivered, ["list a,b @9"]);
    assert!(urls[1].contains("continue=next") && !urls[2].contains("continue="), "{urls:?}");
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_lists_again() {
    for expired in [failure(410), changes(&[("ERROR", json!({"code": 410, "message": "too old"}))])] {
        let script = [page(7, "", &[thing("a", 1, 1)]), expired, page(30, "", &[thing("b", 29, 1)])];
        assert_eq!(play(script).await.delivered, ["list a @7", "list b @30"]);
    }
}

#[tokio::test(start_paused = true)]
async fn no_error_of_the_api_server_ends_a_watch() {
    for code in [401, 403, 404, 405, 500, 503] {
        let script = [failure(code), failure(code), page(7, "", &[thing("a", 1, 1)])];
        assert_eq!(play(script).await.delivered, ["list a @7"], "{code} before the first list");

        let lines = [("ADDED", thing("b", 9, 1))];
        let mut script = vec![page(7, "", &[thing("a", 1, 1)]), changes(&[("ADDED", thing("b", 8, 1))])];
        script.extend([failure(code), failure(code)]);
        // Only a kind that was not served may come back with different objects, so only that one is listed again.
        let (again, last) = match code {
            404 => (page(9, "", &[thing("c", 9, 1)]), "list c @9"),
            _ => (changes(&lines), "b=1"),
        };
        script.push(again);
        assert_eq!(play(script).await.delivered, ["list a @7", "b=1", last], "{code} after it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_reported_with_its_start() {
    let began = Instant::now();
    let refused = play((0..6).map(|_| failure(403))).await.progress;
    assert_eq!(refused.last_received, None);
    let failing = refused.failing.unwrap();
    assert_eq!((failing.since, failing.why), (began, Why::Forbidden("no".to_owned())));

    let gone = play([page(7, "", &[]), failure(404), failure(404), failure(404)]).await.progress;
    assert!(
        gone.last_received.is_some() && gone.failing.is_some_and(|failing| failing.why == Why::NotServed)
    );
    let back = play([failure(404), page(7, "", &[]), open(&[])]).await.progress;
    assert_eq!(back.failing, None);
    // A watch that starts shows that the kind can be read, even before its first event.
    let received = Instant::now();
    let back = play([page(7, "", &[]), failure(403), open(&[])]).await.progress;
    assert_eq!(back, Progress { last_received: Some(received), listed: 1, failing: None });
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_list_is_retried() {
    let script = [
        FakeResponse::Hang,
        page(7, "next", &[thing("a", 1, 1)]),
        FakeResponse::Hang,
        page(9, "", &[]),
        open(&[]),
    ];
    let played = play_for(70, script).await;
    assert_eq!(played.delivered, ["list  @9"]);
    assert_eq!(played.times(), [(0, "list"), (30, "list"), (30, "list"), (60, "list"), (60, "watch")]);
    assert!(played.urls()[2].contains("continue=next") && !played.urls()[3].contains("continue="));
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_watch_is_replaced_by_a_list() {
    let script =
        [page(7, "", &[thing("a", 1, 1)]), FakeResponse::Hang, page(9, "", &[thing("b", 8, 1)]), open(&[])];
    let played = play_for(40, script).await;
    assert_eq!(played.delivered, ["list a @7", "list b @9"]);
    assert_eq!(played.times(), [(0, "list"), (0, "watch"), (30, "list"), (30, "watch")]);
    assert_eq!(played.progress.failing, None);
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_lists_again() {
    let script = [
        page(7, "", &[thing("a", 1, 1)]),
        open(&[(30, "MODIFIED", thing("a", 8, 2))]),
        page(9, "", &[thing("a", 8, 2)]),
        open(&[]),
    ];
    let played = play_for(120, script).await;
    assert_eq!(played.delivered, ["list a @7", "a=2", "list a @9"]);
    let silence = played.requests[2].0 - 30;
    assert!((65..=75).contains(&silence), "{silence} s of silence");
}

#[tokio::test(start_paused = true)]
async fn a_watch_with_bookmarks_does_not_list_again() {
    let lines: Vec<_> = (0..4).map(|number| (61, "BOOKMARK", bookmark(10 + number))).collect();
    let played = play_for(4 * 61 + 10, [page(7, "", &[]), open(&lines)]).await;
    assert_eq!(played.delivered, ["list  @7", "@10", "@11", "@12", "@13"]);
}

/// If watches end at once or are denied, lists go on, so the kind does not become stale.
#[tokio::test(start_paused = true)]
async fn a_kind_that_can_only_be_listed_is_listed_before_it_is_stale() {
    for answer in [|| failure(403), || failure(503), || changes(&[])] {
        let script = Arc::new(Mutex::new(Vec::new()));
        let log = script.clone();
        let began = Instant::now();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let watch = request.uri().to_string().contains("watch=");
            if !watch {
                log.lock().unwrap().push(began.elapsed().as_secs());
            }
            let FakeResponse::Lines(code, lines) = (if watch { answer() } else { page(7, "", &[]) }) else {
                panic!()
            };
            let body = http_body_util::Full::new(Bytes::from(lines.concat()));
            std::future::ready(Ok::<_, std::convert::Infallible>(
                http::Response::builder().status(code).body(body).unwrap(),
            ))
        });
        let source = WatchSource::<Thing>::new(
            Client::new(service, "default"),
            "Thing".to_owned(),
            "/things".to_owned(),
        );
        let running = run(source, |_| std::future::ready(()));
        assert!(tokio::time::timeout(Duration::from_secs(600), running).await.is_err());
        let lists = script.lock().unwrap().clone();
        assert!(lists.windows(2).all(|pair| (60..=88).contains(&(pair[1] - pair[0]))), "{lists:?}");
        assert!((7..=9).contains(&lists.len()), "{lists:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_can_be_requested() {
    let health = Health::default();
    let lists = Arc::new(Mutex::new(0));
    let log = lists.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let watch = request.uri().to_string().contains("watch=");
        let frames = if watch {
            futures::stream::pending().boxed()
        } else {
            *log.lock().unwrap() += 1;
            let FakeResponse::Lines(_, lines) = page(7, "", &[]) else { panic!() };
            futures::stream::iter(lines).boxed()
        };
        let frames = frames.map(|line: String| Ok::<_, std::io::Error>(Frame::data(Bytes::from(line))));
        std::future::ready(Ok::<_, std::convert::Infallible>(http::Response::new(StreamBody::new(frames))))
    });
    let source =
        WatchSource::<Thing>::new(Client::new(service, "default"), "Thing".to_owned(), "/things".to_owned());
    let running = tokio::spawn(run(source.reporting_to(health.clone()), |_| std::future::ready(())));
    health.follow().wait_for(|progress| progress.last_received.is_some()).await.unwrap();
    let began = Instant::now();
    health.list_again().await;
    assert_eq!((*lists.lock().unwrap(), began.elapsed() < Duration::from_secs(1)), (2, true));
    running.abort();
}

#[tokio::test]
async fn a_malformed_identity_field_does_not_hide_the_others() {
    let line = json!({"type": "DELETED", "object":
        {"metadata": {"name": 7, "uid": "u", "resourceVersion": "3", "labels": []}, "size": "x"}});
    let read: Read<Thing> = Arc::new(|_| Err("no".to_owned()));
    let Ok(Some(Line::Change { event: WatchEvent::Unreadable(bad), at })) =
        Line::read(&line.to_string(), &read)
    else {
        panic!("expected an unreadable object");
    };
    assert_eq!((bad.identity.uid.as_str(), bad.identity.name.as_str(), bad.deleted), ("u", "", true));
    assert_eq!(at.as_deref(), Some("3"));
}

#[tokio::test(start_paused = true)]
async fn a_truncated_line_resumes_the_watch() {
    let script = [
        page(7, "", &[]),
        FakeResponse::Lines(200, vec![r#"{"type":"ADDED","object":{"metada"#.to_owned()]),
        changes(&[("ADDED", thing("a", 8, 1))]),
    ];
    let played = play(script).await;
    let (delivered, urls) = (played.delivered.clone(), played.urls());
    assert_eq!(delivered, ["list  @7", "a=1"]);
    assert!(urls[2].contains("resourceVersion=7"), "{urls:?}");
}

fn too_large() -> FakeResponse {
    let message = "Too large resource version: 20, current: 9";
    let status = json!({"kind": "Status", "status": "Failure", "code": 504, "message": message});
    FakeResponse::Lines(504, vec![status.to_string()])
}

/// After etcd was restored from an older snapshot. A list shows the present state at once; the API server might reach the
/// version of the watch later, with other objects.
#[tokio::test(start_paused = true)]
async fn a_store_that_went_back_is_listed_again() {
    let error = json!({"code": 504, "message": "Too large resource version: 20, current: 9"});
    for (again, why) in [
        (too_large(), "the API server has not reached the version"),
        (changes(&[("ERROR", error)]), "the same, as an event"),
        (changes(&[("BOOKMARK", bookmark(9))]), "an older bookmark"),
        (changes(&[("MODIFIED", thing("a", 9, 7))]), "an older change"),
    ] {
        let script = [page(20, "", &[thing("a", 20, 1)]), again, page(9, "", &[thing("b", 8, 1)]), open(&[])];
        let played = play(script).await;
        assert_eq!(played.delivered, ["list a @20", "list b @9"], "{why}");
        assert!(played.urls()[3].contains("resourceVersion=9"), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_loss_of_the_api_server_is_counted_once() {
    let first = || page(7, "", &[]);
    for (script, count, why) in [
        (vec![first(), open(&[])], 0, "a watch that goes on"),
        (vec![first(), changes(&[]), open(&[])], 1, "a watch that was cut"),
        (vec![first(), failure(503), failure(503), failure(503), open(&[])], 1, "it stays away"),
        (vec![first(), changes(&[]), failure(403), changes(&[]), open(&[])], 2, "it was back between"),
        (vec![first(), failure(410), page(9, "", &[]), open(&[])], 1, "the history is gone"),
    ] {
        let played = play(script).await;
        assert_eq!(played.interruptions, count, "{why}");
    }
}
