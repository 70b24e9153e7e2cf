//! Basic types: texts, times, versions, keys, quantities.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use crate::labels::Labels;

/// A shared piece of text: names, label values, UIDs.
pub type Text = Arc<str>;

/// A Kubernetes UID.
pub type Uid = Text;

/// A time in milliseconds since the Unix epoch. Always an argument: this crate never reads a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl Time {
    /// The time `span` later.
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long ago `earlier` was; zero if it is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// A `resourceVersion`, compared as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: Text,
    /// The name.
    pub name: Text,
}

impl ObjectKey {
    /// Makes a key from its two parts.
    pub fn new(namespace: impl Into<Text>, name: impl Into<Text>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Group and kind of an object, without the version: an owner stays the same when an API version is removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKind {
    /// The API group; empty for the core group.
    pub group: Text,
    /// The kind.
    pub kind: Text,
}

impl GroupKind {
    /// Makes a group and kind from its two parts.
    pub fn new(group: impl Into<Text>, kind: impl Into<Text>) -> Self {
        Self { group: group.into(), kind: kind.into() }
    }
}

/// As in the name of a CustomResourceDefinition: `Deployment.apps`, `Pod`.
impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.group {
            "" => write!(f, "{}", self.kind),
            group => write!(f, "{}.{group}", self.kind),
        }
    }
}

/// A number or a percentage, as in the spec of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// An absolute number.
    Count(u32),
    /// A percentage, rounded up.
    Percent(u32),
}

impl Quantity {
    /// The absolute number, out of `whole`. Percentages round up, for minimum and maximum alike; upstream does the
    /// same.
    pub fn of(self, whole: u32) -> u32 {
        match self {
            Self::Count(n) => n,
            Self::Percent(p) => {
                let scaled = u64::from(whole) * u64::from(p);
                u32::try_from(scaled.div_ceil(100)).unwrap_or(u32::MAX)
            }
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => write!(f, "{n}"),
            Self::Percent(p) => write!(f, "{p}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_up() {
        let cases = [(30, 7, 3), (34, 3, 2), (28, 22, 7), (20, 10, 2), (0, 5, 0), (100, 3, 3), (1, 1, 1)];
        for (percent, whole, expected) in cases {
            assert_eq!(Quantity::Percent(percent).of(whole), expected, "{percent}% of {whole}");
        }
        assert_eq!(Quantity::Percent(100).of(u32::MAX), u32::MAX);
    }
}
