//! The text of decisions. Denials are the product's main screen.
//!
//! Each denial states the budget, what it counts, the numbers, the reason and what it waits for, in at most 300
//! characters.

use std::fmt::Write;
use std::time::Duration;

use crate::basics::{Text, Time};
use crate::decision::{
    AllowReason, Denial, DenialReason, Departure, Down, Exhausted, Missing, Noun, Numbers, ProbeDoubt,
    Unhealthy, Unresolved,
};
use crate::facts::{BudgetKey, BudgetKind, MAX_SOURCES};
use crate::names::WORKLOAD;
use crate::names::kruise::PROTECT_OPERATIONS;

/// The largest number of characters in a denial.
pub const MAX_LENGTH: usize = 300;

/// The text of a denied request: the sentence of the first denial, and the number of other budgets that deny it.
pub fn refusal(denials: &[Denial], now: Time) -> String {
    let Some(first) = denials.first() else { return "not now".to_owned() };
    let sentence = self::denial(first, now);
    match denials.len() - 1 {
        0 => sentence,
        1 => shorten(format!("{sentence} One more budget denies it.")),
        more => shorten(format!("{sentence} {more} more budgets deny it.")),
    }
}

/// The sentence for one denial.
pub fn denial(denial: &Denial, now: Time) -> String {
    let budget = denial.budget.as_ref().map(ToString::to_string);
    let says = |what: String| match &budget {
        Some(budget) => format!("{budget}: {what}"),
        None => what,
    };
    shorten(match &denial.reason {
        DenialReason::NotSynced => {
            says("not now: Quorate is still starting. Retry in a moment.".to_owned())
        }
        DenialReason::NotFresh { seconds } => says(format!(
            "not now: Quorate has not heard from the API server for {seconds}s. Retry in a moment."
        )),
        DenialReason::NotServing => says(
            "not now: this Quorate server has not renewed its Lease, so it must not decide. \
             Retry: another server may answer."
                .to_owned(),
        ),
        DenialReason::Stale { kind, seconds } => says(format!(
            "not now: {kind} is stale: Quorate has received nothing about it for {seconds}s. Waits until it can be \
             read again. If this lasts, run quorate check."
        )),
        DenialReason::Deadline => {
            says("not now: the budget could not be written in time. Retry in a moment.".to_owned())
        }
        DenialReason::Invalid(why) => says(invalid(why)),
        DenialReason::Unresolved(unresolved) => {
            let kind = denial.budget.as_ref().map_or(BudgetKind::DisruptionBudget, |budget| budget.kind);
            says(self::unresolved(unresolved, kind))
        }
        DenialReason::NotOpen => says(
            "not now: the budget was just created, or its selector changed. Waits until every replica enforces it."
                .to_owned(),
        ),
        DenialReason::Protocol(protocol) => says(format!(
            "not now: another version of Quorate writes this budget (protocol {protocol}). \
             Waits until all replicas run the same version."
        )),
        DenialReason::OutdatedDefinition => says(
            "not now: claims are not stored, because the CustomResourceDefinition is older than this server. \
             Apply the current one (quorate crds)."
                .to_owned(),
        ),
        DenialReason::TooManyClaims => says(
            "not now: too many admitted disruptions are still pending. Waits until some of them complete."
                .to_owned(),
        ),
        DenialReason::Probe { pod, why, since } => says(probe(pod, why, *since, now)),
        DenialReason::NoGroup { pod } => says(format!(
            "pod {pod} names no workload, so its group is not known. \
             Set schedulingGroup or the {WORKLOAD} labels in its template."
        )),
        DenialReason::Exhausted(exhausted) => match &denial.budget {
            Some(budget) => self::exhausted(budget, exhausted, now),
            None => "not now: a budget is exhausted.".to_owned(),
        },
        DenialReason::Native { name, healthy: (has, needs) } => {
            format!("PodDisruptionBudget {name} allows nothing now (has {has} healthy pods, needs {needs}).")
        }
        DenialReason::SeveralNative { pod, names } => {
            let rest = match names.len().saturating_sub(2) {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            let named: Vec<&str> = names.iter().take(2).map(|name| &**name).collect();
            format!(
                "pod {pod} is covered by the PodDisruptionBudgets {}{rest}: the API server does not evict a pod that \
                 has more than one. Let only one of them cover it.",
                named.join(" and ")
            )
        }
    })
}

/// Why a budget is invalid.
pub fn invalid(why: &str) -> String {
    format!("the budget is invalid, so it allows nothing: {why}")
}

/// What cannot be resolved.
pub fn unresolved(unresolved: &Unresolved, kind: BudgetKind) -> String {
    let expected = kind.expected_field();
    match unresolved {
        Unresolved::Group { pod, name } => format!(
            "pod {pod} belongs to {name}, which does not exist, so how many pods the group needs is not known. \
             Create it, or correct the pod's template."
        ),
        Unresolved::Controller { pod, kind, name } => format!(
            "{kind} {name}, the controller of pod {pod}, is not known, so the expected number of pods is not known \
             either. Set {expected}, or an integer minAvailable."
        ),
        Unresolved::Owner { pod, kind, name } => format!(
            "{kind} {name}, the controller of pod {pod}, is not known yet, so the budget may or may not cover the pod. \
             Retry in a moment."
        ),
        Unresolved::Scale { kind, name } => format!(
            "{kind} {name} has no scale, so the expected number of pods is not known. \
             Set {expected}, or an integer minAvailable."
        ),
        Unresolved::Unread { kind: unread, name } => format!(
            "the expected number depends on {} {name}, and {unread} cannot be read. Waits until it can be read; if this \
             lasts, run quorate check. Or set {expected}.",
            unread.kind
        ),
        Unresolved::Sources { .. } => format!(
            "{MAX_SOURCES} or more workloads that the budget covers have no pods now, and it cannot remember them all. \
             Write more budgets for fewer workloads each, or set {expected}."
        ),
    }
}

/// Why a budget allows a request, to be printed after the name of the budget.
pub fn agreement(reason: AllowReason, what: Noun) -> String {
    let unit = noun(what, 1);
    match reason {
        AllowReason::Charged => format!("allows one more {unit} to go down"),
        AllowReason::Surge => format!("the {unit} is above the expected number"),
        AllowReason::Surplus => format!("the {unit} stays healthy without the pod"),
        AllowReason::Unhealthy => "the pod is already unhealthy".to_owned(),
        AllowReason::Broken => format!("the {unit} is already down"),
        AllowReason::Pending => "the pod has not started yet".to_owned(),
        AllowReason::Recreate => "its controller may have all its pods down at once".to_owned(),
        AllowReason::PassesBy => "does not protect the pod against this operation".to_owned(),
        AllowReason::Observed => "would deny it, but only observes".to_owned(),
        AllowReason::Leaves => {
            "does not decide which pods leave it: Relabel is not among its operations".to_owned()
        }
    }
}

/// The warning about a pod that leaves a budget or a group: what counts without it, and how the budget could decide it.
pub fn departure(departure: &Departure) -> String {
    let Departure { pod, budget, is_twin, group, noun: what, numbers } = departure;
    let Numbers { current, desired, .. } = *numbers;
    let from = match group {
        Some(group) => format!("group {group} of {budget}"),
        None => budget.to_string(),
    };
    let remedy = match budget.kind {
        // The annotations that request a twin have no operations.
        BudgetKind::DisruptionBudget if *is_twin => {
            "replace the PodDisruptionBudget with a DisruptionBudget that has Relabel in its operations"
                .to_owned()
        }
        BudgetKind::DisruptionBudget => "add Relabel to its operations".to_owned(),
        BudgetKind::PodUnavailableBudget => format!("add RELABEL to its annotation {PROTECT_OPERATIONS}"),
    };
    let (words, are) = (noun(*what, current), of_number(current));
    shorten(format!(
        "pod {pod} leaves {from}: {current} {words} {are} healthy without it, {desired} must stay. \
         The budget does not decide this; to let it, {remedy}."
    ))
}

/// Why a unit is down: "group 1 is missing llm-1-3, not ready for 4m".
pub fn why_down(what: Noun, unit: &Down, now: Time) -> String {
    down(what, unit, now, usize::MAX)
}

/// The state of a budget: "3 of 4 groups are healthy, 3 must stay: none may be disrupted now."
pub fn summary(what: Noun, numbers: Numbers) -> String {
    let Numbers { allowed, current, desired, expected } = numbers;
    if expected == 0 {
        return format!("No {} are expected, so none may be disrupted.", noun(what, 0));
    }
    let may = match allowed {
        0 => "none may be disrupted now".to_owned(),
        n => format!("{n} may be disrupted now"),
    };
    let is = of_number(current);
    let healthy = match current > expected {
        true => format!("{current} {} {is} healthy, {expected} expected", noun(what, current)),
        false => format!("{current} of {expected} {} {is} healthy", noun(what, expected)),
    };
    format!("{healthy}, {desired} must stay: {may}.")
}

/// "pod", "pods", "group", "groups".
pub fn noun(what: Noun, count: u32) -> &'static str {
    match (what, count) {
        (Noun::Pod, 1) => "pod",
        (Noun::Pod, _) => "pods",
        (Noun::Group, 1) => "group",
        (Noun::Group, _) => "groups",
    }
}

