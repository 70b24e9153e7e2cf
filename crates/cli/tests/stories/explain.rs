//! `quorate explain`: its answers while a server runs, and without a server.

use quorate_testbed::{Backend, Cluster, Patch, Setup, User, eventually, run_story};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::fixture::{TestNamespace, denial};
use crate::quorate::Quorate;

quorate_testbed::stories!(Whole: explain_predicts_the_decision_of_the_server, explain_reports_why_it_cannot_answer);

/// The output of a command, and its exit code.
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) async fn quorate(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(args)
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent")
        .output()
        .await
        .expect("quorate");
    Output {
        code: output.status.code().expect("an exit code"),
        out: String::from_utf8(output.stdout).expect("text"),
        err: String::from_utf8(output.stderr).expect("text"),
    }
}

pub(crate) async fn explain(cluster: &Cluster, user: &User, args: &[&str]) -> Output {
    let kubeconfig = cluster.kubeconfig(user).expect("a kubeconfig");
    let kubeconfig = kubeconfig.to_string_lossy();
    quorate(&[&["explain", "--kubeconfig", &kubeconfig], args].concat()).await
}

async fn explain_predicts_the_decision_of_the_server(cluster: Cluster) {
    let server = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "shards").await;
    let namespace = ns.name.as_str();
    for group in ["a", "b", "c"] {
        for number in 0..2 {
            ns.create_pod(&format!("{group}{number}"), json!({"app": "shard", "group": group})).await;
        }
    }
    ns.create_pod("alone", json!({"app": "other"})).await;
    let spec = json!({
        "selector": {"matchLabels": {"app": "shard"}}, "maxUnavailable": 1,
        "podGroupPolicy": {"groupLabelKey": "group", "minReadyReplicas": 2}, "expectedReplicas": 3,
    });
    ns.create_budget_allowing("shard", spec, 1).await;
    let admin = User::admin();

    let output = explain(&cluster, &admin, &["pod/a0", "-n", namespace]).await;
    let expected = format!(
        "✓ pod {namespace}/a0 on by-hand may be evicted now\n    ✓ {namespace}/shard: allows one more group to go down \
         (3 of 3 groups healthy, 2 must stay)\n"
    );
    assert_eq!((output.code, output.out.as_str(), output.err.as_str()), (0, expected.as_str(), ""));
    let output = explain(&cluster, &admin, &["pod/alone", "-n", namespace]).await;
    let expected = format!("✓ pod {namespace}/alone on by-hand may be evicted now: no budget covers it\n");
    assert_eq!((output.code, output.out.as_str()), (0, expected.as_str()));

    ns.set_pod_ready("b1", false).await;
    ns.await_allowed("shard", 0).await;
    let refused = denial(&ns.evict("a0").await);
    let output = explain(&cluster, &admin, &["pod/a0", "-n", namespace]).await;
    let expected = format!("✗ pod {namespace}/a0 on by-hand may not be evicted now\n    ✗ {refused}\n");
    assert_eq!((output.code, without_spans(&output.out)), (2, without_spans(&expected)));
    // The output says if a budget does not cover the operation.
    let output = explain(&cluster, &admin, &["pod/a0", "-n", namespace, "--operation=delete"]).await;
    assert!(
        output.code == 0 && output.out.contains("does not protect the pod against this operation"),
        "{}",
        output.out
    );

    let output = explain(&cluster, &admin, &["budget/shard", "-n", namespace]).await;
    let begins = format!(
        "✗ DisruptionBudget {namespace}/shard: 2 of 3 groups are healthy, 2 must stay: none may be disrupted now.\n    \
         ✗ group b is missing b1, not ready"
    );
    assert!(output.code == 2 && output.out.starts_with(&begins), "{}", output.out);
    let everywhere = explain(&cluster, &admin, &["-A"]).await;
    assert_eq!((everywhere.code, without_spans(&everywhere.out)), (2, without_spans(&output.out)));

    let output = explain(&cluster, &admin, &["node/by-hand", "-o", "json"]).await;
    let data: Value = serde_json::from_str(&output.out).expect("JSON");
    let pods = data["node"]["pods"].as_array().expect("pods");
    let may: Vec<(&str, bool)> =
        pods.iter().map(|pod| (pod["name"].as_str().unwrap_or_default(), pod["allowed"] == true)).collect();
    // The rest of a broken group may go. A pod that is down may go, because the budget is met.
    let expected = [
        ("a0", false),
        ("a1", false),
        ("alone", true),
        ("b0", true),
        ("b1", true),
        ("c0", false),
        ("c1", false),
    ];
    assert_eq!((output.code, may.as_slice()), (2, expected.as_slice()));
    assert_eq!(
        pods[0]["budgets"][0]["numbers"],
        json!(
        {"unit": "group", "allowed": 0, "healthy": 2, "desired": 2, "expected": 3})
    );

    // `explain` needs no server.
    server.end().await;
    let alone = explain(&cluster, &admin, &["pod/a0", "-n", namespace, "-o", "yaml"]).await;
    assert!(alone.code == 2 && alone.out.contains("allowed: false"), "{}{}", alone.out, alone.err);
}

