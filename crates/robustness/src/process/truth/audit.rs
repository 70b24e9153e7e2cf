//! Requests, from the audit log of a real API server.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::Value;

use crate::history::Request;

/// The time of day and the recorder's clock were not read at the same moment.
const SLACK: Duration = Duration::from_millis(5);

/// The API server gives up a request after this time.
const LONGEST: Duration = Duration::from_secs(60);

/// The user of a request that has no end in the log, unless it is a controller of Kubernetes. All others are impersonated
/// here, and the log shows the impersonated user only when the request ends. The checker judges no request of a kubelet.
const UNKNOWN: &str = "system:node:unknown";

/// The API server annotates a request so for each webhook that did not answer, if the failure policy let the request pass.
const FAILED_OPEN: &str = "failed-open.validating.webhook.admission.k8s.io/";

/// All requests to disrupt a pod, without revisions.
///
/// A request that has no end in the log was under way when the API server was killed. It may have been carried out, by any
/// user, so it is not judged, and an effect that it can have had is not attributed to another request.
pub(super) fn requests(log: &str, epoch: SystemTime, length: Duration) -> Result<Vec<Request>> {
    let mut open: BTreeMap<String, Request> = BTreeMap::new();
    let mut ended = Vec::new();
    for line in log.lines() {
        // A killed API server may leave the begin of a line, which its successor continues.
        let start = line.rfind("{\"kind\":\"Event\"").unwrap_or(0);
        let Ok(event) = serde_json::from_str::<Value>(line.get(start..).unwrap_or_default()) else {
            continue;
        };
        let id = event["auditID"].as_str().unwrap_or_default().to_owned();
        let request = request(&event, epoch)?;
        match event["stage"].as_str() {
            Some("RequestReceived") => {
                let Some(mut request) = request else { continue };
                request.ended = length.min(request.received + LONGEST);
                request.code = 200;
                if !request.user.starts_with("system:") {
                    UNKNOWN.clone_into(&mut request.user);
                }
                open.insert(id, request);
            }
            Some("ResponseComplete" | "Panic") => {
                open.remove(&id);
                ended.extend(request);
            }
            _ => {}
        }
    }
    ended.extend(open.into_values());
    Ok(ended)
}