fn exhausted(budget: &BudgetKey, why: &Exhausted, now: Time) -> String {
    // A name may have 253 characters. The middle of a long name carries the least information.
    let lengths = [usize::MAX, 40, 24, 12];
    let mut texts = lengths.into_iter().map(|length| exhausted_with(budget, why, now, length));
    let first = texts.next().unwrap_or_default();
    match first.chars().count() <= MAX_LENGTH {
        true => first,
        false => texts.find(|text| text.chars().count() <= MAX_LENGTH).unwrap_or(first),
    }
}

fn exhausted_with(budget: &BudgetKey, why: &Exhausted, now: Time, length: usize) -> String {
    let Exhausted { noun: what, unit, unit_is_down, numbers, down, down_total, .. } = why;
    let Numbers { current, desired, expected, .. } = *numbers;
    let (word, words) = (noun(*what, 1), noun(*what, 2));
    let name = |name: &str| elide(name, length);
    let expected_by = budget.kind.expected_field();
    let kind = match budget.kind {
        BudgetKind::DisruptionBudget => "",
        BudgetKind::PodUnavailableBudget => "PodUnavailableBudget ",
    };
    let budget = format!("{kind}{}/{}", name(&budget.object.namespace), name(&budget.object.name));
    let unit = name(unit);
    if expected == 0 {
        return format!(
            "{budget} expects no {words}, so none may be disrupted: {word} {unit} is not among its expected replicas. \
             Scale its workload up, or set {expected_by}."
        );
    }
    let own = u32::from(*unit_is_down);
    let unseen = expected.saturating_sub(current + own).saturating_sub(*down_total as u32);
    let others = *down_total + unseen as usize;
    let because = match down.first() {
        Some(first) => format!(" ({})", self::down(*what, first, now, length)),
        None if unseen > 0 => format!(" ({unseen} {} {} missing)", noun(*what, unseen), of_number(unseen)),
        None => String::new(),
    };
    let mut text = match desired > expected {
        true => format!("{budget} keeps {desired} {words} where {expected} {} expected", of_number(expected)),
        false => format!("{budget} keeps {desired} of {expected} {words}"),
    };
    if *unit_is_down {
        let more = desired.saturating_sub(current);
        let _ = write!(
            text,
            " and has {current}: {word} {unit} is down, but may recover, and is kept until {more} more {} \
             healthy{because}. unhealthyPodEvictionPolicy: AlwaysAllow would allow the eviction.",
            of_number(more),
        );
        return text;
    }
    if others == 0 {
        let _ = write!(
            text,
            ": {word} {unit} would be the first one down, and none may be. \
             Allow at least one to be down, or add replicas."
        );
        return text;
    }
    let nth = ordinal(others + 1);
    let _ = write!(text, ": {word} {unit} would be the {nth} one down{because}. Waits for ");
    let _ = match (down.first(), others) {
        (Some(first), 1) => write!(text, "{word} {}.", name(&first.unit)),
        (Some(first), 2) => write!(text, "{word} {} and one more.", name(&first.unit)),
        (Some(first), _) => write!(text, "{word} {} and {} more.", name(&first.unit), others - 1),
        (None, _) => write!(text, "{others} more {}.", noun(*what, others as u32)),
    };
    text
}

