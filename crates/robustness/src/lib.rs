//! The robustness suite: servers as shipped, in a cluster that lives and fails at random, judged by a checker that shares
//! no code with them.
//!
//! - [`run`]: one simulated run. [`servers`] (a [`fleet`]), [`apps`], [`life`], [`requests`], [`chaos`], [`stories`] and
//!   [`slow_hook`] are its parts.
//! - [`campaign`]: many runs. [`judge`]: one run, from its seed to its verdict.
//! - [`process`]: runs of the shipped program in real time.
//! - [`determinism`]: why a seed always makes the same run.
//! - [`checker`]: whether every admission was allowed, and whether everything made progress.
//! - [`recorder`] and [`history`]: everything that happened in a run, as the API server saw it.

pub mod apps;
pub mod campaign;
pub mod chaos;
pub mod checker;
pub mod determinism;
pub mod fleet;
pub mod history;
pub mod http;
pub mod judge;
pub mod life;
pub mod process;
pub mod recorder;
pub mod requests;
pub mod run;
pub mod servers;
pub mod slow_hook;
pub mod stories;
