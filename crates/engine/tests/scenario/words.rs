//! The arguments of a command: `name`, `key=value`, flags. `{0..3}` expands to several commands.

use std::time::Duration;

use quorate_engine::basics::{GroupKind, Quantity};
use quorate_engine::selector::{Operator, Requirement, Selector};

pub(crate) struct Words {
    plain: Vec<String>,
    pairs: Vec<(String, String)>,
}

impl Words {
    /// Splits at spaces, except within double quotes.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let mut words = Self { plain: Vec::new(), pairs: Vec::new() };
        let mut quoted = false;
        let mut word = String::new();
        for letter in text.chars().chain([' ']) {
            match letter {
                '"' => quoted = !quoted,
                ' ' if !quoted => {
                    let word = std::mem::take(&mut word);
                    match word.split_once('=') {
                        Some((key, value)) => words.pairs.push((key.to_owned(), value.to_owned())),
                        None if !word.is_empty() => words.plain.push(word),
                        None => {}
                    }
                }
                _ => word.push(letter),
            }
        }
        if quoted { Err("a quote is not closed".to_owned()) } else { Ok(words) }
    }

    /// Takes the next plain word.
    pub(crate) fn next(&mut self) -> Result<String, String> {
        if self.plain.is_empty() { Err("a word is missing".to_owned()) } else { Ok(self.plain.remove(0)) }
    }

    /// Takes all remaining plain words.
    pub(crate) fn rest(&mut self) -> Vec<String> {
        std::mem::take(&mut self.plain)
    }

    /// Takes a flag, if it is set.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let at = self.plain.iter().position(|word| word == name);
        at.map(|at| self.plain.remove(at)).is_some()
    }

    /// Takes the value of a key, if it is set.
    pub(crate) fn take(&mut self, key: &str) -> Option<String> {
        let at = self.pairs.iter().position(|(k, _)| k == key)?;
        Some(self.pairs.remove(at).1)
    }

    /// Takes a number, if it is set.
    pub(crate) fn number(&mut self, key: &str) -> Result<Option<u32>, String> {
        self.take(key).map(|text| text.parse().map_err(|_| format!("{key} is no number: {text}"))).transpose()
    }

    /// Takes a number or percentage, if it is set.
    pub(crate) fn quantity(&mut self, key: &str) -> Result<Option<Quantity>, String> {
        let parse = |text: String| match text.strip_suffix('%') {
            Some(percent) => percent.parse().map(Quantity::Percent).map_err(|_| text.clone()),
            None => text.parse().map(Quantity::Count).map_err(|_| text.clone()),
        };
        self.take(key).map(parse).transpose().map_err(|text| format!("{key} is no quantity: {text}"))
    }

    /// Takes all remaining pairs: labels.
    pub(crate) fn labels(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.pairs)
    }

    /// Fails if an argument is left over.
    pub(crate) fn done(self) -> Result<(), String> {
        match (self.plain.first(), self.pairs.first()) {
            (None, None) => Ok(()),
            (Some(word), _) => Err(format!("unknown word {word}")),
            (_, Some((key, value))) => Err(format!("unknown argument {key}={value}")),
        }
    }
}

/// Expands each `{a..b}` or `{x,y}` into one line per value. The last one varies fastest.
pub(crate) fn expand(line: &str) -> Vec<String> {
    let Some((head, rest)) = line.split_once('{') else { return vec![line.to_owned()] };
    let Some((inner, tail)) = rest.split_once('}') else { return vec![line.to_owned()] };
    let values: Vec<String> = match inner.split_once("..") {
        Some((from, to)) => {
            let (from, to): (u32, u32) = (from.parse().unwrap(), to.parse().unwrap());
            (from..=to).map(|n| n.to_string()).collect()
        }
        None => inner.split(',').map(ToOwned::to_owned).collect(),
    };
    let tails = |value: &str| expand(&tail.replace("{}", value));
    values.iter().flat_map(|v| tails(v).into_iter().map(move |tail| format!("{head}{v}{tail}"))).collect()
}

/// `5m`, `90s`, `2h`, `1500ms`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| format!("no time: {text}"))?;
    let millis = match &text[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("no time: {text}")),
    };
    Ok(Duration::from_millis(number * millis))
}

/// `Kind/name`, or `Kind.group/name` for a kind whose group is not known here.
pub(crate) fn kind_and_name(text: &str) -> Result<(GroupKind, String), String> {
    let (kind, name) = text.split_once('/').ok_or(format!("not Kind/name: {text}"))?;
    Ok((kind_of(kind), name.to_owned()))
}

pub(crate) fn kind_of(kind: &str) -> GroupKind {
    let (kind, group) = match kind.split_once('.') {
        Some((kind, group)) => (kind, group),
        None => match kind {
            "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => (kind, "apps"),
            "Job" => (kind, "batch"),
            "LeaderWorkerSet" => (kind, "leaderworkerset.x-k8s.io"),
            "Lease" => (kind, "coordination.k8s.io"),
            "PodGroup" => (kind, "scheduling.k8s.io"),
            _ => (kind, ""),
        },
    };
    GroupKind::new(group, kind)
}

/// `all`, or requirements separated by commas: `app=web,tier:in:a|b,tier:notin:a|b,tier,!tier`.
pub(crate) fn selector(text: &str) -> Result<Selector, String> {
    if text == "all" {
        return Ok(Selector::default());
    }
    let values = |list: &str| list.split('|').map(Into::into).collect();
    let requirement = |part: &str| {
        let (key, operator) = match part.split(':').collect::<Vec<_>>().as_slice() {
            [key, "in", list] => (*key, Operator::In(values(list))),
            [key, "notin", list] => (*key, Operator::NotIn(values(list))),
            [one] => match (one.split_once('='), one.strip_prefix('!')) {
                (Some((key, value)), _) => (key, Operator::In([value.into()].into())),
                (None, Some(key)) => (key, Operator::Absent),
                (None, None) => (*one, Operator::Exists),
            },
            _ => return Err(format!("no selector: {text}")),
        };
        Ok(Requirement { key: key.into(), operator })
    };
    Ok(Selector(text.split(',').map(requirement).collect::<Result<_, _>>()?))
}
