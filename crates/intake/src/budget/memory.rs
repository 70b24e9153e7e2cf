//! Converts the memory of a budget between its status and the engine.

use quorate_api::budget::SourceStatus;
use quorate_engine::basics::{GroupKind, Text};
use quorate_engine::facts::{Memory, Source};
use serde_json::{Value, json};

use super::ledger::{from_hex, to_hex};

const FOR: &str = "rememberedFor";
const SOURCES: &str = "sources";
const COMPLETE: &str = "completeGroups";

/// Reads the memory from a status. Values that cannot be read are ignored: older releases write none, and a manual edit
/// of the status must not make the budget unreadable.
pub(super) fn read(status: &Value) -> Memory {
    let Some(key) = status.get(FOR).and_then(|key| from_hex(key.as_str()?)) else { return Memory::default() };
    let list = |name: &str| status.get(name).and_then(Value::as_array).into_iter().flatten();
    let source = |value: &Value| {
        let source: SourceStatus = serde_json::from_value(value.clone()).ok()?;
        (!source.kind.is_empty() && !source.name.is_empty()).then(|| Source {
            kind: GroupKind::new(source.group, source.kind),
            name: source.name.into(),
            part: source.part.into(),
            uid: source.uid.into(),
        })
    };
    let mut sources: Vec<Source> = list(SOURCES).filter_map(source).collect();
    sources.sort_unstable();
    sources.dedup();
    let complete = list(COMPLETE).filter_map(|text| text.as_str().map(Text::from));
    Memory { key, sources: sources.into(), complete: complete.collect() }
}

/// The status fields of the memory; `null` for an empty one.
pub(super) fn write(memory: &Memory) -> [(&'static str, Value); 3] {
    let source = |source: &Source| {
        let source = SourceStatus {
            group: source.kind.group.to_string(),
            kind: source.kind.kind.to_string(),
            name: source.name.to_string(),
            part: source.part.to_string(),
            uid: source.uid.to_string(),
        };
        serde_json::to_value(source).unwrap_or_default()
    };
    let or_null = |there: bool, value: Value| if there { value } else { Value::Null };
    let (sources, complete) = (!memory.sources.is_empty(), !memory.complete.is_empty());
    [
        (SOURCES, or_null(sources, memory.sources.iter().map(source).collect())),
        (COMPLETE, or_null(complete, memory.complete.iter().map(|text| json!(&**text)).collect())),
        (FOR, or_null(sources || complete, json!(to_hex(memory.key)))),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn memory() -> Memory {
        let source = |group: &str, kind: &str, name: &str, part: &str, uid: &str| Source {
            kind: GroupKind::new(group, kind),
            name: name.into(),
            part: part.into(),
            uid: uid.into(),
        };
        Memory {
            key: 7,
            sources: [
                source("", "ReplicationController", "web", "", "u1"),
                source("scheduling.k8s.io", "PodGroup", "train", "t", ""),
                source("scheduling.quorate.dev", "Workload", "train", "ps", "u2"),
            ]
            .into(),
            complete: ["Label/0~7".into()].into(),
        }
    }

    #[test]
    fn a_written_memory_is_read_back() {
        let status: Map<String, Value> =
            write(&memory()).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(read(&Value::Object(status)), memory());
        assert!(write(&Memory { key: 7, ..Memory::default() }).iter().all(|(_, value)| value.is_null()));
    }

    #[test]
    fn unreadable_memory_is_ignored() {
        let source = json!({"kind": "Game", "name": "chess", "uid": "u"});
        let cases = [
            (json!(null), 0),
            (json!({"sources": [source]}), 0),
            (json!({"rememberedFor": "zz", "sources": [source]}), 0),
            (json!({"rememberedFor": "0000000000000007", "sources": [source, 3, {"name": "x"}, source]}), 1),
            (json!({"rememberedFor": "0000000000000007", "sources": {"a": 1}, "completeGroups": [1]}), 0),
        ];
        for (status, count) in cases {
            let memory = read(&status);
            assert_eq!((memory.sources.len(), memory.complete.len()), (count, 0), "{status}");
        }
    }
}
