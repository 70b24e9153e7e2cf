//! An upgrade from the previous release, a rollback and a second upgrade, with claims outstanding in budgets of each
//! kind: no claim is lost, and no eviction is admitted in error, while Helm and a Deployment replace servers,
//! definitions and webhooks, and while both releases serve side by side. No budget that is enforced closes meanwhile.
//! Budgets that are created or edited then are enforced by both.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use super::{Installed, Release};
use crate::fixture::{TestNamespace, denial, spec_for_app};

quorate_testbed::stories!(Whole: upgrades_and_a_rollback_admit_nothing_extra,
    an_upgrade_enforces_new_budgets, a_rollback_enforces_new_budgets);

/// A part of the denial by a budget that is not enforced, in the words of both releases.
const CLOSED: &str = "just created, or ";

/// The number of evictions while servers of both releases run.
const SIDE_BY_SIDE: usize = 20;

impl Release {
    /// The previous release, if xtask built it from the history of this repository. Otherwise the current program under
    /// another version: then the story covers only what Helm and a Deployment do.
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

/// The output of `version` of a program.
fn version(program: &Path) -> String {
    let output = Command::new(program).arg("version").output().expect("a program");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// For each budget: the pod with a claim, the pod whose eviction must be denied, and a part of the reason.
const CLAIMED: [(&str, &str, &str); 4] = [
    ("web-0", "web-1", "web-0 is being disrupted"),
    ("a-0", "b-0", "group a is missing a-0, being disrupted"),
    ("old-0", "old-1", "old-0 is being disrupted"),
    ("adopted-0", "adopted-1", "group adopted-0 is missing adopted-0, being disrupted"),
];

/// Claims the pods: the evictions are admitted by Quorate, and then rejected by the API server.
async fn claim(ns: &TestNamespace) {
    for (claimed, ..) in CLAIMED {
        let later = json!({"preconditions": {"resourceVersion": "1"}});
        assert_eq!(ns.evict_with(claimed, later, "").await.code, 409, "{claimed}");
    }
}

async fn upgrades_and_a_rollback_admit_nothing_extra(cluster: Cluster) {
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
    let ns = Arc::new(TestNamespace::with_manual_pods(&cluster, "upgraded").await);
    ns.create_pods("web", 2).await;
    ns.create_pods("old", 2).await;
    for pod in ["a-0", "a-1", "b-0", "b-1"] {
        ns.create_pod(pod, json!({"app": "shards", "shard": &pod[..1]})).await;
    }
    ns.create_budget_allowing("web", spec_for_app("web", "minAvailable", 1), 1).await;
    let mut groups = spec_for_app("shards", "minAvailable", 1);
    groups["podGroupPolicy"] = json!({"groupLabelKey": "shard", "minReadyReplicas": 2});
    ns.create_budget_allowing("shards", groups, 1).await;
    ns.create_pub_allowing("old", spec_for_app("old", "minAvailable", 1), 1).await;
    ns.create_groups_of_one("adopted", 2).await;
    ns.create_adopted_budget_allowing("adopted", 1, 1).await;
    ns.await_enforced_label(true).await;
    claim(&ns).await;
    for (_, denied, _) in CLAIMED {
        denial(&ns.evict(denied).await);
    }

    let evictors = CLAIMED.map(|(_, denied, _)| Evictor::of(&ns, denied));
    for release in [&after, &before, &after] {
        installed.change_to(release).await;
        for _ in 0..2 {
            // A server starts before another one ends.
            installed.start_server().await;
            for evictor in &evictors {
                evictor.await_evictions(SIDE_BY_SIDE).await;
            }
            installed.end_server().await;
        }
        // The reason of the denial is the earlier claim, and not a missing server. The claimed pod itself may go.
        for (claimed, denied, why) in CLAIMED {
            let sentence = denial(&ns.evict(denied).await);
            assert!(sentence.contains(why), "{sentence}");
            ns.evict_with(claimed, json!({"dryRun": ["All"]}), "").await.expect(201);
        }
        // The rounds together may take longer than a claim lasts.
        claim(&ns).await;
    }
    for evictor in evictors {
        let (evictions, wrong) = evictor.stop().await;
        assert!(wrong.is_empty(), "not a denial by an enforced budget: {wrong:#?}");
        println!("{evictions} evictions");
    }
    // The claims can still be used.
    let statuses = [
        ns.budget_status("web").await,
        ns.budget_status("shards").await,
        ns.pub_status("old").await,
        ns.budget_status("adopted").await,
    ];
    for (status, (claimed, ..)) in statuses.iter().zip(CLAIMED) {
        let claims = &status["claims"];
        assert_eq!(claims.as_object().map(serde_json::Map::len), Some(1), "{claimed}: {claims}");
        // A native budget counts again after each eviction that another check rejected.
        eventually("the eviction would pass", || async {
            let answer = ns.evict_with(claimed, json!({"dryRun": ["All"]}), "").await;
            if answer.code == 201 { Ok(()) } else { Err(answer.body) }
        })
        .await;
        ns.evict(claimed).await.expect(201);
    }
}

async fn an_upgrade_enforces_new_budgets(cluster: Cluster) {
    both_enforce_new_budgets(&cluster, &Release::before(), &Release::current()).await;
}

async fn a_rollback_enforces_new_budgets(cluster: Cluster) {
    both_enforce_new_budgets(&cluster, &Release::current(), &Release::before()).await;
}

/// Two servers of one release run and one of another. Budgets are created, and one is moved to other pods: each opens, and of six evictions at once it admits the two that it allows.
async fn both_enforce_new_budgets(cluster: &Cluster, from: &Release, to: &Release) {
    let mut installed = Installed::install_release(cluster, from.clone()).await;
    for _ in 0..2 {
        installed.start_server().await;
    }
    let ns = TestNamespace::with_manual_pods(cluster, "both").await;
    for app in ["created", "edited", "old"] {
        ns.create_pods(app, 6).await;
    }
    ns.create_enforced_budget("edited", spec_for_app("none", "minAvailable", 4)).await;
    ns.await_enforced_label(true).await;

    installed.change_to(to).await;
    installed.start_server().await;
    ns.create_budget_allowing("created", spec_for_app("created", "minAvailable", 4), 2).await;
    ns.patch_budget_spec("edited", spec_for_app("edited", "minAvailable", 4)).await;
    ns.await_allowed("edited", 2).await;
    // The selector of a PodUnavailableBudget cannot change.
    ns.create_pub_allowing("old", spec_for_app("old", "minAvailable", 4), 2).await;
    ns.create_groups_of_one("adopted", 6).await;
    ns.create_adopted_budget_allowing("adopted", 4, 2).await;
    for app in ["created", "edited", "old", "adopted"] {
        let names: Vec<String> = (0..6).map(|at| format!("{app}-{at}")).collect();
        let admitted = AtomicUsize::new(0);
        // A server may also deny one because another server was faster, so they are repeated.
        eventually("two are admitted", || async {
            let answers = join_all(names.iter().map(|name| ns.evict(name))).await;
            let wrong: Vec<_> =
                answers.iter().filter(|answer| ![201, 404, 429].contains(&answer.code)).collect();
            assert!(wrong.is_empty(), "{app}: {wrong:#?}");
            let now = answers.iter().filter(|answer| answer.code == 201).count();
            let admitted = admitted.fetch_add(now, Ordering::Relaxed) + now;
            assert!(admitted <= 2, "{app}: {admitted} are admitted, and four of six must stay");
            if admitted == 2 { Ok(()) } else { Err(answers) }
        })
        .await;
    }
    installed.end_servers().await;
}

/// Repeats an eviction that must be denied each time, and never because the budget is not enforced: an upgrade must not
/// block evictions that the budgets allow.
struct Evictor {
    stopped: Arc<AtomicBool>,
    evictions: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<Vec<serde_json::Value>>,
}

impl Evictor {
    fn of(ns: &Arc<TestNamespace>, pod: &'static str) -> Self {
        let (stopped, evictions) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let task = tokio::spawn({
            let (ns, stopped, evictions) = (ns.clone(), stopped.clone(), evictions.clone());
            async move {
                let mut wrong = Vec::new();
                while !stopped.load(Ordering::Relaxed) {
                    let answer = ns.evict(pod).await;
                    evictions.fetch_add(1, Ordering::Relaxed);
                    if answer.code != 429 || answer.message().contains(CLOSED) {
                        wrong.push(answer.body);
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                wrong
            }
        });
        Self { stopped, evictions, task }
    }

    /// Waits until it has sent this many more evictions.
    async fn await_evictions(&self, times: usize) {
        let before = self.evictions.load(Ordering::Relaxed);
        eventually(&format!("{times} more evictions"), || async {
            let evictions = self.evictions.load(Ordering::Relaxed) - before;
            if evictions >= times { Ok(()) } else { Err(evictions) }
        })
        .await;
    }

    /// Stops it. Returns the number of evictions, and each response that is not such a denial.
    async fn stop(self) -> (usize, Vec<serde_json::Value>) {
        self.stopped.store(true, Ordering::Relaxed);
        let wrong = self.task.await.expect("an evictor");
        (self.evictions.load(Ordering::Relaxed), wrong)
    }
}
