//! The webhooks: there, as intended, trusted, and reached from the API server.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, Error};
use serde_json::json;

use super::report::Section;

/// The name of both configurations.
const NAME: &str = "quorate";

/// Certificates that end sooner than this are worth a word.
const SOON: SignedDuration = SignedDuration::from_hours(24 * 7);

const REGISTER: &str = "the chart has it, or a server with --register-webhooks writes it; look at the log of the one that holds the lease";

pub(super) async fn check(client: &Client, own: &str) -> Section {
    let mut section = Section::new("webhooks");
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let mut entries = Vec::new();
    match mutating.get(NAME).await {
        Ok(configuration) => entries.extend(
            configuration
                .webhooks
                .into_iter()
                .flatten()
                .map(|hook| (hook.name, hook.failure_policy, hook.client_config.ca_bundle)),
        ),
        Err(error) => missing(&mut section, "MutatingWebhookConfiguration", &error),
    }
    match validating.get(NAME).await {
        Ok(configuration) => entries.extend(
            configuration
                .webhooks
                .into_iter()
                .flatten()
                .map(|hook| (hook.name, hook.failure_policy, hook.client_config.ca_bundle)),
        ),
        Err(error) => missing(&mut section, "ValidatingWebhookConfiguration", &error),
    }
    if section.is_bad() {
        return section;
    }
    section.good(format!("{} entries are registered", entries.len()));
    policies(&mut section, &entries);
    if let Some(bundle) = entries.iter().find_map(|(_, _, bundle)| bundle.as_ref()) {
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
        error => section.unseen(&format!("{}s.admissionregistration.k8s.io", kind.to_lowercase()), error),
    }
}

/// Where a budget enforces, no answer means no; everywhere else it means yes.
fn policies<B>(section: &mut Section, entries: &[(String, Option<String>, B)]) {
    let mut wrong = Vec::new();
    for (kind, wanted) in [("evictions", "Fail"), ("pods", "Fail")] {
        for (name, wanted) in
            [(format!("{kind}.quorate.dev"), wanted), (format!("{kind}.elsewhere.quorate.dev"), "Ignore")]
        {
            let found = entries.iter().find(|(entry, _, _)| *entry == name);
            match found.map(|(_, policy, _)| policy.as_deref().unwrap_or("Fail")) {
                Some(policy) if policy == wanted => {}
                Some(policy) => wrong.push(format!("{name} has failurePolicy {policy}, not {wanted}")),
                None => wrong.push(format!("{name} is missing")),
            }
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
