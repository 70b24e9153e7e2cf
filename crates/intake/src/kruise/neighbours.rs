//! Budgets over the same pods: two of them that always would be are a mistake.

use quorate_engine::basics::Text;
use quorate_engine::facts::Covers;
use quorate_engine::selector::{Operator, Requirement, Selector};

use crate::error::Problem;

/// Another `PodUnavailableBudget` of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its name.
    pub name: Text,
    /// What it covers.
    pub covers: Covers,
}

/// The neighbours that cover the same by what they say, whatever pods there are. A selector and a target are not
/// compared, nor are selectors of different labels: which pods these share is not said by the budgets.
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

/// Whether two selectors ask about the same labels, and a pod can satisfy both.
fn overlap(a: &Selector, b: &Selector) -> bool {
    let names = |selector: &Selector, key: &Text| selector.0.iter().any(|other| other.key == *key);
    let alike = a.0.iter().all(|ours| names(b, &ours.key)) && b.0.iter().all(|theirs| names(a, &theirs.key));
    let meet = |ours: &Requirement, theirs: &Requirement| {
        ours.key != theirs.key || intersect(&ours.operator, &theirs.operator)
    };
    alike && a.0.iter().all(|ours| b.0.iter().all(|theirs| meet(ours, theirs)))
}

/// Whether a label can be as both ask.
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
