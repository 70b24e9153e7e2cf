//! An attacker on the network: it can reach the servers, and is not the API server.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;

use super::servers::Processes;
use crate::chaos::forged_reviews;
use crate::fleet::Fleet as _;

/// Sends forged reviews to a random server every few seconds, for ever. That is no fault: it must have no effect at all.
pub(super) async fn attack(servers: Arc<Processes>, mut random: ChaCha8Rng) {
    loop {
        tokio::time::sleep(Duration::from_millis(random.random_range(500..8_000))).await;
        let place = random.random_range(0..servers.count());
        for (path, review) in forged_reviews(&mut random, servers.recorder()) {
            servers.send_review(place, path, &review);
        }
    }
}