fn of_number(count: u32) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// Shortens a long name by leaving out its middle.
fn elide(name: &str, length: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= length {
        return name.to_owned();
    }
    let tail = length / 2;
    let head: String = letters[..length - tail - 1].iter().collect();
    let tail: String = letters[letters.len() - tail..].iter().collect();
    format!("{head}…{tail}")
}

/// Why a unit is down: "group 1 is missing llm-1-3, not ready for 4m".
fn down(what: Noun, down: &Down, now: Time, length: usize) -> String {
    let unit = elide(&down.unit, length);
    let (healthy, needs) = down.healthy;
    match (what, down.missing.first()) {
        (Noun::Pod, Some(first)) => format!("{unit} is {}", why(first, now)),
        (Noun::Pod, None) => format!("{unit} is down"),
        (Noun::Group, None) if needs == 0 => format!("group {unit} is gone"),
        (Noun::Group, None) => format!("group {unit} has {healthy} of the {needs} pods it needs"),
        (Noun::Group, Some(first)) if healthy + 1 == needs => {
            format!("group {unit} is missing {}, {}", elide(&first.pod, length), why(first, now))
        }
        (Noun::Group, Some(first)) => format!(
            "group {unit} has {healthy} of the {needs} pods it needs, {} is {}",
            elide(&first.pod, length),
            why(first, now)
        ),
    }
}

