//! Subresources: binding, scale, namespace finalization, service account tokens.

use std::sync::Arc;

use serde_json::{Value, json};

use super::admission::{Attributes, Operation};
use super::api::{Api, Reply};
use super::conform::parse_body;
use super::failure::{Failure, FieldError, Outcome};
use super::object::{self, map_mut};
use super::patching::{self, Patch};
use super::request::{Call, Verb};
use super::resource::ResourceRules;
use super::selector::Labels;
use super::table::JsonPath;
use super::update::UpdateResult;
use super::users::User;

impl Api {
    /// Binds a pod to a node, as the scheduler does.
    pub(crate) async fn bind(self: &Arc<Self>, call: &Call) -> Outcome<Reply> {
        let binding = parse_body(call)?;
        let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
        if node.is_empty() {
            return Err(Failure::invalid(
                "",
                "Binding",
                &call.name,
                &[FieldError::required("target.name", "")],
            ));
        }
        let options = json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"});
        let attributes = Attributes::of(call, Operation::Create, &call.name)
            .with_options(options)
            .with_kind(("", "v1", "Binding"));
        let mut warnings = Vec::new();
        let binding =
            self.admit_mutating(&attributes, Some(&binding), None, &mut warnings).await?.unwrap_or(binding);
        self.admit_validating(&attributes, Some(&binding), None, &mut warnings).await?;
        let resource = &call.served.resource;
        loop {
            let current = self.current(call)?;
            let uid = object::uid(&binding);
            if !uid.is_empty() && uid != object::uid(&current.value) {
                let why = format!(
                    "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                    object::uid(&current.value)
                );
                return Err(Failure::conflict(resource.about(), &call.name, &why));
            }
            let mut pod = current.value.clone();
            if object::is_terminating(&pod) {
                let why = format!("pod {} is being deleted, cannot be assigned to a host", call.name);
                return Err(Failure::conflict(
                    super::failure::About { group: "", resource: "pods/binding" },
                    &call.name,
                    &why,
                ));
            }
            let bound = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            if !bound.is_empty() {
                let why = format!("pod {} is already assigned to node {bound:?}", call.name);
                return Err(Failure::conflict(
                    super::failure::About { group: "", resource: "pods/binding" },
                    &call.name,
                    &why,
                ));
            }
            if pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
                let why = format!("pod {} has non-empty .spec.schedulingGates", call.name);
                return Err(Failure::conflict(
                    super::failure::About { group: "", resource: "pods/binding" },
                    &call.name,
                    &why,
                ));
            }
            map_mut(&mut pod, "spec").insert("nodeName".into(), node.clone().into());
            for (key, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
                let annotations =
                    object::meta_mut(&mut pod).entry("annotations").or_insert_with(|| json!({}));
                object::as_map(annotations).insert(key.clone(), value.clone());
            }
            set_condition(&mut pod, "PodScheduled", &self.clock.now_text());
            if call.dry_run || self.commit(resource, &current, pod).is_ok() {
                return Ok(Reply::success(201, Value::Null).with_warnings(warnings));
            }
        }
    }

    /// Finalizes a namespace. The namespace controller calls this when the namespace is empty.
    pub(crate) async fn finalize_namespace(self: &Arc<Self>, call: &Call) -> Outcome<Reply> {
        let body = parse_body(call)?;
        let resource = &call.served.resource;
        let current = self.current(call)?;
        let version = object::resource_version(&body);
        if !version.is_empty() && version != current.revision.to_string() {
            return Err(Failure::modified(resource.about(), &call.name));
        }
        let mut namespace = current.value.clone();
        object::carry(&body, &mut namespace, "spec");
        if call.dry_run {
            return Ok(self.reply_value(call, 200, namespace));
        }
        let done = self
            .commit(resource, &current, namespace)
            .map_err(|_| Failure::modified(resource.about(), &call.name))?;
        Ok(self.written(call, 200, done))
    }

    /// Reads or writes the number of replicas.
    pub(crate) async fn scale(self: &Arc<Self>, call: &Call) -> Outcome<Reply> {
        let paths = ScalePaths::of(call).ok_or_else(Failure::no_such_resource)?;
        let resource = &call.served.resource;
        if call.verb == Verb::Get {
            let current = self.current(call)?;
            return Ok(Reply::json(200, &paths.scale(&call.served.present(&current))));
        }
        let propose: Box<Propose<'_>> = match call.verb {
            Verb::Update => {
                let body = parse_body(call)?;
                Box::new(move |_| Ok(body.clone()))
            }
            Verb::Patch => {
                let patch = Patch::parse(call)?;
                if matches!(patch, Patch::Apply(_)) {
                    return Err(Failure::not_implemented("server-side apply of a scale"));
                }
                Box::new(move |scale| patching::apply(&patch, scale, resource))
            }
            _ => return Err(Failure::method_not_allowed()),
        };
        // The write goes through the object itself, so that all its rules apply. Admission sees the scale.
        let plain = Call { subresource: String::new(), ..call.clone() };
        let mut warnings = Vec::new();
        let current = self.current(call)?;
        let before = paths.scale(&call.served.present(&current));
        let after = propose(&before)?;
        let replicas = after["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            return Err(Failure::invalid(
                "autoscaling",
                "Scale",
                &call.name,
                &[FieldError::invalid("spec.replicas", replicas, "must be greater than or equal to 0")],
            ));
        }
        let version = object::resource_version(&after).to_owned();
        if !version.is_empty() && version != current.revision.to_string() {
            return Err(Failure::modified(resource.about(), &call.name));
        }
        let options = json!({"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"});
        let attributes = Attributes::of(call, Operation::Update, &call.name)
            .with_options(options)
            .with_kind(("autoscaling", "v1", "Scale"));
        let after = self
            .admit_mutating(&attributes, Some(&after), Some(&before), &mut warnings)
            .await?
            .unwrap_or(after);
        self.admit_validating(&attributes, Some(&after), Some(&before), &mut warnings).await?;
        let pinned = call.verb == Verb::Update && !version.is_empty();
        let done = self
            .rewrite_without_admission(&plain, &mut warnings, |object| {
                let mut next = object.clone();
                if !pinned {
                    object::unset_meta(&mut next, "resourceVersion");
                }
                paths.set_replicas(&mut next, after["spec"]["replicas"].as_i64().unwrap_or(0));
                Ok(next)
            })
            .await?;
        let value = match done {
            UpdateResult::Stored(stored) => call.served.present(&stored),
            UpdateResult::Value(value) => call.served.present_value(value),
        };
        Ok(Reply::json(200, &paths.scale(&value)).with_warnings(warnings))
    }

    /// A token for a service account.
    pub(crate) fn token_request(&self, call: &Call) -> Outcome<Reply> {
        let mut request = parse_body(call)?;
        self.current(call)?;
        let user = User::new(format!("system:serviceaccount:{}:{}", call.namespace, call.name), &[]);
        let seconds = request["spec"]["expirationSeconds"].as_u64().unwrap_or(3600);
        request["status"] = json!({
            "token": self.users.token_for(&user),
            "expirationTimestamp": self.clock.text_after(std::time::Duration::from_secs(seconds)),
        });
        request["kind"] = "TokenRequest".into();
        request["apiVersion"] = "authentication.k8s.io/v1".into();
        Ok(Reply::json(201, &request))
    }
}