async fn explain_reports_why_it_cannot_answer(cluster: Cluster) {
    let admin = User::admin();
    let output = explain(&cluster, &admin, &["-A"]).await;
    let expected = "error: DisruptionBudgets are not installed here: \
                    run `quorate crds | kubectl apply --server-side -f -`\n";
    assert_eq!((output.code, output.err.as_str()), (1, expected));

    // The output of `crds` can be applied.
    let printed = quorate(&["crds"]).await;
    let kubectl = cluster.kubectl(&admin).expect("kubectl");
    let applied = kubectl.run_with_input(&["apply", "--server-side", "-f", "-"], &printed.out).await;
    let applied = applied.expect("kubectl");
    assert!(applied.success, "{}", applied.stderr);
    let waited =
        kubectl.run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=100s"]).await;
    assert!(waited.expect("kubectl").success);

    let output = explain(&cluster, &admin, &["-n", "default"]).await;
    assert_eq!((output.code, output.out.as_str()), (0, "There is no budget in namespace default.\n"));
    let output = explain(&cluster, &admin, &["-A"]).await;
    assert_eq!((output.code, output.out.as_str()), (0, "There is no budget in any namespace.\n"));
    let output = explain(&cluster, &admin, &["pod/nobody", "-n", "default"]).await;
    assert_eq!(
        (output.code, output.err.as_str()),
        (1, "error: there is no pod nobody in namespace default\n")
    );
    let output = explain(&cluster, &admin, &["node/nowhere"]).await;
    assert_eq!((output.code, output.err.as_str()), (1, "error: there is no node nowhere\n"));
    let output = explain(&cluster, &admin, &["--context=elsewhere"]).await;
    assert!(
        output.code == 1
            && output.err.starts_with("error: there is no context elsewhere in the kubeconfig: it has ")
    );

    let output = quorate(&["explain"]).await;
    let expected = "error: there is no kubeconfig: name one with --kubeconfig or KUBECONFIG, \
                    or put it at ~/.kube/config\n";
    assert_eq!((output.code, output.err.as_str()), (1, expected));

    // The embedded cluster has no authorization.
    if cluster.backend() == Backend::Real {
        let output = explain(&cluster, &User::named("guest"), &["-A"]).await;
        let expected = "error: you may not list disruptionbudgets.policy.quorate.dev: \
                        the verbs list and watch on it are required\n";
        assert_eq!((output.code, output.err.as_str()), (1, expected));
    }
}

#[test]
fn explain_works_with_rights_in_one_namespace() {
    // The embedded cluster has no authorization.
    run_story(Backend::Real, Setup::Whole, seeing_one_namespace);
}

