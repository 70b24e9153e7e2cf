//! Tests of disruption probes with real containers: a real kubelet and containerd, the agent as its own process with
//! its own RBAC rights, and the admission policy installed.

#![allow(clippy::expect_used, clippy::panic, reason = "a test's helpers may fail the test")]

mod announcements;
#[path = "../stories/endpoints.rs"]
mod endpoints;
mod fixture;
mod images;
mod probes;
#[path = "../stories/quorate.rs"]
#[expect(dead_code, reason = "the stories without nodes use more of it")]
mod quorate;
