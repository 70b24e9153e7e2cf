//! Objects and reviews as a cluster shows them, and small changes to them.

use std::path::PathBuf;

use proptest::test_runner::{Config, RngSeed};
use quorate_api::slim;
use quorate_engine::basics::Time;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// 2026-11-15T10:00:00Z.
pub(crate) const TEN: Time = Time(1_794_736_800_000);

/// A moment that many minutes before ten.
pub(crate) fn before_ten(minutes: i64) -> Time {
    Time(TEN.0 - minutes * 60_000)
}

/// So many random cases, the same ones each time: a failure then belongs to the change that caused it. `PROPTEST_RNG_SEED`
/// tries others.
pub(crate) fn random_cases(cases: u32) -> Config {
    let default = Config::default();
    let rng_seed = match default.rng_seed {
        RngSeed::Random => RngSeed::Fixed(1),
        fixed @ RngSeed::Fixed(_) => fixed,
    };
    Config { cases, rng_seed, failure_persistence: None, ..default }
}

/// A file of `tests/data`.
pub(crate) fn load(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn pod(value: Value) -> slim::Pod {
    object(value)
}

/// The value with another one put at a JSON pointer; objects on the way are made, `null` takes away.
pub(crate) fn with(mut value: Value, pointer: &str, new: Value) -> Value {
    let (parents, last) = pointer.rsplit_once('/').unwrap();
    let mut at = &mut value;
    for part in parents.split('/').skip(1) {
        at = match part.parse::<usize>() {
            Ok(index) if at.is_array() => &mut at[index],
            _ => &mut at[part.replace("~1", "/")],
        };
    }
    let last = last.replace("~1", "/");
    match (at, last.parse::<usize>()) {
        (Value::Array(list), Ok(index)) if index < list.len() => list[index] = new,
        (Value::Array(list), _) => list.push(new),
        (Value::Object(map), _) if new.is_null() => drop(map.remove(&last)),
        (other, _) => other[last] = new,
    }
    value
}

#[test]
fn ten_is_ten_o_clock() {
    let time = quorate_intake::time::to_object(TEN);
    assert_eq!(json!(time), json!("2026-11-15T10:00:00Z"));
}
