//! Tier two: the shipped program in processes of its own, in real time.
//!
//! The same life, clients, faults and checker as in a simulated run; only the schedule of faults depends on the seed.
//!
//! - [`run`]: one run. [`campaign`]: runs until the time is over.
//! - `site`: the embedded API server or a real control plane; `chart`: what is installed there.
//! - `servers`: the processes, as a [`Fleet`](crate::fleet::Fleet).
//! - `attacker`: sends forged reviews all the time.
//! - `truth`: what happened on a real control plane, from etcd and from the audit log.
//! - `outages`: the faults of a real control plane.

mod attacker;
pub mod campaign;
mod chart;
mod outages;
pub mod run;
mod servers;
mod site;
mod truth;
