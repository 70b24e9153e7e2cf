//! Explanations as text.

use std::fmt::Write as _;

use quorate_engine::condition_reason::Severity;
use quorate_engine::facts::Operation;

use super::answer::{
    BudgetAnswer, BudgetDecision, Condition, Explained, Explanation, NodeAnswer, PodAnswer, UnlistedResource,
};
use crate::output::Mark;

/// The text of an explanation. `within` is the namespace that it is about, if it is about one.
pub(super) fn render(explained: &Explained, within: Option<&str>) -> String {
    let mut text = String::new();
    match explained {
        Explained::Pods(pods) if pods.is_empty() => {
            let _ = match within {
                Some(namespace) => writeln!(text, "There is no pod in namespace {namespace}."),
                None => writeln!(text, "There is no pod in any namespace."),
            };
        }
        Explained::Pods(pods) => pods.iter().for_each(|answer| pod(&mut text, answer)),
        Explained::Node(answer) => node(&mut text, answer),
        Explained::Budgets(budgets) if budgets.is_empty() => {
            let _ = match within {
                Some(namespace) => writeln!(text, "There is no budget in namespace {namespace}."),
                None => writeln!(text, "There is no budget in any namespace."),
            };
        }
        Explained::Budgets(budgets) => budgets.iter().for_each(|answer| budget(&mut text, answer)),
    }
    text
}

/// The notes, each one line; all resources that the user may not list are in one of them.
pub(super) fn notes(answer: &Explanation) -> Vec<String> {
    left_out(&answer.left_out).into_iter().chain(answer.notes.iter().cloned()).collect()
}

fn left_out(unlisted: &[UnlistedResource]) -> Option<String> {
    let part = |UnlistedResource { resource, unknown }: &UnlistedResource| {
        format!("{resource} (left out: {unknown})")
    };
    let parts: Vec<String> = unlisted.iter().map(part).collect();
    (!parts.is_empty()).then(|| format!("you may not list {}", parts.join(", ")))
}

fn participle(operation: Operation) -> &'static str {
    match operation {
        Operation::Evict => "evicted",
        Operation::Delete => "deleted",
        Operation::Update => "updated",
        Operation::Resize => "resized",
        Operation::Relabel => "relabelled",
    }
}

fn pod(text: &mut String, answer: &PodAnswer) {
    let PodAnswer { namespace, name, node, operation, allowed, why, budgets } = answer;
    let location = node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let may = if *allowed { "may be" } else { "may not be" };
    let (mark, done) = (Mark::of(*allowed), participle(*operation));
    let _ = write!(text, "{mark} pod {namespace}/{name}{location} {may} {done} now");
    match why {
        Some(why) => writeln!(text, ": {why}"),
        None => writeln!(text),
    }
    .unwrap_or_default();
    budgets.iter().for_each(|decision| budget_decision(text, decision));
}

fn budget_decision(text: &mut String, BudgetDecision { budget, agrees, why, numbers, .. }: &BudgetDecision) {
    // The sentence of a denial contains the budget and the numbers; that of an agreement does not.
    let _ = match agrees {
        false => writeln!(text, "    {} {why}", Mark::Bad),
        true => writeln!(
            text,
            "    {} {budget}: {why} ({} of {} {}s healthy, {} must stay)",
            Mark::Good,
            numbers.healthy,
            numbers.expected,
            numbers.unit,
            numbers.desired
        ),
    };
}

fn node(text: &mut String, NodeAnswer { node, pods, left }: &NodeAnswer) {
    let free = pods.iter().filter(|pod| pod.allowed).count();
    let _ = write!(text, "{} node {node}: ", Mark::of(free == pods.len()));
    let _ = match pods.len() {
        0 => write!(text, "no pod to evict"),
        all => write!(text, "{free} of {all} pods may be evicted now, each by itself"),
    };
    let _ = match left {
        0 => writeln!(text),
        1 => writeln!(text, "; a drain skips 1 more"),
        more => writeln!(text, "; a drain skips {more} more"),
    };
    for answer in pods {
        text.push_str("  ");
        pod(text, answer);
    }
}

fn budget(text: &mut String, answer: &BudgetAnswer) {
    let BudgetAnswer { namespace, name, kind, numbers, summary, down, conditions } = answer;
    let _ = writeln!(text, "{} {kind} {namespace}/{name}: {summary}", Mark::of(numbers.allowed > 0));
    for reason in down {
        let _ = writeln!(text, "    {} {reason}", Mark::Bad);
    }
    // The numbers already show that a budget allows nothing now, which is normal.
    let is_problem =
        |condition: &&Condition| !condition.status && condition.reason.severity() != Severity::Normal;
    for Condition { reason, message, .. } in conditions.iter().filter(is_problem) {
        let _ = writeln!(text, "    {} {reason}: {message}", Mark::Warning);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_on_unlisted_resources_is_one_line() {
        assert_eq!(left_out(&[]), None);
        let unlisted = |resource: &str, unknown| UnlistedResource { resource: resource.to_owned(), unknown };
        let two = [unlisted("nodes", "whether they are ready"), unlisted("pods", "everything")];
        let expected =
            "you may not list nodes (left out: whether they are ready), pods (left out: everything)";
        assert_eq!(left_out(&two).as_deref(), Some(expected));
    }
}
