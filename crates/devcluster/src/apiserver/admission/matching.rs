//! Decides whether a webhook is called for a request: rules, selectors, match conditions.

use serde_json::Value;

use super::{Attributes, Hook, review};
use crate::apiserver::api::Api;
use crate::apiserver::cel;
use crate::apiserver::failure::{Failure, Outcome};
use crate::apiserver::object;
use crate::apiserver::selector::Labels;

/// A matching rule of a webhook, with the resource version that the webhook expects.
#[derive(Clone, Debug)]
pub(super) struct Match {
    pub(super) version: String,
}

impl Api {
    /// Decides whether the webhook is called for this request.
    pub(super) fn matches(
        &self,
        hook: &Hook,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Outcome<Option<Match>> {
        let hook_value = hook.value();
        let Some(matched) = by_rules(hook_value, attributes) else { return Ok(None) };
        if !self.namespace_selected(&hook_value["namespaceSelector"], attributes, object, old) {
            return Ok(None);
        }
        if !object_selected(&hook_value["objectSelector"], object, old) {
            return Ok(None);
        }
        self.conditions_hold(hook, attributes, &matched, object, old).map(|hold| hold.then_some(matched))
    }

    fn namespace_selected(
        &self,
        selector: &Value,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> bool {
        let Ok(selector) = Labels::from_object(selector) else { return false };
        if selector.is_empty() {
            return true;
        }
        let call = attributes.call;
        if call.served.resource.is("", "namespaces") {
            return selector.matches(object.or(old).and_then(object::labels));
        }
        if call.namespace.is_empty() {
            return true;
        }
        match self.namespace(&call.namespace) {
            Some(namespace) => selector.matches(object::labels(&namespace.value)),
            // A namespace that no longer exists has no labels.
            None => selector.matches(None),
        }
    }

    /// If a condition is false, the webhook is not called. If a condition cannot be evaluated, the failure policy
    /// applies.
    fn conditions_hold(
        &self,
        hook: &Hook,
        attributes: &Attributes<'_>,
        matched: &Match,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Outcome<bool> {
        let conditions = hook.value()["matchConditions"].as_array();
        let Some(conditions) = conditions.filter(|c| !c.is_empty()) else { return Ok(true) };
        let request = review::condition_request(attributes, matched);
        let null = Value::Null;
        let variables =
            [("object", object.unwrap_or(&null)), ("oldObject", old.unwrap_or(&null)), ("request", &request)];
        let mut trouble = Vec::new();
        for condition in conditions {
            match cel::holds(condition["expression"].as_str().unwrap_or_default(), &variables) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(why) => trouble.push(why),
            }
        }
        if trouble.is_empty() {
            return Ok(true);
        }
        if hook.ignores_failure() {
            return Ok(false);
        }
        let resource = &attributes.call.served.resource;
        Err(Failure::forbidden(resource.about(), &attributes.name, &trouble.join(", ")))
    }
}

fn object_selected(selector: &Value, object: Option<&Value>, old: Option<&Value>) -> bool {
    let Ok(selector) = Labels::from_object(selector) else { return false };
    let selected = |value: Option<&Value>| value.is_some_and(|v| selector.matches(object::labels(v)));
    selector.is_empty() || selected(object) || selected(old)
}

fn by_rules(hook: &Value, attributes: &Attributes<'_>) -> Option<Match> {
    let served = &attributes.call.served;
    let resource = &served.resource;
    let exact = hook["matchPolicy"] == "Exact";
    let subresource = &attributes.call.subresource;
    for rule in hook["rules"].as_array().into_iter().flatten() {
        let has = |field: &str, wanted: &str| {
            rule[field].as_array().is_some_and(|list| list.iter().any(|v| v == "*" || v == wanted))
        };
        let scope_fits = match rule["scope"].as_str() {
            Some("Cluster") => !resource.namespaced,
            Some("Namespaced") => resource.namespaced,
            _ => true,
        };
        if !scope_fits
            || !has("operations", attributes.operation.text())
            || !has("apiGroups", &resource.group)
            || !resources_fit(rule, &resource.plural, subresource)
        {
            continue;
        }
        if has("apiVersions", &served.version) {
            return Some(Match { version: served.version.clone() });
        }
        if !exact && let Some(version) = resource.versions.iter().find(|v| has("apiVersions", v)) {
            return Some(Match { version: version.clone() });
        }
    }
    None
}

fn resources_fit(rule: &Value, plural: &str, subresource: &str) -> bool {
    rule["resources"].as_array().into_iter().flatten().filter_map(Value::as_str).any(|entry| {
        let (resource, sub) = match entry.split_once('/') {
            Some((resource, sub)) => (resource, sub),
            // An entry without `/` matches resources, not their subresources.
            None => (entry, ""),
        };
        (resource == "*" || resource == plural) && (sub == subresource || (entry.contains('/') && sub == "*"))
    })
}

#[cfg(test)]
mod tests {
    use super::resources_fit;
    use serde_json::json;

    #[test]
    fn a_rule_matches_subresources_only_if_it_names_them() {
        let fits =
            |entry: &str, plural: &str, sub: &str| resources_fit(&json!({"resources": [entry]}), plural, sub);
        assert!(fits("pods", "pods", ""));
        assert!(!fits("pods", "pods", "eviction"));
        assert!(fits("pods/eviction", "pods", "eviction"));
        assert!(!fits("pods/eviction", "pods", ""));
        assert!(fits("pods/*", "pods", "eviction"));
        assert!(fits("pods/*", "pods", ""));
        assert!(fits("*/*", "nodes", "status"));
        assert!(fits("*", "nodes", ""));
        assert!(!fits("*", "nodes", "status"));
        assert!(fits("*/status", "nodes", "status"));
    }
}
