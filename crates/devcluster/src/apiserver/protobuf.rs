//! The little of protobuf that cannot be avoided: typed Go clients send their delete options in it, come what may.

use serde_json::{Value, json};

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

/// Walks the fields of a message; `None` at the first thing that is not understood.
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
            // Two's complement on the wire.
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
    use super::delete_options;
    use serde_json::json;

    #[test]
    fn options_as_a_go_client_sends_them() {
        let mut bytes = b"k8s\0".to_vec();
        // The type, then the options: grace 30, a UID, background.
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
}
