//! All provocations: what each needs, which rules it provokes, and which provocations a run has.

use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use super::dedicated_apps;
use crate::apps::Kind;

/// What a provocation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provocation {
    /// A workload is scaled up while no server can read its kind, and time goes by.
    StaleScale,
    /// All pods of one of several sources are gone for a long time.
    VanishedSource,
    /// The kind of a budget or of a group source is forbidden for a while.
    ForbiddenKind,
    /// Discovery omits the kind of a budget or of a group source for a while.
    HiddenKind,
    /// Pods get owners that the servers have not seen.
    UnknownOwner,
    /// Surge groups become wanted behind a watch that is held.
    SurgeGroup,
    /// An attacker sends reviews of pods that do not exist.
    Forged,
    /// Pods are replaced by others of the same name behind a watch that is held, and clients require the new UIDs.
    Successors,
    /// Requests by name wait in another webhook, and the name passes to another pod.
    SlowRequests,
    /// An admitted eviction waits, and the name of its pod passes to another pod.
    NameGivenAgain,
    /// A budget is created, and one server does not see it.
    Unacknowledged,
    /// A server starts while a budget is created, and cannot write to its Lease.
    Newcomer,
    /// A budget covers other pods for a moment, and the same as before again, which one server does not see.
    Flip,
    /// Admitted requests wait while a budget is created.
    AdmittedBefore,
    /// The same, and the server that admitted them ends in order.
    HandedOver,
    /// The same, and the server that admitted them is killed.
    Killed,
    /// A budget is created and opened while a request waits for the claim in another budget.
    LateBudget,
    /// Requests for all pods reach all servers at once, and their writes are slow.
    SameRoom,
    /// A pod goes, and its claim with it, behind the watch of one server.
    LaggingPods,
    /// A pod that the leader has not seen gets a claim.
    UnseenPod,
    /// A pod is requested again shortly before the claim of the first request expires.
    SecondRequest,
    /// Of two requests for a pod, one fails at its second budget.
    Withdrawn,
    /// A pod has recovered behind the watch of one server.
    Recovered,
    /// Pods are lost, and others are replaced, behind the watch of one server.
    ReadAlone,
    /// A pod recovers after one server has listed it, and before that server writes.
    RecoversMeanwhile,
    /// A pod that was down got a claim that was never used, and recovers.
    HeldAndRecovered,
    /// A pod that has not started is evicted, and is ready when the eviction is carried out.
    Pending,
    /// An update of a pod is stored, and its kubelet is slow.
    SlowKubelet,
    /// An update of a pod is refused after it was admitted, while an eviction of the same pod waits.
    RefusedUpdate,
    /// The agent of one node is dead, and that of another one was replaced and has no results yet.
    UnbelievedProbes,
}

/// What a provocation needs, and what it provokes.
struct About {
    /// Whether it is about a dedicated application.
    dedicated: bool,
    /// Whether no fault at random may happen at the same time.
    calm: bool,
    /// How many servers it needs.
    servers: usize,
    /// The kinds of applications that it can be about.
    kinds: &'static [Kind],
    /// Rules of the servers that are necessary for it.
    provokes: &'static [&'static str],
}

const DEDICATED: About =
    About { dedicated: true, calm: true, servers: 2, kinds: dedicated_apps::PODS, provokes: &[] };

const IN_THE_RUN: About = About { dedicated: false, calm: false, servers: 1, kinds: &[], provokes: &[] };

impl Provocation {
    /// All provocations.
    pub const ALL: [Self; 30] = [
        Self::StaleScale,
        Self::VanishedSource,
        Self::ForbiddenKind,
        Self::HiddenKind,
        Self::UnknownOwner,
        Self::SurgeGroup,
        Self::Forged,
        Self::Successors,
        Self::SlowRequests,
        Self::NameGivenAgain,
        Self::Unacknowledged,
        Self::Newcomer,
        Self::Flip,
        Self::AdmittedBefore,
        Self::HandedOver,
        Self::Killed,
        Self::LateBudget,
        Self::SameRoom,
        Self::LaggingPods,
        Self::UnseenPod,
        Self::SecondRequest,
        Self::Withdrawn,
        Self::Recovered,
        Self::ReadAlone,
        Self::RecoversMeanwhile,
        Self::HeldAndRecovered,
        Self::Pending,
        Self::SlowKubelet,
        Self::RefusedUpdate,
        Self::UnbelievedProbes,
    ];

