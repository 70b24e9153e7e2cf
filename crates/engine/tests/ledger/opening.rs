//! That a budget is open is told once, and not before it is written.

use quorate_engine::basics::{Text, Time, Version};
use quorate_engine::facts::{Budget, Input};
use quorate_engine::ledger::{
    Acknowledged, Call, CallId, Event, Member, Note, Output, Replica, Reply, Settings, Stored, Wrote,
};
use quorate_engine::{Gates, Snapshot};

use super::scenarios::{ALL, keeps};
use super::world::budget_key;

/// Tells a replica something, and returns the call it makes and how many notes it writes.
fn tell(replica: &mut Replica, event: Event) -> (Option<(CallId, Call)>, usize) {
    let (mut call, mut notes) = (None, 0);
    for output in replica.step(event, Time(0)) {
        match output {
            Output::Call(id, asked) => call = Some((id, asked)),
            Output::Note(Note::Opened(_)) => notes += 1,
            _ => {}
        }
    }
    (call, notes)
}

#[test]
fn a_budget_is_said_to_be_open_once_it_is_written() {
    let mut stored = Budget {
        key: budget_key("a"),
        uid: Text::from("a"),
        generation: 1,
        version: Version(1),
        spec: Ok(keeps(1, ALL)),
        ledger: Default::default(),
        gone: Box::default(),
    };
    let mut replica = Replica::new(Settings::new("r0"), Gates::default());
    for event in [
        Event::List(Snapshot::Pods(Vec::new(), Version(1))),
        Event::Synced,
        Event::Serving(true),
        Event::Holder(true),
    ] {
        tell(&mut replica, event);
    }
    let (mut next, mut notes) = tell(&mut replica, Event::Fact(Box::new(Input::Budget(stored.clone()))));
    let (mut writes, mut told_at) = (0, Vec::new());
    while let Some((id, call)) = next {
        let reply = match call {
            Call::ListReplicas => Reply::Replicas(vec![Member {
                name: Text::from("r0"),
                acknowledged: Acknowledged { budgets: Version(1), ..Acknowledged::default() },
                vanished: false,
            }]),
            Call::ListPods(_) => Reply::Pods(Vec::new(), Version(1)),
            Call::GetBudget(_) => Reply::Budget(Some(Box::new(stored.clone()))),
            Call::GetPod(_) => unreachable!("there are no pods"),
            // The first write is refused, the reply to the second is lost.
            Call::Patch(patch) => {
                writes += 1;
                if writes == 1 {
                    Reply::Wrote(Wrote::Refused)
                } else {
                    let uid = stored.uid.clone();
                    let mut place = Stored { uid: &uid, generation: 1, ledger: &mut stored.ledger };
                    assert!(patch.apply(&mut place));
                    stored.version = Version(2);
                    Reply::Lost
                }
            }
        };
        let read = matches!(reply, Reply::Budget(_));
        let noted;
        (next, noted) = tell(&mut replica, Event::Reply(id, reply));
        notes += noted;
        if noted > 0 {
            told_at.push((writes, read));
        }
    }
    assert_eq!((writes, notes, told_at), (2, 1, vec![(2, true)]), "told by the read after the second write");
}
