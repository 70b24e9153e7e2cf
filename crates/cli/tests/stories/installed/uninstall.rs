//! After an uninstall nothing is denied. After another install the earlier claims still count.

use std::path::Path;

use quorate_testbed::{Cluster, User, Wire, eventually};
use serde_json::{Value, json};

use super::Installed;
use crate::fixture::{TestNamespace, denial};
use crate::quorate::{EVERYTHING, NAMESPACE, RENDERED, apply, args, object};

quorate_testbed::stories!(Whole: an_uninstall_blocks_nothing_and_keeps_claims);

/// The objects that Helm creates before it deletes the release, without the Job: no pods run here.
fn hooks(rendered: &'static str) -> Vec<&'static str> {
    let hooks = rendered.split("\n---\n").filter(|object| object.contains("helm.sh/hook: pre-delete"));
    hooks.filter(|object| !object.contains("\nkind: Job\n")).collect()
}

async fn an_uninstall_blocks_nothing_and_keeps_claims(cluster: Cluster) {
    let mut installed = Installed::install(&cluster).await;
    for _ in 0..2 {
        installed.start_server().await;
    }
    let ns = TestNamespace::with_manual_pods(&cluster, "left").await;
    for number in 0..2 {
        ns.create_pod(&format!("web-{number}"), json!({"app": "web"})).await;
    }
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1, "operations": ["Evict", "Delete"]});
    ns.create_budget_allowing("web", spec, 1).await;
    ns.await_enforced_label(true).await;
    // Admitted by Quorate and then rejected by the API server: the claim stays.
    let later = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(ns.evict_with("web-0", later, "").await.code, 409);
    denial(&ns.evict("web-1").await);
    let claims = claims(&ns).await;
    assert_eq!(claims.as_object().map(serde_json::Map::len), Some(1), "{claims}");

    let output = uninstall(&mut installed, RENDERED, &[]).await;
    for line in [
        "removed the MutatingWebhookConfiguration quorate\n",
        "removed the ValidatingWebhookConfiguration quorate\n",
        "stopped the servers of quorate-system/quorate-server\n",
        &format!("removed the label quorate.dev/enforced of the namespace {}\n", ns.name),
    ] {
        assert!(output.contains(line), "{line:?} is missing in\n{output}");
    }
    assert!(
        output.starts_with("removed the MutatingWebhookConfiguration"),
        "the webhooks must be removed first: {output}"
    );
    ns.await_enforced_label(false).await;
    for namespace in all(&ns, "/api/v1/namespaces").await {
        assert!(namespace["metadata"]["labels"]["quorate.dev/enforced"].is_null(), "{namespace}");
    }
    for kind in ["mutating", "validating"] {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/quorate");
        assert_eq!(ns.wire.get(&path).await.code, 404);
    }
    // Nothing is denied.
    ns.evict_with("web-1", json!({"dryRun": ["All"]}), "").await.expect(201);
    let pod = ns.pod_path("web-1");
    ns.wire.delete(&pod, &json!({"dryRun": ["All"]})).await.expect(200);
    // The budgets stay, with their claims.
    assert_eq!(self::claims(&ns).await, claims);

    let mut installed = Installed::install(&cluster).await;
    installed.start_server().await;
    ns.await_enforced_label(true).await;
    eventually("what was admitted before counts", || async {
        let answer = ns.evict_with("web-1", json!({"dryRun": ["All"]}), "").await;
        if answer.code == 429 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    denial(&ns.evict("web-1").await);
    ns.evict("web-0").await.expect(201);
    // With --budgets, the budgets are deleted too.
    let output = uninstall(&mut installed, EVERYTHING, &["--budgets"]).await;
    let removed = format!("removed the DisruptionBudget {}/web\n", ns.name);
    assert!(output.contains(&removed), "{output}");
    assert_eq!(all(&ns, "/apis/policy.quorate.dev/v1alpha1/disruptionbudgets").await, Vec::<Value>::new());
    // Another run prints nothing and succeeds.
    let kubeconfig = cluster.kubeconfig(&User::admin()).expect("a kubeconfig");
    let again = crate::explain::quorate(&["cleanup", "--kubeconfig", &kubeconfig.to_string_lossy()]).await;
    assert_eq!((again.code, again.out.as_str(), again.err.as_str()), (0, "", ""));
}

async fn claims(ns: &TestNamespace) -> Value {
    ns.budget_status("web").await["claims"].clone()
}

async fn all(ns: &TestNamespace, path: &str) -> Vec<Value> {
    ns.wire.get(path).await.expect(200)["items"].as_array().cloned().unwrap_or_default()
}

/// What `helm uninstall` does: the Job of the hook, then it deletes everything without the policy `keep`. Returns the
/// output of the Job.
async fn uninstall(installed: &mut Installed, rendered: &'static str, more: &[&str]) -> String {
    apply(&installed.cluster, &hooks(rendered)).await;
    let kubeconfig = installed.kubeconfig("quorate-cleanup", None).await;
    let mut args =
        args(RENDERED, "Job", "quorate-cleanup", &[format!("--kubeconfig={}", kubeconfig.display())]);
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    let mut job = tokio::process::Command::new(Path::new(env!("CARGO_BIN_EXE_quorate")))
        .args(&args)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a process");
    // The kubelets would end the pods when the Deployment is scaled to zero.
    let deployment = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/quorate-server");
    eventually("the Deployment wants no servers", || async {
        let deployment = installed.wire.get(&deployment).await.expect(200);
        if deployment["spec"]["replicas"] == 0 { Ok(()) } else { Err(deployment["spec"]["replicas"].clone()) }
    })
    .await;
    // The status of the Deployment does not count servers that are ending, and one of them may become the leader.
    while installed.servers.len() > 1 {
        installed.end_server().await;
    }
    await_renewals(&installed.wire, 2).await;
    let ended = job.try_wait().expect("a process");
    assert!(ended.is_none(), "the Job has ended, and a server still runs: {ended:?}");
    installed.end_servers().await;
    let ended = job.wait_with_output().await.expect("a process");
    let (output, wrong) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{output}{wrong}");
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
    output.into_owned()
}

/// Waits until a server has renewed its Lease so many times.
async fn await_renewals(wire: &Wire, count: usize) {
    let of_servers = "labelSelector=quorate.dev%2Fcomponent%3Dserver";
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases?{of_servers}");
    let seen = parking_lot::Mutex::new(Vec::<Value>::new());
    eventually("a server renews its Lease", || async {
        let leases = wire.get(&path).await.expect(200)["items"].as_array().cloned().unwrap_or_default();
        let renewed =
            leases.iter().map(|lease| lease["spec"]["renewTime"].clone()).max_by_key(Value::to_string);
        let mut seen = seen.lock();
        if let Some(renewed) = renewed.filter(|renewed| seen.last() != Some(renewed)) {
            seen.push(renewed);
        }
        if seen.len() > count { Ok(()) } else { Err(seen.clone()) }
    })
    .await;
}

/// The Job must run before Helm deletes anything else of the release, such as its rights.
#[test]
fn the_cleanup_is_a_hook_of_helm() {
    let job = object(RENDERED, "Job", "quorate-cleanup");
    assert_eq!(job["metadata"]["annotations"]["helm.sh/hook"], "pre-delete");
}
