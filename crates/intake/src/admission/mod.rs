//! Admission: converts reviews into requests, and decisions into responses.

mod answer;
mod change;
mod delete_options;
mod pod_creation;
mod request;
mod review;
mod validate;

pub use answer::{allow, allow_with_patch, allow_with_warnings, answer, deny, pin_patch, refuse, reject};
pub use pod_creation::{Creator, PodCreation, give_owners};
pub use request::{Disruption, Harmless, Pin, ReviewedOperation};
pub use review::{Fault, Rejected, Review, read};
