//! What people live through with disruption probes of containers that really run: a real kubelet, containerd, the agent
//! as a process of its own under its own rights, the policy in force.

#![allow(clippy::expect_used, clippy::panic, reason = "a test's helpers may fail the test")]

mod announcements;
#[path = "../stories/endpoints.rs"]
mod endpoints;
mod fixture;
mod probes;
#[path = "../stories/quorate.rs"]
#[expect(dead_code, reason = "the stories without nodes use more of it")]
mod quorate;
