//! The open connections: how many a client may have, and which one ends if there are too many.
//!
//! A connection without a request in progress costs a client nothing to keep open, so it is the first to end: the one that
//! has been idle for longest, of the client that has most connections. A connection with a request in progress never ends
//! because of others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub struct MaxConnections {
    /// In all.
    pub total: usize,
    /// From one address.
    pub per_client: usize,
}

/// The open connections of a listener.
#[derive(Debug)]
pub(super) struct Connections {
    max: MaxConnections,
    /// In the order in which they were opened.
    open: Mutex<BTreeMap<u64, Entry>>,
    next: AtomicU64,
    /// Counts requests, to show which connection has been idle for longest.
    requests: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    client: IpAddr,
    usage: Arc<Use>,
    evicted: CancellationToken,
}

/// What a connection is used for.
#[derive(Debug, Default)]
struct Use {
    /// Requests in progress.
    busy: AtomicUsize,
    /// The number of the last request; 0 if there was none.
    last: AtomicU64,
}

impl Connections {
    pub(super) fn new(max: MaxConnections) -> Arc<Self> {
        let (next, requests) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { max, open: Mutex::default(), next, requests })
    }

    /// Makes room for a connection; `None` if all others are in use.
    pub(super) fn open(self: &Arc<Self>, client: IpAddr) -> Option<Connection> {
        let mut open = self.open.lock();
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for entry in open.values() {
            *counts.entry(entry.client).or_default() += 1;
        }
        let own = counts.get(&client).copied().unwrap_or(0);
        let greediest = if own >= self.max.per_client {
            Some(client)
        } else if open.len() >= self.max.total {
            // Of several, the newcomer itself.
            counts.into_iter().max_by_key(|(address, count)| (*count, *address == client)).map(|(it, _)| it)
        } else {
            None
        };
        if let Some(greediest) = greediest {
            let idle = open.iter().filter(|(_, entry)| {
                entry.client == greediest && entry.usage.busy.load(Ordering::SeqCst) == 0
            });
            let oldest = idle.min_by_key(|(id, entry)| (entry.usage.last.load(Ordering::SeqCst), **id));
            let id = oldest.map(|(id, _)| *id)?;
            if let Some(entry) = open.remove(&id) {
                entry.evicted.cancel();
            }
        }
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        let (usage, evicted) = (Arc::<Use>::default(), CancellationToken::new());
        open.insert(id, Entry { client, usage: usage.clone(), evicted: evicted.clone() });
        Some(Connection { id, client, usage, evicted, all: self.clone() })
    }
}

/// An open connection. It is closed when this is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    id: u64,
    client: IpAddr,
    usage: Arc<Use>,
    evicted: CancellationToken,
    all: Arc<Connections>,
}

impl Connection {
    /// The address of the client.
    pub(super) fn client(&self) -> IpAddr {
        self.client
    }

    /// Completes when the connection must end to make room for another one.
    pub(super) fn evicted(&self) -> CancellationToken {
        self.evicted.clone()
    }

    /// Counts a request until the result is dropped.
    pub(super) fn request(&self) -> Busy {
        self.usage.busy.fetch_add(1, Ordering::SeqCst);
        let number = self.all.requests.fetch_add(1, Ordering::SeqCst) + 1;
        self.usage.last.store(number, Ordering::SeqCst);
        Busy { usage: self.usage.clone() }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.open.lock().remove(&self.id);
    }
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct Busy {
    usage: Arc<Use>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.usage.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn connections(total: usize, per_client: usize) -> Arc<Connections> {
        Connections::new(MaxConnections { total, per_client })
    }

    fn is_evicted(connection: &Connection) -> bool {
        connection.evicted.is_cancelled()
    }

    #[test]
    fn the_connection_that_was_idle_for_longest_makes_room() {
        let all = connections(10, 3);
        let open: Vec<_> = (0..3).filter_map(|_| all.open(client(1))).collect();
        drop(open[0].request());
        let busy = open[1].request();
        let new = all.open(client(1)).unwrap();
        assert_eq!(open.iter().map(is_evicted).collect::<Vec<_>>(), [false, false, true], "never used");
        let newer = all.open(client(1)).unwrap();
        assert_eq!((is_evicted(&open[0]), is_evicted(&open[1]), is_evicted(&new)), (false, false, true));
        assert!(all.open(client(2)).is_some(), "others are not concerned");
        drop((busy, newer));
    }

    #[test]
    fn the_client_with_most_connections_makes_room() {
        let all = connections(4, 3);
        let greedy: Vec<_> = (0..3).filter_map(|_| all.open(client(1))).collect();
        let quiet = all.open(client(2)).unwrap();
        let new = all.open(client(3)).unwrap();
        assert_eq!(greedy.iter().filter(|one| is_evicted(one)).count(), 1);
        assert!(!is_evicted(&quiet) && !is_evicted(&new));
    }

    #[test]
    fn a_connection_with_a_request_in_progress_stays() {
        let all = connections(2, 2);
        let open: Vec<_> = (0..2).filter_map(|_| all.open(client(1))).collect();
        let busy: Vec<_> = open.iter().map(Connection::request).collect();
        assert!(all.open(client(1)).is_none());
        assert!(all.open(client(2)).is_none());
        drop(busy);
        assert!(all.open(client(2)).is_some());
    }

    #[test]
    fn a_closed_connection_leaves_its_place() {
        let all = connections(1, 1);
        for _ in 0..3 {
            let open = all.open(client(1)).unwrap();
            let evicted = open.evicted();
            drop(open);
            assert!(!evicted.is_cancelled());
        }
        assert!(all.open.lock().is_empty());
    }
}
