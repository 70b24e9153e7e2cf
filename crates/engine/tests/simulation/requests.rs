//! What people ask for, and what becomes of it.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_engine::basics::{Text, Time, Uid, Version};
use quorate_engine::callers::Caller;
use quorate_engine::claims::{ContainerChange, Target, Token, TokenId};
use quorate_engine::decision::{Decision, DenialReason};
use quorate_engine::facts::{Operation, Pod};
use quorate_engine::ledger::{Event, Note, ProtocolRule};
use quorate_engine::request::Request;
use rand::Rng;

use super::cluster::{Cluster, Happening, Process};
use super::truth::Deed;

pub(crate) type RequestId = u64;

/// A replica has this long to answer.
const DEADLINE: Duration = Duration::from_secs(9);
/// Longer than a token may stand, whatever happens to its pod and to those who would take it away.
const TOKEN_LASTS: Duration = Duration::from_secs(900);

/// Updates ask for an image beyond those that pods are made with.
const IMAGES: u64 = 1 << 32;

/// A request, from the question to the end.
#[derive(Clone, Debug)]
pub(crate) struct Journey {
    operation: Operation,
    pod: Text,
    image: u64,
    dry_run: bool,
    process: Process,
    pub(crate) stage: RequestState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestState {
    Waiting,
    /// The answer is out, and may strike this pod.
    Admitted(Uid),
    /// Answered, and nothing follows: whether it was allowed.
    Over(bool),
}

impl Journey {
    pub(crate) fn is_waiting(&self) -> bool {
        self.stage == RequestState::Waiting
    }
}

fn word(reason: &DenialReason) -> &'static str {
    match reason {
        DenialReason::Exhausted(_) => "denied: no room",
        DenialReason::NotOpen => "denied: not open",
        DenialReason::NotSynced
        | DenialReason::NotServing
        | DenialReason::NotFresh { .. }
        | DenialReason::Stale { .. } => "denied: blind",
        DenialReason::Deadline => "denied: no time",
        _ => "denied: other",
    }
}

/// Open tokens, and since when.
pub(crate) type OpenTokens = BTreeMap<(Uid, TokenId), Time>;

impl Cluster {
    /// Sends one request about a random pod, or several at once.
    pub(crate) fn send_requests(&mut self) {
        if self.calm {
            return;
        }
        let pause = if self.chance(20) { 500..2_000 } else { 1..60 };
        self.plan_in(pause, Happening::SendRequests);
        let running = self.running();
        if running.is_empty() || self.pods.is_empty() {
            return;
        }
        // A drain: several pods at once, of one replica or of many.
        let many = if self.chance(50) { self.rng.random_range(2..12) } else { 1 };
        for _ in 0..many {
            let process = running[self.pick(running.len())];
            let at = self.pick(self.pods.len());
            let Some(pod) = self.pods.values().nth(at).cloned() else { continue };
            let operation = match self.rng.random_range(0..10) {
                0..6 => Operation::Evict,
                6..9 => Operation::Delete,
                _ => Operation::Update,
            };
            let dry_run = self.chance(30);
            if self.chance(20) {
                self.end_as_kubelet(process, &pod);
            } else {
                let id = self.send_request(process, &pod, operation, dry_run);
                if matches!(self.requests.get(&id), Some(Journey { stage: RequestState::Over(_), .. })) {
                    self.end(id);
                }
            }
        }
    }

