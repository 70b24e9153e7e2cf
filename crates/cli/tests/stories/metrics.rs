//! The metrics of a server, compared with the documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::fixture::{TestNamespace, denial};
use crate::quorate::{Quorate, install, scrape};
use crate::relabel;

quorate_testbed::stories!(Whole: the_metrics_of_a_server_are_as_documented);

/// Every documented metric, with its type and its labels.
fn documented() -> BTreeMap<&'static str, (&'static str, BTreeSet<&'static str>)> {
    let page = include_str!("../../../../docs/metrics.md");
    let (_, servers) = page.split_once("\n## Of a server\n").expect("a part on servers");
    let (servers, _) = servers.split_once("\n## ").expect("another part");
    let rows = servers.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, _] = cells.as_slice() else { return None };
        let name = name.strip_prefix('`')?.strip_suffix('`')?;
        let labels = labels.split(", ").filter(|label| !label.is_empty()).collect();
        // The name of a counter lacks the suffix of its samples.
        Some((name.strip_suffix("_total").unwrap_or(name), (*kind, labels)))
    });
    rows.collect()
}

/// The allowed values of labels that are neither a namespace nor a budget.
const WORDS: [(&str, &[&str]); 4] = [
    ("mode", &["individual", "pod_groups"]),
    ("operation", &["Evict", "Delete", "Update", "Resize", "Relabel"]),
    ("result", &["admitted", "denied"]),
    (
        "reason",
        &["Charged", "Surplus", "Exhausted", "MissingWorkloadReference", "NotCovered", "NotProtected"],
    ),
];

/// Short, so that the story does not wait long.
const EXPIRY: Duration = Duration::from_secs(4);

/// One line of a scrape.
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

fn samples(text: &str) -> Vec<Sample> {
    let lines = text.lines().skip_while(|line| !line.starts_with('#'));
    let read = |line: &str| {
        let (head, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = head.split_once('{').unwrap_or((head, ""));
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        let label = |text: &str| {
            let (name, value) = text.split_once('=').expect("a label");
            (name.to_owned(), value.trim_matches('"').to_owned())
        };
        Sample {
            name: name.to_owned(),
            labels: labels.map(label).collect(),
            value: value.parse().expect("a number"),
        }
    };
    lines.filter(|line| !line.starts_with('#') && !line.is_empty()).map(read).collect()
}

/// The metric that a sample belongs to.
fn metric_of(sample: &str) -> &str {
    ["_total", "_bucket", "_sum", "_count"].iter().find_map(|end| sample.strip_suffix(end)).unwrap_or(sample)
}

async fn the_metrics_of_a_server_are_as_documented(cluster: Cluster) {
    install(&cluster).await;
    let quorate = Quorate::start_with(&cluster, |options| options.claim_expiry = EXPIRY).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "counted").await;
    for group in ["a", "b"] {
        for number in 0..3 {
            ns.create_pod(&format!("{group}{number}"), json!({"app": "shard", "group": group})).await;
        }
    }
    let spec = json!({
        "selector": {"matchLabels": {"app": "shard"}}, "minAvailable": 1, "expectedReplicas": 2,
        "podGroupPolicy": {"groupLabelKey": "group", "minReadyReplicas": 2},
    });
    ns.create_budget_allowing("shard", spec, 1).await;
    // These pods have no group, although the scope of their budget requires one.
    ns.create_pod("lost-0", json!({"app": "lost"})).await;
    let spec = json!({
        "selector": {"matchLabels": {"app": "lost"}}, "minAvailable": 1, "budgetScope": "Workload",
    });
    ns.create_budget_allowing("lost", spec, 0).await;
    for name in ["goes", "stays"] {
        ns.create_pod(name, json!({"app": "web"})).await;
    }
    ns.create_budget_allowing(
        "web",
        json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 0}),
        2,
    )
    .await;

    ns.evict("a0").await.expect(201);
    ns.evict("a1").await.expect(201);
    ns.evict("b0").await.expect(201);
    denial(&ns.evict("b1").await);
    ns.evict("goes").await.expect(201);
    // Admitted by Quorate and then rejected by the API server: the claim expires.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(ns.evict_with("stays", later, "").await.code, 409);
    denial(&ns.evict("lost-0").await);
    ns.await_allowed("shard", 0).await;
    // Leaves a budget that does not decide that, once the API server calls the webhook for labels.
    ns.create_pod("leaves", json!({"app": "left"})).await;
    let spec = json!({"selector": {"matchLabels": {"app": "left"}}, "minAvailable": 0});
    ns.create_budget_allowing("left", spec, 1).await;
    relabel::await_labels_webhook(&ns, "leaves", &json!({"app": null})).await;
    relabel::relabel(&ns, "leaves", json!({"app": null})).await.expect(200);

    let text = eventually("what was done is counted", || async {
        let text = scrape(quorate.server.admin).await;
        let all = samples(&text);
        let of = |name: &str, labels: &[(&str, &str)]| {
            let has = |sample: &&Sample| {
                labels.iter().all(|(name, value)| sample.labels.get(*name).is_some_and(|is| is == value))
            };
            all.iter()
                .filter(|sample| sample.name == name)
                .filter(has)
                .map(|sample| sample.value)
                .sum::<f64>()
        };
        let shard = [("namespace", ns.name.as_str()), ("budget", "shard")];
        let counted = [
            of("quorate_requests_total", &[("operation", "Evict"), ("result", "admitted")]),
            of("quorate_requests_total", &[("operation", "Evict"), ("result", "denied")]),
            of("quorate_claims_expired_total", &[("budget", "web")]),
            of("quorate_denials_total", &shard),
            of("quorate_denials_total", &[("budget", "lost"), ("reason", "MissingWorkloadReference")]),
            of("quorate_units_expected", &shard),
            of("quorate_units_available", &shard),
            of("quorate_disruptions_allowed", &shard),
            of("quorate_pods_left_total", &[("budget", "left")]),
            of("quorate_decision_seconds_count", &[])
                - of("quorate_requests_total", &[("operation", "Relabel")]),
            of("disruption_controller_pdbs_using_pod_grouping", &[]),
            of("disruption_controller_pdb_grouping_misconfig_total", &[]),
        ];
        let others = of("disruption_controller_reconciliations_total", &[("mode", "pod_groups")]) > 0.0
            && of("disruption_controller_reconciliations_total", &[("mode", "individual")]) > 0.0
            && of("quorate_commit_seconds_count", &[]) > 0.0
            && of("quorate_commit_batch_size_count", &[]) > 0.0
            && of("quorate_pods", &[]) > 0.0;
        let expected = [5.0, 2.0, 1.0, 1.0, 1.0, 2.0, 1.0, 0.0, 1.0, 7.0, 2.0, 1.0];
        if others && counted == expected { Ok(text) } else { Err((counted, text)) }
    })
    .await;

    let documented = documented();
    let types: BTreeSet<(&str, &str)> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    assert_eq!(types, documented.iter().map(|(name, (kind, _))| (*name, *kind)).collect(), "{text}");
    for sample in samples(&text) {
        let (_, labels) = documented.get(metric_of(&sample.name)).expect("a metric");
        let names = sample.labels.keys().map(String::as_str).filter(|name| *name != "le");
        assert_eq!(names.collect::<BTreeSet<_>>(), *labels, "{}", sample.name);
        for (name, words) in WORDS {
            let value = sample.labels.get(name).map_or(words[0], String::as_str);
            assert!(words.contains(&value), "{} has {name}={value}", sample.name);
        }
    }
}
