//! `quorate explain`: what a server would decide now, and why.
//!
//! It sends no request to a server: it reads the same objects and applies the same rules. The Leases of the servers show
//! how they were started and what they have received. If the user may not list everything, the answer uses what the user can list,
//! and a note lists what is left out.

mod answer;
mod notes;
mod text;

use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use quorate_engine::basics::ObjectKey;
use quorate_engine::facts::{BudgetKey, BudgetKind, Operation, Pod};
use quorate_server::ServePub;
use quorate_server::view::{Assumed, Unlisted, View};

use crate::cluster::{CHECK_ADDRESS, Location, OLDEST, is_too_old};
use crate::gates::Features;
use crate::output::{self, Format};
use answer::{Explained, Explainer, Explanation};

/// Resource names of budgets. Budgets of both kinds with the same name are explained together, because both can cover
/// a pod.
const BUDGETS: [&str; 8] = [
    "budget",
    "budgets",
    "dbu",
    "disruptionbudget",
    "disruptionbudgets",
    "pub",
    "podunavailablebudget",
    "podunavailablebudgets",
];

/// Exit code if a disruption would be denied now.
const BLOCKED: u8 = 2;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Object to explain: pod/NAME, pods, node/NAME or budget/NAME; defaults to all budgets of the namespace
    what: Option<String>,
    #[command(flatten)]
    location: Location,
    /// Operation to explain
    #[arg(long, value_parser = operation_parser(), default_value = "evict")]
    operation: Operation,
    /// Output format: json or yaml
    #[arg(short, long, value_enum)]
    output: Option<Format>,
    /// Feature gates of the servers, as Name=true,Other=false; defaults to those that the servers publish
    #[arg(long, value_parser = crate::gates::parse)]
    feature_gates: Option<Features>,
}

/// Parses an operation by its verb.
fn operation_parser() -> impl TypedValueParser<Value = Operation> {
    let verbs = PossibleValuesParser::new(Operation::ALL.map(Operation::verb));
    // The parser accepts no other word.
    verbs.map(|verb| Operation::ALL.into_iter().find(|one| one.verb() == verb).unwrap_or(Operation::Evict))
}

/// The object to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Pod(String),
    Pods,
    Node(String),
    Budget(String),
    Budgets,
}

/// Explains; the exit code is 2 if a disruption would be denied.
pub(crate) async fn run(args: Args) -> Result<ExitCode> {
    let subject = subject(args.what.as_deref())?;
    if matches!(subject, Subject::Pod(_) | Subject::Node(_)) && args.location.all_namespaces {
        bail!(
            "--all-namespaces applies only to budgets and pods: use --namespace for one pod, neither for a node"
        );
    }
    let cluster = args.location.cluster.connect().await?;
    let release = cluster.release().await.map_err(|silent| anyhow!("{silent}: {CHECK_ADDRESS}"))?;
    if let Some(release) = release.filter(is_too_old) {
        let name = &release.git_version;
        eprintln!("note: {name} is older than 1.{OLDEST}, the oldest release that Quorate is tested on");
    }
    let assumed = args.feature_gates.map_or_else(Assumed::default, |features| Assumed {
        gates: Some(features.gates),
        serve_pub: (!features.pod_unavailable_budget).then_some(ServePub::Never),
    });
    let namespace = args.location.namespace.unwrap_or(cluster.namespace);
    // The pods on a node are of all namespaces, so one namespace is not enough.
    let everywhere = args.location.all_namespaces || matches!(subject, Subject::Node(_));
    let within = (!everywhere).then_some(namespace.as_str());
    let own = args.location.cluster.quorate_namespace.as_str();
    let mut view = View::load(&cluster.client, assumed, own, within).await?;
    let by_leases = depends_on_leases(&mut view, &subject, &namespace);
    let unlisted: Vec<Unlisted> =
        view.unlisted().iter().filter(|unlisted| by_leases || !unlisted.of_probes).cloned().collect();
    let notes = notes::about(&view, args.feature_gates.is_some());
    let mut looking = Explainer::new(&mut view, args.operation);
    let explained = match &subject {
        Subject::Pod(name) => {
            Explained::Pods(vec![looking.pod(&ObjectKey::new(namespace.as_str(), name.as_str()))?])
        }
        Subject::Pods => Explained::Pods(looking.pods(|pod| everywhere || *pod.key.namespace == *namespace)),
        Subject::Node(name) => looking.node(name)?,
        Subject::Budget(name) => {
            Explained::Budgets(looking.budget(&ObjectKey::new(namespace.as_str(), name.as_str()))?)
        }
        Subject::Budgets => Explained::Budgets(
            looking.budgets(|key: &BudgetKey| everywhere || *key.object.namespace == *namespace),
        ),
    };
    let allowed = explained.is_allowed();
    let answer = Explanation::new(explained, &unlisted, notes);
    if args.output.is_none() {
        text::notes(&answer).iter().for_each(|note| eprintln!("note: {note}"));
    }
    output::print(args.output, &answer, || text::render(&answer.explained, within))?;
    Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::from(BLOCKED) })
}

/// Whether the answer depends on Leases: on the agent of a pod with a probe, or on how the servers were started.
fn depends_on_leases(view: &mut View, subject: &Subject, namespace: &str) -> bool {
    let matters = |pod: &&Pod| match subject {
        Subject::Pod(name) => *pod.key.namespace == *namespace && *pod.key.name == **name,
        Subject::Node(name) => pod.node.as_deref() == Some(name.as_str()),
        Subject::Pods | Subject::Budget(_) | Subject::Budgets => true,
    };
    let engine = view.engine();
    let probed = engine.pods().filter(|pod| pod.probe.is_some()).any(|pod| matters(&pod));
    probed || engine.budgets().any(|budget| budget.key.kind == BudgetKind::PodUnavailableBudget)
}

fn subject(what: Option<&str>) -> Result<Subject> {
    let Some(what) = what else { return Ok(Subject::Budgets) };
    let (kind, name) = what.split_once('/').unwrap_or((what, ""));
    let named = || match name.is_empty() {
        true => bail!("{kind} has no name: write {kind}/NAME"),
        false => Ok(name.to_owned()),
    };
    Ok(match kind {
        "pods" if name.is_empty() => Subject::Pods,
        "pod" | "pods" | "po" => Subject::Pod(named()?),
        "node" | "nodes" | "no" => Subject::Node(named()?),
        kind if BUDGETS.contains(&kind) && name.is_empty() => Subject::Budgets,
        kind if BUDGETS.contains(&kind) => Subject::Budget(named()?),
        _ => bail!("cannot explain {kind}: use pod/NAME, pods, node/NAME or budget/NAME"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_names_the_object_to_explain() {
        for (what, expected) in [
            (None, Ok(Subject::Budgets)),
            (Some("pod/web-0"), Ok(Subject::Pod("web-0".to_owned()))),
            (Some("node/a"), Ok(Subject::Node("a".to_owned()))),
            (Some("dbu/llm"), Ok(Subject::Budget("llm".to_owned()))),
            (Some("pub/web"), Ok(Subject::Budget("web".to_owned()))),
            (Some("budgets"), Ok(Subject::Budgets)),
            (Some("pods"), Ok(Subject::Pods)),
            (Some("pod"), Err("pod has no name: write pod/NAME")),
            (Some("pod/"), Err("pod has no name: write pod/NAME")),
            (Some("service/x"), Err("cannot explain service: use pod/NAME, pods, node/NAME or budget/NAME")),
        ] {
            let got = subject(what).map_err(|error| error.to_string());
            assert_eq!(got, expected.map_err(str::to_owned), "{what:?}");
        }
    }
}
