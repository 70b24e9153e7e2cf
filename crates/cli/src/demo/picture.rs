//! Groups and nodes as a picture. The marks show the same as the colours.

use super::cluster::{GROUPS, SIZE};
use super::witness::ObservedPod;

/// Width of a node's column.
const COLUMN: usize = 8;

/// The rows of a picture: a header with the nodes, then one row for each group and one for each other app.
pub(super) fn rows(pods: &[ObservedPod], nodes: &[String]) -> Vec<String> {
    let head: String = nodes.iter().map(|node| format!("{node:^COLUMN$}")).collect();
    let mut rows = vec![format!("{:18}{head}", "")];
    for group in 0..GROUPS {
        let name = group.to_string();
        let members: Vec<&ObservedPod> =
            pods.iter().filter(|pod| pod.group.as_deref() == Some(&name)).collect();
        rows.push(row(&format!("llm group {group}"), &members, SIZE, nodes));
    }
    for (app, size) in [("db", 3), ("web", 3)] {
        let members: Vec<&ObservedPod> =
            pods.iter().filter(|pod| pod.group.is_none() && pod.app == app).collect();
        rows.push(row(app, &members, size, nodes));
    }
    rows
}

fn row(name: &str, members: &[&ObservedPod], size: usize, nodes: &[String]) -> String {
    let ready = members.iter().filter(|pod| pod.ready).count();
    let state = health(ready, size);
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

/// Whether a group is whole, and its number of ready pods if not.
fn health(ready: usize, size: usize) -> String {
    if ready >= size { "✓".to_owned() } else { format!("✗ {ready}/{size}") }
}

/// ● ready, ○ starting, × terminating.
fn mark(pod: &ObservedPod) -> char {
    match (pod.terminating, pod.ready) {
        (true, _) => '×',
        (false, true) => '●',
        (false, false) => '○',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(group: &str, node: &str, ready: bool, terminating: bool) -> ObservedPod {
        ObservedPod {
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
    fn health_is_shown_without_colour() {
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

    /// The picture in the README is drawn by hand. It must have the same marks, the numbers of the demo, and each group
    /// in the state after the drain.
    #[test]
    fn the_picture_in_the_readme_matches_the_demo() {
        let readme = include_str!("../../../../README.md");
        let picture = readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        assert!(picture.contains(&format!("{GROUPS} groups of {SIZE} pods")), "{picture}");
        let drained = picture.split("drains ").nth(1).and_then(|rest| rest.split('.').next()).unwrap();
        let head = picture.lines().find(|line| line.contains(drained)).unwrap();
        let (left, right) = head.split_once(drained).unwrap();
        let gap = right.len() - right.trim_start().len();
        let (from, until) = (left.len(), left.len() + drained.len() + gap);
        let serves = mark(&pod("0", drained, true, false));

        let groups = picture.lines().filter(|line| line.trim_start().starts_with("group "));
        let (before, after): (Vec<&str>, Vec<&str>) = groups.partition(|line| line.contains(serves));
        assert_eq!((before.len(), after.len()), (GROUPS, GROUPS));
        for (group, (before, after)) in before.into_iter().zip(after).enumerate() {
            let columns: Vec<usize> =
                before.chars().enumerate().filter(|(_, found)| *found == serves).map(|(at, _)| at).collect();
            assert_eq!(columns.len(), SIZE, "{before}");
            let gone = columns.iter().filter(|at| (from..until).contains(*at)).count();
            let broken = health(SIZE - gone, SIZE);
            // Under a budget of groups, one group at a time is down; at first it is group 0.
            let kept = if group == 0 { broken.clone() } else { health(SIZE, SIZE) };
            let name = format!("group {group}");
            let states: Vec<&str> = after.split(&name).skip(1).map(str::trim).collect();
            assert_eq!(states.len(), 2, "{after}");
            assert_eq!(states[0], broken, "{after}");
            assert!(states[1].split("  ").next() == Some(&kept), "{after}");
        }
    }
}
