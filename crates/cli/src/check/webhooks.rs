//! Checks the webhooks: registered, with the right failurePolicy, with a valid CA, and reachable from the API server.

use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ApiResource, DynamicObject, GetParams, PostParams};
use kube::core::{GroupVersionKind, Request};
use kube::{Client, Error};
use serde::Deserialize;
use serde_json::json;

use super::report::Section;

/// The name of both configurations.
const NAME: &str = "quorate";

/// Certificates that expire within this time get a warning.
const SOON: SignedDuration = SignedDuration::from_hours(24 * 7);

const REGISTER: &str =
    "install the chart, or run a server with --register-webhooks and check the log of the leader";

/// The fields that both kinds of configuration have.
#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    webhooks: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    name: String,
    failure_policy: Option<String>,
    client_config: WebhookClientConfig,
}

pub(super) async fn check(client: &Client, own: &str) -> Section {
    let mut section = Section::new("webhooks");
    let mut entries = Vec::new();
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        let url = format!("/apis/admissionregistration.k8s.io/v1/{}s", kind.to_lowercase());
        let found = match Request::new(url).get(NAME, &GetParams::default()) {
            Ok(request) => client.request::<Configuration>(request).await,
            Err(error) => Err(Error::BuildRequest(error)),
        };
        match found {
            Ok(configuration) => entries.extend(configuration.webhooks),
            Err(error) => missing(&mut section, kind, &error),
        }
    }
    if section.is_bad() {
        return section;
    }
    section.good(format!("{} webhooks are registered", entries.len()));
    policies(&mut section, &entries);
    if let Some(bundle) = entries.iter().find_map(|entry| entry.client_config.ca_bundle.as_ref()) {
        authority(&mut section, &bundle.0);
    }
    reached(client, own, &mut section).await;
    section
}

fn missing(section: &mut Section, kind: &str, error: &Error) {
    match error {
        Error::Api(status) if status.code == 404 => {
            section.bad(format!("there is no {kind} {NAME}: budgets deny nothing"), REGISTER);
        }
        error => section.unlisted(&format!("{}s.admissionregistration.k8s.io", kind.to_lowercase()), error),
    }
}

/// In a namespace with an enforcing budget, a request fails if no server answers. In other namespaces it passes.
fn policies(section: &mut Section, entries: &[Entry]) {
    const WANTED: [(&str, &str); 6] = [
        ("evictions.quorate.dev", "Fail"),
        ("evictions.elsewhere.quorate.dev", "Ignore"),
        ("pods.quorate.dev", "Fail"),
        ("pods.elsewhere.quorate.dev", "Ignore"),
        ("pod-status.quorate.dev", "Fail"),
        // By default no budget decides a change of labels.
        ("pod-labels.quorate.dev", "Ignore"),
    ];
    let mut wrong = Vec::new();
    for (name, wanted) in WANTED {
        let found = entries.iter().find(|entry| entry.name == name);
        match found.map(|entry| entry.failure_policy.as_deref().unwrap_or("Fail")) {
            Some(policy) if policy == wanted => {}
            Some(policy) => wrong.push(format!("{name} has failurePolicy {policy}, not {wanted}")),
            None => wrong.push(format!("{name} is missing")),
        }
    }
    match wrong.is_empty() {
        true => section.good("failurePolicy is Fail where a budget enforces, and Ignore elsewhere"),
        false => wrong.into_iter().for_each(|what| section.bad(what, REGISTER)),
    }
}

fn authority(section: &mut Section, bundle: &[u8]) {
    let now = Timestamp::now();
    let ends: Vec<Timestamp> = x509_parser::pem::Pem::iter_from_buffer(bundle)
        .filter_map(|pem| {
            let pem = pem.ok()?;
            let ends = pem.parse_x509().ok()?.validity().not_after.timestamp();
            Timestamp::from_second(ends).ok()
        })
        .collect();
    let hint = "the leader replaces it by itself: check the log of the leader";
    match ends.iter().max() {
        None => section.bad("the caBundle of the webhooks cannot be read", hint),
        Some(last) if *last <= now => section.bad(format!("the CA expired at {last}"), hint),
        Some(last) if *last < now + SOON => section.warn(format!("the CA expires soon, at {last}"), hint),
        Some(last) => section.good(format!("the CA is valid until {last:.0}")),
    }
}

/// Sends a dry run that only a server rejects, to find out whether the API server reaches one.
async fn reached(client: &Client, own: &str, section: &mut Section) {
    let gvk = GroupVersionKind::gvk("policy.quorate.dev", "v1alpha1", "DisruptionBudget");
    let budgets: Api<DynamicObject> = Api::namespaced_with(client.clone(), own, &ApiResource::from_gvk(&gvk));
    let senseless = json!({
        "apiVersion": "policy.quorate.dev/v1alpha1", "kind": "DisruptionBudget",
        "metadata": {"name": "quorate-check"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"no label/at all": "x"}}},
    });
    let Ok(senseless) = serde_json::from_value(senseless) else { return };
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let hint = "check the Service and its endpoints, the network policies, and the log of the API server";
    match budgets.create(&dry, &senseless).await {
        Ok(_) => section.bad("the API server does not reach any server", hint),
        Err(Error::Api(status)) if status.message.contains("denied the request") => {
            section.good("the API server reaches a server");
        }
        Err(Error::Api(status)) if status.code == 403 => section.warn(
            format!("cannot check whether the API server reaches a server: {}", status.message),
            "you need the verb create on disruptionbudgets.policy.quorate.dev, for a dry run",
        ),
        Err(error) => section
            .bad(format!("the API server does not answer a dry run: {}", quorate_kit::Plain(&error)), hint),
    }
}
