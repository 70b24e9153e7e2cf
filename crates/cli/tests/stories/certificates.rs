//! Certificates end, and are replaced before they do: nobody notices.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use quorate_server::certificates::{Pace, SECRET, Source};
use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::quorate::{NAMESPACE, Quorate, install};
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: authorities_come_and_go_while_the_api_server_asks);

/// Everything that takes years, in seconds; with some to spare, since a busy machine may keep anybody waiting for a few.
fn hurried() -> Pace {
    Pace {
        authority: Duration::from_secs(60),
        renewed: Duration::from_secs(52),
        trusted: Duration::from_secs(6),
        leaf: Duration::from_secs(20),
        looked: Duration::from_millis(500),
    }
}

async fn authorities_come_and_go_while_the_api_server_asks(cluster: Cluster) {
    install(&cluster).await;
    let change = |options: &mut quorate_server::Options| options.certificates = Source::Own(hurried());
    let _quorate = Quorate::start_with(&cluster, change).await;
    let town = Town::found(&cluster, "signed").await;
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 2}), 0).await;
    town.labelled(true).await;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}");
    let authorities = Mutex::new(BTreeSet::new());
    eventually("there was a third authority", || async {
        // Answered by us each time: an answer that the API server does not trust would be a 500.
        refusal(&town.evict("web-0").await);
        let secret = town.wire.get(&path).await.expect(200);
        let mut authorities = authorities.lock();
        authorities.insert(secret["data"]["ca.crt"].as_str().expect("a certificate").to_owned());
        if authorities.len() >= 3 { Ok(()) } else { Err(authorities.len()) }
    })
    .await;
}
