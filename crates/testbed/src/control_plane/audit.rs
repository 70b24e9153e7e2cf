//! The requests of service accounts in a control plane, to compare them with the rights that RBAC grants.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

/// Environment variable with the folder for the used rights of each control plane. If unset, none are recorded.
const FOLDER: &str = "QUORATE_USED_RIGHTS";

pub(super) fn wanted() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Writes the granted requests of an audit log to a file in `folder`, each once.
pub(super) fn keep(log: &Path, folder: &Path) {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    let uses: BTreeSet<String> =
        fs::read_to_string(log).unwrap_or_default().lines().filter_map(used).collect();
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let file = folder.join(format!("{}-{number}", std::process::id()));
    let text: String = uses.iter().map(|used| format!("{used}\n")).collect();
    // `drop` cannot return an error. The comparison then reports that uses are missing.
    let _ = fs::write(file, text);
}

/// `namespace/account verb group resource namespace` of a request that was granted to a service account; `-` is an
/// absent value.
fn used(line: &str) -> Option<String> {
    let event: Value = serde_json::from_str(line).ok()?;
    let user = event["impersonatedUser"]["username"].as_str().or(event["user"]["username"].as_str())?;
    let account = user.strip_prefix("system:serviceaccount:")?.replace(':', "/");
    let object = &event["objectRef"];
    if event["responseStatus"]["code"] == 403 || object.is_null() {
        return None;
    }
    let word = |value: &Value| value.as_str().filter(|text| !text.is_empty()).unwrap_or("-").to_owned();
    let resource = match object["subresource"].as_str().filter(|name| !name.is_empty()) {
        Some(subresource) => format!("{}/{subresource}", word(&object["resource"])),
        None => word(&object["resource"]),
    };
    let (verb, group) = (word(&event["verb"]), word(&object["apiGroup"]));
    Some(format!("{account} {verb} {group} {resource} {}", word(&object["namespace"])))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::used;

    #[test]
    fn granted_requests_of_service_accounts_are_recorded() {
        let mut event = json!({
            "verb": "patch", "user": {"username": "admin"}, "responseStatus": {"code": 200},
            "impersonatedUser": {"username": "system:serviceaccount:quorate-system:quorate-server"},
            "objectRef": {"resource": "disruptionbudgets", "subresource": "status", "namespace": "web",
                "name": "web", "apiGroup": "policy.quorate.dev"},
        });
        let recorded = |event: &serde_json::Value| used(&event.to_string());
        let expected = "quorate-system/quorate-server patch policy.quorate.dev disruptionbudgets/status web";
        assert_eq!(recorded(&event).as_deref(), Some(expected));
        event["responseStatus"]["code"] = json!(403);
        assert_eq!(recorded(&event), None);
        let listed = json!({
            "verb": "list", "user": {"username": "system:serviceaccount:a:b"}, "objectRef": {"resource": "pods"},
        });
        assert_eq!(recorded(&listed).as_deref(), Some("a/b list - pods -"));
        let other = json!({"verb": "get", "user": {"username": "admin"}, "objectRef": {"resource": "pods"}});
        assert_eq!(recorded(&other), None);
    }
}
