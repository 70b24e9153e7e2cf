//! OpenKruise's budgets that Quorate served and does not serve any more.
//!
//! While Quorate serves a budget, its status states that every server enforces it. When a server stops to serve such
//! budgets, this must end too: readers would rely on a protection that does not exist, and servers that serve the
//! budgets again would take them for open although not every server knows them yet. The leader writes this, once. If the
//! leader still serves the budgets, or serves them again, because it sees OpenKruise's webhooks earlier or later than this
//! server does, this server writes it. The rest of the status stays, which may be OpenKruise's by now.

use std::time::Duration;

use kube::api::ListParams;
use kube::core::{ObjectList, Request, Resource as _};
use kube::{Client, Error};
use quorate_api::PodUnavailableBudget;
use quorate_api::budget::StoredBudget;
use quorate_engine::facts::{BudgetKey, BudgetKind};
use quorate_intake::budget;
use quorate_kit::Plain;
use quorate_kit::backoff::Backoff;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::calls;
use crate::clock;
use crate::kruise::ServedHere;
use crate::raw_budgets;

/// Pause before each look. Writes that were in flight when the service ended arrive within this time.
const PAUSE: Duration = Duration::from_secs(2);

/// The same for a server that is not the leader, so that only one of them writes.
const OTHERS_PAUSE: Duration = Duration::from_secs(5);

/// Releases the budgets whenever this process does not serve them. `held` is whether it is the leader.
pub(crate) async fn run(client: Client, mut served: ServedHere, mut held: watch::Receiver<bool>) {
    let mut waits = Backoff::new(PAUSE, Duration::from_secs(60));
    let mut next = Some(Duration::ZERO);
    loop {
        let pause = if *held.borrow_and_update() { PAUSE } else { OTHERS_PAUSE };
        let is_due = *served.borrow_and_update() == Some(false);
        tokio::select! {
            // With `always` and `never` the value does not change.
            Ok(()) = served.changed() => next = Some(Duration::ZERO),
            changed = held.changed() => match changed {
                Ok(()) => next = Some(Duration::ZERO),
                Err(_) => return,
            },
            () = tokio::time::sleep(next.unwrap_or_default().max(pause)), if is_due && next.is_some() => {
                next = match release_all(&client).await {
                    Ok(0) => None,
                    Ok(_) => Some(Duration::ZERO),
                    Err(error) => {
                        warn!(error = %Plain(&error), "cannot release PodUnavailableBudgets");
                        Some(waits.failed())
                    }
                };
            }
        }
    }
}

/// Releases every budget that states that it is served. Returns the number of budgets that did.
async fn release_all(client: &Client) -> Result<usize, Error> {
    let url = PodUnavailableBudget::url_path(&(), None);
    let request = Request::new(url).list(&ListParams::default()).map_err(Error::BuildRequest)?;
    let budgets = match client.request::<ObjectList<StoredBudget>>(request).await {
        Ok(budgets) => budgets.items,
        // The kind is not installed.
        Err(Error::Api(status)) if status.code == 404 => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut released = Ok(0);
    for stored in &budgets {
        // The others must not wait for one that fails.
        match (release(client, stored).await, &mut released) {
            (Ok(was_served), Ok(count)) => *count += usize::from(was_served),
            (Ok(_), Err(_)) => {}
            (Err(error), _) => released = Err(error),
        }
    }
    released
}

/// Releases a budget. Returns whether its status stated that it is served.
async fn release(client: &Client, stored: &StoredBudget) -> Result<bool, Error> {
    let (Some(object), Some(uid)) = (raw_budgets::key(stored), &stored.metadata.uid) else {
        return Ok(false);
    };
    let generation = stored.metadata.generation.unwrap_or_default();
    let Some(patch) = budget::release_patch(uid, generation, &stored.status, clock::now()) else {
        return Ok(false);
    };
    let key = BudgetKey { object, kind: BudgetKind::PodUnavailableBudget };
    let request = calls::status_request(&key, "application/json-patch+json", &patch)?;
    match client.request::<StoredBudget>(request).await {
        Ok(_) => info!(budget = %key, "not served any more"),
        Err(Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(error),
    }
    Ok(true)
}
