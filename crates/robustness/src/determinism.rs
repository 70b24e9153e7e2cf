//! Replaces the clocks and the randomness of this process, so that a seed always makes the same run.
//!
//! A simulated run has one thread and tokio's paused time. What is left to chance comes from two functions of the C
//! library: `getrandom` (UUIDs, the keys of hash maps, jitter, keys of certificates) and `clock_gettime` (the time of
//! day, and the instants of the standard library). This module defines both. Before [`begin`] they do what the C library
//! does; after it, the first returns a sequence that depends on the seed alone, and the second follows tokio's time. So
//! the servers run exactly as shipped: nothing in them knows that time is simulated.
//!
//! The process must end after the run: the replacement is for its whole life.
#![allow(unsafe_code, reason = "a function of the C library can only be replaced by an unsafe one")]

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time of day when a run begins, in seconds: 2027-01-15 08:00:00 UTC.
const EPOCH: i64 = 1_800_000_000;

/// The reading of the monotonic clock when a run begins, in seconds.
const MONOTONIC_START: i64 = 1_000;

static ON: AtomicBool = AtomicBool::new(false);
static RANDOM: AtomicU64 = AtomicU64::new(0);
static START: OnceLock<Instant> = OnceLock::new();
static ELAPSED: AtomicU64 = AtomicU64::new(0);
static STEP: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// Whether this thread is reading the clock: tokio reads it too, outside a runtime.
    static READING: Cell<bool> = const { Cell::new(false) };
}

/// From now on, clocks and randomness depend on `seed` alone. Call it before anything else, and once.
pub fn begin(seed: u64) {
    RANDOM.store(seed, Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
    let _ = START.set(Instant::now());
}

/// Moves the time of day by `nanoseconds`. Instants do not move.
pub fn step_time_of_day(nanoseconds: i64) {
    STEP.fetch_add(nanoseconds, Ordering::Relaxed);
}

/// The real time since the system started, also in a simulated run.
pub fn real_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to `time`, which is valid for writes.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// SplitMix64: small, and good enough for everything that a run draws.
fn next_random() -> u64 {
    let mut z =
        RANDOM.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Simulated nanoseconds since the begin of the run.
fn elapsed() -> i64 {
    let entered = READING.try_with(|reading| !reading.replace(true)).unwrap_or(false);
    if entered {
        if let Some(start) = START.get() {
            let now = tokio::time::Instant::now().into_std().saturating_duration_since(*start);
            ELAPSED.fetch_max(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        let _ = READING.try_with(|reading| reading.set(false));
    }
    i64::try_from(ELAPSED.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
}

/// `getrandom` of the C library.
///
/// # Safety
/// `buffer` must be valid for writes of `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(
    buffer: *mut libc::c_void,
    length: libc::size_t,
    flags: libc::c_uint,
) -> libc::ssize_t {
    if !ON.load(Ordering::Relaxed) {
        // SAFETY: as promised by the caller.
        let written = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) };
        return libc::ssize_t::try_from(written).unwrap_or(-1);
    }
    // SAFETY: as promised by the caller.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for chunk in bytes.chunks_mut(8) {
        let random = next_random().to_le_bytes();
        chunk.copy_from_slice(&random[..chunk.len()]);
    }
    libc::ssize_t::try_from(length).unwrap_or(libc::ssize_t::MAX)
}

/// `clock_gettime` of the C library.
///
/// # Safety
/// `time` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    let nanoseconds = match clock {
        _ if !ON.load(Ordering::Relaxed) => None,
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => {
            Some(EPOCH * 1_000_000_000 + elapsed() + STEP.load(Ordering::Relaxed))
        }
        libc::CLOCK_MONOTONIC
        | libc::CLOCK_MONOTONIC_COARSE
        | libc::CLOCK_MONOTONIC_RAW
        | libc::CLOCK_BOOTTIME => Some(MONOTONIC_START * 1_000_000_000 + elapsed()),
        // The time that a process or a thread has used.
        _ => None,
    };
    match nanoseconds {
        Some(nanoseconds) => {
            let now = libc::timespec {
                tv_sec: nanoseconds.div_euclid(1_000_000_000),
                tv_nsec: nanoseconds.rem_euclid(1_000_000_000),
            };
            // SAFETY: as promised by the caller.
            unsafe { time.write(now) };
            0
        }
        None => {
            // SAFETY: as promised by the caller.
            let result = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
            libc::c_int::try_from(result).unwrap_or(-1)
        }
    }
}
