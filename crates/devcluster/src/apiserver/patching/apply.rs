//! Server-side apply, limited to what matters to clients: which applier applied which field.
//!
//! A field that an applier applied before and no longer applies is removed, unless another applier also applies it. Two
//! appliers conflict if they apply different values to one field, unless the later one forces its value. Writers that
//! do not use apply are not tracked: their changes never conflict.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::strategic::{ListMerge, merge_key};
use crate::apiserver::api::{Api, Reply};
use crate::apiserver::create::Created;
use crate::apiserver::failure::{Failure, Outcome};
use crate::apiserver::object::{self, set_meta};
use crate::apiserver::request::Call;

/// One step of a path from an object to a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Field(String),
    /// An item of a merged list, identified by the JSON of its key and value.
    Item(String),
}

type Fields = BTreeMap<Vec<Step>, Value>;

/// An applier: its name, and the subresource that it uses.
type Manager = (String, String);

/// The fields that each applier applied last.
type Managers = BTreeMap<Manager, Vec<Vec<Step>>>;

impl Api {
    pub(crate) async fn apply(self: &Arc<Self>, call: &Call, applied: &Value) -> Outcome<Reply> {
        let manager = (call.query.text("fieldManager").to_owned(), call.subresource.clone());
        if manager.0.is_empty() {
            return Err(Failure::bad_request("fieldManager is required for apply patch"));
        }
        if !applied["metadata"]["managedFields"].is_null() {
            return Err(Failure::bad_request("metadata.managedFields must be nil"));
        }
        let kind = call.served.resource.kind.clone();
        let mut mine = fields_of(applied, &kind);
        // The applier does not own fields that this request cannot write.
        if call.served.resource.status_rule(&call.served.version).is_some() {
            let status = [Step::Field("status".to_owned())];
            mine.retain(|path, _| path.starts_with(&status) == (call.subresource == "status"));
        }
        if self.store.get(&call.served.resource.table, &call.key()).is_none() {
            return self.create_by_apply(call, applied, &manager, &mine).await;
        }
        let force = call.query.flag("force");
        let now = self.clock.now_text();
        let mut warnings = Vec::new();
        let done = self
            .rewrite(call, &mut warnings, |current| {
                let mut next = current.clone();
                let before = managers(current);
                check_conflicts(current, &manager, &mine, &before, force)?;
                if let Some(earlier) = before.get(&manager) {
                    for path in earlier.iter().filter(|path| !mine.contains_key(*path)) {
                        let shared =
                            before.iter().any(|(other, paths)| *other != manager && paths.contains(path));
                        if !shared && !mine.keys().any(|kept| kept.starts_with(path.as_slice())) {
                            remove(&mut next, path);
                        }
                    }
                }
                merge(&mut next, applied, &kind, "");
                drop_emptied(&mut next, &kind, "");
                let mut after = before;
                if force {
                    for (other, paths) in &mut after {
                        if *other != manager {
                            paths.retain(|path| {
                                !mine.contains_key(path) || get(current, path) == mine.get(path)
                            });
                        }
                    }
                }
                after.insert(manager.clone(), mine.keys().cloned().collect());
                set_meta(&mut next, "managedFields", managed_fields(&after, current, call, &now));
                Ok(next)
            })
            .await?;
        Ok(self.written(call, 200, done).with_warnings(warnings))
    }

    async fn create_by_apply(
        self: &Arc<Self>,
        call: &Call,
        applied: &Value,
        manager: &Manager,
        mine: &Fields,
    ) -> Outcome<Reply> {
        if !call.subresource.is_empty() {
            return Err(call.not_found());
        }
        if !object::uid(applied).is_empty() {
            return Err(Failure::conflict(
                call.served.resource.about(),
                &call.name,
                &format!(
                    "uid mismatch: the provided object specified uid {}, and no existing object was found",
                    object::uid(applied)
                ),
            ));
        }
        let mut body = applied.clone();
        set_meta(&mut body, "name", call.name.clone());
        let mut warnings = Vec::new();
        let created = self.create_object(call, body, &mut warnings).await?;
        let reply = match created {
            Created::DryRun(value) => self.reply_value(call, 201, value),
            Created::Stored(stored) => {
                let after = BTreeMap::from([(manager.clone(), mine.keys().cloned().collect())]);
                let mut now = stored;
                loop {
                    let mut value = now.value.clone();
                    let fields = managed_fields(&after, &Value::Null, call, &self.clock.now_text());
                    set_meta(&mut value, "managedFields", fields);
                    if let Ok(done) = self.commit(&call.served.resource, &now, value) {
                        break self.written(call, 201, done);
                    }
                    // Another write came first, perhaps by the server itself.
                    match self.store.get(&call.served.resource.table, &call.key()) {
                        Some(newer) => now = newer,
                        None => break self.reply(call, 201, &now),
                    }
                }
            }
        };
        Ok(reply.with_warnings(warnings))
    }
}

