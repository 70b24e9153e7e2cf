//! Tests of fault injection.

use std::time::Duration;

use futures::StreamExt;
use jiff::SignedDuration;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchParams};
use quorate_devcluster::apiserver::{Fault, RequestFilter, WatchFault};
use serde_json::json;

use crate::fixture::{admin, budgets, pod, pods, refusal, server};

#[tokio::test]
async fn selected_requests_fail_the_requested_number_of_times() {
    let server = server().await;
    let client = admin(&server);
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    let label = || pods(&client);
    let patch = Patch::Merge(json!({"metadata": {"labels": {"x": "y"}}}));
    let guard = server
        .faults()
        .requests(RequestFilter::any().verb("patch").resource("pods").name("a"), Fault::Conflict)
        .times(2);
    for _ in 0..2 {
        let status = refusal(label().patch("a", &PatchParams::default(), &patch).await);
        assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    }
    label().patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(guard.hits(), 2);
    drop(guard);
    for (fault, code) in [
        (Fault::TooManyRequests { retry_after: Some(1) }, 429),
        (Fault::InternalError, 500),
        (Fault::Unavailable, 503),
        (Fault::Timeout, 504),
    ] {
        let _guard = server.faults().requests(RequestFilter::any().user("kubernetes-admin"), fault);
        assert_eq!(refusal(pods(&client).get("a").await).code, code);
    }
    pods(&client).get("a").await.unwrap();
}

#[tokio::test]
async fn a_forbidden_verb_of_a_kind_is_rejected_as_by_rbac() {
    let server = server().await;
    let client = admin(&server);
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    let lists = RequestFilter::any().verb("list").resource("pods").user("kubernetes-admin");
    let guard = server.faults().requests(lists, Fault::Forbidden);
    let status = refusal(pods(&client).list(&ListParams::default()).await);
    assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
    let expected = r#"pods is forbidden: User "kubernetes-admin" cannot list resource "pods" in API group "" in the namespace "default""#;
    assert_eq!(status.message, expected);
    // Other verbs and other kinds are not affected.
    pods(&client).get("a").await.unwrap();
    budgets(&client).list(&ListParams::default()).await.unwrap();
    drop(guard);
    pods(&client).list(&ListParams::default()).await.unwrap();

    let everywhere = kube::Api::<k8s_openapi::api::core::v1::Pod>::all(client.clone());
    let mut guard = server.faults().requests(RequestFilter::any().verb("watch"), Fault::Forbidden);
    let refused = everywhere.watch(&WatchParams::default(), "0").await.map(drop);
    let Err(kube::Error::Api(status)) = refused else { panic!("{refused:?}") };
    let expected = r#"pods is forbidden: User "kubernetes-admin" cannot watch resource "pods" in API group "" at the cluster scope"#;
    assert_eq!((status.code, status.message.as_str()), (403, expected));
    guard.struck(1).await;
}

#[tokio::test]
async fn discovery_omits_the_selected_kinds_and_their_objects_are_served() {
    let server = server().await;
    let client = admin(&server);
    let names = || async {
        let groups = client.list_api_groups().await.unwrap().groups;
        let apps = client.list_api_group_resources("apps/v1").await.map(|list| list.resources);
        let listed: Vec<String> = apps.into_iter().flatten().map(|resource| resource.name).collect();
        (groups.iter().any(|group| group.name == "apps"), listed)
    };
    let aggregated = || async {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let request = http::Request::get("/apis").header("accept", accept).body(Vec::new()).unwrap();
        client.request_text(request).await.unwrap()
    };
    let (listed, before) = names().await;
    assert!(listed && before.contains(&"deployments/scale".to_owned()), "{before:?}");

    let mut resource = server.faults().partial_discovery("apps", Some("deployments"));
    let (listed, now) = names().await;
    assert!(listed && !now.iter().any(|name| name.starts_with("deployments")), "{now:?}");
    assert!(now.contains(&"replicasets".to_owned()), "the others are there: {now:?}");
    assert!(!aggregated().await.contains("\"deployments\""));
    resource.struck(2).await;
    drop(resource);

    let group = server.faults().partial_discovery("apps", None);
    assert_eq!(names().await, (false, Vec::new()));
    assert!(!aggregated().await.contains("\"name\":\"apps\""));
    let deployments = kube::Api::<k8s_openapi::api::apps::v1::Deployment>::all(client.clone());
    deployments.list(&ListParams::default()).await.unwrap();
    drop(group);
    assert_eq!(names().await, (true, before));
}

