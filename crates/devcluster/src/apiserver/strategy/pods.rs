//! Pods.

use serde_json::{Map, Value, json};

use crate::apiserver::api::Api;
use crate::apiserver::builtin::table_id;
use crate::apiserver::failure::{About, Failure, FieldError, Outcome};
use crate::apiserver::names;
use crate::apiserver::object::{self, Key, as_map, default_field, map_mut};

const PODS: About<'static> = About { group: "", resource: "pods" };

pub(crate) fn default_pod(pod: &mut Value) {
    default_spec(pod);
}

/// Sets the defaults of a pod or of a pod template: both have a `spec`.
pub(crate) fn default_spec(pod: &mut Value) {
    let spec = map_mut(pod, "spec");
    default_field(spec, "restartPolicy", "Always");
    default_field(spec, "dnsPolicy", "ClusterFirst");
    default_field(spec, "terminationGracePeriodSeconds", 30);
    default_field(spec, "schedulerName", "default-scheduler");
    default_field(spec, "securityContext", json!({}));
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            default_container(as_map(container));
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        default_volume(as_map(volume));
    }
}

fn default_container(container: &mut Map<String, Value>) {
    default_field(container, "terminationMessagePath", "/dev/termination-log");
    default_field(container, "terminationMessagePolicy", "File");
    default_field(container, "resources", json!({}));
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let latest = !last.contains('@') && last.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    default_field(container, "imagePullPolicy", if latest { "Always" } else { "IfNotPresent" });
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        default_field(as_map(port), "protocol", "TCP");
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(Value::Object(probe)) = container.get_mut(probe) {
            default_field(probe, "timeoutSeconds", 1);
            default_field(probe, "periodSeconds", 10);
            default_field(probe, "successThreshold", 1);
            default_field(probe, "failureThreshold", 3);
            if let Some(Value::Object(get)) = probe.get_mut("httpGet") {
                default_field(get, "path", "/");
                default_field(get, "scheme", "HTTP");
            }
        }
    }
    if let Some(Value::Object(resources)) = container.get_mut("resources")
        && let Some(Value::Object(limits)) = resources.get("limits").cloned()
    {
        let requests = as_map(resources.entry("requests").or_insert_with(|| json!({})));
        for (name, limit) in limits {
            default_field(requests, &name, limit);
        }
    }
}

fn default_volume(volume: &mut Map<String, Value>) {
    if volume.len() < 2 {
        volume.insert("emptyDir".into(), json!({}));
    }
    for source in ["secret", "configMap", "projected", "downwardAPI"] {
        if let Some(Value::Object(source)) = volume.get_mut(source) {
            default_field(source, "defaultMode", 420);
        }
    }
}

/// Sets the fields of a new pod that the server and its built-in admission control.
pub(crate) fn prepare_create(api: &Api, pod: &mut Value) -> Outcome<()> {
    let qos = qos_class(pod);
    object::as_map(pod).insert("status".into(), json!({"phase": "Pending", "qosClass": qos}));
    let name = object::name(pod).to_owned();
    let spec = map_mut(pod, "spec");
    default_field(spec, "enableServiceLinks", true);
    let account = match spec.get("serviceAccountName").or(spec.get("serviceAccount")).and_then(Value::as_str)
    {
        Some(account) if !account.is_empty() => account.to_owned(),
        _ => "default".to_owned(),
    };
    spec.insert("serviceAccountName".into(), account.clone().into());
    spec.insert("serviceAccount".into(), account.into());
    set_priority(api, &name, spec)?;
    tolerate_lost_nodes(spec);
    Ok(())
}

