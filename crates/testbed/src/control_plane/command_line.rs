//! The flags of each program, and the files that only these flags refer to.

use std::fs;
use std::path::Path;

use anyhow::Result;
use quorate_devcluster::apiserver::WorkloadApi;
use serde_json::{Value, json};

use super::ControlPlane;
use super::credentials::{CONTROLLER_MANAGER_TOKEN, SCHEDULER_TOKEN};
use super::login::{Login, kubeconfig};

/// The name of the audit log in the control plane's folder.
pub(super) const AUDIT_LOG: &str = "audit.log";

/// The name of etcd's folder in the control plane's folder.
pub(super) const ETCD_FOLDER: &str = "etcd";

pub(super) fn etcd(data: &Path, port: u16) -> Vec<String> {
    let client_url = format!("http://127.0.0.1:{port}");
    // A single member never connects to its own peer address.
    let peer_url = "http://127.0.0.1:0";
    flags(&[
        ("data-dir", &path(data)),
        ("listen-client-urls", &client_url),
        ("advertise-client-urls", &client_url),
        ("listen-peer-urls", peer_url),
        ("initial-advertise-peer-urls", peer_url),
        ("initial-cluster", &format!("default={peer_url}")),
        ("log-level", "warn"),
        // The data need not survive a power loss.
        ("unsafe-no-fsync", "true"),
    ])
}

pub(super) fn api_server(plane: &ControlPlane, etcd_port: u16) -> Result<Vec<String>> {
    let files = &plane.credentials;
    let mut args = flags(&[
        ("etcd-servers", &format!("http://127.0.0.1:{etcd_port}")),
        ("bind-address", "127.0.0.1"),
        ("secure-port", &plane.port.to_string()),
        ("tls-cert-file", &path(&files.serving_certificate)),
        ("tls-private-key-file", &path(&files.serving_key)),
        ("service-account-issuer", "https://kubernetes.default.svc"),
        ("service-account-key-file", &path(&files.service_account_public_key)),
        ("service-account-signing-key-file", &path(&files.service_account_key)),
        ("token-auth-file", &path(&files.tokens)),
        ("authorization-mode", "Node,RBAC"),
        ("service-cluster-ip-range", "10.0.0.0/24"),
        // The API server then reaches the Service of a webhook at its endpoints: there is no kube-proxy here.
        ("enable-aggregator-routing", "true"),
        // The names of nodes cannot be resolved.
        ("kubelet-preferred-address-types", "InternalIP"),
        ("profiling", "false"),
    ]);
    if let Some(port) = plane.pods_port {
        args.push(format!("--etcd-servers-overrides=/pods#http://127.0.0.1:{port}"));
    }
    let mut runtime_config = plane.options.runtime_config.clone();
    let workload_api = match plane.options.workload_api() {
        WorkloadApi::Off => None,
        WorkloadApi::V1Alpha1 => Some("v1alpha1"),
        WorkloadApi::V1Alpha2 => Some("v1alpha2"),
        WorkloadApi::V1Beta1 => Some("v1beta1"),
    };
    runtime_config.extend(workload_api.map(|version| format!("scheduling.k8s.io/{version}=true")));
    if !runtime_config.is_empty() {
        args.push(format!("--runtime-config={}", runtime_config.join(",")));
    }
    if let Some(log) = plane.audit_log() {
        let policy = plane.folder.path().join("audit-policy.json");
        let rules = if plane.options.recorded { disruptions() } else { metadata() };
        fs::write(&policy, rules.to_string())?;
        args.push(format!("--audit-policy-file={}", path(&policy)));
        args.push(format!("--audit-log-path={}", path(&log)));
        // In megabytes. The reader expects one file.
        args.push("--audit-log-maxsize=10000".to_owned());
    }
    if plane.options.recorded {
        args.push("--storage-media-type=application/json".to_owned());
    }
    if !plane.options.admission_plugins.is_empty() {
        args.push(format!("--enable-admission-plugins={}", plane.options.admission_plugins.join(",")));
    }
    args.extend(feature_gates(plane));
    Ok(args)
}

/// The audit policy that logs the metadata of every request, except those of Kubernetes itself.
fn metadata() -> Value {
    // A watch that never ends is still logged, at the stage ResponseStarted.
    json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitManagedFields": true,
    "omitStages": ["RequestReceived"], "rules": [
        {"level": "None", "users": ["system:apiserver", "system:kube-controller-manager"]},
        {"level": "None", "userGroups": ["system:nodes", "system:serviceaccounts:kube-system"]},
        {"level": "Metadata"},
    ]})
}

/// The audit policy that logs every request that may disrupt a pod. The stage RequestReceived shows what was under way when
/// the API server was killed.
fn disruptions() -> Value {
    let pods = |names: &[&str]| json!([{"group": "", "resources": names}]);
    json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitManagedFields": true,
    "omitStages": ["ResponseStarted"], "rules": [
        {"level": "Metadata", "verbs": ["update", "patch"], "resources": pods(&["pods/status"])},
        {"level": "Request", "verbs": ["create"], "resources": pods(&["pods/eviction"])},
        {"level": "Request", "verbs": ["update", "patch", "delete", "deletecollection"],
            "resources": pods(&["pods", "pods/resize"])},
        {"level": "None"},
    ]})
}

pub(super) fn controller_manager(plane: &ControlPlane) -> Result<Vec<String>> {
    let mut args = flags(&[
        ("kubeconfig", &path(&kubeconfig(plane, &Login::token(CONTROLLER_MANAGER_TOKEN))?)),
        // Otherwise all controllers act as one user, and the garbage collector cannot be distinguished from a rollout.
        ("use-service-account-credentials", "true"),
        ("service-account-private-key-file", &path(&plane.credentials.service_account_key)),
        ("root-ca-file", &path(&plane.credentials.ca)),
        ("leader-elect", "false"),
        ("secure-port", "0"),
    ]);
    let lost = plane.options.lost_nodes_after;
    args.extend(lost.map(|after| format!("--node-monitor-grace-period={}s", after.as_secs())));
    args.extend(feature_gates(plane));
    Ok(args)
}

pub(super) fn scheduler(plane: &ControlPlane) -> Result<Vec<String>> {
    let mut args = flags(&[
        ("kubeconfig", &path(&kubeconfig(plane, &Login::token(SCHEDULER_TOKEN))?)),
        ("leader-elect", "false"),
        ("secure-port", "0"),
    ]);
    args.extend(feature_gates(plane));
    Ok(args)
}

fn feature_gates(plane: &ControlPlane) -> Option<String> {
    let mut gates = plane.options.feature_gates.clone();
    if plane.options.workload_api() != WorkloadApi::Off {
        gates.extend(["GenericWorkload=true", "GangScheduling=true"].map(str::to_owned));
    }
    (!gates.is_empty()).then(|| format!("--feature-gates={}", gates.join(",")))
}

fn flags(pairs: &[(&str, &str)]) -> Vec<String> {
    pairs.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

fn path(path: &Path) -> String {
    path.display().to_string()
}
