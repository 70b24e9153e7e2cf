//! Conversion between Kubernetes times and times of the engine.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time as ObjectTime};
use k8s_openapi::jiff::Timestamp;
use quorate_engine::basics::Time;

/// The time of an object as a time of the engine.
pub fn from_object(time: &ObjectTime) -> Time {
    Time(time.0.as_millisecond())
}

/// The time of a Lease or a token as a time of the engine.
pub fn from_micro(time: &MicroTime) -> Time {
    Time(time.0.as_millisecond())
}

/// The first whole second that is certainly after a time. Objects record container starts and probes in whole seconds:
/// a probe in the same second as a start may have reached the previous container.
pub fn next_second(time: Time) -> Time {
    Time(time.0.div_euclid(1000).saturating_add(1).saturating_mul(1000))
}

/// A time for objects, in whole seconds. Times beyond the year 9999 do not occur; they become 1970.
pub fn to_object(time: Time) -> ObjectTime {
    ObjectTime(timestamp(time))
}

/// A time for tokens. Reading it back gives the same time.
pub fn to_micro(time: Time) -> MicroTime {
    MicroTime(timestamp(time))
}

fn timestamp(time: Time) -> Timestamp {
    Timestamp::from_millisecond(time.0).unwrap_or(Timestamp::UNIX_EPOCH)
}