fn why(missing: &Missing, now: Time) -> String {
    let state = match missing.why {
        Unhealthy::Held => "being disrupted",
        Unhealthy::Terminating => "terminating",
        Unhealthy::Ended => "ended",
        Unhealthy::NotReady => "not ready",
        Unhealthy::NotDisruptable => "not disruptable",
        Unhealthy::Inconsistent => "being updated",
        Unhealthy::Ahead => "newly ready",
    };
    match missing.since {
        Some(since) if missing.why == Unhealthy::Held => {
            format!("{state}, admitted {} ago", span(now.since(since)))
        }
        Some(since) => format!("{state} for {}", span(now.since(since))),
        None => state.to_owned(),
    }
}

fn probe(pod: &Text, doubt: &ProbeDoubt, since: Option<Time>, now: Time) -> String {
    let (why, waits) = match doubt {
        ProbeDoubt::SaysNo(None) => ("its disruption probe says no".to_owned(), "Waits until it says yes"),
        ProbeDoubt::SaysNo(Some(message)) => {
            (format!("its disruption probe says no ({message})"), "Waits until it says yes")
        }
        ProbeDoubt::Silent => {
            ("its disruption probe has not answered yet".to_owned(), "Waits for its first answer")
        }
        ProbeDoubt::Malformed(what) => (
            format!("its disruption probe is invalid ({what})"),
            "Correct the annotation in the pod's template",
        ),
        ProbeDoubt::NoAgent => {
            ("no agent runs its disruption probe".to_owned(), "Start the Quorate agent on its node")
        }
        ProbeDoubt::AgentStale => (
            "the agent on its node stopped reporting, so the last probe result is not trusted".to_owned(),
            "Waits for the agent",
        ),
        ProbeDoubt::NodeNotReady => (
            "its node is not ready, so the last probe result is not trusted".to_owned(),
            "Waits for the node",
        ),
        ProbeDoubt::Outdated => (
            "its probe has not answered since the agent or the container started".to_owned(),
            "Waits for its next answer",
        ),
    };
    let since = since.map(|since| format!(", for {}", span(now.since(since)))).unwrap_or_default();
    format!("pod {pod} must not be disrupted: {why}{since}. {waits}.")
}

/// A duration in the style of kubectl: 40s, 4m, 3h, 2d.
fn span(duration: Duration) -> String {
    match duration.as_secs() {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7200 => format!("{}m", s / 60),
        s @ 7200..172_800 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

fn ordinal(n: usize) -> String {
    match n {
        1 => "first".to_owned(),
        2 => "second".to_owned(),
        3 => "third".to_owned(),
        n => {
            let suffix = match (n % 10, n % 100) {
                (1, h) if h != 11 => "st",
                (2, h) if h != 12 => "nd",
                (3, h) if h != 13 => "rd",
                _ => "th",
            };
            format!("{n}{suffix}")
        }
    }
}

fn shorten(text: String) -> String {
    if text.chars().count() <= MAX_LENGTH {
        return text;
    }
    let mut short: String = text.chars().take(MAX_LENGTH - 1).collect();
    short.push('…');
    short
}
