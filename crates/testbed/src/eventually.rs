//! Waits for a condition.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Timeout, long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(100);

/// Calls `look` until it returns `Ok`. After the timeout it panics with the last error.
pub async fn eventually<T, E: Debug, F: Future<Output = Result<T, E>>>(
    what: &str,
    look: impl Fn() -> F,
) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match look().await {
            Ok(seen) => return seen,
            Err(instead) if Instant::now() > deadline => {
                panic!("waited {} s: {what}; last seen: {instead:?}", TIMEOUT.as_secs())
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