/// Sets a condition to True, and adds it if necessary.
fn set_condition(object: &mut Value, kind: &str, now: &str) {
    let status = map_mut(object, "status");
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else { return };
    list.retain(|c| c["type"] != kind);
    list.push(json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": now}));
}

/// Creates the wanted scale from the current one.
type Propose<'a> = dyn Fn(&Value) -> Outcome<Value> + Send + Sync + 'a;

/// The paths in a kind that hold the values of its `Scale`.
struct ScalePaths {
    wanted: Vec<String>,
    seen: JsonPath,
    selector: Option<JsonPath>,
}

impl ScalePaths {
    fn of(call: &Call) -> Option<Self> {
        match &call.served.resource.rules {
            ResourceRules::BuiltIn(_) => Some(Self {
                wanted: vec!["spec".into(), "replicas".into()],
                seen: JsonPath::parse(".status.replicas")?,
                selector: JsonPath::parse(".spec.selector"),
            }),
            ResourceRules::Custom(custom) => {
                let scale = custom.version(&call.served.version)?.scale.as_ref()?;
                Some(Self {
                    wanted: scale.wanted.fields()?.into_iter().map(str::to_owned).collect(),
                    seen: scale.seen.clone(),
                    selector: scale.selector.clone(),
                })
            }
        }
    }

    fn scale(&self, object: &Value) -> Value {
        let wanted = self.wanted.iter().fold(object, |v, f| &v[f]).as_i64().unwrap_or(0);
        let seen = self.seen.find(object).first().and_then(|v| v.as_i64()).unwrap_or(0);
        let mut status = json!({"replicas": seen});
        if let Some(found) = self.selector.as_ref().and_then(|path| path.find(object).first().copied()) {
            let text = match found {
                Value::String(text) => text.clone(),
                plain if plain.get("matchLabels").is_none() && plain.get("matchExpressions").is_none() => {
                    Labels::from_object(&json!({"matchLabels": plain})).map(|l| l.text()).unwrap_or_default()
                }
                selector => Labels::from_object(selector).map(|l| l.text()).unwrap_or_default(),
            };
            if !text.is_empty() {
                status["selector"] = text.into();
            }
        }
        let mut meta = json!({});
        for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if let Some(value) = object["metadata"].get(field) {
                meta[field] = value.clone();
            }
        }
        json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta, "spec": {"replicas": wanted}, "status": status})
    }

    fn set_replicas(&self, object: &mut Value, replicas: i64) {
        let Some((last, parents)) = self.wanted.split_last() else { return };
        let parent = parents.iter().fold(object, |value, field| {
            object::as_map(value).entry(field.clone()).or_insert_with(|| json!({}))
        });
        object::as_map(parent).insert(last.clone(), replicas.into());
    }
}
