//! The objects of Quorate, and the few fields of foreign ones that matter.
//!
//! - [`DisruptionBudget`] (`policy.quorate.dev/v1alpha1`): the budget itself; [`budget`] holds its spec and status.
//! - [`Workload`] (`scheduling.quorate.dev/v1alpha1`): pod groups, for clusters where the upstream Workload API is off.
//! - [`PodUnavailableBudget`] (`policy.kruise.io/v1alpha1`): OpenKruise's budget, with groups; [`kruise`].
//! - [`crds`]: all definitions, ready to install; `cargo xtask generate` writes them to `config/crd`.
//! - [`slim`]: foreign objects for watches, reduced to what Quorate reads.
//! - [`names`]: every label, annotation and condition that Quorate reads or writes.
//!
//! There is no client and no runtime in here. The objects of this crate say nothing about what makes sense beyond
//! what a schema can check; that is the business of whoever reads them.

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