fn check_conflicts(
    current: &Value,
    manager: &Manager,
    mine: &Fields,
    before: &Managers,
    force: bool,
) -> Outcome<()> {
    if force {
        return Ok(());
    }
    let mut clashes = Vec::new();
    for (path, wanted) in mine {
        for (other, paths) in before.iter().filter(|(other, _)| *other != manager) {
            if paths.contains(path) && get(current, path).is_some_and(|found| found != wanted) {
                clashes.push((other.0.clone(), display(path)));
            }
        }
    }
    if clashes.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> =
        clashes.iter().map(|(other, path)| format!("conflict with {other:?}: {path}")).collect();
    let noun = if texts.len() == 1 { "conflict" } else { "conflicts" };
    let mut failure = Failure::new(
        409,
        "Conflict",
        format!("Apply failed with {} {noun}: {}", texts.len(), texts.join(", ")),
    );
    for (other, path) in clashes {
        failure = failure.cause("FieldManagerConflict", &format!("conflict with {other:?}"), &path);
    }
    Err(failure)
}

/// The leaf fields of an applied object.
fn fields_of(applied: &Value, kind: &str) -> Fields {
    let mut fields = Fields::new();
    if let Value::Object(map) = applied {
        for (field, value) in map {
            match field.as_str() {
                "apiVersion" | "kind" => {}
                "metadata" => {
                    let own =
                        |f: &str| matches!(f, "labels" | "annotations" | "finalizers" | "ownerReferences");
                    let kept: Map<String, Value> = value
                        .as_object()
                        .map(|m| {
                            m.iter().filter(|(f, _)| own(f)).map(|(f, v)| (f.clone(), v.clone())).collect()
                        })
                        .unwrap_or_default();
                    if kept.is_empty() {
                        continue;
                    }
                    collect(
                        &Value::Object(kept),
                        kind,
                        "metadata",
                        vec![Step::Field(field.clone())],
                        &mut fields,
                    );
                }
                _ => {
                    let path = vec![Step::Field(field.clone())];
                    match (value, merge_key(kind, "", field)) {
                        (Value::Array(items), Some(how)) => {
                            collect_items(items, how, kind, field, &path, &mut fields);
                        }
                        _ => collect(value, kind, field, path, &mut fields),
                    }
                }
            }
        }
    }
    fields
}

fn collect(value: &Value, kind: &str, at: &str, path: Vec<Step>, fields: &mut Fields) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (field, value) in map {
                let mut path = path.clone();
                path.push(Step::Field(field.clone()));
                match (value, merge_key(kind, at, field)) {
                    (Value::Array(items), Some(how)) => collect_items(items, how, kind, field, &path, fields),
                    _ => collect(value, kind, field, path, fields),
                }
            }
        }
        other => {
            fields.insert(path, other.clone());
        }
    }
}

fn collect_items(
    items: &[Value],
    how: ListMerge,
    kind: &str,
    field: &str,
    path: &[Step],
    fields: &mut Fields,
) {
    for item in items {
        let mut path = path.to_vec();
        match how {
            ListMerge::By(key) => {
                path.push(Step::Item(json!({key: item[key]}).to_string()));
                collect(item, kind, field, path, fields);
            }
            ListMerge::Set => {
                path.push(Step::Item(item.to_string()));
                fields.insert(path, item.clone());
            }
        }
    }
}

fn position(list: &[Value], item: &str) -> Option<usize> {
    let wanted: Value = serde_json::from_str(item).ok()?;
    list.iter().position(|found| match &wanted {
        Value::Object(key) => key.iter().all(|(field, value)| found.get(field) == Some(value)),
        plain => found == plain,
    })
}

fn get<'a>(object: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, step| match step {
        Step::Field(field) => value.get(field),
        Step::Item(item) => value.as_array().and_then(|list| list.get(position(list, item)?)),
    })
}

fn remove(object: &mut Value, path: &[Step]) {
    let Some((last, parents)) = path.split_last() else { return };
    let parent = parents.iter().try_fold(object, |value, step| match step {
        Step::Field(field) => value.get_mut(field),
        Step::Item(item) => {
            let list = value.as_array_mut()?;
            let at = position(list, item)?;
            list.get_mut(at)
        }
    });
    match (parent, last) {
        (Some(Value::Object(map)), Step::Field(field)) => {
            map.remove(field);
            // Without its key, an item of a merged list is removed as a whole, by `drop_emptied`.
            if let Some(Step::Item(item)) = parents.last()
                && serde_json::from_str::<Value>(item).is_ok_and(|key| key.get(field).is_some())
            {
                map.clear();
            }
        }
        (Some(Value::Array(list)), Step::Item(item)) => {
            if let Some(at) = position(list, item) {
                list.remove(at);
            }
        }
        _ => {}
    }
}

