//! The webhooks: there, as intended, trusted, and reached from the API server.

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

/// Certificates that end sooner than this are worth a word.
const SOON: SignedDuration = SignedDuration::from_hours(24 * 7);

const REGISTER: &str = "the chart has it, or a server with --register-webhooks writes it; look at the log of the one that holds the lease";

/// What both kinds of configuration have.
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
        let asked = match Request::new(url).get(NAME, &GetParams::default()) {
            Ok(request) => client.request::<Configuration>(request).await,
            Err(error) => Err(Error::BuildRequest(error)),
        };
        match asked {
            Ok(configuration) => entries.extend(configuration.webhooks),
            Err(error) => missing(&mut section, kind, &error),
        }
    }
    if section.is_bad() {
        return section;
    }
    section.good(format!("{} entries are registered", entries.len()));
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
            section.bad(format!("there is no {kind} {NAME}: nothing is held up"), REGISTER);
        }
        error => section.unlisted(&format!("{}s.admissionregistration.k8s.io", kind.to_lowercase()), error),
    }
}

/// Where a budget enforces, no answer means no; everywhere else it means yes.
fn policies(section: &mut Section, entries: &[Entry]) {
    const WANTED: [(&str, &str); 5] = [
        ("evictions.quorate.dev", "Fail"),
        ("evictions.elsewhere.quorate.dev", "Ignore"),
        ("pods.quorate.dev", "Fail"),
        ("pods.elsewhere.quorate.dev", "Ignore"),
        ("pod-status.quorate.dev", "Fail"),
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
    let hint = "the server that holds the lease replaces it by itself: look at its log";
    match ends.iter().max() {
        None => section.bad("the authority that the API server is to trust cannot be read", hint),
        Some(last) if *last <= now => section.bad(format!("the authority ended at {last}"), hint),
        Some(last) if *last < now + SOON => section.warn(format!("the authority ends soon, at {last}"), hint),
        Some(last) => section.good(format!("the authority is good until {last:.0}")),
    }
}

/// Asks for something that only a server refuses: whether the API server reaches one.
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
    let hint = "look at the Service and its endpoints, at network policies, and at the log of the API server";
    match budgets.create(&dry, &senseless).await {
        Ok(_) => section.bad("the API server does not reach any server", hint),
        Err(Error::Api(status)) if status.message.contains("denied the request") => {
            section.good("the API server reaches a server");
        }
        Err(Error::Api(status)) if status.code == 403 => section.warn(
            format!("whether the API server reaches a server is not known: {}", status.message),
            "you need the verb create on disruptionbudgets.policy.quorate.dev, for a dry run",
        ),
        Err(error) => section
            .bad(format!("the API server does not answer a dry run: {}", quorate_kit::Plain(&error)), hint),
    }
}
