//! The checker judges written histories as a person would.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a builder that panics tells where, and values read better without references"
)]

mod claims;
mod denials;
mod ending;
mod groups;
mod pods;
mod probes;
mod properties;
mod relabels;
mod requests;
mod run;
mod updates;
