//! Checks the budgets, their namespaces, and the pods they cover.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use quorate_api::names::{ENFORCED, kruise};
use quorate_api::slim;
use quorate_engine::Engine;
use quorate_engine::basics::{ObjectKey, Text, Time};
use quorate_engine::condition_reason::Severity;
use quorate_engine::decision::ProbeDoubt;
use quorate_engine::facts::{BudgetKey, BudgetKind, NativeBudget};
use quorate_engine::status::ConditionType;
use quorate_intake::objects;
use quorate_kit::watch::WatchSource;
use quorate_server::ServePub;
use quorate_server::view::{Assumed, Servers, Unlisted, View};

use super::report::Section;
use super::stores;
use crate::started::flags;

/// Maximum number of names in a finding.
const NAMED: usize = 5;

/// Also adds to the section of the servers how they were started.
pub(super) async fn check(client: &Client, own: &str, of_servers: &mut Section) -> Section {
    let mut section = Section::new("budgets");
    let mut view = match View::load(client, Assumed::default(), own, None).await {
        Ok(view) => view,
        Err(obstacle) => {
            section.bad(obstacle.to_string(), "`quorate check` must read the same resources as a server");
            return section;
        }
    };
    for Unlisted { what, unknown, .. } in view.unlisted() {
        section.bad(
            format!("cannot list {what}"),
            format!("you need the verbs list and watch on it; without them it is unknown {unknown}"),
        );
    }
    started(view.servers(), of_servers);
    let now = view.now();
    conditions(view.engine(), now, &mut section);
    namespaces(client, view.engine(), &mut section).await;
    probes(&mut view, &mut section);
    native(client, view.engine(), &mut section).await;
    let opened = view.engine().budgets().any(|budget| budget.key.kind == BudgetKind::PodUnavailableBudget);
    kruise(client, view.serve_pub(), opened, &mut section).await;
    stores::check(client, &mut section).await;
    section
}

/// How the servers were started, where that is not the default, and whether they agree about it.
fn started(servers: &Servers, section: &mut Section) {
    if servers.differ() {
        section.warn(
            "the servers were started in different ways: a decision depends on which one the API server calls",
            "wait until the rollout is complete, or start all servers with the same flags",
        );
    } else if let Some(flags) = servers.settings().and_then(flags) {
        section.good(format!("the servers run with {flags}"));
    }
}

/// Checks the conditions of each budget.
fn conditions(engine: &mut Engine, now: Time, section: &mut Section) {
    let mut keys: Vec<BudgetKey> = engine.budgets().map(|budget| budget.key.clone()).collect();
    keys.sort();
    let mut well = 0;
    for key in &keys {
        let Some(status) = engine.status(key, now) else { continue };
        let wrong =
            status.conditions.iter().find(|c| !c.status && c.kind != ConditionType::DisruptionAllowed);
        match wrong {
            None => well += 1,
            Some(c) if c.reason.severity() == Severity::Error => {
                section.bad(format!("{key}: {}", c.reason), c.message.clone());
            }
            Some(c) => section.warn(format!("{key}: {}", c.reason), c.message.clone()),
        }
    }
    match (keys.len(), well) {
        (0, _) => section.good("there is no budget"),
        (all, well) => section.good(format!("{well} of {all} budgets are enforced and valid")),
    }
}

/// Checks the label of namespaces with an enforcing budget. It selects the webhooks whose failurePolicy is Fail.
async fn namespaces(client: &Client, engine: &Engine, section: &mut Section) {
    let enforcing: BTreeSet<Text> = engine
        .budgets()
        .filter(|budget| budget.spec.as_ref().map_or(true, |rules| !rules.observe))
        .map(|budget| budget.key.object.namespace.clone())
        .collect();
    let all = match Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await {
        Ok(all) => all,
        Err(error) => return section.unlisted("namespaces", &error),
    };
    let bare: Vec<String> = all
        .iter()
        .filter(|namespace| enforcing.contains(namespace.name_any().as_str()))
        .filter(|namespace| !namespace.labels().contains_key(ENFORCED))
        .map(|namespace| namespace.name_any())
        .collect();
    match bare.is_empty() {
        true => section.good(format!("{} namespaces with an enforcing budget are labelled", enforcing.len())),
        false => section.bad(
            format!("namespaces with an enforcing budget, but without the label {ENFORCED}: {}", few(&bare)),
            "the leader sets it within seconds: check the log of the leader",
        ),
    }
}

