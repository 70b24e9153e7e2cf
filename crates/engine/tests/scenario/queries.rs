//! Commands that query the engine, and how their results are printed.

use std::fmt::Write as _;

use quorate_engine::basics::{Labels, Time};
use quorate_engine::callers::Caller;
use quorate_engine::claims::Target;
use quorate_engine::decision::{Allow, Decision};
use quorate_engine::facts::Operation;
use quorate_engine::request::{Placement, Request};
use quorate_engine::sentence;
use quorate_engine::status::Status;

use super::cluster::{Cluster, key};
use super::words::Words;

const SYSTEM: &str = "system:serviceaccount:kube-system:";

/// Runs a query; `None` if the verb is not a query.
pub(crate) fn run(cluster: &mut Cluster, verb: &str, words: &mut Words) -> Result<Option<String>, String> {
    let operation = match verb {
        "evict" | "take" => Operation::Evict,
        "delete" => Operation::Delete,
        "update" => Operation::Update,
        "resize" => Operation::Resize,
        "relabel" => Operation::Relabel,
        "status" | "numbers" | "groups" | "conditions" => {
            let name = words.next()?;
            let budget = cluster.budget_key(&name)?;
            let status = cluster.engine.status(&budget, cluster.now).ok_or("not known")?;
            return Ok(Some(match verb {
                "numbers" => format!("{name}: {}", numbers(&status)),
                "groups" => groups(&status, cluster.now, words.number("first")?),
                "conditions" => conditions(&status),
                _ => format!("{name}: {}{}{}", numbers(&status), claims(&status), conditions(&status)),
            }));
        }
        "memory" => {
            let name = words.next()?;
            let budget = cluster.budget_key(&name)?;
            let memory = cluster.engine.status(&budget, cluster.now).ok_or("not known")?.memory;
            let sources = memory.sources.iter();
            let sources: Vec<_> = sources.map(|source| format!("{}/{}", source.kind, source.name)).collect();
            return Ok(Some(format!("{name} remembers: {}\n", sources.join(" "))));
        }
        "covering" => {
            let pod = words.next()?;
            let uid = cluster.pods.get(&key(&pod)).ok_or("no such pod")?.uid.clone();
            let budgets: Vec<_> = cluster.engine.covering(&uid).iter().map(ToString::to_string).collect();
            return Ok(Some(format!("{pod}: {}\n", budgets.join(", "))));
        }
        "covered" => {
            let name = words.next()?;
            let budget = cluster.budget_key(&name)?;
            let pods: Vec<_> =
                cluster.engine.covered(&budget).iter().map(|pod| pod.key.name.to_string()).collect();
            return Ok(Some(format!("{name}: {}\n", pods.join(" "))));
        }
        _ => return Ok(None),
    };
    decide(cluster, verb, operation, words).map(Some)
}

fn decide(
    cluster: &mut Cluster,
    verb: &str,
    operation: Operation,
    words: &mut Words,
) -> Result<String, String> {
    let name = words.next()?;
    let object = cluster.pods.get(&key(&name)).cloned();
    let by = words.take("by").unwrap_or("alice".to_owned());
    let user = match by.as_str() {
        "lws-controller" => "system:serviceaccount:lws-system:lws-controller-manager".to_owned(),
        short if short.ends_with("-controller") || short.ends_with("-collector") => {
            format!("{SYSTEM}{short}")
        }
        other => other.to_owned(),
    };
    let caller = Caller {
        user: user.into(),
        names_uid: words.flag("names-uid"),
        no_grace: words.flag("no-grace"),
        only_owners: words.flag("only-owners"),
    };
    let (precondition, dry_run) = (words.take("uid").map(Into::into), words.flag("dry-run"));
    let placement = object.as_ref().filter(|_| operation == Operation::Relabel).and_then(|pod| {
        let (given, orphan) = (words.labels(), words.flag("orphan"));
        let stays = pod.labels.iter().filter(|(key, _)| !given.iter().any(|(other, _)| other == key));
        // A label without a value is removed.
        let set = given.iter().filter(|(_, value)| !value.is_empty());
        let labels = Labels::new(stays.chain(set.map(|(key, value)| (key.as_str(), value.as_str()))));
        let owners = if orphan { [].into() } else { pod.owners.clone() };
        let moves = orphan || !given.is_empty();
        moves.then(|| Box::new(Placement { labels, owners, ..pod.into() }))
    });
    let request = Request {
        operation,
        pod: key(&name),
        object: object.as_ref().filter(|_| operation != Operation::Evict).map(Into::into),
        precondition,
        caller,
        dry_run,
        target: Target::default(),
        placement,
    };
    let decision = cluster.engine.decide(&request, cluster.now);
    if let (true, Decision::Allow(Allow::Agreed { uid, reasons, .. })) = (verb == "take", &decision) {
        let token = format!("{verb}-{name}");
        for (budget, _) in reasons {
            cluster.add_claim(budget, uid, &name, &token, operation, &by);
        }
    }
    Ok(format!("{verb} {name}: {}", describe(&decision, cluster.now)))
}

