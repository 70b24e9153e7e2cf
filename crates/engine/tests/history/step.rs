//! The possible steps, with weights. There are few names, so that objects meet, and few values, so that they are equal.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use quorate_engine::basics::Quantity;
use quorate_engine::facts::{Operation, Phase};

/// The number of pod names; the last one is in another namespace.
pub(crate) const NAMES: u8 = 9;
/// The largest number of budgets; the last one is a PodUnavailableBudget with the name of the first.
pub(crate) const BUDGETS: u8 = 4;

/// The number of controllers.
pub(crate) const CONTROLLERS: u8 = 11;

/// The number of kinds that have an age.
pub(crate) const KINDS: u8 = 15;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A pod changes and the watch delivers it.
    Pod(u8, PodEdit),
    /// A pod changes and the watch does not deliver it yet.
    Unseen(u8, PodEdit),
    /// The watch delivers the present state of a pod.
    Deliver(u8),
    /// A single read returns the present state of a pod.
    Learn(u8),
    /// An older state of a pod arrives late.
    Late(u8, bool),
    Gone(u8),
    /// A new pod with the same name replaces another, delivered by the watch or by a single read.
    Successor(u8, bool),
    /// A list of all pods; the pods in the mask were deleted without a watch event.
    Relist(u16),
    /// A list of a budget's pods.
    BudgetPods(u8),
    Budget(u8, BudgetSpec),
    /// Only the numbers of a budget change.
    Numbers(u8, Option<Quantity>, Option<Quantity>),
    NewBudget(u8),
    /// Another process has written into the status that groups vanished.
    Vanished(u8, i64),
    BudgetGone(u8),
    Broken(u8, bool),
    Open(u8),
    Claim(u8, u8, Operation),
    Unclaim(u8, u8),
    Protocol(u8, Option<u32>),
    Controller(u8, Option<u32>, ControllerEdit),
    ControllerGone(u8),
    /// A list of all controllers of one kind, which contains the known ones.
    RelistControllers(u8),
    /// All pods of a controller are gone at once. The number is the one for `pod_owner`.
    Vanish(u8),
    PodGroup(u8, Option<(u32, bool, u8, u8)>, Life),
    Workload(u8, Option<Vec<(u32, Option<u32>)>>, Life),
    Namespace(bool, bool),
    Native(u8, Option<Native>),
    /// A list of the native budgets, which contains only the first of them.
    RelistNatives,
    Node(u8, Option<bool>),
    Agent(u8, Option<bool>),
    Time(i64),
    /// The watches of the kinds in the mask receive something.
    Heard(u16),
    /// A kind seems not to be served any more.
    Doubted(u8),
    /// A kind is not watched any more. Its objects are gone before.
    Forgotten(u8),
    Restart,
}

#[derive(Clone, Debug)]
pub(crate) enum PodEdit {
    App(u8),
    Shard(Option<u8>),
    Lws(Option<(u8, u8)>, Option<u32>),
    Owner(u8),
    GroupOwner(Option<(u8, bool)>),
    Link(u8, u8, u8),
    Phase(Phase, bool),
    Terminating,
    Consistent(bool),
    Waives(bool),
    Node(Option<u8>),
    Probe(u8),
}

/// The selector and the numbers of a native budget.
#[derive(Clone, Debug)]
pub(crate) struct Native {
    pub(crate) covers: u8,
    pub(crate) allowed: i64,
    pub(crate) current: bool,
    pub(crate) always_allow_unready: bool,
    pub(crate) healthy: (i64, i64),
    pub(crate) expected: i64,
}

