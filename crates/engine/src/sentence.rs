//! Words for verdicts: the product's main screen.
//!
//! Each says which budget, what is counted, the numbers, what is in the way, and what it waits for, in less than 300
//! characters.

use std::fmt::Write;
use std::time::Duration;

use crate::basics::{Text, Time};
use crate::verdict::{
    Block, Down, Exhausted, Missing, Noun, Numbers, ProbeDoubt, Reason, Unhealthy, Unresolved,
};

/// No sentence is longer than this.
pub const MAX_LENGTH: usize = 300;

/// One sentence for a refusal: the first budget's, and how many others agree with it.
pub fn refusal(blocks: &[Block], now: Time) -> String {
    let Some(first) = blocks.first() else { return "not now".to_owned() };
    let sentence = self::block(first, now);
    match blocks.len() - 1 {
        0 => sentence,
        1 => shorten(format!("{sentence} One more budget says no.")),
        more => shorten(format!("{sentence} {more} more budgets say no.")),
    }
}

/// The sentence for one "no".
pub fn block(block: &Block, now: Time) -> String {
    let budget = block.budget.as_ref().map(ToString::to_string);
    let says = |what: String| match &budget {
        Some(budget) => format!("{budget}: {what}"),
        None => what,
    };
    shorten(match &block.reason {
        Reason::NotSynced => says("not now: Quorate is still starting. Ask again in a moment.".to_owned()),
        Reason::NotFresh { seconds } => says(format!(
            "not now: Quorate has not heard from the API server for {seconds}s. Ask again in a moment."
        )),
        Reason::Deadline => {
            says("not now: the budget could not be written in time. Ask again in a moment.".to_owned())
        }
        Reason::Invalid(why) => says(invalid(why)),
        Reason::Unresolved(unresolved) => says(self::unresolved(unresolved)),
        Reason::NotOpen => says(
            "not now: just created, or changed in what it covers. Waits until every replica knows it."
                .to_owned(),
        ),
        Reason::Protocol(protocol) => says(format!(
            "not now: another version of Quorate writes this budget (protocol {protocol}). \
             Waits until all replicas run the same version."
        )),
        Reason::OutdatedDefinition => says(
            "not now: claims do not stick, the CustomResourceDefinition is older than this server. \
             Apply the current one (quorate crds)."
                .to_owned(),
        ),
        Reason::TooManyClaims => says(
            "not now: too many admitted disruptions have not happened yet. Waits for the pods to go."
                .to_owned(),
        ),
        Reason::Probe { pod, why, since } => says(probe(pod, why, *since, now)),
        Reason::NoGroup { pod } => says(format!(
            "pod {pod} names no workload, so which group it would break is not known. \
             Set schedulingGroup or the quorate.dev/workload labels in its template."
        )),
        Reason::Exhausted(exhausted) => {
            self::exhausted(budget.as_deref().unwrap_or("budget"), exhausted, now)
        }
        Reason::Native { name, healthy: (has, needs) } => {
            format!("PodDisruptionBudget {name} allows nothing now (has {has} healthy pods, needs {needs}).")
        }
    })
}

/// Why a budget cannot be read.
pub fn invalid(why: &str) -> String {
    format!("the budget is invalid, so it allows nothing: {why}")
}

/// What cannot be found.
pub fn unresolved(unresolved: &Unresolved) -> String {
    match unresolved {
        Unresolved::Group { pod, name } => format!(
            "pod {pod} belongs to {name}, which is not there, so what makes the group whole is not known. \
             Create it, or correct the pod's template."
        ),
        Unresolved::Controller { pod, kind, name } => format!(
            "{kind} {name}, the controller of pod {pod}, is not known, so how many pods there should be is not \
             either. Set expectedReplicas, or an integer minAvailable."
        ),
        Unresolved::Scale { kind, name } => format!(
            "{kind} {name} has no scale, so how many pods there should be is not known. \
             Set expectedReplicas, or an integer minAvailable."
        ),
    }
}

