//! The node agent: runs the disruption probes of its node's pods, and tells what they say in a condition.
//!
//! Data walks one way. A watch shows a pod → `sight` reads what matters → the `ward`, which is pure and owns everything
//! known, says whom to ask → `ask` asks → the ward takes the answer and says what to write → `tell` writes it. The Lease
//! of the node (`heartbeat`) says that somebody does all this; the ward says when it may.

mod ask;
mod heartbeat;
mod metrics;
mod moment;
mod round;
mod run;
mod sight;
mod streak;
mod target;
mod tell;
mod verdict;
mod ward;

pub use moment::TimeOfDay;
pub use run::{Options, Running, start};