/// The state of the object of a source.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) deleting: bool,
    /// It is another object with the same name.
    pub(crate) again: bool,
    /// It has an owner that may be suspended or finish.
    pub(crate) owned: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct ControllerEdit {
    pub(crate) activity: u8,
    pub(crate) template: u8,
    pub(crate) deleting: bool,
    pub(crate) recreate: bool,
    pub(crate) owned: bool,
    pub(crate) size: Option<u32>,
    pub(crate) falls_whole: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct BudgetSpec {
    pub(crate) covers: u8,
    pub(crate) min: Option<Quantity>,
    pub(crate) max: Option<Quantity>,
    pub(crate) units: u8,
    pub(crate) min_ready: Option<u32>,
    pub(crate) expected: Option<u32>,
    pub(crate) always_allow: bool,
    pub(crate) operations: u8,
    pub(crate) observe: bool,
    pub(crate) strict: bool,
    pub(crate) open: bool,
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Budgets and pods first, so that later steps have something to act on.
    let early = (vec(budget(), 1..4), vec((name(), vec(edit(), 1..6)), 4..16)).prop_map(|(budgets, pods)| {
        let pods =
            pods.into_iter().flat_map(|(name, edits)| edits.into_iter().map(move |e| Step::Pod(name, e)));
        budgets.into_iter().chain(pods).collect::<Vec<_>>()
    });
    (early, vec(step(), 0..40)).prop_map(|(early, late)| early.into_iter().chain(late).collect())
}

fn name() -> impl Strategy<Value = u8> {
    0..NAMES
}

fn slot() -> impl Strategy<Value = u8> {
    0..BUDGETS
}

fn step() -> impl Strategy<Value = Step> {
    let operation = select(vec![Operation::Evict, Operation::Evict, Operation::Delete, Operation::Update]);
    let whiles =
        select(vec![1, 1000, 30_000, 39_999, 40_000, 60_000, 120_000, 899_999, 900_000, 3_600_000, -5000]);
    prop_oneof![
        24 => (name(), edit()).prop_map(|(name, edit)| Step::Pod(name, edit)),
        4 => (name(), edit()).prop_map(|(name, edit)| Step::Unseen(name, edit)),
        2 => name().prop_map(Step::Deliver),
        3 => name().prop_map(Step::Learn),
        2 => (name(), any::<bool>()).prop_map(|(name, learn)| Step::Late(name, learn)),
        6 => name().prop_map(Step::Gone),
        3 => (name(), any::<bool>()).prop_map(|(name, learn)| Step::Successor(name, learn)),
        2 => (any::<u16>(), any::<u16>()).prop_map(|(a, b)| Step::Relist(a & b)),
        4 => slot().prop_map(Step::BudgetPods),
        4 => budget(),
        4 => (slot(), quantity(), quantity()).prop_map(|(slot, min, max)| Step::Numbers(slot, min, max)),
        1 => slot().prop_map(Step::NewBudget),
        2 => (slot(), select(vec![0, 60, 899])).prop_map(|(slot, ago)| Step::Vanished(slot, ago)),
        1 => slot().prop_map(Step::BudgetGone),
        1 => (slot(), any::<bool>()).prop_map(|(slot, all)| Step::Broken(slot, all)),
        3 => slot().prop_map(Step::Open),
        10 => (slot(), name(), operation).prop_map(|(slot, name, operation)| Step::Claim(slot, name, operation)),
        5 => (slot(), name()).prop_map(|(slot, name)| Step::Unclaim(slot, name)),
        1 => (slot(), select(vec![None, Some(1), Some(2)])).prop_map(|(slot, p)| Step::Protocol(slot, p)),
        18 => controller(),
        3 => (0u8..CONTROLLERS).prop_map(Step::ControllerGone),
        2 => (0u8..CONTROLLERS).prop_map(Step::RelistControllers),
        4 => (0u8..8).prop_map(Step::Vanish),
        5 => (0u8..3, proptest::option::weighted(0.8, (1u32..4, any::<bool>(), 0u8..3, 0u8..5)), life())
            .prop_map(|(at, group, life)| Step::PodGroup(at, group, life)),
        5 => (
            0u8..4,
            proptest::option::weighted(0.8, vec((1u32..4, proptest::option::of(0u32..4)), 1..3)),
            life()
        )
            .prop_map(|(at, groups, life)| Step::Workload(at, groups, life)),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(t, e)| Step::Namespace(t, e)),
        4 => (0u8..2, proptest::option::weighted(0.8, native())).prop_map(|(at, fact)| Step::Native(at, fact)),
        1 => Just(Step::RelistNatives),
        2 => (0u8..2, proptest::option::weighted(0.8, any::<bool>())).prop_map(|(at, ready)| Step::Node(at, ready)),
        3 => (0u8..2, proptest::option::weighted(0.8, any::<bool>())).prop_map(|(at, new)| Step::Agent(at, new)),
        8 => whiles.prop_map(Step::Time),
        5 => (any::<u16>(), any::<u16>()).prop_map(|(a, b)| Step::Heard(a | b)),
        1 => (0u8..KINDS).prop_map(Step::Doubted),
        1 => (0u8..KINDS).prop_map(Step::Forgotten),
        1 => Just(Step::Restart),
    ]
}

