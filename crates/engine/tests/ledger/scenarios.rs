//! The small cases. Pods x, y, z; two of them must stay healthy unless said.
//!
//! See `docs/ledger.md#the-search`.

use std::collections::BTreeSet;

use quorate_engine::basics::{Quantity, Text};
use quorate_engine::facts::{Covers, Operation, Operations, Phase, Rules, Units};
use quorate_engine::selector::Selector;

use super::world::{ALIAS, At, Change, Deed, Mishaps, Scenario, Then};

use Operation::{Delete, Evict, Relabel, Update};

/// A budget over the pods with this label that keeps so many.
pub(crate) fn keeps(count: u32, label: (&str, &str)) -> Rules {
    Rules {
        min_available: Some(Quantity::Count(count)),
        operations: Operations::of(&[Evict, Delete, Update]),
        ..Rules::new(Covers::Selector(Selector::labels([label])))
    }
}

/// The same budget, which decides relabels too: `docs/ledger.md#relabels`.
fn decides_relabels(rules: Rules) -> Rules {
    Rules { operations: Operations::of(&[Evict, Delete, Update, Relabel]), ..rules }
}

/// The same budget, which decides evictions only.
fn evictions(rules: Rules) -> Rules {
    Rules { operations: Operations::of(&[Evict]), ..rules }
}

pub(crate) const ALL: (&str, &str) = ("app", "web");

/// A case with requests that may come to any replica.
fn case(name: &'static str, requests: &[(Operation, &'static str)]) -> Scenario {
    Scenario {
        name,
        pods: ["x", "y", "z"].map(|name| (name, Phase::Running, true)).to_vec(),
        budgets: vec![("a", keeps(2, ALL))],
        replicas: vec![(true, true), (true, false)],
        requests: requests.iter().map(|(operation, pod)| (*operation, *pod, At::Any)).collect(),
        changes: Vec::new(),
        deeds: Vec::new(),
        mishaps: Mishaps::default(),
        then: Then::Stays,
        in_order: false,
        insists: false,
        scale: None,
        without: BTreeSet::new(),
        large: false,
    }
}