fn set_priority(api: &Api, pod: &str, spec: &mut Map<String, Value>) -> Outcome<()> {
    let table = table_id("scheduling.k8s.io", "priorityclasses");
    let class = match spec.get("priorityClassName").and_then(Value::as_str).filter(|c| !c.is_empty()) {
        Some(name) => {
            let class = api.store.get(&table, &Key::new("", name));
            Some(class.ok_or_else(|| {
                Failure::forbidden(PODS, pod, &format!("no PriorityClass with name {name} was found"))
            })?)
        }
        None => api.store.list(&table, "").objects.into_iter().find(|c| c.value["globalDefault"] == true),
    };
    let (value, policy) = match &class {
        Some(class) => {
            spec.insert("priorityClassName".into(), class.key.name.clone().into());
            (class.value["value"].as_i64().unwrap_or(0), class.value["preemptionPolicy"].as_str())
        }
        None => (0, None),
    };
    if let Some(own) = spec.get("priority").and_then(Value::as_i64)
        && own != value
    {
        let why = format!(
            "the integer value of priority ({own}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        );
        return Err(Failure::forbidden(PODS, pod, &why));
    }
    spec.insert("priority".into(), value.into());
    default_field(spec, "preemptionPolicy", policy.unwrap_or("PreemptLowerPriority"));
    Ok(())
}

/// Adds tolerations of five minutes for a node that is not ready or unreachable, unless the pod has its own.
fn tolerate_lost_nodes(spec: &mut Map<String, Value>) {
    let list = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = list.iter().any(|t| {
            let same_key = t["key"].as_str().unwrap_or_default();
            let effect = t["effect"].as_str().unwrap_or_default();
            (same_key == key || same_key.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if !covered {
            list.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
}

fn qos_class(pod: &Value) -> &'static str {
    let (mut any, mut all_guaranteed) = (false, true);
    for list in ["containers", "initContainers"] {
        for container in pod["spec"][list].as_array().into_iter().flatten() {
            let resources = &container["resources"];
            for name in ["cpu", "memory"] {
                let (request, limit) = (&resources["requests"][name], &resources["limits"][name]);
                any |= !request.is_null() || !limit.is_null();
                all_guaranteed &= !limit.is_null() && (request.is_null() || request == limit);
            }
        }
    }
    match (any, all_guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

pub(crate) fn validate(pod: &Value) -> Vec<FieldError> {
    validate_spec(&pod["spec"], "spec")
}

/// Validates a pod spec, in a pod or in a template.
pub(crate) fn validate_spec(spec: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    if spec["containers"].as_array().is_none_or(Vec::is_empty) {
        errors.push(FieldError::required(format!("{at}.containers"), ""));
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            let at = format!("{at}.{list}[{index}]");
            let name = container["name"].as_str().unwrap_or_default();
            if name.is_empty() {
                errors.push(FieldError::required(format!("{at}.name"), ""));
            } else if !names::is_label(name) {
                errors.push(FieldError::invalid(format!("{at}.name"), name, names::LABEL_RULE));
            } else if seen.contains(&name) {
                errors.push(FieldError::duplicate(format!("{at}.name"), name));
            }
            seen.push(name);
            if container["image"].as_str().unwrap_or_default().is_empty() {
                errors.push(FieldError::required(format!("{at}.image"), ""));
            }
        }
    }
    match spec["restartPolicy"].as_str() {
        Some("Always" | "OnFailure" | "Never") | None => {}
        Some(other) => errors.push(FieldError::not_supported(
            format!("{at}.restartPolicy"),
            other,
            &["Always", "OnFailure", "Never"],
        )),
    }
    if let Some(grace) = spec["terminationGracePeriodSeconds"].as_i64()
        && grace < 0
    {
        errors.push(FieldError::invalid(
            format!("{at}.terminationGracePeriodSeconds"),
            grace,
            "must be greater than or equal to 0",
        ));
    }
    errors
}

const MAY_CHANGE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Validates the update of a pod. Most of its spec is immutable.
pub(crate) fn validate_update(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (before, after) = (&old["spec"], &new["spec"]);
    for toleration in before["tolerations"].as_array().into_iter().flatten() {
        let kept = after["tolerations"]
            .as_array()
            .is_some_and(|list| list.iter().any(|t| same_but(t, toleration, "tolerationSeconds")));
        if !kept {
            errors.push(FieldError::forbidden(
                "spec.tolerations",
                "existing toleration can not be modified except its tolerationSeconds",
            ));
            break;
        }
    }
    if let (Some(old), new) =
        (before["activeDeadlineSeconds"].as_i64(), after["activeDeadlineSeconds"].as_i64())
        && new.is_none_or(|new| new > old)
    {
        errors.push(FieldError::invalid(
            "spec.activeDeadlineSeconds",
            after["activeDeadlineSeconds"].clone(),
            "must be less than or equal to previous value",
        ));
    }
    // Scheduling gates can only be removed.
    let gates = |spec: &Value| spec["schedulingGates"].as_array().cloned().unwrap_or_default();
    let old_gates = gates(before);
    if gates(after).iter().any(|gate| !old_gates.contains(gate)) {
        errors.push(FieldError::forbidden(
            "spec.schedulingGates",
            "only deletion is allowed, but found new scheduling gate",
        ));
    }
    if frozen(before) != frozen(after) {
        errors.push(FieldError::forbidden("spec", MAY_CHANGE));
    }
    errors
}

/// The spec without the mutable fields.
fn frozen(spec: &Value) -> Value {
    let mut spec = spec.clone();
    let map = as_map(&mut spec);
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        map.remove(field);
    }
    if map.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|g| g < 0) {
        map.insert("terminationGracePeriodSeconds".into(), 1.into());
    }
    for list in ["containers", "initContainers"] {
        for container in map.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            as_map(container).remove("image");
        }
    }
    spec
}

fn same_but(a: &Value, b: &Value, field: &str) -> bool {
    let without = |value: &Value| {
        let mut value = value.clone();
        as_map(&mut value).remove(field);
        value
    };
    without(a) == without(b)
}

/// Validates an update through `resize`: only the resources of containers may change.
pub(crate) fn validate_resize(old: &Value, new: &Value) -> Vec<FieldError> {
    let without = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for list in ["containers", "initContainers"] {
            for container in
                as_map(&mut spec).get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
            {
                as_map(container).remove("resources");
                as_map(container).remove("resizePolicy");
            }
        }
        spec
    };
    let mut errors = Vec::new();
    if without(old) != without(new) {
        errors.push(FieldError::forbidden("spec", "only cpu and memory resources are mutable"));
    }
    if qos_class(old) != qos_class(new) {
        errors.push(FieldError::invalid(
            "spec",
            qos_class(new),
            "Pod QOS Class may not change as a result of resizing",
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::{default_pod, qos_class, validate, validate_update};
    use serde_json::json;

    #[test]
    fn a_pod_gets_the_usual_defaults() {
        let mut pod = json!({"spec": {"containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "host:5000/x"}]}});
        default_pod(&mut pod);
        assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 30);
        assert_eq!(pod["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
        assert_eq!(pod["spec"]["containers"][1]["imagePullPolicy"], "Always");
        assert_eq!(qos_class(&pod), "BestEffort");
    }

    #[test]
    fn containers_are_required_and_named_once() {
        assert!(validate(&json!({"spec": {}}))[0].to_string().starts_with("spec.containers: Required value"));
        let twice =
            json!({"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "a", "image": "x"}]}});
        assert_eq!(validate(&twice)[0].to_string(), "spec.containers[1].name: Duplicate value: \"a\"");
    }

    #[test]
    fn images_and_additional_tolerations_may_change_and_commands_may_not() {
        let pod = |image: &str, command: &str| json!({"spec": {"containers": [{"name": "a", "image": image, "command": [command]}]}});
        assert!(validate_update(&pod("x:1", "a"), &pod("x:2", "a")).is_empty());
        assert_eq!(validate_update(&pod("x:1", "a"), &pod("x:1", "b")).len(), 1);
        let mut tolerant = pod("x:1", "a");
        tolerant["spec"]["tolerations"] = json!([{"key": "k"}]);
        assert!(validate_update(&pod("x:1", "a"), &tolerant).is_empty());
        assert!(!validate_update(&tolerant, &pod("x:1", "a")).is_empty());
    }
}
