//! The ledger protocol, tried where it can go wrong.
//!
//! - `world`: an API server, its watches and its clients, small enough to be searched.
//! - `search`: every interleaving of small cases.
//! - `mutations`: each rule left out once; the search must find what that breaks.

#[path = "ledger/world.rs"]
mod world;

#[path = "ledger/truth.rs"]
mod truth;

#[path = "ledger/scenarios.rs"]
mod scenarios;

#[path = "ledger/search.rs"]
mod search;

#[path = "ledger/mutations.rs"]
mod mutations;