#[tokio::test]
async fn a_request_with_a_lost_reply_is_executed() {
    let server = server().await;
    let client = admin(&server);
    let guard = server.faults().requests(RequestFilter::any().verb("create"), Fault::LoseReply);
    let outcome = pods(&client).create(&PostParams::default(), &pod("a")).await;
    assert!(!matches!(outcome, Ok(_) | Err(kube::Error::Api(_))), "{outcome:?}");
    drop(guard);
    pods(&client).get("a").await.unwrap();
    let _guard = server.faults().requests(RequestFilter::any().verb("create"), Fault::Disconnect);
    pods(&client).create(&PostParams::default(), &pod("b")).await.unwrap_err();
    assert_eq!(refusal(pods(&client).get("b").await).code, 404);
}

#[tokio::test]
async fn a_partitioned_user_gets_no_response_until_the_fault_ends() {
    let server = server().await;
    let client = admin(&server);
    let jane = server.client_as("jane", &[]).unwrap();
    let stream = pods(&jane).watch(&WatchParams::default(), &server.revision().to_string()).await.unwrap();
    let mut guard = server.faults().partition("jane");
    let call = tokio::spawn({
        let pods = pods(&jane);
        async move { pods.get("a").await }
    });
    guard.struck(1).await;
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    assert!(!call.is_finished());
    drop(guard);
    assert!(!matches!(call.await.unwrap(), Ok(_) | Err(kube::Error::Api(_))), "the connection broke");
    assert_eq!(stream.collect::<Vec<_>>().await.len(), 0, "and so did the watch");
    pods(&jane).get("a").await.unwrap();
}

#[tokio::test]
async fn held_watches_catch_up_and_dropped_events_are_lost() {
    let server = server().await;
    let client = admin(&server);
    let stream = pods(&client).watch(&WatchParams::default(), &server.revision().to_string()).await.unwrap();
    futures::pin_mut!(stream);
    let name = |event: Option<
        Result<kube::api::WatchEvent<k8s_openapi::api::core::v1::Pod>, kube::Error>,
    >| match event {
        Some(Ok(kube::api::WatchEvent::Added(p))) => p.metadata.name.unwrap(),
        other => panic!("{other:?}"),
    };
    let guard = server.faults().watches(RequestFilter::any().resource("pods"), WatchFault::Hold);
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(50), stream.next()).await.is_err());
    drop(guard);
    assert_eq!(name(stream.next().await), "a");
    let mut guard = server.faults().watches(RequestFilter::any().resource("pods"), WatchFault::Drop);
    let hits = guard.hits();
    pods(&client).create(&PostParams::default(), &pod("lost")).await.unwrap();
    guard.struck(hits + 1).await;
    // The watch drops events as soon as it processes them; one more hit shows that it has.
    pods(&client).create(&PostParams::default(), &pod("lost-too")).await.unwrap();
    guard.struck(hits + 2).await;
    assert!(tokio::time::timeout(Duration::from_millis(50), stream.next()).await.is_err());
    drop(guard);
    pods(&client).create(&PostParams::default(), &pod("b")).await.unwrap();
    assert_eq!(name(stream.next().await), "b");
}

