//! The webhook configurations, which make the API server call Quorate.
//!
//! Evictions and deletes of pods have two entries each. In a labelled namespace a budget enforces: if no server
//! answers, the API server denies the request. In all other namespaces it then admits the request, so that an outage of
//! Quorate does not affect namespaces without a budget. Because of the second entry, a new budget takes effect at once
//! while a server answers, before its namespace is labelled.
//!
//! The match conditions say which requests the API server need not send. They come from `quorate_intake`, which uses the
//! table of exempt callers.

mod reconcile;
mod trust;

use anyhow::Context as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::api::ObjectMeta;
use quorate_api::names::{ENFORCED, SCHEDULING_GROUP};
use quorate_intake::match_conditions::{self, Entry};

use crate::admission::{BUDGETS, EVICTIONS, LABELS, OWNERS, PODS, PROBES};
use crate::watches::EXCLUDED;
pub(crate) use reconcile::WebhookReconciler;

/// The name of both configurations.
pub const NAME: &str = "quorate";

/// The default timeout of the API server.
const TIMEOUT_SECONDS: i32 = 10;

/// Longer than the lookup of owners may take, and short enough that a pod does not wait long for a server that is gone.
const OWNERS_TIMEOUT_SECONDS: i32 = 3;

/// A database may wait for its new primary, so a server that does not answer must not delay a change of labels for long.
const LABELS_TIMEOUT_SECONDS: i32 = 5;

/// Which component writes the configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagedBy {
    /// The server.
    Server,
    /// Another tool, such as Helm; the server keeps only the CA bundle up to date.
    CaBundleOnly,
    /// Another tool, including the CA bundle.
    Others,
}

/// Where the API server reaches Quorate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// At a URL, `https://host:port`, without a path.
    Url(String),
    /// Behind a Service in Quorate's own namespace.
    Service {
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
}

impl Endpoint {
    /// The names that the serving certificate must contain.
    ///
    /// # Errors
    /// The URL is not valid, or not an HTTPS URL.
    pub fn names(&self, namespace: &str) -> anyhow::Result<Vec<String>> {
        match self {
            Self::Url(url) => {
                let uri: http::Uri = url.parse().with_context(|| format!("{url} is not a URL"))?;
                let host = uri.host().with_context(|| format!("{url} has no host"))?;
                anyhow::ensure!(uri.scheme_str() == Some("https"), "{url} must begin with https://");
                Ok(vec![host.trim_matches(['[', ']']).to_owned()])
            }
            Self::Service { name, .. } => {
                Ok(vec![format!("{name}.{namespace}.svc"), format!("{name}.{namespace}.svc.cluster.local")])
            }
        }
    }
}

/// Where the API server reaches Quorate, which CAs it trusts there, and which namespaces are excluded.
#[derive(Clone, Debug)]
pub struct Address {
    /// The address.
    pub endpoint: Endpoint,
    /// The CA bundle as PEM; empty if managed elsewhere.
    pub bundle: String,
    /// Quorate's own namespace: Quorate does not decide on its own pods.
    pub namespace: String,
    /// Whether pods get the owners that their templates name.
    pub owners: bool,
}

/// Which namespaces an entry applies to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NamespaceScope {
    /// Namespaces with the label.
    Enforced,
    /// All other namespaces.
    Elsewhere,
}

impl NamespaceScope {
    const BOTH: [Self; 2] = [Self::Enforced, Self::Elsewhere];

    fn failure_policy(self) -> Option<String> {
        let policy = match self {
            Self::Enforced => "Fail",
            Self::Elsewhere => "Ignore",
        };
        Some(policy.to_owned())
    }

    /// The name of an entry, as users see it in denials.
    fn name(self, kind: &str) -> String {
        match self {
            Self::Enforced => format!("{kind}.quorate.dev"),
            Self::Elsewhere => format!("{kind}.elsewhere.quorate.dev"),
        }
    }
}

