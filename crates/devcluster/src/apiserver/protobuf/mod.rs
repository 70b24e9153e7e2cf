//! Minimal protobuf support: typed Go clients require it, including `kubectl create` and `kubectl delete`.
//!
//! A field that is not in the tables and has a value is an error; it is never ignored.

mod messages;

use serde_json::{Map, Value, json};

/// The media type of Kubernetes' protobuf.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
const MAGIC: &[u8] = b"k8s\0";

/// Whether the bytes are an object in Kubernetes' protobuf.
pub(crate) fn is_envelope(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// A field of a message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The description of one field of a message.
pub(crate) struct Spec {
    number: u64,
    name: &'static str,
    shape: Shape,
    many: bool,
}

/// The type of a field.
pub(crate) enum Shape {
    Text,
    Bytes,
    Int,
    Bool,
    IntOrString,
    Message(&'static [Spec]),
    Map(&'static Shape),
    /// A field that the server always ignores.
    Skip,
}

/// Reads an object; `None` if its kind, or a field with a value, is not in the tables.
pub(crate) fn object(bytes: &[u8]) -> Option<Value> {
    let envelope = fields(bytes.strip_prefix(MAGIC)?)?;
    let part = |wanted: u64| {
        envelope.iter().find_map(|(number, field)| match field {
            Field::Bytes(bytes) if *number == wanted => Some(*bytes),
            _ => None,
        })
    };
    let types = fields(part(1)?)?;
    let name = |wanted: u64| {
        types.iter().find_map(|(number, field)| match field {
            Field::Bytes(bytes) if *number == wanted => text(bytes),
            _ => None,
        })
    };
    let (api_version, kind) = (name(1)?, name(2)?);
    let mut object = message(part(2).unwrap_or_default(), messages::of_kind(kind.as_str()?)?)?;
    object["apiVersion"] = api_version;
    object["kind"] = kind;
    Some(object)
}

fn message(bytes: &[u8], specs: &[Spec]) -> Option<Value> {
    let mut map = Map::new();
    for (number, field) in fields(bytes)? {
        let Some(spec) = specs.iter().find(|s| s.number == number) else {
            if blank(&field) {
                continue;
            }
            return None;
        };
        if let Shape::Map(shape) = &spec.shape {
            let Field::Bytes(entry) = field else { return None };
            let (key, value) = entry_of(entry, shape)?;
            crate::apiserver::object::as_map(map.entry(spec.name).or_insert_with(|| json!({})))
                .insert(key, value);
            continue;
        }
        let Some(value) = value(&field, &spec.shape)? else { continue };
        if spec.many {
            match map.entry(spec.name).or_insert_with(|| json!([])) {
                Value::Array(list) => list.push(value),
                _ => return None,
            }
        } else {
            map.insert(spec.name.to_owned(), value);
        }
    }
    Some(Value::Object(map))
}

/// Reads one value; `Some(None)` if it is empty or skipped.
fn value(field: &Field<'_>, shape: &Shape) -> Option<Option<Value>> {
    Some(match (shape, field) {
        (Shape::Skip, _) => None,
        (Shape::Text, Field::Bytes(bytes)) => text(bytes).map(|t| (t != "").then_some(t))?,
        (Shape::Bytes, Field::Bytes(bytes)) => {
            serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).ok()
        }
        (Shape::Int, Field::Number(number)) => Some(number.cast_signed().into()),
        (Shape::Bool, Field::Number(number)) => Some((*number != 0).into()),
        (Shape::IntOrString, Field::Bytes(bytes)) => Some(int_or_string(bytes)?),
        (Shape::Message(specs), Field::Bytes(bytes)) => Some(message(bytes, specs)?),
        _ => return None,
    })
}

fn int_or_string(bytes: &[u8]) -> Option<Value> {
    let (mut is_text, mut number, mut words) = (false, Value::from(0), Value::from(""));
    for (at, field) in fields(bytes)? {
        match (at, field) {
            (1, Field::Number(kind)) => is_text = kind == 1,
            (2, Field::Number(found)) => number = found.cast_signed().into(),
            (3, Field::Bytes(found)) => words = text(found)?,
            _ => return None,
        }
    }
    Some(if is_text { words } else { number })
}

fn entry_of(bytes: &[u8], shape: &Shape) -> Option<(String, Value)> {
    let (mut key, mut found) = (String::new(), Value::from(""));
    for (number, field) in fields(bytes)? {
        match (number, field) {
            (1, Field::Bytes(bytes)) => key = text(bytes)?.as_str()?.to_owned(),
            (2, field) => found = value(&field, shape)?.unwrap_or_else(|| "".into()),
            _ => return None,
        }
    }
    Some((key, found))
}

/// Whether a field is empty: Go also writes zero values.
fn blank(field: &Field<'_>) -> bool {
    match field {
        Field::Number(number) => *number == 0,
        Field::Bytes(bytes) => fields(bytes).is_some_and(|inner| inner.iter().all(|(_, field)| blank(field))),
    }
}

/// Reads the fields of a message; `None` if any part cannot be parsed.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Field<'_>)>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (head, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Field::Bytes(head)
            }
            _ => return None,
        };
        all.push((tag >> 3, field));
    }
    Some(all)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn text(bytes: &[u8]) -> Option<Value> {
    std::str::from_utf8(bytes).ok().map(Value::from)
}