#[tokio::test(start_paused = true)]
async fn a_delayed_watch_delivers_all_events_later() {
    let server = server().await;
    let client = server.local_client_as("jane", &[]);
    let stream = pods(&client).watch(&WatchParams::default(), &server.revision().to_string()).await.unwrap();
    futures::pin_mut!(stream);
    let hour = Duration::from_secs(3600);
    let _guard = server.faults().watches(RequestFilter::any().user("jane"), WatchFault::Delay(hour));
    let began = tokio::time::Instant::now();
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    assert!(began.elapsed() < hour, "the write is not late");
    assert!(matches!(stream.next().await, Some(Ok(kube::api::WatchEvent::Added(_)))));
    assert!(began.elapsed() >= hour);
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_bookmarks_delivers_events_only() {
    let server = server().await;
    let client = server.local_client_as("jane", &[]);
    let guard = server.faults().watches(RequestFilter::any().resource("pods"), WatchFault::NoBookmarks);
    let stream = pods(&client).watch(&WatchParams::default(), &server.revision().to_string()).await.unwrap();
    futures::pin_mut!(stream);
    assert!(tokio::time::timeout(Duration::from_secs(200), stream.next()).await.is_err());
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    assert!(matches!(stream.next().await, Some(Ok(kube::api::WatchEvent::Added(_)))));
    drop(guard);
    assert!(matches!(stream.next().await, Some(Ok(kube::api::WatchEvent::Bookmark(_)))));
}

#[tokio::test]
async fn expired_watches_list_again_and_others_continue() {
    let server = server().await;
    let (client, jane) = (admin(&server), server.client_as("jane", &[]).unwrap());
    let from = server.revision().to_string();
    let expired = pods(&client).watch(&WatchParams::default(), &from).await.unwrap();
    let kept = pods(&jane).watch(&WatchParams::default(), &from).await.unwrap();
    server.faults().expire_watches(RequestFilter::any().user("kubernetes-admin"));
    let events: Vec<_> = expired.collect().await;
    let [Ok(kube::api::WatchEvent::Error(status))] = &events[..] else { panic!("{events:?}") };
    assert_eq!(status.code, 410);
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    futures::pin_mut!(kept);
    assert!(matches!(kept.next().await, Some(Ok(kube::api::WatchEvent::Added(_)))));
}

#[tokio::test]
async fn an_interrupted_list_continues_until_compaction() {
    let server = server().await;
    let client = admin(&server);
    for name in ["a", "b", "c"] {
        pods(&client).create(&PostParams::default(), &pod(name)).await.unwrap();
    }
    let first = pods(&client).list(&ListParams::default().limit(1)).await.unwrap();
    let next = ListParams::default().limit(1).continue_token(&first.metadata.continue_.unwrap());
    let guard = server.faults().requests(RequestFilter::any().verb("list"), Fault::Disconnect);
    pods(&client).list(&next).await.unwrap_err();
    drop(guard);
    assert_eq!(pods(&client).list(&next).await.unwrap().items[0].metadata.name.as_deref(), Some("b"));
    server.faults().compact();
    assert_eq!(refusal(pods(&client).list(&next).await).code, 410);
}

#[tokio::test]
async fn a_hanging_request_breaks_when_the_fault_ends() {
    let server = server().await;
    let client = admin(&server);
    let mut guard = server.faults().requests(RequestFilter::any().verb("create"), Fault::Hang);
    let call = tokio::spawn({
        let pods = pods(&client);
        async move { pods.create(&PostParams::default(), &pod("a")).await }
    });
    guard.struck(1).await;
    assert!(!call.is_finished());
    drop(guard);
    assert!(!matches!(call.await.unwrap(), Ok(_) | Err(kube::Error::Api(_))));
    assert_eq!(refusal(pods(&client).get("a").await).code, 404, "the request was not executed");
}

#[tokio::test]
async fn the_clock_steps_and_returns() {
    let server = server().await;
    let client = admin(&server);
    let before = server.clock().now();
    let guard = server.faults().step_clock(SignedDuration::from_hours(24));
    let made = pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    let stamped = made.metadata.creation_timestamp.unwrap().0;
    assert!(stamped.duration_since(before) > SignedDuration::from_hours(23));
    drop(guard);
    assert!(server.clock().now().duration_since(before) < SignedDuration::from_hours(1));
}

#[tokio::test(start_paused = true)]
async fn a_local_client_works_while_time_is_paused() {
    let server = server().await;
    let client = server.local_client_as("jane", &["dev"]);
    pods(&client).create(&PostParams::default(), &pod("a")).await.unwrap();
    let began = tokio::time::Instant::now();
    let _guard =
        server.faults().requests(RequestFilter::any().verb("get"), Fault::Delay(Duration::from_secs(3600)));
    pods(&client).get("a").await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(3600));
}