    /// Sends a request to a replica.
    pub(crate) fn send_request(
        &mut self,
        process: Process,
        pod: &Pod,
        operation: Operation,
        dry_run: bool,
    ) -> RequestId {
        let id = self.next_request;
        self.next_request += 1;
        // No two requests ask for the same: an update to what is there already would disrupt nothing.
        let image = IMAGES + id;
        let target = match operation {
            Operation::Update => Target {
                // As in tokens of the release before, whose servers may still be running.
                base: None,
                containers: [ContainerChange {
                    name: "main".into(),
                    replaces: Some(pod.containers[0].id),
                    image: Some(image),
                    resources: None,
                }]
                .into(),
                ..Target::default()
            },
            _ => Target::default(),
        };
        // Some evictors insist on the pod that they saw, which may be newer than what the replica knows.
        let insists = operation == Operation::Evict && self.chance(300);
        let request = Request {
            operation,
            pod: pod.key.clone(),
            object: (operation != Operation::Evict).then(|| pod.into()),
            precondition: insists.then(|| pod.uid.clone()),
            caller: Caller::named(format!("user-{id}@{}", self.revision)),
            dry_run,
            target,
            placement: None,
        };
        let stage = RequestState::Waiting;
        let name = pod.key.name.clone();
        self.log(|| format!("{id}: {operation:?} {} of {process:?}", pod.uid));
        self.requests.insert(id, Journey { operation, pod: name, image, dry_run, process, stage });
        let deadline = self.clock(process.node).after(DEADLINE);
        self.step(process, Event::Request { id, request: Box::new(request), deadline });
        if self.requests.get(&id).is_some_and(Journey::is_waiting) {
            self.plan_in(10_000..10_001, Happening::GiveUp(id));
        }
        id
    }

    /// A kubelet ends a pod. No replica may delay it, not even one that sees nothing.
    fn end_as_kubelet(&mut self, process: Process, pod: &Pod) {
        let id = self.next_request;
        self.next_request += 1;
        let request = Request {
            operation: Operation::Delete,
            pod: pod.key.clone(),
            object: Some(pod.into()),
            precondition: None,
            caller: Caller::named("system:node:n1"),
            dry_run: false,
            target: Target::default(),
            placement: None,
        };
        let journey = Journey {
            operation: Operation::Delete,
            pod: pod.key.name.clone(),
            image: 0,
            dry_run: true,
            process,
            stage: RequestState::Waiting,
        };
        self.requests.insert(id, journey);
        let deadline = self.clock(process.node).after(DEADLINE);
        self.step(process, Event::Request { id, request: Box::new(request), deadline });
        if self.requests.remove(&id).map(|journey| journey.stage) != Some(RequestState::Over(true)) {
            self.fail(format!("the kubelet was delayed for {}", pod.uid));
        }
        self.terminate(&pod.uid, None);
    }

    pub(crate) fn answered(&mut self, process: Process, id: RequestId, decision: &Decision) {
        self.log(|| format!("{id} answered: {decision:?}"));
        let Some(journey) = self.requests.get(&id).filter(|journey| journey.is_waiting()).cloned() else {
            return;
        };
        let struck = match decision {
            Decision::Allow(allow) => allow.pin().cloned(),
            Decision::Deny(denials) => {
                match denials.first().map(|denial| &denial.reason) {
                    None => self.fail(format!("{id} was denied without a reason")),
                    Some(reason) => self.tallies.count(word(reason)),
                }
                None
            }
        };
        let allowed = decision.is_allowed();
        self.tallies.count(if allowed { "allowed" } else { "denied" });
        let strikes = struck.filter(|uid| !journey.dry_run && self.pods.contains_key(uid));
        let stage = match strikes {
            Some(uid) => {
                self.fly(process, &journey, &uid, true);
                let slow = self.chance(50);
                self.plan_in(if slow { 1_000..30_000 } else { 1..100 }, Happening::Execute(id));
                RequestState::Admitted(uid)
            }
            None => RequestState::Over(allowed),
        };
        if let Some(journey) = self.requests.get_mut(&id) {
            journey.stage = stage;
        }
    }

