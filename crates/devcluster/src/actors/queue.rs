//! Work queue of a controller. Each key is queued once and never processed twice at the same time. A key can be added
//! with a delay, and is retried with increasing delays after failures.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use backon::ExponentialBuilder;
use kube::runtime::watcher::ExponentialBackoff;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// First delay after a failure; doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Maximum delay after failures. The real controllers wait up to 1000 s, which is too long for tests.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Waits that double up to a limit, and never end.
pub(crate) fn backoff(first: Duration, longest: Duration) -> ExponentialBackoff {
    ExponentialBuilder::new().with_min_delay(first).with_max_delay(longest).without_max_times().into()
}

pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Notify,
}

struct State<T> {
    ready: VecDeque<T>,
    queued: BTreeSet<T>,
    running: BTreeSet<T>,
    /// Keys that were added again while they were being processed.
    again: BTreeSet<T>,
    later: BTreeMap<T, Instant>,
    /// The keys of `later`, ordered by time.
    due: BTreeSet<(Instant, T)>,
    failures: BTreeMap<T, ExponentialBackoff>,
}

/// The result of processing a key.
pub(crate) enum Outcome {
    /// Nothing to do until something changes.
    Done,
    /// Process the key again after this time, even if nothing changes.
    After(Duration),
    /// Processing failed: retry with increasing delays.
    Failed,
}

impl<T: Ord + Clone + Send + 'static> Queue<T> {
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            ready: VecDeque::new(),
            queued: BTreeSet::new(),
            running: BTreeSet::new(),
            again: BTreeSet::new(),
            later: BTreeMap::new(),
            due: BTreeSet::new(),
            failures: BTreeMap::new(),
        };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    pub(crate) fn add(&self, key: T) {
        let mut state = self.state.lock();
        if state.running.contains(&key) {
            state.again.insert(key);
        } else if state.queued.insert(key.clone()) {
            state.ready.push_back(key);
            self.changed.notify_one();
        }
    }

    pub(crate) fn add_after(&self, key: T, pause: Duration) {
        let at = Instant::now() + pause;
        let mut state = self.state.lock();
        match state.later.get(&key) {
            Some(earlier) if *earlier <= at => return,
            Some(later) => {
                let replaced = (*later, key.clone());
                state.due.remove(&replaced);
            }
            None => {}
        }
        state.later.insert(key.clone(), at);
        state.due.insert((at, key));
        drop(state);
        self.changed.notify_one();
    }

    async fn next(&self) -> T {
        loop {
            let due = {
                let mut state = self.state.lock();
                let now = Instant::now();
                while state.due.first().is_some_and(|(at, _)| *at <= now)
                    && let Some((_, key)) = state.due.pop_first()
                {
                    state.later.remove(&key);
                    if state.running.contains(&key) {
                        state.again.insert(key);
                    } else if state.queued.insert(key.clone()) {
                        state.ready.push_back(key);
                    }
                }
                if let Some(key) = state.ready.pop_front() {
                    state.queued.remove(&key);
                    state.running.insert(key.clone());
                    return key;
                }
                state.due.first().map(|(at, _)| *at)
            };
            match due {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, self.changed.notified()).await;
                }
                None => self.changed.notified().await,
            }
        }
    }

    fn finish(&self, key: T, outcome: &Outcome) {
        let pause = {
            let mut state = self.state.lock();
            state.running.remove(&key);
            if state.again.remove(&key) && state.queued.insert(key.clone()) {
                state.ready.push_back(key.clone());
            }
            match outcome {
                Outcome::Failed => {
                    let start = || backoff(FIRST_PAUSE, LONGEST_PAUSE);
                    state.failures.entry(key.clone()).or_insert_with(start).next()
                }
                Outcome::After(pause) => {
                    state.failures.remove(&key);
                    Some(*pause)
                }
                Outcome::Done => {
                    state.failures.remove(&key);
                    None
                }
            }
        };
        match pause {
            Some(pause) => self.add_after(key, pause),
            None => self.changed.notify_one(),
        }
    }

    /// Processes every added key, at most `at_once` keys in parallel, forever.
    pub(crate) async fn work<F, Fut>(self: Arc<Self>, at_once: usize, process: F)
    where
        F: Fn(T) -> Fut,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let mut running = tokio::task::JoinSet::new();
        loop {
            while running.len() >= at_once {
                running.join_next().await;
            }
            let key = tokio::select! {
                key = self.next() => key,
                Some(_) = running.join_next(), if !running.is_empty() => continue,
            };
            let guard = ProcessingGuard { queue: self.clone(), key: Some(key.clone()) };
            let processing = process(key);
            running.spawn(async move { guard.close(&processing.await) });
        }
    }
}

/// Returns the key to the queue even if processing panics: one bad object must not stop its controller.
struct ProcessingGuard<T: Ord + Clone + Send + 'static> {
    queue: Arc<Queue<T>>,
    key: Option<T>,
}

impl<T: Ord + Clone + Send + 'static> ProcessingGuard<T> {
    fn close(mut self, outcome: &Outcome) {
        if let Some(key) = self.key.take() {
            self.queue.finish(key, outcome);
        }
    }
}

impl<T: Ord + Clone + Send + 'static> Drop for ProcessingGuard<T> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.queue.finish(key, &Outcome::Failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn waits_double_up_to_a_limit() {
        let waits = backoff(Duration::from_millis(50), Duration::from_secs(3)).take(8);
        let waits: Vec<_> = waits.map(|wait| wait.as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 3000, 3000]);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_with_increasing_delays() {
        let queue = Queue::new();
        let times = Arc::new(Mutex::new(Vec::new()));
        queue.add("a");
        let start = Instant::now();
        let log = times.clone();
        let work = queue.work(2, move |_| {
            let log = log.clone();
            async move {
                log.lock().push(start.elapsed().as_millis());
                Outcome::Failed
            }
        });
        let _ = tokio::time::timeout(Duration::from_millis(80), work).await;
        let times = times.lock().clone();
        assert_eq!(times.len(), 5, "{times:?}");
        assert!(times.windows(3).all(|w| w[2] - w[1] > w[1] - w[0]), "{times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_while_it_is_processed_is_processed_once_more_afterwards() {
        let queue = Queue::new();
        let (runs, at_once) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        queue.add(1);
        let (counted, inside, adding) = (runs.clone(), at_once.clone(), queue.clone());
        let work = queue.work(8, move |key| {
            let (runs, at_once, queue) = (counted.clone(), inside.clone(), adding.clone());
            async move {
                assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0);
                if runs.fetch_add(1, Ordering::SeqCst) == 0 {
                    queue.add(key);
                    queue.add(key);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
                at_once.fetch_sub(1, Ordering::SeqCst);
                Outcome::Done
            }
        });
        let _ = tokio::time::timeout(Duration::from_secs(1), work).await;
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_fails_only_its_own_key() {
        let queue = Queue::new();
        let seen = Arc::new(Mutex::new(Vec::new()));
        queue.add("bad");
        queue.add("good");
        let log = seen.clone();
        let work = queue.work(1, move |key| {
            let log = log.clone();
            async move {
                log.lock().push(key);
                assert_ne!(key, "bad");
                Outcome::Done
            }
        });
        let _ = tokio::time::timeout(Duration::from_millis(20), work).await;
        let seen = seen.lock().clone();
        assert_eq!(seen.iter().filter(|k| **k == "good").count(), 1);
        assert!(seen.iter().filter(|k| **k == "bad").count() > 1);
    }
}