/// Checks that an agent runs every probe.
fn probes(view: &mut View, section: &mut Section) {
    let now = view.now();
    let without_agent = |engine: &mut Engine| {
        engine.advance(now);
        let probed = engine.pods().filter(|pod| pod.probe.is_some());
        let doubts = probed.map(|pod| (pod.node.clone(), engine.probe_doubt(&pod.uid)));
        doubts
            .filter(|(_, doubt)| matches!(doubt, Some(ProbeDoubt::NoAgent | ProbeDoubt::AgentStale)))
            .filter_map(|(node, _)| node.map(|node| node.to_string()))
            .collect::<BTreeSet<String>>()
    };
    let nodes: Vec<String> = without_agent(view.engine()).into_iter().collect();
    let probed = view.engine().pods().filter(|pod| pod.probe.is_some()).count();
    match (probed, nodes.is_empty()) {
        (0, _) => section.good("no pod has a disruption probe"),
        (_, true) => section.good(format!("{probed} pods have a disruption probe, and agents run them")),
        (_, false) => section.bad(
            format!("pods with a disruption probe, and no agent that renews its Lease, on {}", few(&nodes)),
            "start the agent there: until then those pods may not be disrupted",
        ),
    }
}

/// Checks for pods that two native budgets cover: the API server never evicts them.
async fn native(client: &Client, engine: &Engine, section: &mut Section) {
    let source = WatchSource::<slim::PodDisruptionBudget>::all(client.clone());
    let budgets: Vec<(ObjectKey, NativeBudget)> = match source.list().await {
        Ok(listed) => {
            listed.objects.iter().filter_map(|b| objects::native_budget(b).ok()).collect::<Vec<_>>()
        }
        Err(error) => return section.unlisted("poddisruptionbudgets.policy", &error),
    }
    .into_iter()
    .filter_map(|(key, fact)| Some((key, fact?)))
    .collect();
    let mut twice: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for pod in engine.pods() {
        let over = budgets.iter().filter(|(key, budget)| {
            key.namespace == pod.key.namespace && budget.selector.matches(&pod.labels)
        });
        let names: Vec<String> = over.map(|(key, _)| key.name.to_string()).collect();
        if names.len() > 1 {
            twice.insert(pod.key.to_string(), names);
        }
    }
    match twice.first_key_value() {
        None => section.good("no pod is covered by two PodDisruptionBudgets"),
        Some((pod, names)) => section.bad(
            format!("{} pods are covered by two PodDisruptionBudgets, {pod} by {}", twice.len(), few(names)),
            "the API server evicts none of them: merge those budgets",
        ),
    }
}

/// Checks whether OpenKruise or Quorate serves PodUnavailableBudgets. Servers of an earlier release do not say how they
/// were started: `opened` is whether the status of a budget shows that they serve it.
async fn kruise(client: &Client, serve: ServePub, opened: bool, section: &mut Section) {
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let found = match webhooks.get_opt(kruise::WEBHOOKS).await {
        Ok(found) => found,
        Err(error) => {
            return section.unlisted("validatingwebhookconfigurations.admissionregistration.k8s.io", &error);
        }
    };
    let theirs = found.is_some_and(|found| decides_on_pods(&found));
    let served = match serve {
        ServePub::Always => true,
        ServePub::Auto => opened,
        ServePub::Never => false,
    };
    match (theirs, served) {
        (true, true) => {
            section.good("Quorate serves PodUnavailableBudgets, next to OpenKruise's webhooks for pods");
        }
        (true, false) if serve == ServePub::Never => {
            section.good("OpenKruise serves PodUnavailableBudgets, and Quorate does not");
        }
        (true, false) => section.warn(
            "OpenKruise answers for pods: it serves PodUnavailableBudgets, Quorate does not",
            "to serve them with Quorate, switch OpenKruise's gates PodUnavailableBudgetDeleteGate and \
             PodUnavailableBudgetUpdateGate off, and run servers with --serve-pub=always",
        ),
        (false, _) if serve == ServePub::Never => section.warn(
            "neither OpenKruise nor Quorate serves PodUnavailableBudgets",
            "to serve them with Quorate, run servers with --serve-pub=auto",
        ),
        (false, _) => section.good("OpenKruise has no webhooks for pods"),
    }
}

fn decides_on_pods(configuration: &ValidatingWebhookConfiguration) -> bool {
    let mut entries = configuration.webhooks.iter().flatten();
    entries.any(|entry| kruise::POD_WEBHOOKS.contains(&entry.name.as_str()))
}

fn few(names: &[String]) -> String {
    let listed = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}