/// How a budget stands: "3 of 4 groups are healthy, 3 must stay: none may be disrupted now."
pub fn standing(what: Noun, numbers: Numbers) -> String {
    let Numbers { allowed, current, desired, expected } = numbers;
    if expected == 0 {
        return format!("No {} are expected, so none may be disrupted.", noun(what, 0));
    }
    let may = match allowed {
        0 => "none may be disrupted now".to_owned(),
        n => format!("{n} may be disrupted now"),
    };
    let is = if current == 1 { "is" } else { "are" };
    format!("{current} of {expected} {} {is} healthy, {desired} must stay: {may}.", noun(what, expected))
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

fn exhausted(budget: &str, why: &Exhausted, now: Time) -> String {
    let Exhausted { noun: what, unit, unit_is_down, numbers, down, down_total, .. } = why;
    let Numbers { current, desired, expected, .. } = *numbers;
    let word = noun(*what, 1);
    let words = noun(*what, expected);
    let mut text = format!("{budget} keeps {desired} of {expected} {words}: ");
    if expected == 0 {
        text = format!("{budget} expects no {words}, so it allows none to be disrupted: ");
    }
    if *unit_is_down {
        let _ = write!(text, "{word} {unit} is down, and only {current} are healthy");
    } else {
        let nth = ordinal(down_total + 1);
        let _ = match down_total {
            0 => write!(text, "{word} {unit} cannot be spared"),
            _ => write!(text, "{word} {unit} would be the {nth} one down"),
        };
    }
    if let Some(first) = down.first() {
        let _ = write!(text, " ({})", self::down(*what, first, now));
        let _ = match down_total {
            1 => write!(text, ". Waits for {word} {}.", first.unit),
            2 => write!(text, ". Waits for {word} {} and one more.", first.unit),
            more => write!(text, ". Waits for {word} {} and {} more.", first.unit, more - 1),
        };
    } else if current < desired {
        let _ = write!(
            text,
            ". Waits for {} more healthy {}.",
            desired - current,
            noun(*what, desired - current)
        );
    } else {
        text.push_str(". The budget has no room at all: allow more to be down, or add replicas.");
    }
    text
}

/// Why a unit is down: "group 1 is missing llm-1-3, not ready for 4m".
fn down(what: Noun, down: &Down, now: Time) -> String {
    let Some(first) = down.missing.first() else {
        return format!("{} {} has no pods", noun(what, 1), down.unit);
    };
    match what {
        Noun::Pod => format!("{} is {}", down.unit, why(first, now)),
        Noun::Group => {
            let others = match down.missing.len() {
                1 => String::new(),
                n => format!(", and {} more", n - 1),
            };
            format!("group {} is missing {}, {}{others}", down.unit, first.pod, why(first, now))
        }
    }
}

fn why(missing: &Missing, now: Time) -> String {
    let state = match missing.why {
        Unhealthy::Held => "admitted for disruption",
        Unhealthy::Terminating => "terminating",
        Unhealthy::Ended => "ended",
        Unhealthy::NotReady => "not ready",
        Unhealthy::NotDisruptable => "not disruptable",
        Unhealthy::Inconsistent => "being updated",
        Unhealthy::NoGroup => "in no group",
    };
    match missing.since {
        Some(since) if missing.why == Unhealthy::Held => format!("{state} {} ago", span(now.since(since))),
        Some(since) => format!("{state} for {}", span(now.since(since))),
        None => state.to_owned(),
    }
}

fn probe(pod: &Text, doubt: &ProbeDoubt, since: Option<Time>, now: Time) -> String {
    let why = match doubt {
        ProbeDoubt::SaysNo(None) => "its disruption probe says not now".to_owned(),
        ProbeDoubt::SaysNo(Some(message)) => format!("its disruption probe says not now ({message})"),
        ProbeDoubt::Silent => "its disruption probe has not answered yet".to_owned(),
        ProbeDoubt::Malformed(what) => format!("its disruption probe cannot be read ({what})"),
        ProbeDoubt::NoAgent => "no agent probes on its node".to_owned(),
        ProbeDoubt::AgentStale => "the agent on its node has gone quiet".to_owned(),
        ProbeDoubt::NodeNotReady => "its node is not ready, so its probe is not believed".to_owned(),
        ProbeDoubt::Outdated => "its last probe is older than the agent or the container".to_owned(),
    };
    let since = since.map(|since| format!(", for {}", span(now.since(since)))).unwrap_or_default();
    format!("pod {pod} is not disruptable: {why}{since}. Waits for the pod to say yes.")
}

/// A duration as people say it: 40s, 4m, 3h, 2d.
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