impl Address {
    fn client_config(&self, path: &str) -> WebhookClientConfig {
        let (url, service) = match &self.endpoint {
            Endpoint::Url(url) => (Some(format!("{}{path}", url.trim_end_matches('/'))), None),
            Endpoint::Service { name, port } => {
                let service = ServiceReference {
                    name: name.clone(),
                    namespace: self.namespace.clone(),
                    path: Some(path.to_owned()),
                    port: Some((*port).into()),
                };
                (None, Some(service))
            }
        };
        let bundle = Some(&self.bundle).filter(|bundle| !bundle.is_empty());
        WebhookClientConfig {
            ca_bundle: bundle.map(|bundle| ByteString(bundle.clone().into_bytes())),
            url,
            service,
        }
    }

    /// All namespaces except the excluded ones.
    fn everywhere(&self) -> LabelSelector {
        let excluded = vec![EXCLUDED.to_owned(), self.namespace.clone()];
        let requirement = requirement("kubernetes.io/metadata.name", "NotIn", Some(excluded));
        LabelSelector { match_expressions: Some(vec![requirement]), match_labels: None }
    }

    fn namespaces(&self, scope: NamespaceScope) -> LabelSelector {
        let label = match scope {
            NamespaceScope::Enforced => "Exists",
            NamespaceScope::Elsewhere => "DoesNotExist",
        };
        let mut selector = self.everywhere();
        selector.match_expressions.get_or_insert_default().push(requirement(ENFORCED, label, None));
        selector
    }
}

fn requirement(key: &str, operator: &str, values: Option<Vec<String>>) -> LabelSelectorRequirement {
    LabelSelectorRequirement { key: key.to_owned(), operator: operator.to_owned(), values }
}

/// Evictions are decided here because only a mutating webhook can pin them to a pod. Owners are added here, before
/// validating webhooks see the pod.
pub fn mutating(address: &Address) -> MutatingWebhookConfiguration {
    let entry = |scope: NamespaceScope| MutatingWebhook {
        name: scope.name("evictions"),
        client_config: address.client_config(EVICTIONS),
        rules: Some(vec![rule("", "v1", &["CREATE"], &["pods/eviction"])]),
        namespace_selector: Some(address.namespaces(scope)),
        match_conditions: Some(conditions(Entry::Evictions)),
        failure_policy: scope.failure_policy(),
        side_effects: "NoneOnDryRun".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
        admission_review_versions: vec!["v1".to_owned()],
        ..MutatingWebhook::default()
    };
    let owners = MutatingWebhook {
        name: "owners.quorate.dev".to_owned(),
        client_config: address.client_config(OWNERS),
        rules: Some(vec![rule("", "v1", &["CREATE"], &["pods"])]),
        namespace_selector: Some(address.everywhere()),
        match_conditions: Some(conditions(Entry::Owners)),
        // A pod that starts without an owner is better than one that does not start.
        failure_policy: Some("Ignore".to_owned()),
        // If it is called again after another webhook changed the pod, it adds only missing owners.
        reinvocation_policy: Some("IfNeeded".to_owned()),
        side_effects: "NoneOnDryRun".to_owned(),
        timeout_seconds: Some(OWNERS_TIMEOUT_SECONDS),
        admission_review_versions: vec!["v1".to_owned()],
        ..MutatingWebhook::default()
    };
    let owners = address.owners.then_some(owners);
    MutatingWebhookConfiguration {
        metadata: named(),
        webhooks: Some(NamespaceScope::BOTH.into_iter().map(entry).chain(owners).collect()),
    }
}

