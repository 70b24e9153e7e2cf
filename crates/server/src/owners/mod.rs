//! Adds the owners that a pod template names to the pods that are created from it.
//!
//! Controllers do not copy the owner references of a template. When a pod with a controller is created, the template of
//! the controller is read, and the owners that it names are added after the controller. The owners in the annotation of
//! the template are added too: controllers copy it to the pod, for kinds that lose the references or cannot be read.
//!
//! An owner is added only if it exists, has the UID in the reference, and is not being deleted. With any other
//! reference, the garbage collector would search for the owner forever, or delete the pod as soon as its controller
//! releases it. Each owner that is left out is reported once, on the controller. No pod waits long for this, and no pod
//! is denied.

mod lookup;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use quorate_api::names::OWNER_REFERENCES;
use quorate_intake::admission::{self as reviews, PodCreation, Rejected};
use quorate_intake::template::{self, Sorted};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, info};

use crate::events::Events;
use lookup::{Absence, Lookup};

/// Maximum time that a pod waits for the lookup of its owners.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of owners that are looked up while a pod waits; a template may name more.
const MAX_LOOKUPS: usize = 32;

/// Maximum number of concurrent lookups.
const AT_ONCE: usize = 8;

/// Adds owners to pods that are being created.
#[derive(Clone)]
pub(crate) struct Owners {
    lookup: Lookup,
    events: Events,
}

/// The owners that a template names: added or left out.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    added: Vec<OwnerReference>,
    /// The other owners: name and UID, and why each is left out.
    left_out: Vec<(String, String)>,
}

impl Owners {
    pub(crate) fn new(client: Client, events: Events) -> Self {
        Self { lookup: Lookup::new(client), events }
    }

    /// Answers the review of a pod that is being created. The pod is always admitted.
    pub(crate) async fn answer(&self, body: &[u8], limit: usize) -> Result<Value, Rejected> {
        let review = reviews::read(body, limit)?;
        let Some(creation) = review.creation()? else { return Ok(reviews::allow(review.uid())) };
        let outcome = self.find(&creation, Instant::now() + LOOKUP_TIMEOUT).await;
        let controller = &creation.controller;
        if !outcome.added.is_empty() {
            let names: Vec<&str> = outcome.added.iter().map(|owner| owner.name.as_str()).collect();
            info!(controller = controller.name, namespace = creation.namespace, owners = ?names, "added owners");
        }
        if !creation.dry_run {
            for (about, note) in outcome.left_out {
                self.events.owner_left_out(&creation.namespace, controller, about, note);
            }
        }
        Ok(reviews::give_owners(review.uid(), &outcome.added))
    }

    async fn find(&self, creation: &PodCreation, deadline: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        let named = self.named(creation, deadline, &mut outcome).await;
        let Sorted { mut added, flawed } = template::sort(&named, &creation.present);
        let left_out = |owner: &OwnerReference, why: &str| {
            let about = format!("{}/{}", owner.name, owner.uid);
            let who = format!("{} {}", owner.kind, owner.name);
            (about, format!("{} is left out as an owner of the pods: {why}", who.trim()))
        };
        outcome.left_out.extend(flawed.iter().map(|(owner, flaw)| left_out(owner, &flaw.to_string())));
        for owner in added.drain(MAX_LOOKUPS.min(added.len())..) {
            let why = format!("the template names more than {MAX_LOOKUPS} owners. Name fewer.");
            outcome.left_out.push(left_out(&owner, &why));
        }
        let checked = stream::iter(added).map(|owner| async {
            let checked = timeout_at(deadline, self.check(creation, &owner)).await;
            (owner, checked.unwrap_or_else(|_| Err(Absence::Unknown("no answer in time".to_owned()))))
        });
        let checked: Vec<_> = checked.buffered(AT_ONCE).collect().await;
        for (owner, checked) in checked {
            match checked {
                Ok(owner) => outcome.added.push(owner),
                Err(absence) => outcome.left_out.push(left_out(&owner, &absence.to_string())),
            }
        }
        outcome
    }

    /// All owners that are named: in the template, in the annotation of the template, and in its copy in the pod.
    async fn named(
        &self,
        creation: &PodCreation,
        deadline: Instant,
        outcome: &mut Outcome,
    ) -> Vec<OwnerReference> {
        let controller = &creation.controller;
        let template = timeout_at(deadline, self.lookup.template(&creation.namespace, controller)).await;
        let template = match template {
            Ok(Ok(template)) => template,
            // The pod is created in any case, and its own annotation still counts.
            Ok(Err(why)) => {
                debug!(controller = controller.name, %why, "cannot read the template");
                None
            }
            Err(_) => {
                debug!(controller = controller.name, "cannot read the template in time");
                None
            }
        };
        let template = template.unwrap_or_default();
        let mut named = template.owner_references;
        let annotated = template.annotations.and_then(|mut all| all.remove(OWNER_REFERENCES));
        let texts: BTreeSet<String> = annotated.into_iter().chain(creation.annotation.clone()).collect();
        for text in texts {
            match template::annotated(&text) {
                Ok(owners) => named.extend(owners),
                Err(why) => {
                    let note = format!(
                        "the annotation {OWNER_REFERENCES} of the pod template cannot be read, so it adds no owner to \
                         the pods: {why}. Write a JSON list of owner references."
                    );
                    outcome.left_out.push((OWNER_REFERENCES.to_owned(), note));
                }
            }
        }
        named
    }

    /// The owner reference that the pod may have.
    async fn check(&self, creation: &PodCreation, owner: &OwnerReference) -> Result<OwnerReference, Absence> {
        let kind = self.lookup.find(&creation.namespace, owner).await?;
        let mut owner = owner.clone();
        // The creator of the pod needs permission to block the deletion of the owner. An API server that enforces this
        // would reject the pod otherwise.
        if owner.block_owner_deletion == Some(true)
            && !self.lookup.may_block(&creation.creator, &creation.namespace, &kind, &owner.name).await
        {
            owner.block_owner_deletion = Some(false);
        }
        Ok(owner)
    }
}
