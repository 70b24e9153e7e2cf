//! The node agent: runs the disruption probes of its node's pods, and tells what they say in a condition.
//!
//! Data walks one way. A watch shows a pod → `sight` reads what matters → the `ward`, which is pure and owns everything
//! known, says whom to ask → `ask` asks → the ward takes the answer and says what to write → `tell` writes it. The Lease
//! of the node (`heartbeat`) says that somebody does all this; the ward says when it may.

mod clock;
mod container_probe;
mod disruptable;
mod heartbeat;
mod manager;
mod metrics;
mod patch;
mod pod_view;
mod prober;
mod run;
mod streak;
mod target;

pub use clock::WallClock;
pub use run::{Options, Running, start};
