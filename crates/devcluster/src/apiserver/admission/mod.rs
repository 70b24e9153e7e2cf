//! Admission webhooks: which webhooks are called for a request, and how their responses are applied.

mod call;
mod matching;
mod review;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::Value;

use super::api::Api;
use super::builtin::table_id;
use super::failure::{Failure, Outcome};
use super::request::Call;
use super::store::StoredObject;

pub(crate) use call::Webhooks;
use matching::Match;

const GROUP: &str = "admissionregistration.k8s.io";

/// The operation of a request, as in the rules of webhooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    fn text(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// The attributes of a request for admission, without the objects.
#[derive(Clone, Debug)]
pub(crate) struct Attributes<'a> {
    call: &'a Call,
    operation: Operation,
    name: String,
    options: Value,
    dry_run: bool,
    /// Group, version and kind of the object, if it is not of the resource's own kind.
    kind: Option<(&'static str, &'static str, &'static str)>,
}

impl<'a> Attributes<'a> {
    pub(crate) fn of(call: &'a Call, operation: Operation, name: &str) -> Self {
        Self {
            call,
            operation,
            name: name.to_owned(),
            options: Value::Null,
            dry_run: call.dry_run,
            kind: None,
        }
    }

    pub(crate) fn with_options(mut self, mut options: Value) -> Self {
        if self.dry_run {
            options["dryRun"] = serde_json::json!(["All"]);
        }
        self.options = options;
        self
    }

    /// Sets the dry-run flag, for requests that do not have it in the query.
    pub(crate) fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Sets the kind of the object if it is not the resource's own kind, as for a subresource.
    pub(crate) fn with_kind(mut self, kind: (&'static str, &'static str, &'static str)) -> Self {
        self.kind = Some(kind);
        self
    }

    pub(crate) fn named(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }
}

/// One webhook of one configuration.
#[derive(Clone, Debug)]
struct Hook {
    configuration: Arc<StoredObject>,
    index: usize,
}

impl Hook {
    fn value(&self) -> &Value {
        &self.configuration.value["webhooks"][self.index]
    }

    fn name(&self) -> &str {
        self.value()["name"].as_str().unwrap_or_default()
    }

    fn ignores_failure(&self) -> bool {
        self.value()["failurePolicy"] == "Ignore"
    }
}

impl Api {
    /// Calls the mutating webhooks one after the other. Returns the object if a webhook changed it.
    pub(crate) async fn admit_mutating(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Outcome<Option<Value>> {
        let mut changed: Option<Value> = None;
        for hook in self.hooks("mutatingwebhookconfigurations", attributes) {
            let now = changed.as_ref().or(object);
            let Some(matched) = self.matches(&hook, attributes, now, old)? else { continue };
            let answer = self.call(&hook, &matched, attributes, now, old, true).await?;
            warnings.extend(answer.warnings);
            if let (Some(patch), Some(now)) = (answer.patch, now) {
                changed = Some(review::apply_patch(hook.name(), &patch, attributes, &matched, now)?);
            }
        }
        Ok(changed)
    }

    /// Calls all validating webhooks in parallel. The first denial to arrive is returned.
    pub(crate) async fn admit_validating(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Outcome<()> {
        let mut chosen = Vec::new();
        for hook in self.hooks("validatingwebhookconfigurations", attributes) {
            if let Some(matched) = self.matches(&hook, attributes, object, old)? {
                chosen.push((hook, matched));
            }
        }
        let mut calls: FuturesUnordered<_> = chosen
            .iter()
            .map(|(hook, matched)| self.call(hook, matched, attributes, object, old, false))
            .collect();
        let mut refusal = None;
        while let Some(answer) = calls.next().await {
            match answer {
                Ok(answer) => warnings.extend(answer.warnings),
                Err(failure) => refusal = refusal.or(Some(failure)),
            }
        }
        refusal.map_or(Ok(()), Err)
    }

    /// The webhooks of all configurations of a kind, ordered by name.
    fn hooks(&self, plural: &str, attributes: &Attributes<'_>) -> Vec<Hook> {
        // Webhook configurations are not subject to admission webhooks.
        if attributes.call.served.resource.group == GROUP {
            return Vec::new();
        }
        let configurations = self.store.list(&table_id(GROUP, plural), "").objects;
        configurations
            .into_iter()
            .flat_map(|configuration| {
                let count = configuration.value["webhooks"].as_array().map_or(0, Vec::len);
                (0..count).map(move |index| Hook { configuration: configuration.clone(), index })
            })
            .collect()
    }

    /// Calls one webhook. If the call fails, the webhook's failure policy applies.
    async fn call(
        &self,
        hook: &Hook,
        matched: &Match,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
        mutating: bool,
    ) -> Outcome<review::WebhookResponse> {
        let (uid, request) = review::request(attributes, matched, object, old);
        let answered = match self.call_webhook(hook.value(), &request).await {
            Ok(response) => review::read(&response, &uid, mutating),
            Err(error) => Err(format!("failed to call webhook: {error}")),
        };
        match answered {
            Ok(answer) => match answer.refusal {
                Some(status) => Err(review::refusal(hook.name(), status)),
                None => Ok(answer),
            },
            Err(_) if hook.ignores_failure() => {
                attributes.call.failed_open.store(true, Ordering::Relaxed);
                Ok(review::WebhookResponse::default())
            }
            Err(why) => Err(Failure::internal(format!("failed calling webhook {:?}: {why}", hook.name()))),
        }
    }
}
