//! Tables of custom resources, from their `additionalPrinterColumns`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{age, name, since};
use super::definition;
use crate::apiserver::crd::{CustomType, PrinterColumn};

pub(super) fn columns_and_rows(
    definition_of: &CustomType,
    version: &str,
    objects: &[&Value],
    now: Timestamp,
) -> (Vec<Value>, Vec<Vec<Value>>) {
    let own: &[PrinterColumn] =
        definition_of.version(version).map(|v| v.columns.as_slice()).unwrap_or_default();
    let mut columns = vec![definition("Name", "string", 0, "")];
    columns.extend(own.iter().map(|c| definition(&c.name, &c.kind, c.priority, &c.description)));
    if own.is_empty() {
        columns.push(definition("Age", "date", 0, ""));
    }
    let rows = objects
        .iter()
        .map(|object| {
            let mut cells = vec![name(object)];
            cells.extend(own.iter().map(|c| cell(c, object, now)));
            if own.is_empty() {
                cells.push(age(object, now));
            }
            cells
        })
        .collect();
    (columns, rows)
}

fn cell(column: &PrinterColumn, object: &Value, now: Timestamp) -> Value {
    let found = column.path.find(object);
    let Some(first) = found.first() else { return Value::Null };
    match column.kind.as_str() {
        "date" => since(first, now),
        "integer" => first.as_i64().map_or(Value::Null, Value::from),
        "number" | "boolean" => (*first).clone(),
        _ if found.len() > 1 => json!(found.iter().map(|v| text(v)).collect::<Vec<_>>().join(",")),
        _ => json!(text(first)),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