    fn about(self) -> About {
        match self {
            Self::StaleScale => About {
                kinds: &[
                    Kind::Deployment,
                    Kind::Target,
                    Kind::StatefulSet,
                    Kind::LeaderWorkerSet,
                    Kind::Kruise,
                ],
                provokes: &["StaleKindsDeny"],
                ..IN_THE_RUN
            },
            Self::VanishedSource => About {
                calm: false,
                servers: 1,
                kinds: dedicated_apps::GROUPS,
                provokes: &["SourcesStay"],
                ..DEDICATED
            },
            Self::ForbiddenKind => {
                About { kinds: &[Kind::Kruise], provokes: &["ForbiddenIsNotAbsence"], ..IN_THE_RUN }
            }
            Self::HiddenKind => {
                About { kinds: &[Kind::Kruise], provokes: &["PartialDiscoveryIsNotAbsence"], ..IN_THE_RUN }
            }
            Self::UnknownOwner => {
                About { kinds: &[Kind::Target], provokes: &["UnknownOwnersAreRead"], ..IN_THE_RUN }
            }
            Self::SurgeGroup => About { kinds: &[Kind::LeaderWorkerSet, Kind::Native], ..IN_THE_RUN },
            Self::Forged => About { servers: 1, provokes: &["ReviewsTeachNothing"], ..DEDICATED },
            Self::Successors => About {
                calm: true,
                kinds: &[Kind::StatefulSet, Kind::LabelGroups, Kind::LeaderWorkerSet],
                provokes: &["ReadOther"],
                ..IN_THE_RUN
            },
            Self::SlowRequests => {
                About { kinds: &[Kind::StatefulSet, Kind::LabelGroups, Kind::LeaderWorkerSet], ..IN_THE_RUN }
            }
            Self::NameGivenAgain => {
                About { kinds: &[Kind::StatefulSet], provokes: &["EvictionsArePinned"], ..DEDICATED }
            }
            Self::Unacknowledged => {
                About { provokes: &["WaitForAcknowledgement", "ClosedDenies"], ..DEDICATED }
            }
            Self::Newcomer => About { provokes: &["ServesOnceAnnounced"], ..DEDICATED },
            Self::Flip => About { provokes: &["SteadyCoverage", "ReopenOnCoverage"], ..DEDICATED },
            Self::AdmittedBefore => About { provokes: &["BackfillOnOpening"], ..DEDICATED },
            Self::HandedOver => About { provokes: &["TakeHandedOver"], ..DEDICATED },
            Self::Killed => About { provokes: &["WaitForVanished"], ..DEDICATED },
            Self::LateBudget => About { provokes: &["RecheckCovering"], ..DEDICATED },
            Self::SameRoom => About { provokes: &["TestNumber"], ..DEDICATED },
            Self::LaggingPods => About { provokes: &["WaitForSettled", "RaiseSettled"], ..DEDICATED },
            Self::UnseenPod => About { provokes: &["SettleOnlySeen"], ..DEDICATED },
            Self::SecondRequest => About { provokes: &["SecondRequestWrites", "ClockPerToken"], ..DEDICATED },
            Self::Withdrawn => About { provokes: &["WithdrawOnlyOwn"], ..DEDICATED },
            Self::Recovered => About { provokes: &["FreshList"], ..DEDICATED },
            Self::ReadAlone => {
                About { kinds: &[Kind::StatefulSet], provokes: &["ReadsCountOnceShown"], ..DEDICATED }
            }
            Self::RecoversMeanwhile => About { provokes: &["FreshListAfterNumber"], ..DEDICATED },
            Self::HeldAndRecovered => About { provokes: &["DecideAfresh"], ..DEDICATED },
            Self::Pending => {
                About { kinds: &[Kind::StatefulSet], provokes: &["PendingClaimed"], ..DEDICATED }
            }
            Self::SlowKubelet => About { provokes: &["UpdateSeenRunning"], ..DEDICATED },
            Self::RefusedUpdate => About { provokes: &["UpdateSettlesUpdates"], ..DEDICATED },
            Self::UnbelievedProbes => About {
                calm: false,
                servers: 1,
                kinds: &[Kind::Probed],
                provokes: &["ProbesDecide", "AgentsExpire", "OldResultsDoNotCount"],
                ..DEDICATED
            },
        }
    }

    /// The kinds of applications that it can be about.
    pub fn kinds(self) -> &'static [Kind] {
        self.about().kinds
    }

    /// How many servers it needs.
    pub fn servers(self) -> usize {
        self.about().servers
    }

    /// Whether it is about a dedicated application.
    pub fn needs_dedicated_apps(self) -> bool {
        self.about().dedicated
    }

    /// Whether no fault at random may happen at the same time.
    pub fn needs_calm(self) -> bool {
        self.about().calm
    }

    /// Rules of the servers that are necessary for it: without one of these, a budget breaks.
    pub fn provokes(self) -> &'static [&'static str] {
        self.about().provokes
    }

    /// Whether new budgets stay closed for a while after it: a server has been killed.
    pub(super) fn closes_budgets(self) -> bool {
        self == Self::Killed
    }
}

/// Seeds that have all provocations among them.
const ROUND: u64 = 6;

/// How many seeds of a round have provocations. In the others, faults come more often.
const WITH_PROVOCATIONS: usize = 4;

/// The provocations of a run. Every six seeds have all provocations among them, and two of the six have none.
pub fn of_seed(seed: u64) -> Vec<Provocation> {
    let (round, place) = (seed.saturating_sub(1) / ROUND, seed.saturating_sub(1) % ROUND);
    let random = &mut ChaCha8Rng::seed_from_u64(!round);
    let (mut calm, mut others): (Vec<Provocation>, Vec<Provocation>) =
        Provocation::ALL.into_iter().partition(|provocation| provocation.needs_calm());
    calm.shuffle(random);
    others.shuffle(random);
    let mut places: Vec<u64> = (0..ROUND).collect();
    places.shuffle(random);
    let share = places.iter().position(|it| *it == place).filter(|share| *share < WITH_PROVOCATIONS);
    let Some(share) = share else { return Vec::new() };
    let of_share = |all: Vec<Provocation>| all.into_iter().skip(share).step_by(WITH_PROVOCATIONS);
    of_share(calm).chain(of_share(others)).collect()
}
