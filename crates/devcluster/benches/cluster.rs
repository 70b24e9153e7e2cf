//! How fast the embedded API server is: prints `name=value unit` lines and judges nothing.
//!
//! `cargo xtask bench cluster`

use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use quorate_devcluster::apiserver::{Options, Server};
use serde_json::json;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Pods created in the first measurement.
const PODS: usize = 10_000;
/// Requests that are under way at once.
const AT_ONCE: usize = 16;
/// Watches that each see every event of the second measurement.
const WATCHES: usize = 100;
/// Events that each of them sees.
const EVENTS: usize = 1_000;

#[tokio::main]
async fn main() -> Outcome<()> {
    time_to_empty_cluster().await?;
    create_pods().await?;
    watch_fanout().await
}

fn report(name: &str, value: f64, unit: &str) {
    println!("{name}={value:.3} {unit}");
}

fn pod(name: &str) -> Outcome<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"app": "bench", "group": "g1"}},
        "spec": {"containers": [{"name": "c", "image": "image:1", "resources": {"requests": {"cpu": "1"}}}]},
    }))?)
}

fn pods(server: &Server) -> Outcome<Api<Pod>> {
    Ok(Api::namespaced(server.client_as("bench", &[])?, "default"))
}

/// From nothing to the first answer.
async fn time_to_empty_cluster() -> Outcome<()> {
    let began = Instant::now();
    let server = Server::start(Options::default()).await?;
    pods(&server)?.list(&Default::default()).await?;
    report("time_to_empty_cluster", began.elapsed().as_secs_f64() * 1000.0, "ms");
    Ok(())
}

async fn create(api: &Api<Pod>, count: usize) -> Outcome<()> {
    let mut made =
        futures::stream::iter(0..count)
            .map(|n| {
                let api = api.clone();
                async move {
                    api.create(&PostParams::default(), &pod(&format!("pod-{n}"))?).await.map_err(Into::into)
                }
            })
            .buffer_unordered(AT_ONCE);
    while let Some(outcome) = made.next().await {
        let outcome: Outcome<Pod> = outcome;
        outcome?;
    }
    Ok(())
}

/// Pods made through the HTTP face.
async fn create_pods() -> Outcome<()> {
    let server = Server::start(Options::default()).await?;
    let api = pods(&server)?;
    let began = Instant::now();
    create(&api, PODS).await?;
    let took = began.elapsed();
    report("create_10k_pods", took.as_secs_f64(), "s");
    report("create_pods_rate", PODS as f64 / took.as_secs_f64(), "pods/s");
    let began = Instant::now();
    let listed = api.list(&Default::default()).await?;
    assert_eq!(listed.items.len(), PODS);
    report("list_10k_pods", began.elapsed().as_secs_f64() * 1000.0, "ms");
    Ok(())
}

/// Events delivered to many watches at once, each over its own connection.
async fn watch_fanout() -> Outcome<()> {
    let server = Server::start(Options::default()).await?;
    let from = server.revision().to_string();
    let mut watching = tokio::task::JoinSet::new();
    let began = Instant::now();
    for _ in 0..WATCHES {
        let (api, from) = (pods(&server)?, from.clone());
        watching.spawn(async move {
            let stream = api.watch(&WatchParams::default(), &from).await?;
            futures::pin_mut!(stream);
            let mut seen = 0;
            while let Some(event) = stream.next().await {
                if matches!(event?, WatchEvent::Added(_)) {
                    seen += 1;
                }
                if seen == EVENTS {
                    break;
                }
            }
            Outcome::Ok(())
        });
    }
    create(&pods(&server)?, EVENTS).await?;
    while let Some(outcome) = tokio::time::timeout(Duration::from_secs(120), watching.join_next()).await? {
        outcome??;
    }
    let took = began.elapsed().as_secs_f64();
    report("watch_fanout", (WATCHES * EVENTS) as f64 / took, "events/s");
    Ok(())
}
