//! `quorate explain`: what somebody is told who asks before they act, with the server and after it has gone.

use quorate_testbed::{Backend, Cluster, Patch, Setup, User, run_story};
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
        "✓ pod {space}/a0 on by-hand may be evicted now\n    ✓ {space}/shard: allows one more group to go down \
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
    assert!(
        told.code == 0 && told.out.contains("does not protect the pod against this operation"),
        "{}",
        told.out
    );

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
                    run `quorate crds | kubectl apply --server-side -f -`\n";
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
    if cluster.place() == Backend::Real {
        let told = explain(&cluster, &User::named("guest"), &["-A"]).await;
        let expected = "error: you may not list disruptionbudgets.policy.quorate.dev: \
                        the verbs list and watch on it are required\n";
        assert_eq!((told.code, told.err.as_str()), (1, expected));
    }
}

#[test]
fn who_sees_one_namespace_is_answered_from_it() {
    // The embedded cluster lets everybody do everything.
    run_story(Backend::Real, Setup::Whole, seeing_one_namespace);
}

async fn seeing_one_namespace(cluster: Cluster) {
    let server = Quorate::start(&cluster).await;
    let town = Town::found(&cluster, "shards").await;
    let space = town.namespace.as_str();
    for name in ["web-0", "web-1"] {
        town.pod(name, json!({"app": "web"})).await;
    }
    town.budget("web", json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}), 1).await;
    let (admin, dev) = (User::admin(), User::named("dev"));
    let in_space = |more: &[&str]| -> Vec<String> {
        [more, &["-n", space]].concat().into_iter().map(str::to_owned).collect()
    };
    let told = async |user: &User, more: &[&str]| {
        let args = in_space(more);
        explain(&cluster, user, &args.iter().map(String::as_str).collect::<Vec<_>>()).await
    };

    // What there is no answer without is named with its verbs.
    let none = told(&dev, &["pod/web-0"]).await;
    let expected = format!(
        "error: you may not list disruptionbudgets.policy.quorate.dev, not even in namespace {space}: \
         the verbs list and watch on it there are required\n"
    );
    assert_eq!((none.code, none.err.as_str()), (1, expected.as_str()));

    may(&town, &dev, &[("policy.quorate.dev", &["disruptionbudgets"]), ("", &["pods"])]).await;
    let bare = told(&dev, &["pod/web-0"]).await;
    let whole = told(&admin, &["pod/web-0"]).await;
    assert_eq!((bare.code, &bare.out), (0, &whole.out));
    assert!(whole.err.is_empty() && bare.err.lines().count() == 1, "{}{}", whole.err, bare.err);
    for part in [
        "note: you may not list poddisruptionbudgets.policy (left out: whether a PodDisruptionBudget denies), ",
        "namespaces (left out: whether the namespace is terminating), ",
        "podunavailablebudgets.policy.kruise.io (left out: whether one of them denies)",
    ] {
        assert!(bare.err.contains(part), "{part:?} is missing in {}", bare.err);
    }
    assert!(!bare.err.contains("leases"), "no pod here has a probe: {}", bare.err);

    let everything: [(&str, &[&str]); 7] = [
        ("policy.quorate.dev", &["disruptionbudgets"]),
        ("policy.kruise.io", &["podunavailablebudgets"]),
        ("", &["pods", "namespaces"]),
        ("policy", &["poddisruptionbudgets"]),
        ("apps", &["replicasets", "statefulsets", "deployments"]),
        ("leaderworkerset.x-k8s.io", &["leaderworkersets"]),
        ("scheduling.quorate.dev", &["workloads"]),
    ];
    may(&town, &dev, &everything).await;
    let complete = told(&dev, &["pod/web-0"]).await;
    assert_eq!((complete.code, &complete.out, complete.err.as_str()), (0, &whole.out, ""));

    // A refusal is the same one, and so is the exit code.
    town.set_ready("web-1", false).await;
    town.allows("web", 0).await;
    for subject in [&["pod/web-0"][..], &["budget/web"], &[]] {
        let (theirs, mine) = (told(&dev, subject).await, told(&admin, subject).await);
        assert_eq!((theirs.code, without_spans(&theirs.out)), (2, without_spans(&mine.out)), "{subject:?}");
    }

    // What is of all namespaces cannot be told from one.
    for subject in ["node/by-hand", "-A"] {
        let told = explain(&cluster, &dev, &[subject]).await;
        let expected = "error: you may not list disruptionbudgets.policy.quorate.dev: \
                        the verbs list and watch on it are required\n";
        assert_eq!((told.code, told.err.as_str()), (1, expected), "{subject}");
    }

    // Whose agent cannot be seen is believed, and that is said.
    town.pod("db-0", json!({"app": "db"})).await;
    let db = format!("/api/v1/namespaces/{space}/pods/db-0");
    let probe = json!({"metadata": {"annotations": {
        "quorate.dev/disruption-probe.main": "{\"httpGet\":{\"path\":\"/\",\"port\":80}}"}}});
    town.wire.patch(&db, Patch::Merge, &probe).await.expect(200);
    let says = json!({"status": {
        "conditions": [{"type": "Disruptable", "status": "True", "lastProbeTime": "2026-01-01T00:01:00Z"}],
        "containerStatuses": [{"name": "main", "image": "main:1", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
    }});
    town.wire.patch(&format!("{db}/status"), Patch::Strategic, &says).await.expect(200);
    town.budget("db", json!({"selector": {"matchLabels": {"app": "db"}}, "minAvailable": 0}), 0).await;
    let seen = told(&admin, &["pod/db-0"]).await;
    assert!(seen.code == 2 && seen.out.contains("no agent runs its disruption probe"), "{}", seen.out);
    let data = told(&dev, &["pod/db-0", "-o", "json"]).await;
    let answer: Value = serde_json::from_str(&data.out).expect("JSON");
    assert_eq!((data.code, data.err.as_str()), (0, ""), "{answer}");
    assert_eq!(answer["pods"][0]["allowed"], true);
    let unseen: Vec<&str> =
        answer["leftOut"].as_array().into_iter().flatten().filter_map(|it| it["resource"].as_str()).collect();
    assert_eq!(unseen, ["nodes", "leases.coordination.k8s.io in quorate-system"]);
    server.end().await;
}

/// Lets somebody look at these resources, in the one namespace.
async fn may(town: &Town, user: &User, rules: &[(&str, &[&str])]) {
    let rule = |(group, resources): &(&str, &[&str])| json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"]});
    let rules: Vec<Value> = rules.iter().map(rule).collect();
    let version = "rbac.authorization.k8s.io/v1";
    let path = format!("/apis/{version}/namespaces/{}", town.namespace);
    let role = json!({"apiVersion": version, "kind": "Role", "metadata": {"name": "looks"}, "rules": rules});
    let made = town.wire.post(&format!("{path}/roles"), &role).await;
    if made.code == 409 {
        town.wire.put(&format!("{path}/roles/looks"), &role).await.expect(200);
        return;
    }
    made.expect(201);
    let binding = json!({"apiVersion": version, "kind": "RoleBinding", "metadata": {"name": "looks"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "looks"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user.name()}]});
    town.wire.post(&format!("{path}/rolebindings"), &binding).await.expect(201);
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