/// Reads `metav1.DeleteOptions`.
pub(crate) fn delete_options(bytes: &[u8]) -> Option<Value> {
    let envelope = fields(bytes.strip_prefix(MAGIC)?)?;
    let raw = envelope.iter().find_map(|(number, field)| match (number, field) {
        (2, Field::Bytes(raw)) => Some(*raw),
        _ => None,
    });
    let mut options = json!({});
    for (number, field) in fields(raw.unwrap_or_default())? {
        match (number, field) {
            // The encoding is two's complement.
            (1, Field::Number(seconds)) => options["gracePeriodSeconds"] = seconds.cast_signed().into(),
            (2, Field::Bytes(preconditions)) => {
                options["preconditions"] = json!({});
                for (number, field) in fields(preconditions)? {
                    let Field::Bytes(value) = field else { return None };
                    let name = if number == 1 { "uid" } else { "resourceVersion" };
                    options["preconditions"][name] = text(value)?;
                }
            }
            (3, Field::Number(orphan)) => options["orphanDependents"] = (orphan != 0).into(),
            (4, Field::Bytes(policy)) => options["propagationPolicy"] = text(policy)?,
            (5, Field::Bytes(value)) => options["dryRun"] = json!([text(value)?]),
            _ => {}
        }
    }
    Some(options)
}

#[cfg(test)]
mod tests {
    use super::{delete_options, object};
    use serde_json::json;

    #[test]
    fn delete_options_of_a_go_client_are_read() {
        let mut bytes = b"k8s\0".to_vec();
        // The type, then the options: grace period 30, a UID, background propagation.
        bytes.extend([0x0a, 0x06, 0x0a, 0x01, b'v', 0x12, 0x01, b'D']);
        let raw = [&[0x08, 30, 0x12, 3, 0x0a, 1, b'u', 0x22, 10][..], b"Background"].concat();
        bytes.extend([0x12, u8::try_from(raw.len()).unwrap()]);
        bytes.extend(&raw);
        let options = delete_options(&bytes).unwrap();
        assert_eq!(
            options,
            json!({"gracePeriodSeconds": 30, "preconditions": {"uid": "u"}, "propagationPolicy": "Background"})
        );
        assert!(delete_options(b"k8s\0\xff").is_none());
        assert!(delete_options(b"{}").is_none());
        assert!(delete_options(&bytes[..bytes.len() - 2]).is_none());
    }

    fn envelope(kind: &str, raw: &[u8]) -> Vec<u8> {
        let field = |number: u8, bytes: &[u8]| {
            [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
        };
        let types = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [b"k8s\0".to_vec(), field(1, &types), field(2, raw)].concat()
    }

    #[test]
    fn an_object_is_read_and_an_unknown_field_or_kind_is_an_error() {
        // metadata {name "n", labels {a: b}, generation 0}, data {k: v}
        let meta = [&[0x0a, 1, b'n', 0x38, 0, 0x5a, 6, 0x0a, 1, b'a', 0x12, 1, b'b'][..]].concat();
        let raw =
            [&[0x0a, u8::try_from(meta.len()).unwrap()][..], &meta, &[0x12, 6, 0x0a, 1, b'k', 0x12, 1, b'v']]
                .concat();
        assert_eq!(
            object(&envelope("ConfigMap", &raw)).unwrap(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n", "labels": {"a": "b"}}, "data": {"k": "v"}})
        );
        assert!(object(&envelope("Pod", &raw)).is_none(), "not in the tables");
        let unknown = [&raw[..], &[0x7a, 1, b'?']].concat();
        assert!(object(&envelope("ConfigMap", &unknown)).is_none());
        let blank = [&raw[..], &[0x78, 0, 0x7a, 2, 0x0a, 0]].concat();
        assert!(object(&envelope("ConfigMap", &blank)).is_some(), "zero values are ignored");
    }
}