async fn seeing_one_namespace(cluster: Cluster) {
    let server = Quorate::start(&cluster).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "shards").await;
    let namespace = ns.name.as_str();
    for name in ["web-0", "web-1"] {
        ns.create_pod(name, json!({"app": "web"})).await;
    }
    ns.create_budget_allowing(
        "web",
        json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1}),
        1,
    )
    .await;
    let (admin, dev) = (User::admin(), User::named("dev"));
    let in_namespace = |more: &[&str]| -> Vec<String> {
        [more, &["-n", namespace]].concat().into_iter().map(str::to_owned).collect()
    };
    let explain_as = async |user: &User, more: &[&str]| {
        let args = in_namespace(more);
        explain(&cluster, user, &args.iter().map(String::as_str).collect::<Vec<_>>()).await
    };

    // Required resources are named with the missing verbs.
    let none = explain_as(&dev, &["pod/web-0"]).await;
    let expected = format!(
        "error: you may not list disruptionbudgets.policy.quorate.dev, not even in namespace {namespace}: \
         the verbs list and watch on it there are required\n"
    );
    assert_eq!((none.code, none.err.as_str()), (1, expected.as_str()));

    grant_read(&ns, &dev, &[("policy.quorate.dev", &["disruptionbudgets"]), ("", &["pods"])]).await;
    let bare = explain_as(&dev, &["pod/web-0"]).await;
    let whole = explain_as(&admin, &["pod/web-0"]).await;
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
    grant_read(&ns, &dev, &everything).await;
    let complete = explain_as(&dev, &["pod/web-0"]).await;
    assert_eq!((complete.code, &complete.out, complete.err.as_str()), (0, &whole.out, ""));

    // A denial has the same output and exit code for both users.
    ns.set_pod_ready("web-1", false).await;
    ns.await_allowed("web", 0).await;
    for subject in [&["pod/web-0"][..], &["budget/web"], &[]] {
        let (theirs, mine) = (explain_as(&dev, subject).await, explain_as(&admin, subject).await);
        assert_eq!((theirs.code, without_spans(&theirs.out)), (2, without_spans(&mine.out)), "{subject:?}");
    }

    // The rights in one namespace are not enough for a node or for all namespaces.
    for subject in ["node/by-hand", "-A"] {
        let output = explain(&cluster, &dev, &[subject]).await;
        let expected = "error: you may not list disruptionbudgets.policy.quorate.dev: \
                        the verbs list and watch on it are required\n";
        assert_eq!((output.code, output.err.as_str()), (1, expected), "{subject}");
    }

    // If the Lease of the agent cannot be read, the probe result counts, and the output says so.
    ns.create_pod("db-0", json!({"app": "db"})).await;
    let db = format!("/api/v1/namespaces/{namespace}/pods/db-0");
    let probe = json!({"metadata": {"annotations": {
        "quorate.dev/disruption-probe.main": "{\"httpGet\":{\"path\":\"/\",\"port\":80}}"}}});
    ns.wire.patch(&db, Patch::Merge, &probe).await.expect(200);
    let says = json!({"status": {
        "conditions": [{"type": "Disruptable", "status": "True", "lastProbeTime": "2026-01-01T00:01:00Z"}],
        "containerStatuses": [{"name": "main", "image": "main:1", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
    }});
    ns.wire.patch(&format!("{db}/status"), Patch::Strategic, &says).await.expect(200);
    ns.create_budget_allowing(
        "db",
        json!({"selector": {"matchLabels": {"app": "db"}}, "minAvailable": 0}),
        0,
    )
    .await;
    let seen = explain_as(&admin, &["pod/db-0"]).await;
    assert!(seen.code == 2 && seen.out.contains("no agent runs its disruption probe"), "{}", seen.out);
    let data = explain_as(&dev, &["pod/db-0", "-o", "json"]).await;
    let answer: Value = serde_json::from_str(&data.out).expect("JSON");
    assert_eq!((data.code, data.err.as_str()), (0, ""), "{answer}");
    assert_eq!(answer["pods"][0]["allowed"], true);
    let unseen: Vec<&str> =
        answer["leftOut"].as_array().into_iter().flatten().filter_map(|it| it["resource"].as_str()).collect();
    assert_eq!(unseen, ["nodes", "leases.coordination.k8s.io in quorate-system"]);
    server.end().await;
}

/// Grants a user read access to these resources in the one namespace.
async fn grant_read(ns: &TestNamespace, user: &User, rules: &[(&str, &[&str])]) {
    let rule = |(group, resources): &(&str, &[&str])| json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"]});
    let stored: Vec<Value> = rules.iter().map(rule).collect();
    let version = "rbac.authorization.k8s.io/v1";
    let path = format!("/apis/{version}/namespaces/{}", ns.name);
    let role = json!({"apiVersion": version, "kind": "Role", "metadata": {"name": "looks"}, "rules": stored});
    let made = ns.wire.post(&format!("{path}/roles"), &role).await;
    if made.code == 409 {
        ns.wire.put(&format!("{path}/roles/looks"), &role).await.expect(200);
    } else {
        made.expect(201);
        bind_role(ns, user).await;
    }
    for (group, resources) in rules {
        for resource in *resources {
            ns.await_right(user, group, resource).await;
        }
    }
}

/// Binds the Role `looks` to a user.
async fn bind_role(ns: &TestNamespace, user: &User) {
    let version = "rbac.authorization.k8s.io/v1";
    let path = format!("/apis/{version}/namespaces/{}", ns.name);
    let binding = json!({"apiVersion": version, "kind": "RoleBinding", "metadata": {"name": "looks"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "looks"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user.name()}]});
    ns.wire.post(&format!("{path}/rolebindings"), &binding).await.expect(201);
}

impl TestNamespace {
    /// Waits until the API server lets a user watch a resource here.
    async fn await_right(&self, user: &User, group: &str, resource: &str) {
        let attributes =
            json!({"namespace": self.name, "verb": "watch", "group": group, "resource": resource});
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user.name(), "resourceAttributes": attributes}});
        eventually("the right is granted", || async {
            let answer = self.wire.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await;
            if answer.body["status"]["allowed"] == true { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }
}

/// Without durations, which change every second.
fn without_spans(text: &str) -> String {
    let mut words: Vec<&str> = text.split(' ').collect();
    for at in 1..words.len() {
        if words[at - 1] == "for" && words[at].starts_with(|c: char| c.is_ascii_digit()) {
            words[at] = "…";
        }
    }
    words.join(" ")
}
