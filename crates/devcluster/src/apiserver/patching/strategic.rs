//! Strategic merge patch: lists are merged by key, and the patch may carry directives.

use serde_json::{Map, Value};

use crate::apiserver::failure::{Failure, Outcome};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER_PREFIX: &str = "$setElementOrder/";
const DELETE_PREFIX: &str = "$deleteFromPrimitiveList/";

/// How a list is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListMerge {
    /// By this field of the items.
    By(&'static str),
    /// As a set of plain values.
    Set,
}

/// How the list under `field` is merged; `None`: it is replaced. `parent` is the field that contains `field`, `kind` is
/// the kind of the object.
pub(crate) fn merge_key(kind: &str, parent: &str, field: &str) -> Option<ListMerge> {
    Some(match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "resourceClaims"
        | "schedulingGates"
        | "webhooks"
        | "matchConditions" => ListMerge::By("name"),
        "secrets" if kind == "ServiceAccount" => ListMerge::By("name"),
        "volumeMounts" => ListMerge::By("mountPath"),
        "volumeDevices" => ListMerge::By("devicePath"),
        "ports" if kind == "Service" => ListMerge::By("port"),
        "ports" if matches!(kind, "Endpoints" | "EndpointSlice") => return None,
        "ports" => ListMerge::By("containerPort"),
        "conditions" => ListMerge::By("type"),
        "addresses" if kind == "Node" => ListMerge::By("type"),
        "ownerReferences" => ListMerge::By("uid"),
        "finalizers" if parent == "metadata" => ListMerge::Set,
        "podCIDRs" => ListMerge::Set,
        "hostAliases" | "podIPs" => ListMerge::By("ip"),
        "topologySpreadConstraints" => ListMerge::By("topologyKey"),
        _ => return None,
    })
}

/// Whether a patch replaces this map instead of merging it.
fn replaces(kind: &str, parent: &str, field: &str) -> bool {
    kind == "PodDisruptionBudget" && parent == "spec" && field == "selector"
}

/// Applies `patch` to `target`.
pub(crate) fn merge(target: &mut Value, patch: &Value, kind: &str) -> Outcome<()> {
    let context = Context { kind };
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => context.map(target, patch, ""),
        _ => Err(Failure::bad_request("a strategic merge patch must be an object")),
    }
}

struct Context<'a> {
    kind: &'a str,
}

impl Context<'_> {
    fn map(&self, target: &mut Map<String, Value>, patch: &Map<String, Value>, at: &str) -> Outcome<()> {
        match patch.get(DIRECTIVE).and_then(Value::as_str) {
            None | Some("merge") => {}
            Some("replace") => {
                *target = without_directives(patch);
                return Ok(());
            }
            Some("delete") => {
                target.clear();
                return Ok(());
            }
            Some(other) => return Err(unknown_directive(other)),
        }
        if let Some(keys) = patch.get(RETAIN_KEYS).and_then(Value::as_array) {
            target.retain(|field, _| keys.iter().any(|k| k == field));
        }
        for (field, value) in patch {
            if field == DIRECTIVE || field == RETAIN_KEYS || field.starts_with(ORDER_PREFIX) {
                continue;
            }
            if let Some(field) = field.strip_prefix(DELETE_PREFIX) {
                delete_from(target, field, value);
                continue;
            }
            self.field(target, field, value, at)?;
        }
        for (field, order) in patch {
            if let Some(field) = field.strip_prefix(ORDER_PREFIX)
                && let (Some(Value::Array(list)), Some(order)) = (target.get_mut(field), order.as_array())
            {
                reorder(list, order, merge_key(self.kind, at, field));
            }
        }
        Ok(())
    }

    fn field(&self, target: &mut Map<String, Value>, field: &str, patch: &Value, at: &str) -> Outcome<()> {
        match patch {
            Value::Null => {
                target.remove(field);
                Ok(())
            }
            Value::Object(patch) if replaces(self.kind, at, field) => {
                target.insert(field.to_owned(), Value::Object(without_directives(patch)));
                Ok(())
            }
            Value::Object(patch) => {
                let slot = target.entry(field.to_owned()).or_insert_with(|| Value::Object(Map::new()));
                if !slot.is_object() {
                    *slot = Value::Object(Map::new());
                }
                let Value::Object(inner) = slot else { return Ok(()) };
                self.map(inner, patch, field)?;
                if patch.get(DIRECTIVE).and_then(Value::as_str) == Some("delete") {
                    target.remove(field);
                }
                Ok(())
            }
            Value::Array(patch) => match merge_key(self.kind, at, field) {
                Some(how) => {
                    let slot = target.entry(field.to_owned()).or_insert_with(|| Value::Array(Vec::new()));
                    if !slot.is_array() {
                        *slot = Value::Array(Vec::new());
                    }
                    let Value::Array(list) = slot else { return Ok(()) };
                    self.list(list, patch, how, field)
                }
                None => {
                    target.insert(field.to_owned(), Value::Array(patch.clone()));
                    Ok(())
                }
            },
            plain => {
                target.insert(field.to_owned(), plain.clone());
                Ok(())
            }
        }
    }

    fn list(&self, list: &mut Vec<Value>, patch: &[Value], how: ListMerge, field: &str) -> Outcome<()> {
        let ListMerge::By(key) = how else {
            for value in patch {
                if !list.contains(value) {
                    list.push(value.clone());
                }
            }
            return Ok(());
        };
        if patch.iter().any(|item| item[DIRECTIVE] == "replace") {
            *list = patch.iter().filter(|item| item[DIRECTIVE] != "replace").cloned().collect();
            return Ok(());
        }
        for item in patch {
            let Value::Object(item_map) = item else {
                return Err(Failure::bad_request(format!("{field}: items of a merged list must be objects")));
            };
            let Some(wanted) = item_map.get(key) else {
                return Err(Failure::bad_request(format!(
                    "map: {item} does not contain declared merge key: {key}"
                )));
            };
            let index = list.iter().position(|existing| existing.get(key) == Some(wanted));
            match (item[DIRECTIVE].as_str(), index) {
                (Some("delete"), _) => list.retain(|existing| existing.get(key) != Some(wanted)),
                (None | Some("merge"), Some(index)) => {
                    if let Value::Object(existing) = &mut list[index] {
                        self.map(existing, item_map, field)?;
                    }
                }
                (None | Some("merge"), None) => {
                    let mut fresh = Map::new();
                    self.map(&mut fresh, item_map, field)?;
                    list.push(Value::Object(fresh));
                }
                (Some(other), _) => return Err(unknown_directive(other)),
            }
        }
        Ok(())
    }
}

