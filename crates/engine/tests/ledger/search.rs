//! Every interleaving of every small case.

use stateright::{Checker, Model, Property};

use super::scenarios;
use super::world::{Action, Scenario, World};

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        actions.extend(World::actions(state, self));
    }

    fn next_state(&self, state: &World, action: Action) -> Option<World> {
        let mut next = state.clone();
        next.act(&action, self);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("I1: nothing admitted breaks a budget", |_, world: &World| {
                world.broken().is_empty()
            }),
            Property::always(
                "I6: every token is seen in the pods or dropped",
                |scenario: &Scenario, world: &World| {
                    if !world.is_quiet() || !world.nodes.iter().any(|node| node.is_holder()) {
                        return true;
                    }
                    let mut end = world.clone();
                    end.run_out(scenario);
                    end.leftovers() == 0
                },
            ),
        ]
    }
}

/// The path to a violation, or the number of states if there is none.
pub(crate) fn search(scenario: Scenario) -> Result<usize, String> {
    let name = scenario.name;
    let checker = scenario.checker().spawn_bfs().join();
    match checker.discoveries().into_iter().next() {
        None => Ok(checker.unique_state_count()),
        Some((property, path)) => {
            let steps: Vec<String> =
                path.into_actions().iter().map(|action| format!("  {action:?}")).collect();
            Err(format!("{name}: {property}\n{}", steps.join("\n")))
        }
    }
}

/// Whether the large cases are searched too: `cargo xtask soak` asks for it.
pub(crate) fn is_soak() -> bool {
    std::env::var_os("QUORATE_SOAK").is_some()
}

/// Searches a share of the cases, each to its end: tests run side by side.
fn search_all(share: usize) {
    let mut total = 0;
    for scenario in
        scenarios::all().into_iter().filter(|case| is_soak() || !case.large).skip(share).step_by(2)
    {
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
