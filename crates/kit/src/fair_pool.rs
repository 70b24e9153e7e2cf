//! A pool that clients share, in which no number of greedy clients leaves nothing for the others.
//!
//! A client may hold as much as is free. So one client can take half of the pool, two can take a third each, and there is
//! always as much left as the greediest of them holds. A client that wants more waits, and delays only itself.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// A pool that clients share. A client is identified by its address.
#[derive(Clone, Debug)]
pub struct FairPool {
    state: Arc<Mutex<State>>,
    /// A client has at most this many requests waiting.
    waiting: usize,
}

#[derive(Debug)]
struct State {
    free: u64,
    clients: BTreeMap<IpAddr, Client>,
}

#[derive(Debug, Default)]
struct Client {
    held: u64,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    amount: u64,
    granted: oneshot::Sender<Share>,
}

/// A part of the pool. It is returned when this is dropped.
#[derive(Debug)]
pub struct Share {
    pool: FairPool,
    client: IpAddr,
    amount: u64,
}

/// The client has too many requests waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many requests of this client are waiting")]
pub struct TooMany;

impl FairPool {
    /// A pool of this size, in which each client may have so many requests waiting.
    pub fn new(size: u64, waiting: usize) -> Self {
        Self { state: Arc::new(Mutex::new(State { free: size, clients: BTreeMap::new() })), waiting }
    }

    /// Takes a part of the pool as soon as the client may have it. To stop waiting, drop the future.
    ///
    /// # Errors
    /// The client has too many requests waiting already.
    pub async fn take(&self, client: IpAddr, amount: u64) -> Result<Share, TooMany> {
        let (granted, waiting) = {
            let mut state = self.state.lock();
            let entry = state.clients.entry(client).or_default();
            entry.waiting.retain(|waiting| !waiting.granted.is_closed());
            if entry.waiting.len() >= self.waiting {
                return Err(TooMany);
            }
            let (granted, waiting) = oneshot::channel();
            entry.waiting.push_back(Waiting { amount, granted });
            (state.grant(self), waiting)
        };
        deliver(granted);
        // The sender stays in the queue until it is used, and the queue lives as long as `self`.
        waiting.await.map_err(|_| TooMany)
    }
}

/// Hands out shares. Without the lock, because a share whose receiver has gone returns to the pool at once.
fn deliver(granted: Vec<(oneshot::Sender<Share>, Share)>) {
    for (receiver, share) in granted {
        drop(receiver.send(share));
    }
}

impl State {
    /// Grants what can be granted now: the requests of a client in their order, and those of the client that holds least
    /// first.
    fn grant(&mut self, pool: &FairPool) -> Vec<(oneshot::Sender<Share>, Share)> {
        let mut granted = Vec::new();
        while let Some(address) = self.next() {
            let Some(client) = self.clients.get_mut(&address) else { break };
            let Some(next) = client.waiting.pop_front() else { break };
            self.free -= next.amount;
            client.held += next.amount;
            granted.push((next.granted, Share { pool: pool.clone(), client: address, amount: next.amount }));
        }
        self.clients.retain(|_, client| client.held > 0 || !client.waiting.is_empty());
        granted
    }

    /// The client whose first request can be granted; of several, the one that holds least.
    fn next(&mut self) -> Option<IpAddr> {
        let free = self.free;
        let grantable = self.clients.iter_mut().filter_map(|(address, client)| {
            while client.waiting.front().is_some_and(|first| first.granted.is_closed()) {
                client.waiting.pop_front();
            }
            let amount = client.waiting.front()?.amount;
            let left = free.checked_sub(amount)?;
            (client.held == 0 || client.held + amount <= left).then_some((client.held, *address))
        });
        grantable.min().map(|(_, address)| address)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let granted = {
            let mut state = self.pool.state.lock();
            state.free += self.amount;
            if let Some(client) = state.clients.get_mut(&self.client) {
                client.held -= self.amount;
            }
            state.grant(&self.pool)
        };
        deliver(granted);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    /// What a client gets at once, in steps of `amount`.
    fn take_all(pool: &FairPool, number: u8, amount: u64) -> Vec<Share> {
        let mut shares = Vec::new();
        while let Some(Ok(share)) = pool.take(client(number), amount).now_or_never() {
            shares.push(share);
        }
        shares
    }

    fn sum(shares: &[Share]) -> u64 {
        shares.iter().map(|share| share.amount).sum()
    }

    #[test]
    fn greedy_clients_leave_as_much_as_each_of_them_holds() {
        for (clients, expected) in [(1, 50), (2, 33), (3, 25), (9, 10)] {
            let pool = FairPool::new(100, 8);
            let mut held: Vec<Vec<Share>> = (0..clients).map(|number| take_all(&pool, number, 1)).collect();
            // Each gives back and takes again until nothing changes.
            for _ in 0..20 {
                for (number, shares) in (0..).zip(&mut held) {
                    shares.clear();
                    *shares = take_all(&pool, number, 1);
                }
            }
            for shares in &held {
                assert!(sum(shares).abs_diff(expected) <= 2, "{clients} clients: {}", sum(shares));
            }
            let newcomer = take_all(&pool, 200, 1);
            assert!(sum(&newcomer) >= expected / 2 - 1, "{clients} clients: {}", sum(&newcomer));
        }
    }

    #[test]
    fn one_request_may_take_all_that_is_free() {
        let pool = FairPool::new(10, 8);
        let all = pool.take(client(1), 10).now_or_never().unwrap().unwrap();
        assert!(pool.take(client(2), 1).now_or_never().is_none());
        drop(all);
        assert!(pool.take(client(2), 1).now_or_never().is_some());
        assert!(pool.take(client(2), 11).now_or_never().is_none(), "more than there is");
    }

    #[tokio::test]
    async fn the_client_that_holds_least_is_next() {
        let pool = FairPool::new(4, 8);
        let mut held = vec![pool.take(client(1), 2).await.unwrap(), pool.take(client(2), 2).await.unwrap()];
        let greedy = tokio::spawn({
            let pool = pool.clone();
            async move { pool.take(client(1), 1).await }
        });
        tokio::task::yield_now().await;
        let modest = tokio::spawn({
            let pool = pool.clone();
            async move { pool.take(client(3), 1).await }
        });
        tokio::task::yield_now().await;
        held.pop();
        let modest = modest.await.unwrap().unwrap();
        assert!(!greedy.is_finished(), "it holds 2, and 1 is free");
        drop((held, modest));
        greedy.await.unwrap().unwrap();
    }

    #[test]
    fn a_request_that_gave_up_takes_nothing() {
        let pool = FairPool::new(2, 1);
        let held = pool.take(client(1), 2).now_or_never().unwrap().unwrap();
        for _ in 0..5 {
            // The future is dropped while it waits, and makes room for the next one.
            assert!(pool.take(client(2), 1).now_or_never().is_none());
        }
        drop(held);
        assert_eq!(pool.state.lock().free, 2);
        assert!(pool.state.lock().clients.is_empty());
    }

    #[test]
    fn a_client_waits_with_a_bounded_number_of_requests() {
        let pool = FairPool::new(1, 3);
        let _held = pool.take(client(1), 1).now_or_never().unwrap().unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(pool.take(client(2), 1))).collect();
        for request in &mut waiting {
            assert!(request.now_or_never().is_none());
        }
        assert_eq!(pool.take(client(2), 1).now_or_never().unwrap().unwrap_err(), TooMany);
        assert!(pool.take(client(3), 1).now_or_never().is_none(), "another client may wait");
    }
}
