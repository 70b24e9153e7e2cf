//! The actors, on an API server where they do everything and on one where the real controllers work beside them.

mod budgets;
mod cast;
mod leader_worker_sets;
mod nodes;
mod ownership;
mod runs_to_end;
mod trouble;
mod workloads;
