//! The API objects of Quorate, and the fields that Quorate reads of other API objects.
//!
//! - [`DisruptionBudget`] (`policy.quorate.dev/v1alpha1`): the budget itself; [`budget`] holds its spec and status.
//! - [`Workload`] (`scheduling.quorate.dev/v1alpha1`): pod groups, for clusters where the upstream Workload API is off.
//! - [`PodUnavailableBudget`] (`policy.kruise.io/v1alpha1`): OpenKruise's budget, with groups; [`kruise`].
//! - [`crds`]: all definitions, ready to install; `cargo xtask generate` writes them to `config/crd`.
//! - [`slim`]: objects of other APIs for watches, reduced to the fields that Quorate reads.
//! - [`names`]: every label, annotation and condition that Quorate reads or writes.
//!
//! This crate has no client and no runtime. It validates only what a schema can check. `quorate-intake` does the
//! remaining validation.

pub mod budget;
pub mod crds;
pub mod kruise;
pub mod names;
pub mod slim;
pub mod workload;

mod schema;

pub use budget::{DisruptionBudget, DisruptionBudgetSpec, DisruptionBudgetStatus};
pub use kruise::{PodUnavailableBudget, PodUnavailableBudgetSpec, PodUnavailableBudgetStatus};
pub use workload::{Workload, WorkloadSpec};
