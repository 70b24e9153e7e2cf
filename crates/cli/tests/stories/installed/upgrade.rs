//! An upgrade from the release before and the way back, with claims outstanding: nothing is lost, and nobody let
//! through, while servers, definitions and webhooks are exchanged as Helm and a Deployment do it, and while both
//! releases serve side by side.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use super::{Installed, Release};
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: an_upgrade_and_the_way_back_let_nobody_through);

/// So often servers of both releases are asked while there are some of each.
const SIDE_BY_SIDE: usize = 20;

impl Release {
    /// The one before, where its sources are in the history of this repository. Else the current one under the name of
    /// another: then only what Helm and a Deployment do is tried.
    fn before() -> Self {
        let given = |name: &str| std::env::var_os(name).map(PathBuf::from);
        if let (Some(program), Some(rendered)) = (given("QUORATE_BEFORE"), given("QUORATE_BEFORE_RENDERED")) {
            let rendered = std::fs::read_to_string(rendered).expect("what the release before rendered");
            return Self { rendered, program };
        }
        println!("the release before is not at hand: one program is tried on both sides");
        let current = Self::current();
        let rendered = current.rendered.replace(env!("CARGO_PKG_VERSION"), "0.0.0");
        assert_ne!(rendered, current.rendered);
        Self { rendered, ..current }
    }
}

/// Which release a program says that it is.
fn version(program: &Path) -> String {
    let output = Command::new(program).arg("version").output().expect("a program");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

async fn an_upgrade_and_the_way_back_let_nobody_through(cluster: Cluster) {
    let (before, after) = (Release::before(), Release::current());
    if before.program != after.program {
        let (old, new) = (version(&before.program), version(&after.program));
        println!("from {old} to {new} and back");
        assert_ne!(old, new);
    }
    let mut installed = Installed::install_release(&cluster, before.clone()).await;
    for _ in 0..2 {
        installed.start_server().await;
    }
    let town = Arc::new(Town::found(&cluster, "upgraded").await);
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}), 1).await;
    town.labelled(true).await;
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(town.evict_with("web-0", later, "").await.code, 409);
    refusal(&town.evict("web-1").await);

    let evictor = Evictor::of(&town, "web-1");
    for release in [&after, &before] {
        installed.change_to(release).await;
        for _ in 0..2 {
            // One is added before one goes.
            installed.start_server().await;
            evictor.asks(SIDE_BY_SIDE).await;
            installed.end_server().await;
        }
        // Not for want of anybody who decides: what was admitted before stands in the way, and is itself let go.
        let sentence = refusal(&town.evict("web-1").await);
        assert!(sentence.contains("web-0 is being disrupted"), "{sentence}");
        town.evict_with("web-0", json!({"dryRun": ["All"]}), "").await.expect(201);
    }
    let (asked, wrong) = evictor.ends().await;
    assert!(wrong.is_empty(), "not a refusal as it should be: {wrong:#?}");
    println!("{asked} evictions asked for");
    // What was admitted under the first release is still there to be used.
    let claims = town.status("web").await["claims"].clone();
    assert_eq!(claims.as_object().map(serde_json::Map::len), Some(1), "{claims}");
    town.evict("web-0").await.expect(201);
}

/// Somebody who asks for the same eviction all the while, and must not get it.
struct Evictor {
    over: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    asking: tokio::task::JoinHandle<Vec<serde_json::Value>>,
}

impl Evictor {
    fn of(town: &Arc<Town>, pod: &'static str) -> Self {
        let (over, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let asking = tokio::spawn({
            let (town, over, asked) = (town.clone(), over.clone(), asked.clone());
            async move {
                let mut wrong = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let answer = town.evict(pod).await;
                    asked.fetch_add(1, Ordering::Relaxed);
                    if answer.code != 429 {
                        wrong.push(answer.body);
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                wrong
            }
        });
        Self { over, asked, asking }
    }

    /// Waits until it has asked so often again.
    async fn asks(&self, times: usize) {
        let before = self.asked.load(Ordering::Relaxed);
        eventually(&format!("{times} evictions are asked for"), || async {
            let asked = self.asked.load(Ordering::Relaxed) - before;
            if asked >= times { Ok(()) } else { Err(asked) }
        })
        .await;
    }

    /// How often it asked, and what it was told that was no refusal.
    async fn ends(self) -> (usize, Vec<serde_json::Value>) {
        self.over.store(true, Ordering::Relaxed);
        let wrong = self.asking.await.expect("an evictor");
        (self.asked.load(Ordering::Relaxed), wrong)
    }
}