/// Deletes, updates, resizes and relabels of pods, and announcements of updates, are decided on the object in the request.
/// Budgets, Workloads and probes are validated.
pub fn validating(address: &Address) -> ValidatingWebhookConfiguration {
    let entry = |scope: NamespaceScope| {
        let rules = match scope {
            NamespaceScope::Enforced => vec![
                rule("", "v1", &["DELETE", "UPDATE"], &["pods"]),
                rule("", "v1", &["UPDATE"], &["pods/resize"]),
            ],
            // Updates are frequent and nearly always harmless: where no budget enforces, they are not worth a call.
            NamespaceScope::Elsewhere => vec![rule("", "v1", &["DELETE"], &["pods"])],
        };
        ValidatingWebhook {
            name: scope.name("pods"),
            client_config: address.client_config(PODS),
            rules: Some(rules),
            namespace_selector: Some(address.namespaces(scope)),
            match_conditions: Some(conditions(Entry::Changes)),
            failure_policy: scope.failure_policy(),
            side_effects: "NoneOnDryRun".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
            admission_review_versions: vec!["v1".to_owned()],
            ..ValidatingWebhook::default()
        }
    };
    // A separate entry: every kubelet writes the status of its pods all the time, and an API server evaluates all
    // conditions of an entry, so this one has few. Where no budget enforces there is no call, as for updates.
    let announcements = ValidatingWebhook {
        name: NamespaceScope::Enforced.name("pod-status"),
        client_config: address.client_config(PODS),
        rules: Some(vec![rule("", "v1", &["UPDATE"], &["pods/status"])]),
        namespace_selector: Some(address.namespaces(NamespaceScope::Enforced)),
        match_conditions: Some(conditions(Entry::Announcements)),
        failure_policy: NamespaceScope::Enforced.failure_policy(),
        side_effects: "NoneOnDryRun".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
        admission_review_versions: vec!["v1".to_owned()],
        ..ValidatingWebhook::default()
    };
    // A separate entry: unlike an update, a change of labels must pass if no server answers. By default no budget decides
    // it, and it must not wait for one.
    let labels = ValidatingWebhook {
        name: NamespaceScope::Enforced.name("pod-labels"),
        client_config: address.client_config(LABELS),
        rules: Some(vec![rule("", "v1", &["UPDATE"], &["pods", "pods/status"])]),
        namespace_selector: Some(address.namespaces(NamespaceScope::Enforced)),
        match_conditions: Some(conditions(Entry::Relabels)),
        failure_policy: Some("Ignore".to_owned()),
        side_effects: "NoneOnDryRun".to_owned(),
        timeout_seconds: Some(LABELS_TIMEOUT_SECONDS),
        admission_review_versions: vec!["v1".to_owned()],
        ..ValidatingWebhook::default()
    };
    let own = ValidatingWebhook {
        name: "budgets.quorate.dev".to_owned(),
        client_config: address.client_config(BUDGETS),
        rules: Some(vec![
            rule("policy.quorate.dev", "v1alpha1", &["CREATE", "UPDATE"], &["disruptionbudgets"]),
            rule("policy.kruise.io", "v1alpha1", &["CREATE", "UPDATE"], &["podunavailablebudgets"]),
            rule(SCHEDULING_GROUP, "v1alpha1", &["CREATE", "UPDATE"], &["workloads"]),
        ]),
        // An invalid budget that is stored while no server answers denies requests, and its status says why.
        failure_policy: Some("Ignore".to_owned()),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
        admission_review_versions: vec!["v1".to_owned()],
        ..ValidatingWebhook::default()
    };
    let probes = ValidatingWebhook {
        name: "probes.quorate.dev".to_owned(),
        client_config: address.client_config(PROBES),
        rules: Some(vec![rule("", "v1", &["CREATE", "UPDATE"], &["pods"])]),
        namespace_selector: Some(address.everywhere()),
        match_conditions: Some(conditions(Entry::Probes)),
        // A pod must start even if no server answers. An invalid probe then always fails, and reports why.
        failure_policy: Some("Ignore".to_owned()),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
        admission_review_versions: vec!["v1".to_owned()],
        ..ValidatingWebhook::default()
    };
    ValidatingWebhookConfiguration {
        metadata: named(),
        webhooks: Some(
            NamespaceScope::BOTH.into_iter().map(entry).chain([announcements, labels, own, probes]).collect(),
        ),
    }
}

fn named() -> ObjectMeta {
    ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() }
}

fn rule(group: &str, version: &str, operations: &[&str], resources: &[&str]) -> RuleWithOperations {
    let owned = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
    RuleWithOperations {
        api_groups: owned(&[group]),
        api_versions: owned(&[version]),
        operations: owned(operations),
        resources: owned(resources),
        scope: Some("Namespaced".to_owned()),
    }
}

