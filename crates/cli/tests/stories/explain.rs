//! `quorate explain`: what somebody is told who asks before they act, with the server and after it has gone.

use quorate_testbed::{Cluster, Place, User};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::quorate::Quorate;
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: an_explanation_is_what_the_server_would_say, an_explanation_says_why_there_is_none);

/// What a command printed, and its exit code.
pub(crate) struct Told {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) async fn quorate(args: &[&str]) -> Told {
    let output = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(args)
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent")
        .output()
        .await
        .expect("quorate");
    Told {
        code: output.status.code().expect("an exit code"),
        out: String::from_utf8(output.stdout).expect("text"),
        err: String::from_utf8(output.stderr).expect("text"),
    }
}

async fn explain(cluster: &Cluster, user: &User, args: &[&str]) -> Told {
    let kubeconfig = cluster.kubeconfig(user).expect("a kubeconfig");
    let kubeconfig = kubeconfig.to_string_lossy();
    quorate(&[&["explain", "--kubeconfig", &kubeconfig], args].concat()).await
}

async fn an_explanation_is_what_the_server_would_say(cluster: Cluster) {
    let server = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "shards").await;
    let space = town.namespace.as_str();
    for group in ["a", "b", "c"] {
        for number in 0..2 {
            town.pod(&format!("{group}{number}"), json!({"app": "shard", "group": group})).await;
        }
    }
    town.pod("alone", json!({"app": "other"})).await;
    let spec = json!({
        "selector": {"matchLabels": {"app": "shard"}}, "maxUnavailable": 1,
        "podGroupPolicy": {"groupLabelKey": "group", "minReadyReplicas": 2}, "expectedReplicas": 3,
    });
    town.budget("shard", spec, 1).await;
    let admin = User::admin();

    let told = explain(&cluster, &admin, &["pod/a0", "-n", space]).await;
    let expected = format!(
        "✓ pod {space}/a0 on by-hand may be evicted now\n    ✓ {space}/shard: has room for one more group to go down \
         (3 of 3 groups healthy, 2 must stay)\n"
    );
    assert_eq!((told.code, told.out.as_str(), told.err.as_str()), (0, expected.as_str(), ""));
    let told = explain(&cluster, &admin, &["pod/alone", "-n", space]).await;
    let expected = format!("✓ pod {space}/alone on by-hand may be evicted now: no budget covers it\n");
    assert_eq!((told.code, told.out.as_str()), (0, expected.as_str()));

    town.set_ready("b1", false).await;
    town.allows("shard", 0).await;
    let refused = refusal(&town.evict("a0").await);
    let told = explain(&cluster, &admin, &["pod/a0", "-n", space]).await;
    let expected = format!("✗ pod {space}/a0 on by-hand may not be evicted now\n    ✗ {refused}\n");
    assert_eq!((told.code, without_spans(&told.out)), (2, without_spans(&expected)));
    // A budget that lets deletes pass says so.
    let told = explain(&cluster, &admin, &["pod/a0", "-n", space, "--operation=delete"]).await;
    assert!(told.code == 0 && told.out.contains("does not protect against this"), "{}", told.out);

    let told = explain(&cluster, &admin, &["budget/shard", "-n", space]).await;
    let begins = format!(
        "✗ DisruptionBudget {space}/shard: 2 of 3 groups are healthy, 2 must stay: none may be disrupted now.\n    \
         ✗ group b is missing b1, not ready"
    );
    assert!(told.code == 2 && told.out.starts_with(&begins), "{}", told.out);
    let everywhere = explain(&cluster, &admin, &["-A"]).await;
    assert_eq!((everywhere.code, without_spans(&everywhere.out)), (2, without_spans(&told.out)));

    let told = explain(&cluster, &admin, &["node/by-hand", "-o", "json"]).await;
    let data: Value = serde_json::from_str(&told.out).expect("JSON");
    let pods = data["node"]["pods"].as_array().expect("pods");
    let may: Vec<(&str, bool)> =
        pods.iter().map(|pod| (pod["name"].as_str().unwrap_or_default(), pod["allowed"] == true)).collect();
    // The rest of a broken group goes with it; an eviction of what is down waits until the budget is met, and it is.
    let expected = [
        ("a0", false),
        ("a1", false),
        ("alone", true),
        ("b0", true),
        ("b1", true),
        ("c0", false),
        ("c1", false),
    ];
    assert_eq!((told.code, may.as_slice()), (2, expected.as_slice()));
    assert_eq!(
        pods[0]["budgets"][0]["numbers"],
        json!(
        {"unit": "group", "allowed": 0, "healthy": 2, "desired": 2, "expected": 3})
    );

    // Nobody needs a server to be told.
    server.end().await;
    let alone = explain(&cluster, &admin, &["pod/a0", "-n", space, "-o", "yaml"]).await;
    assert!(alone.code == 2 && alone.out.contains("allowed: false"), "{}{}", alone.out, alone.err);
}

async fn an_explanation_says_why_there_is_none(cluster: Cluster) {
    let admin = User::admin();
    let told = explain(&cluster, &admin, &["-A"]).await;
    let expected = "error: DisruptionBudgets are not installed here: \
                    `quorate crds | kubectl apply --server-side -f -` does it\n";
    assert_eq!((told.code, told.err.as_str()), (1, expected));

    // What `crds` prints can be applied.
    let printed = quorate(&["crds"]).await;
    let kubectl = cluster.kubectl(&admin).expect("kubectl");
    let applied = kubectl.run_with_input(&["apply", "--server-side", "-f", "-"], &printed.out).await;
    let applied = applied.expect("kubectl");
    assert!(applied.success, "{}", applied.stderr);
    let waited = kubectl.run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"]).await;
    assert!(waited.expect("kubectl").success);

    let told = explain(&cluster, &admin, &["-n", "default"]).await;
    assert_eq!((told.code, told.out.as_str()), (0, "There is no budget in namespace default.\n"));
    let told = explain(&cluster, &admin, &["pod/nobody", "-n", "default"]).await;
    assert_eq!((told.code, told.err.as_str()), (1, "error: there is no pod nobody in namespace default\n"));
    let told = explain(&cluster, &admin, &["node/nowhere"]).await;
    assert_eq!((told.code, told.err.as_str()), (1, "error: there is no node nowhere\n"));
    let told = explain(&cluster, &admin, &["--context=elsewhere"]).await;
    assert!(
        told.code == 1
            && told.err.starts_with("error: there is no context elsewhere in the kubeconfig: it has ")
    );

    let told = quorate(&["explain"]).await;
    let expected = "error: there is no kubeconfig: name one with --kubeconfig or KUBECONFIG, \
                    or put it at ~/.kube/config\n";
    assert_eq!((told.code, told.err.as_str()), (1, expected));

    // The embedded cluster lets everybody do everything.
    if cluster.place() == Place::Real {
        let told = explain(&cluster, &User::named("guest"), &["-A"]).await;
        let expected = "error: you may not list disruptionbudgets.policy.quorate.dev: \
                        ask for the verbs list and watch on it\n";
        assert_eq!((told.code, told.err.as_str()), (1, expected));
    }
}

/// Without what changes from second to second.
fn without_spans(text: &str) -> String {
    let mut words: Vec<&str> = text.split(' ').collect();
    for at in 1..words.len() {
        if words[at - 1] == "for" && words[at].starts_with(|c: char| c.is_ascii_digit()) {
            words[at] = "…";
        }
    }
    words.join(" ")
}
