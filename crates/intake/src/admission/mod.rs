//! Admission: reviews to requests, verdicts to answers.

mod answer;
mod change;
mod delete_options;
mod newborn;
mod own;
mod request;
mod review;

pub use answer::{allow, allow_with_patch, allow_with_warnings, answer, deny, pin_patch, refuse, reject};
pub use newborn::{Creator, Newborn, give_owners};
pub use request::{Asked, Disruption, Harmless, Pin};
pub use review::{Fault, Rejected, Review, read};
