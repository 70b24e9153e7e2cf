//! Admission: reviews to requests, verdicts to answers.

mod answer;
mod change;
mod delete_options;
mod own;
mod request;
mod review;

pub use answer::{allow, allow_with_warnings, answer, deny, pin_patch, refuse, reject};
pub use request::{Asked, Disruption, Harmless, Pin};
pub use review::{Fault, Rejected, Review, read};
