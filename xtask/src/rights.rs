//! The rights that the chart grants, against what was asked for while the stories were told.
//!
//! Every control plane of the stories leaves a file with what service accounts did there: account, verb, group, resource,
//! and whether it was in Quorate's own namespace. A right that nobody used is one too many, or a story is missing.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize as _;
use serde_yaml_ng::Value;

use crate::workspace;

/// Where a right holds, or was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// In the namespace of Quorate.
    Own,
    /// Everywhere.
    All,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    account: String,
    verb: String,
    group: String,
    /// With its subresource.
    resource: String,
    reach: Reach,
}

/// Rights that a story may or may not use, as chance has it.
const RARE: [(&str, &str, &str); 2] = [
    // Read again only when a write got no answer, or another was faster.
    ("quorate-server", "get", "disruptionbudgets"),
    ("quorate-server", "get", "podunavailablebudgets"),
];

/// Compares; the error has one line for each right that nobody used.
pub(crate) fn compare(used: &Path) -> Result<()> {
    let mut granted = BTreeSet::new();
    for name in ["default", "everything"] {
        let path = workspace::root().join(format!("charts/rendered/{name}.yaml"));
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        granted.extend(rights(&text)?);
    }
    let mut uses = BTreeSet::new();
    for entry in std::fs::read_dir(used).with_context(|| format!("cannot read {}", used.display()))? {
        let text = std::fs::read_to_string(entry?.path())?;
        uses.extend(text.lines().filter_map(read_use));
    }
    anyhow::ensure!(!uses.is_empty(), "no control plane left an account of what was done there");
    let unused: Vec<String> =
        granted.iter().filter(|right| !is_used(right, &granted, &uses)).map(line).collect();
    println!("{} rights are granted, {} of them used", granted.len(), granted.len() - unused.len());
    if !unused.is_empty() {
        bail!("the chart grants what no story uses:\n{}", unused.join("\n"));
    }
    Ok(())
}

fn is_used(right: &Right, granted: &BTreeSet<Right>, uses: &BTreeSet<Right>) -> bool {
    let (own, all) =
        (Right { reach: Reach::Own, ..right.clone() }, Right { reach: Reach::All, ..right.clone() });
    if RARE.contains(&(&right.account, &right.verb, &right.resource)) {
        return true;
    }
    match right.reach {
        Reach::Own => uses.contains(&own),
        // What is done in our own namespace needs a right everywhere only where there is none for that namespace.
        Reach::All => uses.contains(&all) || (uses.contains(&own) && !granted.contains(&own)),
    }
}

/// What the rendered roles grant to whom.
fn rights(rendered: &str) -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    for document in serde_yaml_ng::Deserializer::from_str(rendered) {
        let object = Value::deserialize(document)?;
        let reach = match object["kind"].as_str() {
            Some("Role") => Reach::Own,
            Some("ClusterRole") => Reach::All,
            _ => continue,
        };
        // Roles have the name of the account that they are bound to.
        let account = text(&object["metadata"]["name"]);
        for rule in object["rules"].as_sequence().into_iter().flatten() {
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for verb in strings(&rule["verbs"]) {
                        rights.insert(Right {
                            account: account.clone(),
                            verb,
                            group: group.clone(),
                            resource: resource.clone(),
                            reach,
                        });
                    }
                }
            }
        }
    }
    Ok(rights)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn strings(values: &Value) -> Vec<String> {
    values.as_sequence().into_iter().flatten().map(text).collect()
}

/// Reads `namespace/account verb group resource namespace`, where `-` stands for nothing.
fn read_use(line: &str) -> Option<Right> {
    let mut words = line.split(' ');
    let mut next = || words.next().map(|word| if word == "-" { "" } else { word });
    let (home, account) = next()?.split_once('/')?;
    let (verb, group, resource, namespace) = (next()?, next()?, next()?, next()?);
    Some(Right {
        account: account.to_owned(),
        verb: verb.to_owned(),
        group: group.to_owned(),
        resource: resource.to_owned(),
        reach: if namespace == home { Reach::Own } else { Reach::All },
    })
}

fn line(right: &Right) -> String {
    let reach = match right.reach {
        Reach::Own => "in its own namespace",
        Reach::All => "everywhere",
    };
    let group = if right.group.is_empty() { "" } else { "." };
    format!("{}: {} {}{group}{} {reach}", right.account, right.verb, right.resource, right.group)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RENDERED: &str = "kind: ClusterRole
metadata: {name: server}
rules:
- {apiGroups: [''], resources: [pods], verbs: [get, list]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [list]}
---
kind: Role
metadata: {name: server}
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [list, patch]}
";

    fn unused(lines: &[&str]) -> Vec<String> {
        let granted = rights(RENDERED).unwrap();
        let uses = lines.iter().filter_map(|line| read_use(line)).collect();
        granted.iter().filter(|right| !is_used(right, &granted, &uses)).map(line).collect()
    }

    #[test]
    fn a_right_that_nobody_used_is_told() {
        let all = [
            "own/server get - pods elsewhere",
            "own/server list - pods -",
            "own/server list coordination.k8s.io leases own",
            "own/server list coordination.k8s.io leases -",
            "own/server patch coordination.k8s.io leases own",
        ];
        assert_eq!(unused(&all), [""; 0]);
        assert_eq!(unused(&all[1..]), ["server: get pods everywhere"]);
        assert_eq!(unused(&all[..4]), ["server: patch leases.coordination.k8s.io in its own namespace"]);
    }

    #[test]
    fn what_is_done_at_home_needs_no_right_everywhere() {
        let home = ["own/server get - pods own", "own/server list coordination.k8s.io leases own"];
        let expected = [
            "server: list pods everywhere",
            "server: list leases.coordination.k8s.io everywhere",
            "server: patch leases.coordination.k8s.io in its own namespace",
        ];
        assert_eq!(unused(&home), expected);
    }
}
