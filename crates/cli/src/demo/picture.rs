//! Groups and nodes as a picture. The marks tell what the colours tell.

use super::stage::{GROUPS, SIZE};
use super::witness::Seen;

/// How wide the column of a node is.
const COLUMN: usize = 8;

/// The rows of a picture: a head with the nodes, then one for each group and one for each other app.
pub(super) fn rows(pods: &[Seen], nodes: &[String]) -> Vec<String> {
    let head: String = nodes.iter().map(|node| format!("{node:^COLUMN$}")).collect();
    let mut rows = vec![format!("{:18}{head}", "")];
    for group in 0..GROUPS {
        let name = group.to_string();
        let members: Vec<&Seen> = pods.iter().filter(|pod| pod.group.as_deref() == Some(&name)).collect();
        rows.push(row(&format!("llm group {group}"), &members, SIZE, nodes));
    }
    for (app, size) in [("db", 3), ("web", 3)] {
        let members: Vec<&Seen> = pods.iter().filter(|pod| pod.group.is_none() && pod.app == app).collect();
        rows.push(row(app, &members, size, nodes));
    }
    rows
}

fn row(name: &str, members: &[&Seen], size: usize, nodes: &[String]) -> String {
    let ready = members.iter().filter(|pod| pod.ready).count();
    let state = if ready >= size { "✓".to_owned() } else { format!("✗ {ready}/{size}") };
    let cells: String = nodes
        .iter()
        .map(|node| {
            let here = members.iter().filter(|pod| pod.node.as_deref() == Some(node));
            let marks: String = here.map(|pod| mark(pod)).collect();
            format!("{marks:^COLUMN$}")
        })
        .collect();
    format!("{name:12}{state:6}{cells}").trim_end().to_owned()
}

/// ● serves, ○ starts, × goes.
fn mark(pod: &Seen) -> char {
    match (pod.terminating, pod.ready) {
        (true, _) => '×',
        (false, true) => '●',
        (false, false) => '○',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(group: &str, node: &str, ready: bool, terminating: bool) -> Seen {
        Seen {
            name: "x".to_owned(),
            uid: "u".to_owned(),
            app: "llm".to_owned(),
            group: Some(group.to_owned()),
            node: Some(node.to_owned()),
            ready,
            terminating,
        }
    }

    #[test]
    fn health_is_told_without_colour() {
        let nodes = ["node-1".to_owned(), "node-2".to_owned()];
        let mut pods = vec![pod("1", "node-1", true, false), pod("1", "node-2", false, true)];
        pods.extend((0..4).map(|_| pod("0", "node-2", true, false)));
        pods.push(pod("2", "node-1", false, false));
        let shown = rows(&pods, &nodes).join("\n");
        let expected = "                   node-1  node-2 \n\
                        llm group 0 ✓               ●●●●\n\
                        llm group 1 ✗ 1/4    ●       ×\n\
                        llm group 2 ✗ 0/4    ○\n\
                        llm group 3 ✗ 0/4\n\
                        db          ✗ 0/3\n\
                        web         ✗ 0/3";
        assert_eq!(shown, expected);
    }
}
