//! Every interleaving of every small case.

use stateright::{Checker, Model, Property};

use crate::scenarios;
use crate::world::{Action, Scenario, World};

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
    let checker = scenario.checker().threads(2).target_state_count(2_000_000).spawn_bfs().join();
    match checker.discoveries().into_iter().next() {
        None => Ok(checker.unique_state_count()),
        Some((property, path)) => {
            let steps: Vec<String> =
                path.into_actions().iter().map(|action| format!("  {action:?}")).collect();
            Err(format!("{name}: {property}\n{}", steps.join("\n")))
        }
    }
}

#[test]
fn no_interleaving_breaks_a_budget() {
    let mut total = 0;
    for scenario in scenarios::all().into_iter() {
        let name = scenario.name;
        if let Ok(only) = std::env::var("ONLY")
            && !name.contains(&only)
        {
            continue;
        }
        let started = std::time::Instant::now();
        match search(scenario) {
            Ok(states) => {
                total += states;
                println!("{states:>9} states in {:>5.1} s: {name}", started.elapsed().as_secs_f64());
            }
            Err(path) => println!("BAD {path}"),
        }
    }
    println!("{total:>9} states in all");
}