fn describe(decision: &Decision, now: Time) -> String {
    match decision {
        Decision::Allow(Allow::Exempt(who)) => format!("allowed, {who} is exempt\n"),
        Decision::Allow(Allow::NoEffect { why, .. }) => format!("allowed, {why:?}\n"),
        Decision::Allow(Allow::NotCovered { .. }) => "allowed, no budget covers it\n".to_owned(),
        Decision::Allow(Allow::Agreed { reasons, .. }) => {
            let each: Vec<_> =
                reasons.iter().map(|(budget, reason)| format!("{} {reason:?}", budget.object.name)).collect();
            format!("allowed, {}\n", each.join(", "))
        }
        Decision::Deny(denials) => {
            let mut text = "denied\n".to_owned();
            for denial in denials {
                let _ = writeln!(text, "  {}", sentence::denial(denial, now));
            }
            text
        }
    }
}

/// The numbers in units, and those in pods in brackets where they differ.
fn numbers(status: &Status) -> String {
    let units = status.units;
    let mut text = format!(
        "allowed {}, healthy {}, desired {}, expected {}",
        units.allowed, units.current, units.desired, units.expected
    );
    let pods = (status.pods_healthy, status.pods_desired, status.pods_expected);
    if pods != (units.current, units.desired, units.expected) {
        let _ = write!(text, " (pods: healthy {}, desired {}, expected {})", pods.0, pods.1, pods.2);
    }
    text + "\n"
}

fn claims(status: &Status) -> String {
    let mut text = String::new();
    for (word, pods) in [("disrupted", &status.disrupted), ("updating", &status.updating)] {
        if !pods.is_empty() {
            let names: Vec<_> = pods.iter().map(|(pod, _)| pod.to_string()).collect();
            let _ = writeln!(text, "  {word}: {}", names.join(" "));
        }
    }
    text
}

fn conditions(status: &Status) -> String {
    status.conditions.iter().fold(String::new(), |mut text, condition| {
        let holds = if condition.status { "True" } else { "False" };
        let _ =
            writeln!(text, "  {}={holds} {}: {}", condition.kind.name(), condition.reason, condition.message);
        text
    })
}

fn groups(status: &Status, now: Time, first: Option<u32>) -> String {
    let mut text = String::new();
    for group in status.groups.iter().take(first.unwrap_or(u32::MAX) as usize) {
        let _ = match group.gone_since {
            Some(since) => writeln!(text, "  {}: gone for {}s", group.name, now.since(since).as_secs()),
            None => {
                writeln!(
                    text,
                    "  {}: {} healthy of {}, needs {}",
                    group.name, group.healthy, group.pods, group.min_count
                )
            }
        };
    }
    if status.groups_omitted > 0 {
        let _ = writeln!(text, "  and {} more", status.groups_omitted);
    }
    text
}
