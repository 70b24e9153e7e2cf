//! The robustness suite: servers as shipped, in a cluster that lives and fails at random, judged by a checker that shares
//! no code with them.
//!
//! - [`run`]: one simulated run. [`servers`] (a [`fleet`]), [`apps`], [`agents`], [`life`], [`work`], [`requests`], [`movers`],
//!   [`chaos`], [`provocations`] and [`slow_hook`] are its parts.
//! - [`campaign`]: many runs. [`verdict`]: one run, from its seed to its verdict. [`every_rule`]: runs without each rule.
//! - [`process`]: runs of the shipped program in real time.
//! - [`determinism`]: why a seed always makes the same run.
//! - [`checker`]: whether every admission was allowed, and whether everything made progress.
//! - [`recorder`] and [`history`]: everything that happened in a run, as the API server saw it.

pub mod agents;
pub mod apps;
pub mod campaign;
pub mod chaos;
pub mod checker;
pub mod determinism;
pub mod every_rule;
pub mod fleet;
pub mod history;
pub mod http;
pub mod life;
pub mod movers;
pub mod process;
pub mod provocations;
pub mod recorder;
pub mod requests;
pub mod run;
pub mod servers;
pub mod slow_hook;
pub mod verdict;
pub mod work;
