//! The heartbeats of the probe agents: the Leases that they renew.

use std::collections::HashMap;

use quorate_api::slim;
use quorate_engine::Snapshot;
use quorate_engine::basics::{Text, Time};
use quorate_engine::facts::{Agent, Input};
use quorate_engine::ledger::Event;
use quorate_intake::objects;
use quorate_kit::lease::ObservedLease;
use quorate_kit::watch;
use tracing::warn;

/// When the Lease of each agent was last renewed, by the clock of this process.
///
/// The agent of a Lease that is listed for the first time may be long gone. It counts as alive from the next renewal.
/// There may be thousands of renewals a minute, and the engine does not need all of them: one in every quarter of the
/// lease duration is enough.
#[derive(Default)]
pub(super) struct Heartbeats {
    leases: HashMap<String, Heartbeat>,
}

struct Heartbeat {
    node: Text,
    lease: ObservedLease<Time>,
    /// As last sent to the engine.
    sent: Agent,
}

impl Heartbeats {
    /// The events for the engine, if any.
    pub(super) fn take(&mut self, event: watch::WatchEvent<slim::Lease>, now: Time) -> Vec<Event> {
        match event {
            watch::WatchEvent::Listed(listed) => {
                listed.unreadable.iter().for_each(|why| warn!(%why, "cannot decode the Lease of an agent"));
                let mut old = std::mem::take(&mut self.leases);
                for lease in &listed.objects {
                    let known = old.remove(name(lease));
                    if let Some((heartbeat, _)) = next(lease, known, now, false) {
                        self.leases.insert(name(lease).to_owned(), heartbeat);
                    }
                }
                let agents =
                    self.leases.values().map(|heartbeat| (heartbeat.node.clone(), heartbeat.sent.clone()));
                vec![Event::List(Snapshot::Agents(agents.collect()))]
            }
            watch::WatchEvent::Applied(lease) => {
                let known = self.leases.remove(name(&lease));
                let before = known.as_ref().map(|heartbeat| heartbeat.node.clone());
                let Some((heartbeat, changed)) = next(&lease, known, now, true) else {
                    return before.map(gone).unwrap_or_default();
                };
                let mut events = Vec::new();
                if let Some(before) = before.filter(|before| *before != heartbeat.node) {
                    events.extend(gone(before));
                }
                if changed {
                    let input = Input::Agent(heartbeat.node.clone(), Some(heartbeat.sent.clone()));
                    events.push(Event::Fact(Box::new(input)));
                }
                self.leases.insert(name(&lease).to_owned(), heartbeat);
                events
            }
            watch::WatchEvent::Deleted(lease) => self.forget(name(&lease)),
            watch::WatchEvent::Unreadable(why) => {
                warn!(%why, "cannot decode the Lease of an agent");
                self.forget(&why.identity.name)
            }
            watch::WatchEvent::Bookmark(_) => Vec::new(),
        }
    }

    fn forget(&mut self, name: &str) -> Vec<Event> {
        self.leases.remove(name).map(|heartbeat| gone(heartbeat.node)).unwrap_or_default()
    }
}

fn name(lease: &slim::Lease) -> &str {
    lease.metadata.name.as_deref().unwrap_or_default()
}

fn gone(node: Text) -> Vec<Event> {
    vec![Event::Fact(Box::new(Input::Agent(node, None)))]
}

