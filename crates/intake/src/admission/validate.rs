//! Validation of Quorate's objects, and of the probes that pods declare.

use quorate_api::names::SCHEDULING_GROUP;
use quorate_api::slim;
use quorate_engine::facts::BudgetKind;
use serde_json::Value;

use super::answer::{allow, allow_with_warnings, refuse};
use super::review::{Rejected, Review};
use crate::budget::{self, KnownNumbers};
use crate::error::Problem;
use crate::kruise::{self, Neighbour};
use crate::{probe, workload};

impl Review<'_> {
    /// Validates a budget, a `Workload` or the probes of a pod, and returns the response. `known` are facts about the
    /// pods that a budget covers, for its warnings; `more` are additional warnings; `neighbours` are the other
    /// `PodUnavailableBudget`s of the namespace.
    ///
    /// An update that does not change the spec, or the probes, is allowed: an object that was stored without this
    /// validation must still accept a removed finalizer or a new label.
    pub fn validate(
        &self,
        known: KnownNumbers,
        more: &[String],
        neighbours: &[Neighbour],
    ) -> Result<Value, Rejected> {
        let call = &self.call;
        let whole = call.sub_resource.as_deref().unwrap_or_default().is_empty();
        if !whole || !matches!(self.operation(), "CREATE" | "UPDATE") {
            return Ok(allow(self.uid()));
        }
        match (call.resource.group.as_str(), call.resource.resource.as_str()) {
            ("policy.quorate.dev", "disruptionbudgets") => {
                let kind = BudgetKind::DisruptionBudget;
                self.spec(budget::validate, |spec| match budget::rules(spec) {
                    Ok(rules) => budget::warnings(kind, &rules, known)
                        .into_iter()
                        .chain(more.iter().cloned())
                        .collect(),
                    Err(_) => Vec::new(),
                })
            }
            ("policy.kruise.io", "podunavailablebudgets") => {
                let object = self.object()?;
                let problems = match self.operation() {
                    "UPDATE" => kruise::validate_change(&self.old_object()?, &object),
                    _ => kruise::validate_new(&object, neighbours),
                };
                let warned = kruise::rules(&object)
                    .map(|rules| budget::warnings(BudgetKind::PodUnavailableBudget, &rules, known));
                let warned = warned.into_iter().flatten().chain(more.iter().cloned()).collect::<Vec<_>>();
                Ok(self.judge(&problems, &warned))
            }
            (SCHEDULING_GROUP, "workloads") => self.spec(workload::validate, |_| Vec::new()),
            ("", "pods") => self.probes(),
            _ => Ok(allow(self.uid())),
        }
    }

    fn spec(
        &self,
        validate: fn(&Value) -> Vec<Problem>,
        warnings: impl FnOnce(&Value) -> Vec<String>,
    ) -> Result<Value, Rejected> {
        let object = self.object()?;
        let spec = object.get("spec").unwrap_or(&Value::Null);
        if self.operation() == "UPDATE" && self.old_object()?.get("spec") == object.get("spec") {
            return Ok(allow(self.uid()));
        }
        Ok(self.judge(&validate(spec), &warnings(spec)))
    }

    fn probes(&self) -> Result<Value, Rejected> {
        let mut pod: slim::Pod = self.decode("object", self.call.object)?;
        if self.operation() == "UPDATE" {
            let old: slim::Pod = self.decode("oldObject", self.call.old_object)?;
            let before = old.metadata.annotations.unwrap_or_default();
            pod.metadata
                .annotations
                .iter_mut()
                .for_each(|now| now.retain(|key, text| before.get(key) != Some(text)));
        }
        Ok(self.judge(&probe::problems(&pod), &[]))
    }

    fn judge(&self, problems: &[Problem], warnings: &[String]) -> Value {
        let call = &self.call;
        if problems.is_empty() {
            return allow_with_warnings(self.uid(), warnings);
        }
        // A pod that a controller creates has no name yet.
        let name = call.name.as_deref().unwrap_or_default();
        refuse(self.uid(), &call.resource.group, &call.resource.resource, name, problems)
    }
}