fn request(event: &Value, epoch: SystemTime) -> Result<Option<Request>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let user = match &event["impersonatedUser"] {
        Value::Null => &event["user"],
        impersonated => impersonated,
    };
    let object = &event["objectRef"];
    let (verb, subresource) = (text(&event["verb"]), text(&object["subresource"]));
    let writes = matches!(verb.as_str(), "update" | "patch" | "delete" | "deletecollection")
        || (verb == "create" && subresource == "eviction");
    // Kubelets report the status of their pods, and the scheduler binds them: neither is a disruption.
    let name = text(&user["username"]);
    if object["resource"] != "pods" || !writes || name.starts_with("system:node:") || subresource == "binding"
    {
        return Ok(None);
    }
    let time = |field: &str| -> Result<Duration> {
        let time: MicroTime =
            serde_json::from_value(event[field].clone()).with_context(|| format!("no {field}"))?;
        let time = SystemTime::from(time.0);
        Ok(time.duration_since(epoch).unwrap_or_default())
    };
    let body = &event["requestObject"];
    let options = if subresource == "eviction" { &body["deleteOptions"] } else { body };
    let uri = event["requestURI"].as_str().unwrap_or_default();
    Ok(Some(Request {
        user: name,
        groups: user["groups"].as_array().into_iter().flatten().map(text).collect(),
        verb,
        subresource,
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        dry_run: uri.contains("dryRun=") || options["dryRun"].as_array().is_some_and(|all| !all.is_empty()),
        received: time("requestReceivedTimestamp")?.saturating_sub(SLACK),
        received_at: 0,
        ended: time("stageTimestamp")? + SLACK,
        ended_at: 0,
        code: u16::try_from(event["responseStatus"]["code"].as_u64().unwrap_or(0)).unwrap_or(0),
        message: text(&event["responseStatus"]["message"]),
        failed_open: event["annotations"]
            .as_object()
            .is_some_and(|all| all.keys().any(|key| key.starts_with(FAILED_OPEN))),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(id: &str, stage: &str, second: u32) -> Value {
        json!({"kind": "Event", "auditID": id, "stage": stage, "verb": "create",
            "requestURI": "/api/v1/namespaces/a/pods/web/eviction", "user": {"username": "admin"},
            "impersonatedUser": {"username": "client-1", "groups": ["system:authenticated"]},
            "objectRef": {"resource": "pods", "subresource": "eviction", "namespace": "a", "name": "web"},
            "requestReceivedTimestamp": "1970-01-01T00:00:10.000000Z",
            "stageTimestamp": format!("1970-01-01T00:00:{second}.500000Z")})
    }

    fn read(events: &[Value]) -> Vec<Request> {
        let log: String = events.iter().map(|event| format!("{event}\n")).collect();
        requests(&log, SystemTime::UNIX_EPOCH, Duration::from_secs(100)).expect("a log")
    }

    #[test]
    fn a_request_has_its_user_its_span_and_its_answer() {
        let mut done = event("1", "ResponseComplete", 12);
        done["responseStatus"] = json!({"code": 429, "message": "no"});
        let all = read(&[received("1"), done]);
        let [request] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((request.user.as_str(), request.code, request.message.as_str()), ("client-1", 429, "no"));
        assert_eq!((request.namespace.as_str(), request.name.as_str(), request.dry_run), ("a", "web", false));
        assert_eq!(request.received, Duration::from_millis(9_995));
        assert_eq!(request.ended, Duration::from_millis(12_505));
    }

    #[test]
    fn a_webhook_that_did_not_answer_is_noticed() {
        let mut open = event("1", "ResponseComplete", 12);
        open["annotations"] =
            json!({"failed-open.validating.webhook.admission.k8s.io/round_0_index_2": "a.b"});
        let found: Vec<bool> = read(&[open, event("2", "ResponseComplete", 12)])
            .iter()
            .map(|request| request.failed_open)
            .collect();
        assert_eq!(found, [true, false]);
    }

    /// As the API server logs it: without the impersonated user.
    fn received(id: &str) -> Value {
        let mut event = event(id, "RequestReceived", 10);
        event["impersonatedUser"] = Value::Null;
        event
    }

    #[test]
    fn a_request_without_an_end_may_have_been_carried_out_by_any_user() {
        let [request] = &read(&[received("1")])[..] else { panic!("one request") };
        assert!(request.succeeded());
        assert_eq!((request.user.as_str(), request.ended), (UNKNOWN, Duration::from_millis(69_995)));
        let mut controller = received("1");
        controller["user"]["username"] = json!("system:serviceaccount:kube-system:replicaset-controller");
        let [request] = &read(&[controller])[..] else { panic!("one request") };
        assert!(request.user.ends_with("replicaset-controller"));
    }

    #[test]
    fn the_end_of_a_request_that_is_not_recorded_counts_as_its_end() {
        let mut kubelet = event("1", "ResponseComplete", 12);
        kubelet["impersonatedUser"]["username"] = json!("system:node:n1");
        assert_eq!(read(&[received("1"), kubelet]).len(), 0);
    }

    #[test]
    fn dry_runs_and_requests_that_disrupt_nothing_are_recognised() {
        let mut parameter = event("1", "ResponseComplete", 12);
        parameter["requestURI"] = json!("/api/v1/namespaces/a/pods/web/eviction?dryRun=All");
        let mut body = event("2", "ResponseComplete", 12);
        body["requestObject"] = json!({"deleteOptions": {"dryRun": ["All"]}});
        assert!(read(&[parameter, body]).iter().all(|request| request.dry_run));
        let mut kubelet = event("3", "ResponseComplete", 12);
        kubelet["impersonatedUser"]["username"] = json!("system:node:n1");
        let mut created = event("4", "ResponseComplete", 12);
        created["objectRef"]["subresource"] = json!("");
        assert_eq!(read(&[kubelet, created]).len(), 0);
    }

    #[test]
    fn a_line_that_was_cut_off_does_not_hide_the_next() {
        let done = event("1", "ResponseComplete", 12).to_string();
        let kept = serde_json::from_str::<Value>(&done).expect("JSON");
        let ordered = format!(
            "{{\"kind\":\"Event\",{}",
            done.trim_start_matches('{').replacen("\"kind\":\"Event\",", "", 1)
        );
        let log = format!("{{\"kind\":\"Event\",\"audi{ordered}\n");
        let all = requests(&log, SystemTime::UNIX_EPOCH, Duration::from_secs(100)).expect("a log");
        assert_eq!(all.len(), 1, "{kept}");
    }
}
