//! Waiting for what will be so.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// What does not come within this time does not come, on a busy machine either.
const PATIENCE: Duration = Duration::from_secs(100);

/// Looks again and again until `look` gives `Ok`; what it last gave instead is in the panic when time is up.
pub async fn eventually<T, E: Debug, F: Future<Output = Result<T, E>>>(
    what: &str,
    look: impl Fn() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match look().await {
            Ok(seen) => return seen,
            Err(instead) if Instant::now() > deadline => {
                panic!("waited {} s: {what}; last seen: {instead:?}", PATIENCE.as_secs())
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