fn edit() -> impl Strategy<Value = PodEdit> {
    prop_oneof![
        3 => (0u8..2).prop_map(PodEdit::App),
        4 => proptest::option::weighted(0.8, 0u8..3).prop_map(PodEdit::Shard),
        4 => (proptest::option::weighted(0.9, (0u8..2, 0u8..3)), proptest::option::of(1u32..4))
            .prop_map(|(group, size)| PodEdit::Lws(group, size)),
        5 => (0u8..8).prop_map(PodEdit::Owner),
        3 => proptest::option::weighted(0.8, (0u8..2, any::<bool>())).prop_map(PodEdit::GroupOwner),
        5 => (0u8..4, 0u8..3, 0u8..3).prop_map(|(kind, a, b)| PodEdit::Link(kind, a, b)),
        12 => Just(PodEdit::Phase(Phase::Running, true)),
        4 => Just(PodEdit::Phase(Phase::Running, false)),
        2 => Just(PodEdit::Phase(Phase::Pending, false)),
        3 => Just(PodEdit::Phase(Phase::Succeeded, false)),
        1 => Just(PodEdit::Phase(Phase::Failed, false)),
        1 => Just(PodEdit::Phase(Phase::Unknown, true)),
        1 => Just(PodEdit::Terminating),
        1 => any::<bool>().prop_map(PodEdit::Consistent),
        1 => any::<bool>().prop_map(PodEdit::Waives),
        1 => proptest::option::weighted(0.9, 0u8..2).prop_map(PodEdit::Node),
        2 => (0u8..7).prop_map(PodEdit::Probe),
    ]
}

fn quantity() -> impl Strategy<Value = Option<Quantity>> {
    let some = select(vec![
        Quantity::Count(0),
        Quantity::Count(1),
        Quantity::Count(1),
        Quantity::Count(2),
        Quantity::Count(3),
        Quantity::Percent(0),
        Quantity::Percent(1),
        Quantity::Percent(34),
        Quantity::Percent(50),
        Quantity::Percent(100),
    ]);
    proptest::option::weighted(0.6, some)
}

fn budget() -> impl Strategy<Value = Step> {
    let numbers = (quantity(), quantity(), proptest::option::weighted(0.2, 0u32..4));
    let rest = (
        any::<bool>(),
        0u8..5,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.95),
    );
    (slot(), 0u8..14, numbers, 0u8..7, proptest::option::of(1u32..4), rest).prop_map(
        |(slot, covers, (min, max, expected), units, min_ready, rest)| {
            let (always_allow, operations, observe, strict, open) = rest;
            let spec = BudgetSpec {
                covers,
                min,
                max,
                units,
                min_ready,
                expected,
                always_allow,
                operations,
                observe,
                strict,
                open,
            };
            Step::Budget(slot, spec)
        },
    )
}

fn native() -> impl Strategy<Value = Native> {
    let numbers = (-1i64..3, (0i64..5, 0i64..4), 0i64..6);
    (0u8..3, prop::bool::weighted(0.8), any::<bool>(), numbers).prop_map(
        |(covers, current, always_allow_unready, (allowed, healthy, expected))| Native {
            covers,
            allowed,
            current,
            always_allow_unready,
            healthy,
            expected,
        },
    )
}

fn controller() -> impl Strategy<Value = Step> {
    let edit = (
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.7),
        proptest::option::weighted(0.6, 1u32..4),
        any::<bool>(),
        prop_oneof![6 => Just(0u8), 1 => 1u8..4],
        0u8..7,
    );
    (0u8..CONTROLLERS, proptest::option::weighted(0.9, 0u32..5), edit).prop_map(
        |(at, replicas, (deleting, recreate, owned, size, falls_whole, activity, template))| {
            let edit = ControllerEdit { deleting, recreate, owned, size, falls_whole, activity, template };
            Step::Controller(at, replicas, edit)
        },
    )
}

fn life() -> impl Strategy<Value = Life> {
    (prop::bool::weighted(0.15), prop::bool::weighted(0.1), any::<bool>())
        .prop_map(|(deleting, again, owned)| Life { deleting, again, owned })
}
