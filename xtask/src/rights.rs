//! Compares the rights that the chart grants with the requests that service accounts sent during the stories.
//!
//! Each control plane of the stories writes a file with the requests of service accounts: account, verb, group,
//! resource and namespace. If no story uses a right, either the right is superfluous or a story is missing.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize as _;
use serde_yaml_ng::Value;

use crate::workspace;

/// The scope in which a right is granted or was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// The namespace of Quorate.
    Own,
    /// The whole cluster.
    All,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    account: String,
    verb: String,
    group: String,
    /// With its subresource.
    resource: String,
    scope: Scope,
}

/// Rights that the stories use only in some runs, depending on timing.
const RARE: [(&str, &str, &str); 2] = [
    // The server reads these again only if a write got no response or conflicted with another write.
    ("quorate-server", "get", "disruptionbudgets"),
    ("quorate-server", "get", "podunavailablebudgets"),
];

/// Compares the granted rights with the used ones. The error has one line for each unused right.
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
    anyhow::ensure!(!uses.is_empty(), "no control plane recorded any request of a service account");
    let unused: Vec<String> =
        granted.iter().filter(|right| !is_used(right, &granted, &uses)).map(line).collect();
    println!("{} rights granted, {} of them used", granted.len(), granted.len() - unused.len());
    if !unused.is_empty() {
        bail!("the chart grants rights that no story uses:\n{}", unused.join("\n"));
    }
    Ok(())
}

fn is_used(right: &Right, granted: &BTreeSet<Right>, uses: &BTreeSet<Right>) -> bool {
    let (own, all) =
        (Right { scope: Scope::Own, ..right.clone() }, Right { scope: Scope::All, ..right.clone() });
    if RARE.contains(&(&right.account, &right.verb, &right.resource)) {
        return true;
    }
    match right.scope {
        Scope::Own => uses.contains(&own),
        // A request in Quorate's own namespace uses the cluster-wide right only if there is none for that namespace.
        Scope::All => uses.contains(&all) || (uses.contains(&own) && !granted.contains(&own)),
    }
}

/// Reads the rights that the rendered roles grant, with the account of each.
fn rights(rendered: &str) -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    for document in serde_yaml_ng::Deserializer::from_str(rendered) {
        let object = Value::deserialize(document)?;
        let scope = match object["kind"].as_str() {
            Some("Role") => Scope::Own,
            Some("ClusterRole") => Scope::All,
            _ => continue,
        };
        // A role has the name of the account to which it is bound.
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
                            scope,
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

/// Parses `namespace/account verb group resource namespace`, where `-` stands for an empty value.
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
        scope: if namespace == home { Scope::Own } else { Scope::All },
    })
}

fn line(right: &Right) -> String {
    let scope = match right.scope {
        Scope::Own => "in its own namespace",
        Scope::All => "everywhere",
    };
    let group = if right.group.is_empty() { "" } else { "." };
    format!("{}: {} {}{group}{} {scope}", right.account, right.verb, right.resource, right.group)
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
    fn an_unused_right_is_reported() {
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
    fn a_request_in_the_own_namespace_does_not_use_a_cluster_wide_right() {
        let home = ["own/server get - pods own", "own/server list coordination.k8s.io leases own"];
        let expected = [
            "server: list pods everywhere",
            "server: list leases.coordination.k8s.io everywhere",
            "server: patch leases.coordination.k8s.io in its own namespace",
        ];
        assert_eq!(unused(&home), expected);
    }
}
