//! The chart, as Helm renders it: its objects without pods, and the arguments of its servers.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::http::Http;
use crate::servers::OWN;

/// The output of Helm with default values.
const RENDERED: &str = include_str!("../../../../charts/rendered/default.yaml");

/// The kinds that create pods or cover them: here the run starts the servers.
const PODS: [&str; 4] = ["Deployment", "DaemonSet", "PodDisruptionBudget", "Job"];

/// Longest time until a definition is served.
const PATIENCE: Duration = Duration::from_secs(60);

/// The rendered chart.
pub(super) struct Chart {
    objects: Vec<Value>,
}

impl Chart {
    /// Reads the checked-in chart.
    pub(super) fn read() -> Result<Self> {
        let documents = serde_yaml_ng::Deserializer::from_str(RENDERED);
        let objects: Vec<Value> = documents.map(Value::deserialize).collect::<Result<_, _>>()?;
        Ok(Self { objects: objects.into_iter().filter(|object| object.is_object()).collect() })
    }

    /// The objects of this kind and name.
    pub(super) fn object(&self, kind: &str, name: &str) -> Result<&Value> {
        let found = self.objects.iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == name);
        found.with_context(|| format!("the chart has no {kind} {name}"))
    }

    /// The arguments of a server, with some replaced.
    pub(super) fn server_args(&self, exchanged: &[String]) -> Result<Vec<String>> {
        let args = &self.object("Deployment", "quorate-server")?["spec"]["template"]["spec"]["containers"][0]
            ["args"];
        let mut args: Vec<String> =
            serde_json::from_value(args.clone()).context("the arguments of a server")?;
        for argument in exchanged {
            let flag = argument.split_once('=').map_or(argument.as_str(), |(flag, _)| flag);
            args.retain(|arg| arg.split_once('=').map_or(arg.as_str(), |(name, _)| name) != flag);
            args.push(argument.clone());
        }
        Ok(args)
    }

    /// Creates the namespace and all objects without pods, and waits until the definitions are served. `policies`: also
    /// ValidatingAdmissionPolicies, which the embedded API server does not have.
    pub(super) async fn install(&self, admin: &Http, policies: bool) -> Result<()> {
        let home = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OWN}});
        create(admin, &home).await?;
        for object in self.objects.iter().filter(|object| {
            let kind = object["kind"].as_str().unwrap_or_default();
            let hook = !object["metadata"]["annotations"]["helm.sh/hook"].is_null();
            !hook && !PODS.contains(&kind) && (policies || !kind.starts_with("ValidatingAdmissionPolicy"))
        }) {
            create(admin, object).await?;
        }
        let definitions = self.objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition");
        for spec in definitions.map(|definition| &definition["spec"]) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let path = format!(
                "/apis/{}/{}/{}",
                text(&spec["group"]),
                text(&spec["versions"][0]["name"]),
                text(&spec["names"]["plural"])
            );
            served(admin, &path).await?;
        }
        Ok(())
    }
}

/// Waits until a resource is served.
pub(super) async fn served(admin: &Http, path: &str) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !admin.get(path).await.is_success() {
        if Instant::now() > end {
            bail!("{path} is not served after {} s", PATIENCE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Creates an object.
pub(super) async fn create(admin: &Http, object: &Value) -> Result<()> {
    let path = collection(object);
    let response = admin.post(&path, object).await;
    if response.is_success() || response.code == 409 {
        return Ok(());
    }
    bail!("cannot create {} at {path}: {} {}", object["kind"], response.code, response.body)
}

/// The path of the collection of an object.
pub(super) fn collection(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let root = if version.contains('/') { "apis" } else { "api" };
    let kind = kind.to_lowercase();
    let plural = kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{root}/{version}/namespaces/{namespace}/{plural}"),
        None => format!("/{root}/{version}/{plural}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_replaces_the_one_of_the_chart() {
        let chart = Chart::read().expect("the chart");
        let args =
            chart.server_args(&["--listen=127.0.0.1:0".to_owned(), "--x".to_owned()]).expect("arguments");
        assert_eq!(args.first().map(String::as_str), Some("server"));
        let listens: Vec<&String> = args.iter().filter(|arg| arg.starts_with("--listen")).collect();
        assert_eq!(listens, ["--listen=127.0.0.1:0"]);
        assert!(args.contains(&"--webhook-service=quorate:443".to_owned()), "{args:?}");
        assert!(args.contains(&"--x".to_owned()));
    }

    #[test]
    fn every_object_has_a_path() {
        for (object, path) in [
            (
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}),
                "/api/v1/namespaces",
            ),
            (
                json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy"}),
                "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            ),
            (
                json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"namespace": "a"}}),
                "/apis/rbac.authorization.k8s.io/v1/namespaces/a/roles",
            ),
        ] {
            assert_eq!(collection(&object), path);
        }
    }
}
