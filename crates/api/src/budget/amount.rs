//! How minAvailable and maxUnavailable look in the schema.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A number from 0 up, or a percentage from 0% to 100%.
///
/// One rule with one message, rather than `pattern` and `minimum` which would each explain half. `self ==
/// string(self)` asks whether a string was given: `"5"` in quotes is neither a number nor a percentage.
pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "x-kubernetes-validations": [{
            "rule": "self == string(self) ? string(self).matches('^(100|[0-9]{1,2})%$') \
                     : string(self).matches('^[0-9]{1,9}$')",
            "message": "must be a whole number from 0 to 999999999, or a percentage from \"0%\" to \"100%\"",
        }],
    })
}
