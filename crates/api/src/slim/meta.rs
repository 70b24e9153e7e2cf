//! Metadata of objects, reduced to the fields that Quorate reads.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::core::ObjectMeta;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads metadata and keeps identity, versions, labels, owners, the times of creation and deletion, and the
/// annotations that [`keeps_annotation`] selects. managedFields and the `last-applied-configuration` annotation of
/// `kubectl apply` are most of a typical pod, and are dropped.
pub(super) fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let kept = Option::<Kept>::deserialize(deserializer)?.unwrap_or_default();
    Ok(ObjectMeta {
        name: kept.name,
        namespace: kept.namespace,
        uid: kept.uid,
        resource_version: kept.resource_version,
        generation: kept.generation,
        labels: kept.labels,
        annotations: kept.annotations,
        owner_references: kept.owner_references,
        creation_timestamp: kept.creation_timestamp,
        deletion_timestamp: kept.deletion_timestamp,
        ..ObjectMeta::default()
    })
}

/// Whether Quorate reads this annotation. It reads those of its own domain, of LeaderWorkerSet and of OpenKruise.
pub fn keeps_annotation(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    ["quorate.dev", "leaderworkerset.sigs.k8s.io", "kruise.io"]
        .iter()
        .any(|kept| domain.strip_suffix(kept).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Kept {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "annotations")]
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
}

/// Reads annotations and stores only those that are kept.
pub(super) fn annotations<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    struct Some_;

    impl<'de> Visitor<'de> for Some_ {
        type Value = Option<BTreeMap<String, String>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("annotations")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_map(self)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut kept = BTreeMap::new();
            while let Some(key) = map.next_key::<Key>()? {
                match key.0 {
                    Some(key) => {
                        kept.insert(key, map.next_value::<Option<String>>()?.unwrap_or_default());
                    }
                    None => {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
            }
            Ok((!kept.is_empty()).then_some(kept))
        }
    }

    deserializer.deserialize_option(Some_)
}

/// The key of an annotation; `None` if the annotation is not kept.
struct Key(Option<String>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;

        impl Visitor<'_> for KeyVisitor {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the key of an annotation")
            }

            fn visit_str<E>(self, key: &str) -> Result<Key, E> {
                Ok(Key(keeps_annotation(key).then(|| key.to_owned())))
            }
        }

        deserializer.deserialize_str(KeyVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::keeps_annotation;

    #[test]
    fn annotations_of_known_domains_are_kept() {
        for key in [
            "quorate.dev/disruption-probe.main",
            "leaderworkerset.sigs.k8s.io/size",
            "kruise.io/anything",
            "pub.kruise.io/no-protect",
        ] {
            assert!(keeps_annotation(key), "{key}");
        }
        for key in
            ["kubectl.kubernetes.io/last-applied-configuration", "notkruise.io/x", "quorate.dev", "plain"]
        {
            assert!(!keeps_annotation(key), "{key}");
        }
    }
}
