//! The create verb.

use std::sync::Arc;

use serde_json::{Value, json};

use super::admission::{Attributes, Operation};
use super::api::{Api, Reply};
use super::conform::parse_body;
use super::failure::{Failure, Outcome};
use super::object::{self, Key};
use super::request::Call;
use super::resource::Resource;
use super::store::{Expect, StoredObject};
use super::strategy;

/// The characters of generated names. They cannot form words.
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Maximum attempts to generate a name that is not in use.
const NAME_ATTEMPTS: usize = 8;

impl Api {
    pub(crate) async fn create(self: &Arc<Self>, call: &Call) -> Outcome<Reply> {
        let body = parse_body(call)?;
        let mut warnings = Vec::new();
        let stored = self.create_object(call, body, &mut warnings).await?;
        let reply = match stored {
            Created::Stored(stored) => self.reply(call, 201, &stored),
            Created::DryRun(value) => self.reply_value(call, 201, value),
        };
        Ok(reply.with_warnings(warnings))
    }

    /// Processes a new object from the client's request to the store.
    pub(crate) async fn create_object(
        self: &Arc<Self>,
        call: &Call,
        body: Value,
        warnings: &mut Vec<String>,
    ) -> Outcome<Created> {
        let resource = &call.served.resource;
        let mut value = self.conform(call, body, warnings)?;
        if !object::resource_version(&value).is_empty() {
            return Err(Failure::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        wipe_system_fields(&mut value);
        check_namespace(call, &mut value)?;
        self.check_namespace_open(call, object::name(&value))?;
        let options = json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"});
        let attributes = Attributes::of(call, Operation::Create, object::name(&value)).with_options(options);
        if let Some(patched) = self.admit_mutating(&attributes, Some(&value), None, warnings).await? {
            value = self.conform(call, call.served.present_value(patched), warnings)?;
            wipe_system_fields(&mut value);
            check_namespace(call, &mut value)?;
        }
        let generated =
            object::name(&value).is_empty() && !object::meta_str(&value, "generateName").is_empty();
        let wanted = value;
        for attempt in 1.. {
            let mut value = wanted.clone();
            if generated {
                let name = generate_name(object::meta_str(&value, "generateName"));
                object::set_meta(&mut value, "name", name);
            }
            self.fill_system_fields(resource, &mut value);
            strategy::prepare_create(self, resource, &call.served.version, &mut value)?;
            let mut errors = strategy::validate_create(resource, &value);
            if let Some(custom) = resource.custom() {
                errors.extend(custom.validate(&call.served.version, &value, None));
            }
            if !errors.is_empty() {
                return Err(Failure::invalid(&resource.group, &resource.kind, object::name(&value), &errors));
            }
            strategy::check_references(self, resource, &value)?;
            let attributes = attributes.named(object::name(&value));
            self.admit_validating(&attributes, Some(&value), None, warnings).await?;
            let key = Key::new(&call.namespace, object::name(&value));
            if call.dry_run {
                if self.store.get(&resource.table, &key).is_some() {
                    return Err(Failure::already_exists(resource.about(), &key.name));
                }
                return Ok(Created::DryRun(value));
            }
            // The namespace may have started to terminate during the webhook calls.
            self.check_namespace_open(call, &key.name)?;
            match self.store.put(&resource.table, &key, value, Expect::Absent) {
                Ok(stored) => {
                    self.after_write(resource, &stored);
                    return Ok(Created::Stored(stored));
                }
                Err(_) if generated && attempt < NAME_ATTEMPTS => {}
                Err(_) => return Err(Failure::already_exists(resource.about(), &key.name)),
            }
        }
        Err(Failure::internal("no name could be generated"))
    }

    pub(crate) fn fill_system_fields(&self, resource: &Resource, value: &mut Value) {
        object::set_meta(value, "uid", uuid::Uuid::new_v4().to_string());
        object::set_meta(value, "creationTimestamp", self.clock.now_text());
        if resource.counts_generations() {
            object::set_meta(value, "generation", 1);
        }
    }

    /// Rejects a create in a namespace that does not exist or is terminating.
    fn check_namespace_open(&self, call: &Call, name: &str) -> Outcome<()> {
        if call.namespace.is_empty() {
            return Ok(());
        }
        let resource = &call.served.resource;
        let Some(namespace) = self.namespace(&call.namespace) else {
            let about = super::failure::About { group: "", resource: "namespaces" };
            return Err(Failure::not_found(about, &call.namespace));
        };
        if object::is_terminating(&namespace.value) {
            let why = format!(
                "unable to create new content in namespace {} because it is being terminated",
                call.namespace
            );
            let cause = format!("namespace {} is being terminated", call.namespace);
            return Err(Failure::forbidden(resource.about(), name, &why).cause(
                "NamespaceTerminating",
                &cause,
                "metadata.namespace",
            ));
        }
        Ok(())
    }
}

/// The result of a create.
pub(crate) enum Created {
    Stored(Arc<StoredObject>),
    DryRun(Value),
}

/// Removes the fields that only the server may set.
fn wipe_system_fields(value: &mut Value) {
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "generation",
        "managedFields",
    ] {
        object::unset_meta(value, field);
    }
}

fn check_namespace(call: &Call, value: &mut Value) -> Outcome<()> {
    if !call.served.resource.namespaced {
        object::unset_meta(value, "namespace");
        return Ok(());
    }
    let found = object::namespace(value);
    if !found.is_empty() && found != call.namespace {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    object::set_meta(value, "namespace", call.namespace.clone());
    Ok(())
}

/// `prefix` and five random characters. A long prefix is truncated.
fn generate_name(prefix: &str) -> String {
    let mut prefix = prefix;
    while prefix.len() > 58 || !prefix.is_char_boundary(prefix.len()) {
        let mut end = prefix.len() - 1;
        while !prefix.is_char_boundary(end) {
            end -= 1;
        }
        prefix = &prefix[..end];
    }
    let random = uuid::Uuid::new_v4();
    let letters = random
        .as_bytes()
        .iter()
        .take(5)
        .map(|b| char::from(NAME_LETTERS[usize::from(*b) % NAME_LETTERS.len()]));
    prefix.chars().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::generate_name;

    #[test]
    fn generated_names_are_at_most_63_characters() {
        let name = generate_name(&"ä".repeat(60));
        assert!(name.starts_with('ä') && name.len() <= 63, "{name}");
        assert_eq!(generate_name("web-").len(), 9);
    }
}
