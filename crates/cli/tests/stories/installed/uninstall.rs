//! Quorate goes, and holds nobody up any more; it comes back, and knows what it had admitted.

use std::path::Path;

use quorate_testbed::{Cluster, User, eventually};
use serde_json::{Value, json};

use super::Installed;
use crate::quorate::{EVERYTHING, NAMESPACE, RENDERED, apply, args, object};
use crate::town::{Town, refusal};

quorate_testbed::stories!(Whole: an_uninstall_holds_nobody_up_and_forgets_nothing);

/// What is made before the release goes, without the Job: there are no pods here.
fn hooks(rendered: &'static str) -> Vec<&'static str> {
    let hooks = rendered.split("\n---\n").filter(|object| object.contains("helm.sh/hook: pre-delete"));
    hooks.filter(|object| !object.contains("\nkind: Job\n")).collect()
}

async fn an_uninstall_holds_nobody_up_and_forgets_nothing(cluster: Cluster) {
    let mut installed = Installed::install(&cluster).await;
    for _ in 0..2 {
        installed.start_server().await;
    }
    let town = Town::found(&cluster, "left").await;
    for number in 0..2 {
        town.pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1, "operations": ["Evict", "Delete"]});
    town.budget("web", spec, 1).await;
    town.labelled(true).await;
    // Admitted by us and refused by the API server for a reason of its own: the claim stands.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(town.evict_with("web-0", later, "").await.code, 409);
    refusal(&town.evict("web-1").await);
    let claims = claims(&town).await;
    assert_eq!(claims.as_object().map(serde_json::Map::len), Some(1), "{claims}");

    let said = uninstall(&mut installed, RENDERED, &[]).await;
    for line in [
        "removed the MutatingWebhookConfiguration quorate\n",
        "removed the ValidatingWebhookConfiguration quorate\n",
        "stopped the servers of quorate-system/quorate-server\n",
        &format!("removed the label quorate.dev/enforced of the namespace {}\n", town.namespace),
    ] {
        assert!(said.contains(line), "{line:?} is missing in\n{said}");
    }
    assert!(
        said.starts_with("removed the MutatingWebhookConfiguration"),
        "first of all nobody is held up: {said}"
    );
    town.labelled(false).await;
    for namespace in all(&town, "/api/v1/namespaces").await {
        assert!(namespace["metadata"]["labels"]["quorate.dev/enforced"].is_null(), "{namespace}");
    }
    for kind in ["mutating", "validating"] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/quorate");
        assert_eq!(town.wire.get(&path).await.code, 404);
    }
    // Nothing refuses anything.
    town.evict_with("web-1", json!({"dryRun": ["All"]}), "").await.expect(201);
    let pod = format!("/api/v1/namespaces/{}/pods/web-1", town.namespace);
    town.wire.delete(&pod, &json!({"dryRun": ["All"]})).await.expect(200);
    // Whom it was all for stays, with what was admitted.
    assert_eq!(self::claims(&town).await, claims);

    let mut installed = Installed::install(&cluster).await;
    installed.start_server().await;
    town.labelled(true).await;
    eventually("what was admitted before counts", || async {
        let answer = town.evict_with("web-1", json!({"dryRun": ["All"]}), "").await;
        if answer.code == 429 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    refusal(&town.evict("web-1").await);
    town.evict("web-0").await.expect(201);
    // If that is wanted, budgets go too.
    let said = uninstall(&mut installed, EVERYTHING, &["--budgets"]).await;
    let removed = format!("removed the DisruptionBudget {}/web\n", town.namespace);
    assert!(said.contains(&removed), "{said}");
    assert_eq!(all(&town, "/apis/policy.quorate.dev/v1alpha1/disruptionbudgets").await, Vec::<Value>::new());
    // Whoever runs it again is told of nothing, and nothing is wrong.
    let kubeconfig = cluster.kubeconfig(&User::admin()).expect("a kubeconfig");
    let again = crate::explain::quorate(&["cleanup", "--kubeconfig", &kubeconfig.to_string_lossy()]).await;
    assert_eq!((again.code, again.out.as_str(), again.err.as_str()), (0, "", ""));
}

async fn claims(town: &Town) -> Value {
    town.status("web").await["claims"].clone()
}

async fn all(town: &Town, path: &str) -> Vec<Value> {
    town.wire.get(path).await.expect(200)["items"].as_array().cloned().unwrap_or_default()
}

/// What `helm uninstall` does: the Job of the hook, then everything that it is not told to keep. Returns what the Job
/// printed.
async fn uninstall(installed: &mut Installed, rendered: &'static str, more: &[&str]) -> String {
    apply(&installed.cluster, &hooks(rendered)).await;
    let kubeconfig = installed.kubeconfig("quorate-cleanup", None).await;
    let mut args =
        args(RENDERED, "Job", "quorate-cleanup", &[format!("--kubeconfig={}", kubeconfig.display())]);
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    let job = tokio::process::Command::new(Path::new(env!("CARGO_BIN_EXE_quorate")))
        .args(&args)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a process");
    // What the kubelets would do about pods that the Deployment does not want any more.
    let deployment = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/quorate-server");
    eventually("the Deployment wants no servers", || async {
        let deployment = installed.wire.get(&deployment).await.expect(200);
        if deployment["spec"]["replicas"] == 0 { Ok(()) } else { Err(deployment["spec"]["replicas"].clone()) }
    })
    .await;
    installed.end_servers().await;
    let output = job.wait_with_output().await.expect("a process");
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{wrong}");
    let kept = |object: &&&str| !object.contains("helm.sh/resource-policy: keep");
    let release = installed.release.objects(&installed.cluster);
    let gone: Vec<&str> = release.iter().filter(kept).copied().chain(hooks(rendered)).collect();
    assert!(
        gone.len() < release.len() + hooks(rendered).len(),
        "definitions, and with them budgets, are kept"
    );
    let kubectl = installed.cluster.kubectl(&User::admin()).expect("kubectl");
    let delete = ["delete", "--ignore-not-found", "--wait=false", "-f", "-"];
    let deleted = kubectl.run_with_input(&delete, &gone.join("\n---\n")).await.expect("kubectl");
    assert!(deleted.success, "{}", deleted.stderr);
    eventually("the Deployment is gone", || async {
        let answer = installed.wire.get(&deployment).await;
        if answer.code == 404 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    said.into_owned()
}

/// The Job must be done before anything else of the release is gone, or Helm would take its rights away.
#[test]
fn the_cleanup_is_a_hook_of_helm() {
    let job = object(RENDERED, "Job", "quorate-cleanup");
    assert_eq!(job["metadata"]["annotations"]["helm.sh/hook"], "pre-delete");
}