/// Merges the applied fields into the object.
fn merge(target: &mut Value, applied: &Value, kind: &str, at: &str) {
    let Value::Object(applied) = applied else {
        *target = applied.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (field, value) in applied {
        match (value, merge_key(kind, at, field)) {
            (Value::Array(items), Some(how)) => {
                let slot = target.entry(field.clone()).or_insert_with(|| json!([]));
                if !slot.is_array() {
                    *slot = json!([]);
                }
                let Value::Array(list) = slot else { continue };
                merge_items(list, items, how, kind, field);
            }
            (Value::Object(_), _) => {
                merge(target.entry(field.clone()).or_insert(Value::Null), value, kind, field);
            }
            (plain, _) => {
                target.insert(field.clone(), plain.clone());
            }
        }
    }
}

/// Removes items of merged lists that have no fields left.
fn drop_emptied(value: &mut Value, kind: &str, at: &str) {
    let Value::Object(map) = value else { return };
    for (field, inner) in map {
        if let Value::Array(list) = inner {
            if merge_key(kind, at, field).is_some() {
                list.retain(|item| item.as_object().is_none_or(|map| !map.is_empty()));
            }
            list.iter_mut().for_each(|item| drop_emptied(item, kind, field));
        } else {
            drop_emptied(inner, kind, field);
        }
    }
}

fn merge_items(list: &mut Vec<Value>, items: &[Value], how: ListMerge, kind: &str, field: &str) {
    for item in items {
        let index = match how {
            ListMerge::By(key) => list.iter().position(|found| found.get(key) == item.get(key)),
            ListMerge::Set => list.iter().position(|found| found == item),
        };
        match index {
            Some(index) => merge(&mut list[index], item, kind, field),
            None => list.push(item.clone()),
        }
    }
}

fn display(path: &[Step]) -> String {
    path.iter()
        .map(|step| match step {
            Step::Field(field) => format!(".{field}"),
            Step::Item(item) => {
                format!("[{}]", item.trim_matches(['{', '}']).replacen("\":", "=", 1).replacen('"', "", 1))
            }
        })
        .collect()
}

/// The recorded appliers, each with its paths.
fn managers(object: &Value) -> Managers {
    let mut all = BTreeMap::new();
    for entry in object["metadata"]["managedFields"].as_array().into_iter().flatten() {
        let mut paths = Vec::new();
        read_fields(&entry["fieldsV1"], &[], &mut paths);
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        all.insert((text("manager"), text("subresource")), paths);
    }
    all
}

fn read_fields(fields: &Value, path: &[Step], paths: &mut Vec<Vec<Step>>) {
    let Some(map) = fields.as_object() else { return };
    if map.is_empty() {
        paths.push(path.to_vec());
    }
    for (key, inner) in map {
        let step = match key.split_once(':') {
            Some(("f", field)) => Step::Field(field.to_owned()),
            Some(("k" | "v", item)) => Step::Item(item.to_owned()),
            _ => continue,
        };
        let mut path = path.to_vec();
        path.push(step);
        read_fields(inner, &path, paths);
    }
}

/// The record for the metadata. An applier that applies the same fields again keeps its timestamp, so that applying the
/// same object again writes nothing.
fn managed_fields(managers: &Managers, before: &Value, call: &Call, now: &str) -> Value {
    let entries =
        managers.iter().filter(|(_, paths)| !paths.is_empty()).map(|((manager, through), paths)| {
            let mut tree = json!({});
            for path in paths {
                let mut node = &mut tree;
                for step in path {
                    let key = match step {
                        Step::Field(field) => format!("f:{field}"),
                        Step::Item(item) if item.starts_with('{') => format!("k:{item}"),
                        Step::Item(item) => format!("v:{item}"),
                    };
                    node = object::as_map(node).entry(key).or_insert_with(|| json!({}));
                }
            }
            let same = before["metadata"]["managedFields"].as_array().into_iter().flatten().find(|entry| {
                entry["manager"] == *manager
                    && entry["subresource"].as_str().unwrap_or_default() == through
                    && entry["fieldsV1"] == tree
            });
            if let Some(same) = same {
                return same.clone();
            }
            let mut entry = json!({
                "manager": manager,
                "operation": "Apply",
                "apiVersion": call.served.api_version(),
                "time": now,
                "fieldsType": "FieldsV1",
                "fieldsV1": tree,
            });
            if !through.is_empty() {
                entry["subresource"] = through.clone().into();
            }
            entry
        });
    Value::Array(entries.collect())
}
