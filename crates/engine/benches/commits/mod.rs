//! The largest engine time of one step of the leader, in the largest budgets: the one task of a server does nothing else
//! meanwhile. A step that writes includes the status that goes along with the write.

use std::collections::{BTreeMap, VecDeque};

use quorate_engine::basics::{Quantity, Text, Time, Uid, Version};
use quorate_engine::claims::{Claim, PROTOCOL, Target, Token};
use quorate_engine::facts::{Budget, BudgetKind, Input, Operation, Pod, UnhealthyPolicy};
use quorate_engine::ledger::{Call, CallId, Event, Output, PodRead, Replica, Reply, Settings, WriteOutcome};
use quorate_engine::{Coverage, Gates, Snapshot};

use crate::cluster::{Cluster, Layout};
use crate::{busy, print};

/// A case, and the name under which it is printed.
type Case = (&'static str, fn(&str));

/// All cases.
pub(crate) const CASES: [Case; 4] = [
    ("commit_target_50k", target),
    ("commit_groups_10k", groups),
    ("commit_claims_1500", claims),
    ("commit_expiry_1000", expiry),
];

/// 50,000 pods under one `targetRef`: charges, and free passes of a budget that is short, which list all of them.
fn target(name: &str) {
    let mut leader = Leader::new(Layout::Target { pods: 50_000 }, 0, 5_000);
    leader.measure(|leader| {
        (0..20).for_each(|n| leader.evict(n * 1_000));
    });
    leader.print(name);
    let mut leader = Leader::new(Layout::Target { pods: 50_000 }, 0, 0);
    for n in 0..3 {
        let pod = leader.cluster.changed(n * 1_000 + 1, false);
        leader.pods[n * 1_000 + 1] = pod.clone();
        leader.step(Event::Fact(Box::new(Input::Pod(pod))));
    }
    leader.measure(|leader| (0..3).for_each(|n| leader.evict(n * 1_000 + 1)));
    leader.print("commit_free_pass_50k");
}

/// 10,000 groups in one budget.
fn groups(name: &str) {
    let mut leader = Leader::new(Layout::LeaderWorkers { pods: 80_000 }, 0, 5_000);
    leader.measure(|leader| (0..20).for_each(|n| leader.evict(n * 800)));
    leader.print(name);
}

/// 1,500 claims that stand, and a hundred requests that are decided together.
fn claims(name: &str) {
    let mut leader = Leader::new(Layout::One { pods: 10_000 }, 1_500, 5_000);
    leader.measure(|leader| {
        (2_000..2_100).for_each(|n| leader.request(n));
        leader.settle();
    });
    leader.print(name);
    assert_eq!(leader.stored.ledger.claims.len(), 1_600);
}

/// 1,000 claims that become due at the same time.
fn expiry(name: &str) {
    let mut leader = Leader::new(Layout::One { pods: 10_000 }, 1_000, 5_000);
    leader.measure(|leader| {
        leader.now = leader.now.after(std::time::Duration::from_secs(121));
        leader.step(Event::Fact(Box::new(Input::PodsAt(Version(u64::MAX / 2)))));
        leader.step(Event::Tick);
        leader.settle();
    });
    leader.print(name);
    assert!(leader.stored.ledger.claims.is_empty());
    print("expiry_1000_calls", leader.done as f64, "");
}

/// A replica that leads, and an API server that answers at once.
struct Leader {
    cluster: Cluster,
    pods: Vec<Pod>,
    stored: Budget,
    replica: Replica,
    now: Time,
    calls: VecDeque<(CallId, Call)>,
    requests: u64,
    /// The largest time of a step, in seconds.
    worst: f64,
    /// The number of calls.
    done: usize,
}

impl Leader {
    /// So many units may be unavailable, and so many pods are claimed.
    fn new(layout: Layout, claims: usize, max_unavailable: u32) -> Self {
        let cluster = Cluster::new(layout);
        let pods: Vec<Pod> = (0..cluster.pods()).map(|at| cluster.unchanged(at)).collect();
        let mut stored = cluster.budget(0);
        if let Ok(rules) = &mut stored.spec {
            rules.max_unavailable = Some(Quantity::Count(max_unavailable));
            rules.unhealthy = UnhealthyPolicy::AlwaysAllow;
            stored.ledger.enforced = Some(Coverage::of(&stored.uid, rules));
        }
        stored.ledger.protocol = Some(PROTOCOL);
        stored.ledger.claims = pods[..claims].iter().map(claim).collect();
        let settings = Settings { opens_unguarded: true, ..Settings::new("quorate-server-5d4f8c7b9-x2x7k") };
        let mut leader = Self {
            replica: Replica::new(settings, Gates::default()),
            now: Time(1_000_000),
            calls: VecDeque::new(),
            requests: 0,
            worst: 0.0,
            done: 0,
            stored,
            pods,
            cluster,
        };
        for controller in leader.cluster.controllers(0) {
            leader.step(Event::Fact(Box::new(Input::Controller(controller))));
        }
        leader.step(Event::List(Snapshot::Pods(leader.pods.clone(), Version(1_000_000))));
        let budgets = vec![leader.stored.clone()];
        leader.step(Event::List(Snapshot::Budgets(BudgetKind::DisruptionBudget, budgets)));
        for event in [Event::Synced, Event::Serving(true), Event::Leader(true)] {
            leader.step(event);
        }
        leader.settle();
        // Only the facts of the cluster are needed from now on.
        leader.cluster.engine = quorate_engine::Engine::new(Gates::default());
        leader
    }

    fn measure(&mut self, run: impl FnOnce(&mut Self)) {
        (self.worst, self.done) = (0.0, 0);
        run(self);
    }

    fn print(&self, name: &str) {
        print(&format!("{name}_ms"), self.worst * 1e3, "ms");
    }

    /// Lets something happen to the replica.
    fn step(&mut self, event: Event) {
        let start = busy();
        let outputs = self.replica.step(event, self.now);
        for output in &outputs {
            if let Output::Call(_, Call::Patch(patch)) = output {
                std::hint::black_box(self.replica.status_with(patch, self.now));
            }
        }
        self.replica.take_changes();
        self.worst = self.worst.max(busy() - start);
        let calls = outputs.into_iter().filter_map(|output| match output {
            Output::Call(id, call) => Some((id, call)),
            _ => None,
        });
        self.calls.extend(calls);
    }

    fn request(&mut self, at: usize) {
        self.requests += 1;
        let request = Box::new(self.cluster.evict(at));
        let deadline = Time(self.now.0 + 10_000);
        self.step(Event::Request { id: self.requests, request, deadline });
    }

    /// An eviction, until it is answered.
    fn evict(&mut self, at: usize) {
        self.request(at);
        self.settle();
    }

    /// Answers every call, until there is none and no window is open.
    fn settle(&mut self) {
        loop {
            if let Some((id, call)) = self.calls.pop_front() {
                self.done += 1;
                let reply = self.answer(&call);
                let shown = matches!(reply, Reply::Written(WriteOutcome::Done(_)));
                self.step(Event::Reply(id, reply));
                if shown {
                    self.step(Event::Fact(Box::new(Input::Budget(self.stored.clone()))));
                }
            } else if let Some(wake) = self.replica.wakes_at() {
                self.now = self.now.max(wake);
                self.step(Event::Tick);
            } else {
                return;
            }
        }
    }

    fn answer(&mut self, call: &Call) -> Reply {
        match call {
            Call::Patch(patch) => {
                if !patch.apply(&mut self.stored) {
                    return Reply::Written(WriteOutcome::Refused);
                }
                self.stored.version.0 += 1;
                Reply::Written(WriteOutcome::Done(Box::new(self.stored.clone())))
            }
            Call::GetBudget(_) => Reply::Budget(Some(Box::new(self.stored.clone()))),
            Call::GetPod(key) => match self.pods.iter().find(|pod| pod.key == *key) {
                Some(pod) => Reply::Pod(PodRead::There(Box::new(pod.clone()))),
                None => Reply::Pod(PodRead::Gone),
            },
            Call::GetController(..) => Reply::Controller(None),
            Call::ListPods(_) => Reply::Pods(self.pods.clone(), Version(20_000_000)),
            Call::PodsVersion => Reply::PodsVersion(Version(20_000_000)),
            Call::ListReplicas => Reply::Replicas(Vec::new()),
        }
    }
}

/// The claim of an eviction on a pod.
fn claim(pod: &Pod) -> (Uid, Claim) {
    let token = Token {
        operation: Operation::Evict,
        by: Text::from("kubernetes-admin"),
        at: Time(1_000_000),
        target: Target::default(),
    };
    let id = Text::from(format!("quorate-server-5d4f8c7b9-k9b2c-{}", pod.version.0));
    (pod.uid.clone(), Claim { pod: pod.key.name.clone(), tokens: BTreeMap::from([(id, token)]) })
}
