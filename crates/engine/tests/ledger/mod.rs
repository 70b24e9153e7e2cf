//! The ledger protocol, tried where it can go wrong.
//!
//! - `world`: an API server, its watches and its clients, small enough to be searched.
//! - `truth`: what must never happen in it.
//! - `scenarios`: the small cases.
//! - `search`: every interleaving of each of them.
//! - `mutations`: each rule left out once; the search must find what that breaks.
//! - `opening`: when a budget is said to be open.
//! - `alone`: one replica, told by hand what the search does not tell apart.
//! - `labels`: how long an admitted label counts as a disruption.
//! - `drafts`: the ledger of a write in flight.
//! - `fronts`: budgets of two kinds, each known by a watch of its own.
//! - `owners`: a controller between a pod and the workload of a budget that is not known.
//! - `reviews`: what a review is believed, and what is read instead.
//! - `settling`: how often what has ended is taken out.
//! - `sources`: a group that seems to be one too many.

mod alone;
mod drafts;
mod fronts;
mod labels;
mod mutations;
mod opening;
mod owners;
mod reviews;
mod scenarios;
mod search;
mod settling;
mod sources;
mod truth;
mod world;