fn unknown_directive(directive: &str) -> Failure {
    Failure::bad_request(format!("unknown patch type: {directive}"))
}

fn without_directives(patch: &Map<String, Value>) -> Map<String, Value> {
    patch.iter().filter(|(field, _)| !field.starts_with('$')).map(|(f, v)| (f.clone(), v.clone())).collect()
}

fn delete_from(target: &mut Map<String, Value>, field: &str, doomed: &Value) {
    if let (Some(Value::Array(list)), Some(doomed)) = (target.get_mut(field), doomed.as_array()) {
        list.retain(|value| !doomed.contains(value));
    }
}

/// Sorts the items that `order` names. Other items stay behind their predecessor.
fn reorder(list: &mut [Value], order: &[Value], how: Option<ListMerge>) {
    let rank = |item: &Value| {
        order.iter().position(|wanted| match how {
            Some(ListMerge::By(key)) => wanted.get(key) == item.get(key),
            _ => wanted == item,
        })
    };
    let mut last = 0;
    let ranks: Vec<usize> = list
        .iter()
        .map(|item| {
            last = rank(item).unwrap_or(last);
            last
        })
        .collect();
    let mut keyed: Vec<(usize, Value)> = ranks.into_iter().zip(list.iter_mut().map(Value::take)).collect();
    keyed.sort_by_key(|(rank, _)| *rank);
    for (slot, (_, value)) in list.iter_mut().zip(keyed) {
        *slot = value;
    }
}

#[cfg(test)]
mod tests {
    use super::merge;
    use serde_json::{Value, json};

    fn merged(mut target: Value, patch: &Value, kind: &str) -> Value {
        merge(&mut target, patch, kind).unwrap();
        target
    }

    #[test]
    fn containers_merge_by_name_and_conditions_by_type() {
        let pod = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}});
        let out = merged(
            pod,
            &json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]}}),
            "Pod",
        );
        assert_eq!(
            out["spec"]["containers"],
            json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c"}])
        );
        let node = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "x"}]}});
        let out =
            merged(node, &json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}), "Node");
        assert_eq!(out["status"]["conditions"], json!([{"type": "Ready", "status": "False", "reason": "x"}]));
    }

    #[test]
    fn directives_can_delete_replace_retain_and_order() {
        let pod =
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "tolerations": [{"key": "x"}]}});
        let out = merged(
            pod,
            &json!({"spec": {
                "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}],
                "containers": [{"name": "a", "$patch": "delete"}, {"name": "c"}],
                "tolerations": [{"key": "y"}],
            }}),
            "Pod",
        );
        assert_eq!(out["spec"]["containers"], json!([{"name": "c"}, {"name": "b"}]));
        assert_eq!(out["spec"]["tolerations"], json!([{"key": "y"}]));
        let deployment =
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
        let out = merged(
            deployment,
            &json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            "Deployment",
        );
        assert_eq!(out["spec"]["strategy"], json!({"type": "Recreate"}));
        let out =
            merged(json!({"spec": {"a": 1, "b": 2}}), &json!({"spec": {"$patch": "replace", "c": 3}}), "Pod");
        assert_eq!(out["spec"], json!({"c": 3}));
    }

    #[test]
    fn finalizers_are_a_set_and_nulls_remove() {
        let object = json!({"metadata": {"finalizers": ["a", "b"], "labels": {"x": "y"}}});
        let out = merged(
            object,
            &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"], "labels": {"x": null}}}),
            "Pod",
        );
        let mut finalizers: Vec<&str> =
            out["metadata"]["finalizers"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
        finalizers.sort_unstable();
        assert_eq!(finalizers, ["b", "c"]);
        assert_eq!(out["metadata"]["labels"], json!({}));
    }

    #[test]
    fn taints_are_replaced_and_a_missing_merge_key_is_rejected() {
        let node = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
        let out = merged(node, &json!({"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}}), "Node");
        assert_eq!(out["spec"]["taints"], json!([{"key": "b", "effect": "NoExecute"}]));
        let mut pod = json!({"spec": {"containers": []}});
        assert!(merge(&mut pod, &json!({"spec": {"containers": [{"image": "x"}]}}), "Pod").is_err());
    }
}
