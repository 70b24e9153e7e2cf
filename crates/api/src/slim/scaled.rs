//! Objects of any kind, reduced to their scale.

use std::fmt;

use kube::core::ObjectMeta;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::meta;

/// Any object, and its desired number of replicas.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scaled {
    /// Its metadata, trimmed.
    pub metadata: ObjectMeta,
    /// The desired number of replicas, if the object sets it.
    pub replicas: Option<i32>,
}

/// The path of the replica count in a kind, as in `.spec.replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicasPath(Box<[String]>);

impl Default for ReplicasPath {
    /// The path that nearly every kind uses.
    fn default() -> Self {
        Self::new(".spec.replicas")
    }
}

impl ReplicasPath {
    /// A path as CustomResourceDefinitions write it: names with a dot before each.
    pub fn new(text: &str) -> Self {
        Self(text.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect())
    }
}

impl Scaled {
    /// Reads an object from its JSON text. `path` is `None` for a kind without a scale.
    ///
    /// # Errors
    /// The text is not an object, or the value at the path is not a number.
    pub fn read(text: &str, path: Option<&ReplicasPath>) -> Result<Self, serde_json::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Named {
            #[serde(deserialize_with = "meta::metadata")]
            metadata: ObjectMeta,
        }

        let Named { metadata } = serde_json::from_str(text)?;
        let replicas = match path {
            Some(ReplicasPath(parts)) => {
                Number(parts).deserialize(&mut serde_json::Deserializer::from_str(text))?
            }
            None => None,
        };
        Ok(Self { metadata, replicas })
    }
}

/// Reads the number at a path and skips everything else.
struct Number<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for Number<'_> {
    type Value = Option<i32>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() { Option::deserialize(deserializer) } else { deserializer.deserialize_any(self) }
    }
}

impl<'de> Visitor<'de> for Number<'_> {
    type Value = Option<i32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with {}", self.0.join("."))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some((name, rest)) = self.0.split_first() else { return Err(A::Error::custom("no path")) };
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == *name {
                found = map.next_value_seed(Number(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replicas(text: &str, path: &str) -> Result<Option<i32>, String> {
        let path = ReplicasPath::new(path);
        Scaled::read(text, Some(&path)).map(|scaled| scaled.replicas).map_err(|error| error.to_string())
    }

    #[test]
    fn replicas_are_read_at_the_path_of_the_kind() {
        let text =
            r#"{"spec": {"replicas": 3, "size": {"wanted": 5, "max": [1]}}, "metadata": {"name": "a"}}"#;
        assert_eq!(replicas(text, ".spec.replicas"), Ok(Some(3)));
        assert_eq!(replicas(text, ".spec.size.wanted"), Ok(Some(5)));
        assert_eq!(replicas(text, ".spec.count"), Ok(None));
        assert_eq!(replicas(r#"{"spec": null}"#, ".spec.replicas"), Ok(None));
        assert_eq!(replicas(r#"{"spec": {"replicas": null}}"#, ".spec.replicas"), Ok(None));
        let scaled = Scaled::read(text, None).unwrap();
        assert_eq!((scaled.replicas, scaled.metadata.name.as_deref()), (None, Some("a")));
    }

    #[test]
    fn replicas_that_are_not_a_number_are_an_error() {
        for text in [r#"{"spec": {"replicas": "3"}}"#, r#"{"spec": 3}"#, "3"] {
            assert!(replicas(text, ".spec.replicas").is_err(), "{text}");
        }
    }
}
