//! Moments of Kubernetes and of the engine.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time as ObjectTime};
use k8s_openapi::jiff::Timestamp;
use quorate_engine::basics::Time;

/// A moment as the engine has it.
pub fn from_object(time: &ObjectTime) -> Time {
    Time(time.0.as_millisecond())
}

/// A moment of a Lease or a token as the engine has it.
pub fn from_micro(time: &MicroTime) -> Time {
    Time(time.0.as_millisecond())
}

/// The first whole second that is after a moment for sure. Objects tell when a container started and when it was probed
/// in whole seconds: a probe in the second of a start may have been of whatever ran before.
pub fn next_second(time: Time) -> Time {
    Time(time.0.div_euclid(1000).saturating_add(1).saturating_mul(1000))
}

/// A moment as objects have it, in whole seconds. Moments beyond the year 9999 do not occur; they become 1970.
pub fn to_object(time: Time) -> ObjectTime {
    ObjectTime(timestamp(time))
}

/// A moment as tokens have it: reading it back gives the same moment.
pub fn to_micro(time: Time) -> MicroTime {
    MicroTime(timestamp(time))
}

fn timestamp(time: Time) -> Timestamp {
    Timestamp::from_millisecond(time.0).unwrap_or(Timestamp::UNIX_EPOCH)
}
