//! Admission webhooks.

use serde_json::Value;

use super::api::Api;
use super::failure::Outcome;
use super::request::Call;
use super::users::User;

#[derive(Debug, Default)]
pub(crate) struct Webhooks {}

/// What a request does, in the words of a webhook's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

/// All that admission knows of a request besides the objects.
#[derive(Clone, Debug)]
pub(crate) struct Attributes<'a> {
    pub(crate) call: &'a Call,
    pub(crate) operation: Operation,
    pub(crate) name: String,
    pub(crate) options: Value,
    pub(crate) dry_run: bool,
    pub(crate) user: &'a User,
    /// Group, version and kind of the object, where it is not the resource's own.
    pub(crate) kind: Option<(&'static str, &'static str, &'static str)>,
}

impl<'a> Attributes<'a> {
    pub(crate) fn of(call: &'a Call, operation: Operation, name: &str) -> Self {
        Self {
            call,
            operation,
            name: name.to_owned(),
            options: Value::Null,
            dry_run: call.dry_run,
            user: &call.user,
            kind: None,
        }
    }
    pub(crate) fn with_options(mut self, options: Value) -> Self {
        self.options = options;
        self
    }
    pub(crate) fn with_dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run |= dry_run;
        self
    }
    pub(crate) fn with_kind(mut self, kind: (&'static str, &'static str, &'static str)) -> Self {
        self.kind = Some(kind);
        self
    }
    pub(crate) fn named(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }
}

impl Api {
    pub(crate) async fn admit_mutating(
        &self,
        _a: &Attributes<'_>,
        _object: Option<&Value>,
        _old: Option<&Value>,
        _w: &mut Vec<String>,
    ) -> Outcome<Option<Value>> {
        Ok(None)
    }
    pub(crate) async fn admit_validating(
        &self,
        _a: &Attributes<'_>,
        _object: Option<&Value>,
        _old: Option<&Value>,
        _w: &mut Vec<String>,
    ) -> Outcome<()> {
        Ok(())
    }
}