    /// An answer that may strike a pod goes out, or has come to its end.
    fn fly(&mut self, process: Process, journey: &Journey, uid: &Uid, out: bool) {
        let name = Self::process_name(process.node, process.life);
        let pods = vec![(uid.clone(), journey.operation, Version(u64::MAX))];
        // Budgets were asked before this: what was seen then is no excuse now.
        let deed = Deed { process: &name, seen: Version(u64::MAX), pods };
        let outcome = self.truth.in_flight(
            self.pods.get(uid),
            (uid, journey.operation),
            out,
            &deed,
            Version(self.revision),
        );
        if let Err(why) = outcome {
            self.fail(format!("an answer without a claim: {why}"));
        }
    }

    fn end(&mut self, id: RequestId) {
        self.requests.remove(&id);
    }

    /// The API server has waited long enough.
    pub(crate) fn give_up(&mut self, id: RequestId) {
        match self.requests.get(&id).map(|journey| journey.stage.clone()) {
            Some(RequestState::Waiting) => {
                self.tallies.count("timed out");
                self.end(id);
            }
            Some(RequestState::Over(_)) => self.end(id),
            _ => {}
        }
    }

    /// A process is gone: requests that waited for its answer wait in vain.
    pub(crate) fn abandon(&mut self, node: usize, life: u32) {
        self.requests
            .retain(|_, journey| !(journey.is_waiting() && journey.process == Process { node, life }));
    }

    /// The API server carries out what was admitted, or something else refuses it.
    pub(crate) fn execute(&mut self, id: RequestId) {
        let Some(journey) = self.requests.remove(&id) else { return };
        let RequestState::Admitted(uid) = journey.stage.clone() else { return };
        let named = self.by_name.get(&journey.pod).cloned();
        let pinned = journey.operation != Operation::Evict || !self.without.contains(&ProtocolRule::Pin);
        let struck = if pinned { Some(uid.clone()) } else { named };
        if self.chance(100) && !self.calm {
            self.tallies.count("refused elsewhere");
        } else if let Some(struck) =
            struck.filter(|uid| self.pods.get(uid).is_some_and(|pod| !pod.terminating))
        {
            if struck != uid {
                self.fail(format!("{struck} was struck in the place of {uid}"));
            }
            match journey.operation {
                Operation::Evict | Operation::Delete => self.terminate(&struck, Some(journey.operation)),
                Operation::Update | Operation::Resize | Operation::Relabel => {
                    self.update(&struck, journey.image);
                }
            }
        }
        self.fly(journey.process, &journey, &uid, false);
    }

    /// A token was written.
    pub(crate) fn note_token(&mut self, budget: &Uid, token: &TokenId, what: &Token) {
        let id = what.by.strip_prefix("user-").and_then(|rest| rest.split_once('@')?.0.parse::<u64>().ok());
        if id.and_then(|id| self.requests.get(&id)).is_some_and(|journey| journey.dry_run) {
            self.fail(format!("a dry run wrote the token {token}"));
        }
        self.tokens.entry((budget.clone(), token.clone())).or_insert(self.now);
    }

    pub(crate) fn noted(&mut self, process: Process, note: &Note) {
        self.log(|| format!("{process:?} notes {note:?}"));
        if matches!(note, Note::NotDisrupted { .. }) {
            self.tallies.count("expired");
        }
    }

    /// Looks at every token: one that stands too long will never go.
    pub(crate) fn audit(&mut self) {
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.retain(|(uid, token), since| {
            let budget = self.budgets.values().find(|budget| budget.uid == *uid);
            let there = budget.is_some_and(|budget| {
                budget.ledger.claims.values().any(|claim| claim.tokens.contains_key(token))
            });
            if there && self.now >= since.after(TOKEN_LASTS) {
                self.failure.get_or_insert(format!("token {token} of {uid} stands since {since:?}"));
            }
            there
        });
        self.tokens = tokens;
        self.truth.forget_losses(self.seen_by_all(), self.now);
        if !self.nodes.iter().any(|node| node.leader) {
            self.pass_lease();
        }
        self.plan_in(5_000..10_000, Happening::Audit);
    }
}
