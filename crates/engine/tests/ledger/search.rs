//! Every interleaving of every small case.
//!
//! Depth first: of the states that were seen only 64 bits each are kept, and of the path to the present one the states.
//!
//! See `docs/ledger.md#invariants`.

use std::hash::{BuildHasherDefault, Hasher};

use super::scenarios;
use super::world::{Action, Scenario, World};

/// Fingerprints are mixed already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are looked up");
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

type Seen = std::collections::HashSet<u64, BuildHasherDefault<AsItIs>>;

/// A state on the path to the present one, and what has not been tried from there.
struct SearchNode {
    world: World,
    untried: Vec<Action>,
    taken: Option<Action>,
}

impl SearchNode {
    fn new(world: World, scenario: &Scenario) -> Self {
        let untried = world.actions(scenario);
        Self { world, untried, taken: None }
    }
}

/// What is wrong with a state, if anything is.
fn wrong(world: &World, scenario: &Scenario, ended: &mut Seen) -> Option<String> {
    if let Some(broken) = world.broken().into_iter().next() {
        return Some(format!("I1, nothing admitted breaks a budget: {broken}"));
    }
    // Where nothing is under way any more, what becomes of the tokens depends on nothing but what is stored and known.
    let settles = world.is_quiet() && world.nodes.iter().any(|node| node.is_leader());
    if !settles || !ended.insert(world.stored_and_known()) {
        return None;
    }
    let lingering = world.lingering();
    if lingering > 0 {
        return Some(format!("an update that the pod has moved on without ends at once: {lingering} left"));
    }
    let mut end = world.clone();
    end.run_out(scenario);
    let left = end.leftovers();
    if left > 0 {
        return Some(format!("I6, every token is seen in the pods or dropped: {left} left"));
    }
    let blocked = end.blocked();
    if blocked > 0 {
        return Some(format!("a version that the store does not have blocks no budget: {blocked} blocked"));
    }
    let unstored = end.unstored();
    (unstored > 0).then(|| format!("no replica knows a budget that is not stored: {unstored} known"))
}

/// The path to a violation, or the number of states if there is none.
pub(crate) fn search(scenario: &Scenario) -> Result<usize, String> {
    let start = World::new(scenario);
    let (mut seen, mut ended) = (Seen::default(), Seen::default());
    seen.insert(start.fingerprint());
    let mut path = vec![SearchNode::new(start, scenario)];
    while let Some(here) = path.last_mut() {
        let Some(action) = here.untried.pop() else {
            path.pop();
            continue;
        };
        let mut next = here.world.clone();
        next.act(&action, scenario);
        if !seen.insert(next.fingerprint()) {
            continue;
        }
        here.taken = Some(action);
        if let Some(wrong) = wrong(&next, scenario, &mut ended) {
            let taken = path.iter().filter_map(|place| Some(place.world.describe(place.taken.as_ref()?)));
            let steps: Vec<String> = taken.collect();
            return Err(format!("{} ({} states): {wrong}\n{}", scenario.name, seen.len(), steps.join("\n")));
        }
        path.push(SearchNode::new(next, scenario));
    }
    Ok(seen.len())
}

/// Whether the large cases are searched too: `cargo xtask soak` asks for it.
fn is_soak() -> bool {
    std::env::var_os("QUORATE_SOAK").is_some()
}

/// Whether a case is searched: all but the large ones, or those whose name has the words in `QUORATE_CASE`.
fn is_chosen(scenario: &Scenario) -> bool {
    match std::env::var("QUORATE_CASE") {
        Ok(words) => scenario.name.contains(&words),
        Err(_) => is_soak() || !scenario.large,
    }
}

/// Searches a share of the cases, each to its end: tests run side by side.
fn search_all(share: usize) {
    let chosen = std::env::var_os("QUORATE_CASE").is_some();
    let mut total = usize::from(chosen);
    for scenario in scenarios::all().iter().filter(|case| is_chosen(case)).skip(share).step_by(2) {
        let name = scenario.name;
        match search(scenario) {
            Ok(states) => {
                total += states;
                println!("{states:>9} states: {name}");
            }
            Err(path) => panic!("{path}"),
        }
    }
    println!("{total:>9} states in all");
    assert!(total > 0, "nothing was searched");
}

#[test]
fn no_interleaving_breaks_a_budget() {
    search_all(0);
}

#[test]
fn no_interleaving_of_the_other_half_breaks_a_budget() {
    search_all(1);
}