fn conditions(entry: Entry) -> Vec<MatchCondition> {
    let condition = |intake: match_conditions::MatchCondition| MatchCondition {
        name: intake.name,
        expression: intake.expression,
    };
    match_conditions::match_conditions(entry).into_iter().map(condition).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(endpoint: Endpoint) -> Address {
        Address { endpoint, bundle: "PEM".to_owned(), namespace: "quorate-system".to_owned(), owners: false }
    }

    #[test]
    fn every_namespace_except_the_excluded_ones_is_in_exactly_one_entry() {
        let address = address(Endpoint::Url("https://quorate.example:9443/".to_owned()));
        for scope in NamespaceScope::BOTH {
            let selector = address.namespaces(scope).match_expressions.unwrap();
            assert_eq!(selector[0].values, Some(vec!["kube-system".to_owned(), "quorate-system".to_owned()]));
            assert_eq!(selector[1].key, "quorate.dev/enforced");
        }
        let operators = NamespaceScope::BOTH
            .map(|scope| address.namespaces(scope).match_expressions.unwrap()[1].operator.clone());
        assert_eq!(operators, ["Exists", "DoesNotExist"]);
    }

    #[test]
    fn only_entries_for_enforced_namespaces_fail_closed() {
        let address = address(Endpoint::Url("https://quorate.example:9443/".to_owned()));
        let entries: Vec<(String, Option<String>, Option<String>)> = mutating(&address)
            .webhooks
            .unwrap()
            .into_iter()
            .map(|entry| (entry.name, entry.failure_policy, entry.client_config.url))
            .chain(
                validating(&address)
                    .webhooks
                    .unwrap()
                    .into_iter()
                    .map(|entry| (entry.name, entry.failure_policy, entry.client_config.url)),
            )
            .collect();
        let expected = [
            ("evictions.quorate.dev", "Fail", "evictions"),
            ("evictions.elsewhere.quorate.dev", "Ignore", "evictions"),
            ("pods.quorate.dev", "Fail", "pods"),
            ("pods.elsewhere.quorate.dev", "Ignore", "pods"),
            ("pod-status.quorate.dev", "Fail", "pods"),
            ("pod-labels.quorate.dev", "Ignore", "labels"),
            ("budgets.quorate.dev", "Ignore", "budgets"),
            ("probes.quorate.dev", "Ignore", "probes"),
        ]
        .map(|(name, policy, path)| {
            let url = format!("https://quorate.example:9443/{path}");
            (name.to_owned(), Some(policy.to_owned()), Some(url))
        });
        assert_eq!(entries, expected);
    }

    #[test]
    fn owners_have_an_entry_only_while_the_feature_is_on() {
        let off = address(Endpoint::Url("https://quorate.example:9443".to_owned()));
        let names = |address: &Address| -> Vec<String> {
            mutating(address).webhooks.unwrap().into_iter().map(|entry| entry.name).collect()
        };
        let on = Address { owners: true, ..off.clone() };
        assert_eq!(names(&on)[..2], names(&off)[..]);
        let entry = mutating(&on).webhooks.unwrap().remove(2);
        assert_eq!(entry.name, "owners.quorate.dev");
        assert_eq!(entry.failure_policy.as_deref(), Some("Ignore"), "a pod always starts");
        assert_eq!(entry.reinvocation_policy.as_deref(), Some("IfNeeded"));
        assert!(entry.match_conditions.unwrap().iter().any(|condition| condition.name == "has-a-controller"));
    }

    #[test]
    fn an_endpoint_gives_the_names_for_its_certificate() {
        let host = |url: &str| Endpoint::Url(url.to_owned()).names("ns").map(|names| names[0].clone());
        assert_eq!(host("https://127.0.0.1:8443").unwrap(), "127.0.0.1");
        assert_eq!(host("https://[::1]:8443").unwrap(), "::1");
        assert_eq!(host("https://quorate.example/base").unwrap(), "quorate.example");
        assert!(host("http://127.0.0.1").is_err());
        assert!(host("nonsense").is_err());
        let service = Endpoint::Service { name: "quorate".to_owned(), port: 443 };
        assert_eq!(service.names("ns").unwrap()[0], "quorate.ns.svc");
    }

    #[test]
    fn a_service_endpoint_has_no_url() {
        let address = address(Endpoint::Service { name: "quorate".to_owned(), port: 443 });
        let config = address.client_config(EVICTIONS);
        assert_eq!(config.url, None);
        let service = config.service.unwrap();
        assert_eq!((service.namespace.as_str(), service.name.as_str()), ("quorate-system", "quorate"));
        assert_eq!((service.path.as_deref(), service.port), (Some("/evictions"), Some(443)));
    }
}
