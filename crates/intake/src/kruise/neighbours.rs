//! Conflicts: two budgets that by their specs cover the same pods are a mistake.

use quorate_engine::basics::Text;
use quorate_engine::facts::Covers;
use quorate_engine::selector::{Operator, Requirement, Selector};

use crate::error::Problem;

/// Another `PodUnavailableBudget` of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its name.
    pub name: Text,
    /// Its coverage.
    pub covers: Covers,
}

/// The neighbours that cover the same pods by their specs alone. A selector and a target are not compared, nor are
/// selectors on different labels: their specs do not show which pods they share.
pub(super) fn conflicts(covers: &Covers, neighbours: &[Neighbour]) -> Vec<Problem> {
    neighbours
        .iter()
        .filter_map(|other| match (covers, &other.covers) {
            (Covers::Selector(ours), Covers::Selector(theirs)) if overlap(ours, theirs) => Some(Problem::at(
                "spec.selector",
                format!(
                    "overlaps with that of PodUnavailableBudget {}: a pod can have the labels of both. \
                         Use values that exclude each other, or delete {}",
                    other.name, other.name
                ),
            )),
            (Covers::Target(..), Covers::Target(..)) if *covers == other.covers => Some(Problem::at(
                "spec.targetRef",
                format!(
                    "is the target of PodUnavailableBudget {} already: change that one, or delete it",
                    other.name
                ),
            )),
            _ => None,
        })
        .collect()
}

/// Whether two selectors use the same label keys, and a pod can match both.
fn overlap(a: &Selector, b: &Selector) -> bool {
    let names = |selector: &Selector, key: &Text| selector.0.iter().any(|other| other.key == *key);
    let alike = a.0.iter().all(|ours| names(b, &ours.key)) && b.0.iter().all(|theirs| names(a, &theirs.key));
    let meet = |ours: &Requirement, theirs: &Requirement| {
        ours.key != theirs.key || intersect(&ours.operator, &theirs.operator)
    };
    alike && a.0.iter().all(|ours| b.0.iter().all(|theirs| meet(ours, theirs)))
}

/// Whether one label value can meet both requirements.
fn intersect(a: &Operator, b: &Operator) -> bool {
    match (a, b) {
        (Operator::In(a), Operator::In(b)) => a.iter().any(|value| b.contains(value)),
        (Operator::In(one_of), Operator::NotIn(none_of))
        | (Operator::NotIn(none_of), Operator::In(one_of)) => {
            one_of.iter().any(|value| !none_of.contains(value))
        }
        (Operator::Absent, Operator::In(_) | Operator::Exists)
        | (Operator::In(_) | Operator::Exists, Operator::Absent) => false,
        _ => true,
    }
}
