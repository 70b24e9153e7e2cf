//! Reads the bodies of reviews. What a client may use is bounded before its body is read: a body takes a share of the
//! memory for reviews first, and a client that takes much leaves enough for the others.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::Request;
use http::header::CONTENT_LENGTH;
use quorate_engine::basics::Time;
use quorate_intake::admission::Fault;
use quorate_kit::fair_pool::{FairPool, Share};
use quorate_kit::https::ClientAddress;

use crate::clock;

/// Maximum size of a body. An object has at most 1.5 MiB in etcd, and a review may contain it twice.
pub(super) const LIMIT: usize = 8 << 20;

/// The memory for reviews: half of the limit that the chart sets.
const MEMORY: u64 = 512 << 20;

/// How many times its size a body may need when it is parsed: a JSON value of two bytes takes 32.
const EXPANSION: u64 = 16;

/// What the smallest review takes. One client may then have 1,024 reviews in progress.
const SMALLEST: u64 = 256 << 10;

/// Reviews of one client that wait for memory. Further ones are rejected at once.
const WAITING: usize = 4096;

/// Time for a body to arrive, once it is its turn.
const ARRIVAL: Duration = Duration::from_secs(5);

/// The address of the client; the unspecified address if the request did not come through a socket.
pub(super) fn client(request: &Request) -> IpAddr {
    let address = request.extensions().get::<ClientAddress>();
    address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.0)
}

/// The memory for reviews.
#[derive(Clone)]
pub(super) struct Memory {
    pool: FairPool,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self { pool: FairPool::new(MEMORY, WAITING) }
    }

    /// Reads a body. Keep the share until the body and everything made from it is dropped.
    pub(super) async fn read(&self, request: Request, deadline: Time) -> Result<(Bytes, Share), Fault> {
        let stated = request.headers().get(CONTENT_LENGTH);
        let stated = stated.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        let size = stated.unwrap_or(LIMIT);
        if size > LIMIT {
            return Err(Fault::TooLarge { limit: LIMIT });
        }
        let left = deadline.since(clock::now());
        let taken = self.pool.take(client(&request), (size as u64 * EXPANSION).max(SMALLEST));
        let share =
            tokio::time::timeout(left, taken).await.map_err(|_| Fault::Busy)?.map_err(|_| Fault::Busy)?;
        let left = deadline.since(clock::now()).min(ARRIVAL);
        let body = tokio::time::timeout(left, to_bytes(request.into_body(), size)).await;
        match body.map_err(|_| Fault::Slow)? {
            Ok(body) => Ok((body, share)),
            Err(_) if stated.is_some() => Err(Fault::Malformed("the body was not complete".to_owned())),
            Err(_) => Err(Fault::TooLarge { limit: LIMIT }),
        }
    }
}