impl Scenario {
    fn pods(mut self, pods: &[(&'static str, bool)]) -> Self {
        self.pods = pods.iter().map(|(name, ready)| (*name, Phase::Running, *ready)).collect();
        self
    }

    fn pending(mut self, name: &'static str) -> Self {
        for pod in &mut self.pods {
            if pod.0 == name {
                *pod = (name, Phase::Pending, false);
            }
        }
        self
    }

    fn budgets(mut self, budgets: &[(&'static str, Rules)]) -> Self {
        self.budgets = budgets.to_vec();
        self
    }

    fn replicas(mut self, replicas: &[(bool, bool)]) -> Self {
        self.replicas = replicas.to_vec();
        self
    }

    fn deeds(mut self, deeds: &[Deed]) -> Self {
        self.deeds = deeds.to_vec();
        self
    }

    /// Says what each request changes, if it is an update.
    fn changes(mut self, changes: &[Change]) -> Self {
        self.changes = changes.to_vec();
        self
    }

    fn mishaps(mut self, mishaps: Mishaps) -> Self {
        self.mishaps = mishaps;
        self
    }

    /// Says to which replica each request comes.
    fn at(mut self, replicas: &[usize]) -> Self {
        for (request, replica) in self.requests.iter_mut().zip(replicas) {
            request.2 = At::At(*replica);
        }
        self
    }

    fn large(mut self) -> Self {
        self.large = true;
        self
    }

    fn successors(mut self) -> Self {
        self.then = Then::ComesBack;
        self
    }

    /// Pods that are evicted go for good.
    fn pods_go(mut self) -> Self {
        self.then = Then::Goes;
        self
    }

    /// Evictions insist on the pod that is there when they are sent.
    fn insisting(mut self) -> Self {
        self.insists = true;
        self
    }

    /// A set owns all pods and wants so many.
    fn owned_by_set(mut self, replicas: u32) -> Self {
        self.scale = Some(replicas);
        self
    }

    /// The deeds are done in their order.
    fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }
}

fn quiet() -> Mishaps {
    Mishaps::default()
}

/// Every case, by name.
pub(crate) fn all() -> Vec<Scenario> {
    vec![
        case("two evictions at two replicas", &[(Evict, "x"), (Evict, "y")])
            .mishaps(Mishaps { refusals: 1, ..quiet() }),
        case("one pod twice, and another", &[(Evict, "x"), (Evict, "x"), (Evict, "y")]),
        case("refused elsewhere, asked again", &[(Evict, "x"), (Evict, "x"), (Evict, "y")])
            .mishaps(Mishaps { refusals: 1, time: 2, ..quiet() })
            .replicas(&[(true, true)]),
        case("a successor of the same name", &[(Evict, "x"), (Evict, "x"), (Evict, "y")])
            .replicas(&[(true, true)])
            .successors(),
        case("a successor, two replicas", &[(Evict, "x"), (Evict, "y")]).successors(),
        case("a successor that the caller insists on", &[(Evict, "x"), (Evict, "x"), (Evict, "y")])
            .at(&[0, 1, 0])
            .insisting()
            .successors(),
        // There is never more than one healthy pod.
        case("a pod is lost, and another one is replaced", &[(Evict, "y")])
            .pods(&[("x", true), ("y", false)])
            .budgets(&[("a", keeps(1, ALL))])
            .deeds(&[Deed::Lose("x"), Deed::Replace("y")])
            .replicas(&[(true, true)])
            .in_order()
            .insisting(),
        case("an unready pod heals", &[(Delete, "z"), (Evict, "x")])
            .pods(&[("x", true), ("y", true), ("z", false)])
            .deeds(&[Deed::Heal("z")]),
        case("an unready pod heals, asked twice", &[(Delete, "z"), (Delete, "z"), (Evict, "x")])
            .pods(&[("x", true), ("y", true), ("z", false)])
            .deeds(&[Deed::Heal("z")])
            .mishaps(Mishaps { refusals: 1, time: 2, ..quiet() })
            .replicas(&[(true, true)]),
        case("an unready pod heals, late and asked twice", &[(Delete, "z"), (Delete, "z"), (Evict, "x")])
            .pods(&[("x", true), ("y", true), ("z", false)])
            .deeds(&[Deed::Heal("z")])
            .mishaps(Mishaps { refusals: 1, time: 2, ..quiet() })
            .large(),
        // The budget is short of pods, so a free pass rests on what is down; others charge what has recovered.
        case("two unready pods heal", &[(Delete, "z"), (Evict, "x")])
            .pods(&[("w", false), ("x", true), ("y", true), ("z", false)])
            .budgets(&[("a", keeps(3, ALL))])
            .deeds(&[Deed::Heal("z"), Deed::Heal("w")])
            .at(&[1, 0]),
        case("a pending pod starts", &[(Evict, "z"), (Evict, "x")])
            .pods(&[("x", true), ("y", true), ("z", false)])
            .pending("z")
            .deeds(&[Deed::Heal("z")]),
        case("a pod that is not yet seen", &[(Evict, "w"), (Evict, "x")])
            .pods(&[("x", true), ("y", true)])
            .deeds(&[Deed::Create("w", true)]),
        case("a lost reply", &[(Evict, "x"), (Evict, "y")])
            .mishaps(Mishaps { lost: 1, ..quiet() })
            .replicas(&[(true, true)]),
        case("a lost reply, two replicas", &[(Evict, "x"), (Evict, "y")])
            .mishaps(Mishaps { lost: 1, ..quiet() }),
        case("an API server that gives up", &[(Evict, "x"), (Evict, "y")])
            .mishaps(Mishaps { timeouts: 1, time: 2, ..quiet() })
            .replicas(&[(true, true)]),
        case("a crash and a restart", &[(Evict, "x"), (Evict, "y")])
            .mishaps(Mishaps { crashes: 1, ..quiet() })
            .deeds(&[Deed::Start(1)]),
        case("two leaders", &[(Evict, "x"), (Evict, "y")]).replicas(&[(true, true), (true, true)]),
        case("two leaders, expiry", &[(Evict, "x"), (Evict, "y")])
            .replicas(&[(true, true), (true, true)])
            .mishaps(Mishaps { refusals: 1, time: 2, ..quiet() }),
        case("two leaders, two expire", &[(Evict, "x"), (Evict, "y")])
            .pods(&[("w", true), ("x", true), ("y", true), ("z", true)])
            .replicas(&[(true, true), (true, true)])
            .at(&[0, 0])
            .mishaps(Mishaps { refusals: 2, time: 2, ..quiet() }),
        case("the leader changes", &[(Evict, "x"), (Evict, "y")])
            .deeds(&[Deed::Leader(1, true), Deed::Leader(0, false)])
            .mishaps(Mishaps { time: 2, ..quiet() }),
        // As after a restore: `docs/ledger.md#the-store-may-go-back`.
        case("a settled version from another time", &[(Evict, "x"), (Evict, "y")])
            .deeds(&[Deed::SettleAhead("a", 9)])
            .mishaps(Mishaps { time: 1, ..quiet() })
            .replicas(&[(true, true)]),
        case("a settled version from another time, two replicas", &[(Evict, "x"), (Evict, "y")])
            .deeds(&[Deed::SettleAhead("a", 2)])
            .mishaps(Mishaps { time: 1, ..quiet() })
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .at(&[0, 1]),
        // The store reaches the version, and settles claims meanwhile.
        case("a settled version from another time, two leaders", &[(Evict, "x"), (Evict, "y")])
            .deeds(&[Deed::SettleAhead("a", 2)])
            .mishaps(Mishaps { time: 1, ..quiet() })
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .replicas(&[(true, true), (true, true)])
            .at(&[0, 1])
            .large(),
        case("a watch starts over", &[(Evict, "x"), (Evict, "y")])
            .mishaps(Mishaps { relists: 1, ..quiet() })
            .successors(),
        case("three at one replica", &[(Evict, "x"), (Delete, "y"), (Evict, "z")]).replicas(&[(true, true)]),
        case("groups", &[(Evict, "a0"), (Evict, "b0"), (Evict, "a1")])
            .pods(&[("a0", true), ("a1", true), ("b0", true), ("b1", true)])
            .budgets(&[(
                "a",
                Rules {
                    units: Units::Label { key: Text::from("group"), min_ready: Some(2) },
                    ..keeps(1, ALL)
                },
            )])
            .replicas(&[(true, true)]),
        case("groups at two replicas", &[(Evict, "a0"), (Evict, "b0")])
            .pods(&[("a0", true), ("a1", true), ("b0", true), ("b1", true)])
            .budgets(&[(
                "a",
                Rules {
                    units: Units::Label { key: Text::from("group"), min_ready: Some(2) },
                    ..keeps(1, ALL)
                },
            )]),
        // What was admitted while the group was down anyway comes to nothing, and the group recovers.
        case("a group heals under a free claim", &[(Delete, "a0"), (Delete, "a2")])
            .pods(&[("a0", true), ("a1", false), ("a2", true)])
            .budgets(&[(
                "a",
                Rules {
                    units: Units::Label { key: Text::from("group"), min_ready: Some(3) },
                    ..keeps(1, ALL)
                },
            )])
            .deeds(&[Deed::Heal("a1")])
            .mishaps(Mishaps { refusals: 1, ..quiet() }),
        case("two budgets on one pod", &[(Evict, "x"), (Evict, "x"), (Evict, "y")])
            .budgets(&[("a", keeps(2, ALL)), ("b", keeps(0, ("name", "x")))])
            .replicas(&[(true, true)]),
        case("the second budget says no", &[(Evict, "x"), (Evict, "y")])
            .budgets(&[("a", keeps(2, ALL)), ("b", keeps(1, ("name", "x")))]),
        case("the second budget is tightened", &[(Evict, "x"), (Evict, "x"), (Evict, "y")])
            .budgets(&[("a", keeps(2, ALL)), ("b", keeps(0, ("name", "x")))])
            .deeds(&[Deed::ChangeBudget("b", keeps(1, ("name", "x")))])
            .replicas(&[(true, true)]),
        // The request has the token of the first budget for the pod that went.
        case("a budget is deleted while a successor comes", &[(Evict, "x"), (Evict, "y")])
            .budgets(&[("a", keeps(2, ALL)), ("b", keeps(0, ("name", "x")))])
            .deeds(&[Deed::Replace("x"), Deed::DeleteBudget("b")])
            .replicas(&[(true, true)])
            .successors(),
        case("a budget is deleted and a stricter one made", &[(Evict, "x")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(0, ALL))])
            .deeds(&[Deed::DeleteBudget("a"), Deed::MakeBudget("a", keeps(2, ALL))]),
        case("two leaders settle two pods", &[(Evict, "x"), (Evict, "y"), (Evict, "z")])
            .pods(&[("w", true), ("x", true), ("y", true), ("z", true)])
            .replicas(&[(true, true), (true, true)])
            .at(&[0, 0, 1]),
        case("a free pass is not inherited", &[(Delete, "z"), (Delete, "z")])
            .pods(&[("x", true), ("y", true), ("z", false)])
            .budgets(&[("a", keeps(3, ALL))])
            .deeds(&[Deed::Heal("z")])
            .mishaps(Mishaps { refusals: 1, ..quiet() })
            .replicas(&[(true, true)]),
        case("a new budget, its leader elsewhere", &[(Evict, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[])
            .replicas(&[(true, false), (true, true)])
            .deeds(&[Deed::MakeBudget("a", keeps(1, ALL))])
            .at(&[1, 0]),
        case("a new budget", &[(Evict, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[])
            .deeds(&[Deed::MakeBudget("a", keeps(1, ALL))]),
        case("a new budget, a pod that went before", &[(Evict, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[])
            .deeds(&[Deed::MakeBudget("a", keeps(1, ALL))])
            .pods_go()
            .large(),
        case("a second budget appears", &[(Evict, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(0, ("name", "x")))])
            .deeds(&[Deed::MakeBudget("b", keeps(1, ALL))]),
        case("a budget is deleted and made again", &[(Evict, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .deeds(&[Deed::DeleteBudget("a"), Deed::MakeBudget("a", keeps(1, ALL))])
            .large(),
        case("a budget is deleted and a wider one made", &[(Evict, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(0, ("name", "x")))])
            .deeds(&[Deed::DeleteBudget("a"), Deed::MakeBudget("a", keeps(1, ALL))]),
        case("a replica is lost while a budget opens", &[(Evict, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[])
            .deeds(&[Deed::MakeBudget("a", keeps(1, ALL))])
            .mishaps(Mishaps { crashes: 1, ..quiet() }),
        case("a replica ends while a budget opens", &[(Evict, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[])
            .deeds(&[Deed::MakeBudget("a", keeps(1, ALL)), Deed::End(1)]),
        case("a replica joins before a budget opens, and serves after it", &[(Evict, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[])
            .replicas(&[(true, true), (false, false)])
            .deeds(&[Deed::Join(1), Deed::MakeBudget("a", keeps(1, ALL)), Deed::Serve(1)]),
        case("a replica starts while a budget opens", &[(Evict, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ("name", "y")))])
            .replicas(&[(true, true), (false, false)])
            .deeds(&[
                Deed::ChangeBudget(
                    "a",
                    Rules { operations: Operations::of(&[Evict]), ..keeps(1, ("name", "y")) },
                ),
                Deed::Start(1),
                Deed::ChangeBudget("a", keeps(1, ALL)),
            ])
            .in_order(),
        case("a budget is tightened", &[(Evict, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(0, ALL))])
            .deeds(&[Deed::ChangeBudget("a", keeps(1, ALL))]),
        case("a set is scaled up behind a silent watch", &[(Evict, "x"), (Evict, "y")])
            .owned_by_set(2)
            .budgets(&[(
                "a",
                Rules { min_available: None, max_unavailable: Some(Quantity::Count(1)), ..keeps(0, ALL) },
            )])
            .deeds(&[Deed::Rescale(3)])
            .mishaps(Mishaps { time: 2, ..quiet() })
            .replicas(&[(true, true)]),
        case("a budget covers more", &[(Evict, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ("name", "y")))])
            .deeds(&[Deed::ChangeBudget("a", keeps(1, ALL))]),
        // What was written when the budget opened names the same coverage as before.
        case("a budget covers less, and more again", &[(Evict, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .deeds(&[
                Deed::ChangeBudget("a", keeps(1, ("name", "y"))),
                Deed::ChangeBudget("a", keeps(1, ALL)),
            ])
            .in_order(),
        // The pods may be listed by what the budget covered before.
        case("a budget covers more while its pods are listed", &[(Delete, "z"), (Delete, "x")])
            .pods(&[("x", true), ("y", true), ("z", false)])
            .budgets(&[("a", keeps(1, ("name", "z")))])
            .deeds(&[Deed::ChangeBudget("a", keeps(3, ALL)), Deed::Heal("z")])
            .replicas(&[(true, true)]),
        case("an update", &[(Update, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))]),
        case("an update and an eviction of one pod", &[(Update, "x"), (Evict, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .replicas(&[(true, true)]),
        case("an update that never comes", &[(Update, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .mishaps(Mishaps { refusals: 1, time: 2, ..quiet() })
            .replicas(&[(true, true)]),
        // As OpenKruise does it: the readiness gate first, then the image.
        case("an announced update", &[(Update, "x"), (Update, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .changes(&[Change::Gate, Change::Image(2)]),
        case("an announcement that nothing follows", &[(Update, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .changes(&[Change::Gate])
            .mishaps(Mishaps { refusals: 1, time: 2, ..quiet() }),
        case("two announced updates", &[(Update, "x"), (Update, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .changes(&[Change::Gate, Change::Gate]),
        case("an update takes the place of another", &[(Update, "x"), (Update, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .changes(&[Change::Image(2), Change::Image(3)])
            .mishaps(Mishaps { refusals: 1, ..quiet() }),
        case("an update is taken back", &[(Update, "x"), (Update, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .changes(&[Change::Image(2), Change::Image(1)])
            .replicas(&[(true, true)]),
        case("an image is shown by another name", &[(Update, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .changes(&[Change::Image(ALIAS)])
            .mishaps(Mishaps { refusals: 1, time: 2, ..quiet() }),
        // The generation is the same all the time.
        case("an annotation keeps more", &[(Evict, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(0, ALL))])
            .deeds(&[Deed::Annotate("a", keeps(1, ALL))]),
        case("an annotation takes an operation out, and puts it back", &[(Delete, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .deeds(&[Deed::Annotate("a", evictions(keeps(1, ALL))), Deed::Annotate("a", keeps(1, ALL))])
            .in_order(),
        case("an annotation takes relabels out, and puts them back", &[(Relabel, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", decides_relabels(keeps(1, ALL)))])
            .changes(&[Change::Label("app", "other")])
            .deeds(&[
                Deed::Annotate("a", keeps(1, ALL)),
                Deed::Annotate("a", decides_relabels(keeps(1, ALL))),
            ])
            .in_order(),
        case("a relabel and an eviction", &[(Relabel, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", decides_relabels(keeps(1, ALL)))])
            .changes(&[Change::Label("app", "other")])
            .mishaps(Mishaps { refusals: 1, time: 2, ..quiet() }),
        case("two relabels", &[(Relabel, "x"), (Relabel, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", decides_relabels(keeps(1, ALL)))])
            .changes(&[Change::Label("app", "other"), Change::Label("app", "other")]),
        case("a relabel and a delete of one pod", &[(Relabel, "x"), (Delete, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", decides_relabels(keeps(1, ALL)))])
            .changes(&[Change::Label("app", "other")]),
        // The group that is left is charged.
        case("a pod moves to another group", &[(Relabel, "a0"), (Evict, "b0")])
            .pods(&[("a0", true), ("a1", true), ("b0", true), ("b1", true)])
            .budgets(&[(
                "a",
                Rules {
                    units: Units::Label { key: Text::from("group"), min_ready: Some(2) },
                    ..decides_relabels(keeps(1, ALL))
                },
            )])
            .changes(&[Change::Label("group", "b")]),
        // A relabel that leaves one of two budgets.
        case("a relabel under two budgets", &[(Relabel, "x"), (Evict, "y")])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[
                ("a", decides_relabels(keeps(1, ALL))),
                ("b", decides_relabels(keeps(1, ("group", "x")))),
            ])
            .changes(&[Change::Label("app", "other")]),
        case("a new budget that decides relabels", &[(Relabel, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[])
            .changes(&[Change::Label("app", "other")])
            .deeds(&[Deed::MakeBudget("a", decides_relabels(keeps(1, ALL)))]),
        case("a budget that decides relabels from now on", &[(Relabel, "x"), (Evict, "y")])
            .at(&[1, 0])
            .pods(&[("x", true), ("y", true)])
            .budgets(&[("a", keeps(1, ALL))])
            .changes(&[Change::Label("app", "other")])
            .deeds(&[Deed::ChangeBudget("a", decides_relabels(keeps(1, ALL)))]),
    ]
}

pub(crate) fn named(name: &str) -> Scenario {
    all().into_iter().find(|scenario| scenario.name == name).unwrap_or_else(|| panic!("no scenario {name:?}"))
}
