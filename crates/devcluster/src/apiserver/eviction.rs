//! Eviction.

use super::api::{Api, Reply};
use super::failure::{Failure, Outcome};
use super::request::Call;
use std::sync::Arc;
impl Api {
    pub(crate) async fn evict(self: &Arc<Self>, _call: &Call) -> Outcome<Reply> {
        Err(Failure::not_implemented("eviction"))
    }
}