/// The next state of a Lease, and whether to send it to the engine. `live`: a watch shows it, so it was just written.
fn next(lease: &slim::Lease, known: Option<Heartbeat>, now: Time, live: bool) -> Option<(Heartbeat, bool)> {
    let (node, mut agent) = objects::agent(lease, now)
        .inspect_err(|why| warn!(%why, "cannot read the Lease of an agent"))
        .ok()?;
    let (holder, renewed) = (lease.spec.holder_identity.as_deref(), lease.spec.renew_time.as_ref());
    let known = known.filter(|heartbeat| heartbeat.node == node && heartbeat.sent.started == agent.started);
    let (mut lease, before) = match known {
        Some(heartbeat) => (heartbeat.lease, Some(heartbeat.sent)),
        None if live => (ObservedLease::new(holder, renewed, now), None),
        None => {
            let over = i64::try_from(agent.holds.as_millis()).unwrap_or(i64::MAX);
            (ObservedLease::new(holder, renewed, Time(now.0.saturating_sub(over))), None)
        }
    };
    agent.renewed = lease.read(holder, renewed, now);
    let changed = before.as_ref().is_none_or(|before| {
        before.holds != agent.holds || agent.renewed.since(before.renewed) >= agent.holds / 4
    });
    let sent = if changed { agent } else { before.unwrap_or(agent) };
    Some((Heartbeat { node, lease, sent }, changed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_kit::watch::Listed;
    use serde_json::json;

    const START: i64 = 1_000_000;

    fn lease(node: &str, renewed: u32) -> slim::Lease {
        serde_json::from_value(json!({
            "metadata": {"name": format!("agent-{node}"), "namespace": "quorate"},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": 40,
                "acquireTime": "2026-11-15T10:00:00.000000Z",
                "renewTime": format!("2026-11-15T10:00:{renewed:02}.000000Z")},
        }))
        .unwrap()
    }

    fn list(leases: Vec<slim::Lease>) -> watch::WatchEvent<slim::Lease> {
        watch::WatchEvent::Listed(Listed {
            objects: leases,
            unreadable: Vec::new(),
            version: "1".to_owned(),
            requested: tokio::time::Instant::now(),
        })
    }

    /// The node and the renewal, in seconds from the start, of each agent in the events.
    fn agents(events: Vec<Event>) -> Vec<(String, Option<i64>)> {
        let agents = events.into_iter().flat_map(|event| match event {
            Event::List(Snapshot::Agents(list)) => list.into_iter().map(|(n, a)| (n, Some(a))).collect(),
            Event::Fact(input) => match *input {
                Input::Agent(node, agent) => vec![(node, agent)],
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        });
        agents.map(|(node, agent)| (node.to_string(), agent.map(|a| (a.renewed.0 - START) / 1000))).collect()
    }

    fn at(seconds: i64) -> Time {
        Time(START + seconds * 1000)
    }

    #[test]
    fn an_agent_is_alive_from_the_first_observed_renewal() {
        let mut heartbeats = Heartbeats::default();
        let a = |seconds| ("a".to_owned(), Some(seconds));
        assert_eq!(
            agents(heartbeats.take(list(vec![lease("a", 0)]), at(0))),
            [a(-40)],
            "it may be long gone"
        );
        assert_eq!(
            agents(heartbeats.take(list(vec![lease("a", 0)]), at(5))),
            [a(-40)],
            "nothing was written"
        );
        assert_eq!(agents(heartbeats.take(watch::WatchEvent::Applied(lease("a", 10)), at(10))), [a(10)]);
        // A new Lease in a watch event was just written.
        let b = heartbeats.take(watch::WatchEvent::Applied(lease("b", 11)), at(11));
        assert_eq!(agents(b), [("b".to_owned(), Some(11))]);
        assert_eq!(agents(heartbeats.take(list(vec![lease("a", 30)]), at(31))), [a(31)], "b is gone");
        assert_eq!(
            agents(heartbeats.take(watch::WatchEvent::Deleted(lease("a", 30)), at(32))),
            [("a".to_owned(), None)]
        );
    }

    #[test]
    fn not_every_renewal_is_sent_to_the_actor() {
        let mut heartbeats = Heartbeats::default();
        let mut wakes = 0;
        for second in 0..60 {
            wakes +=
                agents(heartbeats.take(watch::WatchEvent::Applied(lease("a", second)), at(second.into())))
                    .len();
        }
        assert_eq!(wakes, 6, "one every ten seconds");
        // A change without a renewal is not sent at all.
        assert!(agents(heartbeats.take(watch::WatchEvent::Applied(lease("a", 59)), at(99))).is_empty());
    }

    #[test]
    fn an_invalid_lease_is_not_an_agent() {
        let mut heartbeats = Heartbeats::default();
        heartbeats.take(watch::WatchEvent::Applied(lease("a", 0)), at(0));
        let mut odd = lease("a", 1);
        odd.spec.lease_duration_seconds = None;
        assert_eq!(agents(heartbeats.take(watch::WatchEvent::Applied(odd), at(1))), [("a".to_owned(), None)]);
    }
}
