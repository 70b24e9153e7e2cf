//! Events, which users read with `kubectl describe`.
//!
//! A denial is reported once a minute for each pod and each budget, no matter how often clients retry. Events that
//! cannot be written fast enough are dropped: nothing may wait for an Event.
//!
//! This is not the `Recorder` of kube: that one counts Events with different notes as one and keeps the first note, and
//! does not limit the length of the names and notes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::core::Resource;
use kube::{Client, Error};
use quorate_api::names::kruise;
use quorate_api::{DisruptionBudget, PodUnavailableBudget};
use quorate_engine::basics::{ObjectKey, Time, Uid};
use quorate_engine::decision::{Denial, Departure};
use quorate_engine::facts::{BudgetKey, BudgetKind, Operation};
use quorate_engine::ledger::Note;
use quorate_engine::request::Request;
use quorate_engine::sentence;
use quorate_kit::Plain;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::raw_budgets::RawBudgets;

/// `reportingController` of all Events.
const CONTROLLER: &str = "quorate.dev/server";

/// Minimum time between two Events with the same object and reason.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Capacity of the queue. Further Events are dropped.
const QUEUE_CAPACITY: usize = 256;

/// Maximum length of a name.
const NAME_LIMIT: usize = 253;

/// Maximum length of a note, in bytes.
const NOTE_LIMIT: usize = 1024;

/// How many recent Events are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// Queues Events. Clones reach the same writer.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    queue: mpsc::Sender<PendingEvent>,
}

/// An Event to write, and the object that it concerns.
#[derive(Debug)]
struct PendingEvent {
    on: Regarding,
    warning: bool,
    reason: Cow<'static, str>,
    action: &'static str,
    note: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Regarding {
    Pod(ObjectKey, Option<Uid>),
    Budget(BudgetKey),
    /// A PodDisruptionBudget, and what is wrong with it.
    NativeBudget {
        key: ObjectKey,
        uid: Option<String>,
        about: String,
    },
    /// The webhooks of OpenKruise, which decide whether Quorate serves its budgets.
    OpenKruise,
    /// The controller of pods, and which of the owners that its template names the Event is about.
    Controller {
        api_version: String,
        kind: String,
        key: ObjectKey,
        uid: String,
        about: String,
    },
}

impl Events {
    /// Starts the writer. It ends when all clones are dropped.
    pub(crate) fn start(client: Client, instance: String, raw_budgets: std::sync::Arc<RawBudgets>) -> Self {
        let (queue, pending) = mpsc::channel(QUEUE_CAPACITY);
        tokio::spawn(write_all(client, instance, raw_budgets, pending));
        Self { queue }
    }

    fn enqueue(&self, event: PendingEvent) {
        if self.queue.try_send(event).is_err() {
            debug!("dropped an Event");
        }
    }

    /// Reports a note of the replica.
    pub(crate) fn noted(&self, note: Note) {
        match note {
            Note::NotDisrupted { budget, pod } => {
                info!(%budget, %pod, "admitted but not disrupted; claim released");
                let note = format!("Pod {pod} was admitted but not disrupted; claim released.");
                self.enqueue(PendingEvent {
                    on: Regarding::Budget(budget),
                    warning: false,
                    reason: "NotDisrupted".into(),
                    action: "Expire",
                    note,
                });
            }
            Note::NothingSticks(budget) => {
                warn!(%budget, "the installed CustomResourceDefinition drops written fields: nothing is admitted");
                self.enqueue(PendingEvent {
                    on: Regarding::Budget(budget),
                    warning: true,
                    reason: "OutdatedDefinition".into(),
                    action: "Open",
                    note: "The CustomResourceDefinition drops what Quorate writes here: it is not Quorate's, or an \
                           older one, so nothing is admitted. Apply the current one (quorate crds)."
                        .to_owned(),
                });
            }
            Note::Opened(budget) => {
                info!(%budget, "enforced");
                self.enqueue(PendingEvent {
                    on: Regarding::Budget(budget),
                    warning: false,
                    reason: "Enforced".into(),
                    action: "Open",
                    note: "All servers have acknowledged the budget: it is enforced.".to_owned(),
                });
            }
        }
    }

    /// Reports a denied request on the pod, and on each budget that denied it.
    pub(crate) fn denied(&self, request: &Request, denials: &[Denial], now: Time) {
        if request.dry_run {
            return;
        }
        let action = request.operation.name();
        let uid = request.object.as_ref().map(|pod| pod.uid.clone());
        let event = |on: Regarding, note: String| PendingEvent {
            on,
            warning: false,
            reason: "DisruptionDenied".into(),
            action,
            note,
        };
        self.enqueue(event(Regarding::Pod(request.pod.clone(), uid), sentence::refusal(denials, now)));
        for denial in denials {
            if let Some(key) = &denial.budget {
                let note =
                    format!("{} of {} denied: {}", action, request.pod.name, sentence::denial(denial, now));
                self.enqueue(event(Regarding::Budget(key.clone()), note));
            }
        }
    }

    /// Reports, on the budget, that a pod leaves it or a group of it, and that it does not decide that.
    pub(crate) fn left(&self, departure: &Departure) {
        self.enqueue(PendingEvent {
            on: Regarding::Budget(departure.budget.clone()),
            warning: true,
            reason: "PodLeft".into(),
            action: Operation::Relabel.name(),
            note: sentence::departure(departure),
        });
    }

    /// Reports whether Quorate serves OpenKruise's budgets from now on.
    pub(crate) fn kruise(&self, served: bool) {
        let (reason, note) = match served {
            false => (
                "LeftToOpenKruise",
                "Quorate does not serve PodUnavailableBudgets, because OpenKruise's webhooks for pods are registered. \
                 To let Quorate serve them, turn off OpenKruise's feature gates PodUnavailableBudgetDeleteGate and \
                 PodUnavailableBudgetUpdateGate, and start Quorate with --serve-pub=always.",
            ),
            true => (
                "ServedByQuorate",
                "Quorate serves PodUnavailableBudgets: OpenKruise has no webhooks for pods here.",
            ),
        };
        self.enqueue(PendingEvent {
            on: Regarding::OpenKruise,
            warning: !served,
            reason: Cow::Borrowed(reason),
            action: "Serve",
            note: note.to_owned(),
        });
    }

    /// Reports, on the controller of pods, that an owner that its template names is not added to the pods.
    pub(crate) fn owner_left_out(
        &self,
        namespace: &str,
        controller: &OwnerReference,
        about: String,
        note: String,
    ) {
        self.enqueue(PendingEvent {
            on: Regarding::Controller {
                api_version: controller.api_version.clone(),
                kind: controller.kind.clone(),
                key: ObjectKey::new(namespace, controller.name.as_str()),
                uid: controller.uid.clone(),
                about,
            },
            warning: true,
            reason: "OwnerLeftOut".into(),
            action: "Propagate",
            note,
        });
    }

    /// Reports that a budget cannot work as configured.
    pub(crate) fn misconfigured(&self, budget: &BudgetKey, reason: &'static str, message: &str) {
        self.enqueue(PendingEvent {
            on: Regarding::Budget(budget.clone()),
            warning: true,
            reason: Cow::Borrowed(reason),
            action: "Configure",
            note: message.to_owned(),
        });
    }

    /// Reports that a PodDisruptionBudget has no twin, or one that cannot work as configured.
    pub(crate) fn native_misconfigured(
        &self,
        key: &ObjectKey,
        uid: Option<String>,
        reason: &str,
        message: &str,
    ) {
        self.enqueue(PendingEvent {
            on: Regarding::NativeBudget { key: key.clone(), uid, about: message.to_owned() },
            warning: true,
            reason: reason.to_owned().into(),
            action: "Configure",
            note: message.to_owned(),
        });
    }
}

async fn write_all(
    client: Client,
    instance: String,
    raw_budgets: std::sync::Arc<RawBudgets>,
    mut pending: mpsc::Receiver<PendingEvent>,
) {
    let mut recent = RecentEvents::default();
    while let Some(event) = pending.recv().await {
        if !recent.insert(&event, Instant::now()) {
            continue;
        }
        if let Err(error) = write(&client, &instance, &raw_budgets, &event).await {
            debug!(error = %Plain(&error), "cannot write an Event");
        }
    }
}

/// Recent Events, by object and reason.
#[derive(Default)]
struct RecentEvents(HashMap<(Regarding, Cow<'static, str>), Instant>);

impl RecentEvents {
    fn insert(&mut self, event: &PendingEvent, now: Instant) -> bool {
        let key = (event.on.clone(), event.reason.clone());
        if self.0.get(&key).is_some_and(|at| now.duration_since(*at) < REPEAT_INTERVAL) {
            return false;
        }
        if self.0.len() >= MAX_REMEMBERED {
            self.0.retain(|_, at| now.duration_since(*at) < REPEAT_INTERVAL);
        }
        // All of them are from the last minute: report no more.
        if self.0.len() >= MAX_REMEMBERED {
            return false;
        }
        self.0.insert(key, now);
        true
    }
}

async fn write(
    client: &Client,
    instance: &str,
    raw_budgets: &RawBudgets,
    event: &PendingEvent,
) -> Result<(), Error> {
    let regarding = match &event.on {
        Regarding::Pod(key, uid) => reference("v1", "Pod", key, uid.as_deref().map(str::to_owned)),
        Regarding::Budget(key) => {
            let (api_version, kind) = match key.kind {
                BudgetKind::DisruptionBudget => {
                    (DisruptionBudget::api_version(&()), DisruptionBudget::kind(&()))
                }
                BudgetKind::PodUnavailableBudget => {
                    (PodUnavailableBudget::api_version(&()), PodUnavailableBudget::kind(&()))
                }
            };
            reference(&api_version, &kind, &key.object, raw_budgets.uid(key))
        }
        Regarding::NativeBudget { key, uid, .. } => {
            reference("policy/v1", "PodDisruptionBudget", key, uid.clone())
        }
        Regarding::OpenKruise => ObjectReference {
            api_version: Some("admissionregistration.k8s.io/v1".to_owned()),
            kind: Some("ValidatingWebhookConfiguration".to_owned()),
            name: Some(kruise::WEBHOOKS.to_owned()),
            ..ObjectReference::default()
        },
        Regarding::Controller { api_version, kind, key, uid, .. } => {
            reference(api_version, kind, key, Some(uid.clone()))
        }
    };
    let about = regarding.name.clone().unwrap_or_default();
    let suffix = match &event.on {
        // Every pod of the controller causes the same Event on every server, and the API server accepts a name once.
        Regarding::Controller { .. } => {
            let mut hasher = DefaultHasher::new();
            (&event.on, &event.note).hash(&mut hasher);
            format!("{:x}", hasher.finish())
        }
        _ => format!("{:x}", Timestamp::now().as_nanosecond()),
    };
    // Events about objects without a namespace go to this one.
    let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let event = Event {
        metadata: ObjectMeta {
            name: Some(event_name(&about, &suffix)),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        action: Some(event.action.to_owned()),
        event_time: Some(MicroTime(Timestamp::now())),
        note: Some(cut(&event.note).to_owned()),
        reason: Some(event.reason.to_string()),
        regarding: Some(regarding),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
        ..Event::default()
    };
    let events = Api::<Event>::namespaced(client.clone(), &namespace);
    events.create(&PostParams::default(), &event).await.map(drop)
}

/// The name of an Event. The name of the object may already have the maximum length, so it is cut; the Event itself
/// refers to the object by its full name.
fn event_name(about: &str, suffix: &str) -> String {
    let room = NAME_LIMIT.saturating_sub(suffix.len() + 1);
    // Neither a name nor a part of a name may end in a dot or a dash.
    let about = about.get(..room).unwrap_or(about).trim_end_matches(['.', '-']);
    format!("{about}.{suffix}")
}

/// The start of a note. The API server counts bytes, and a character may have several.
fn cut(note: &str) -> &str {
    &note[..note.floor_char_boundary(NOTE_LIMIT)]
}

fn reference(api_version: &str, kind: &str, key: &ObjectKey, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(key.namespace.to_string()),
        name: Some(key.name.to_string()),
        uid,
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(pod: &str) -> PendingEvent {
        PendingEvent {
            on: Regarding::Pod(ObjectKey::new("ns", pod), None),
            warning: false,
            reason: "DisruptionDenied".into(),
            action: "Evict",
            note: String::new(),
        }
    }

    fn budget() -> BudgetKey {
        BudgetKey { object: ObjectKey::new("inference", "llm"), kind: BudgetKind::DisruptionBudget }
    }

    /// The Event that a report enqueues.
    fn reported(report: impl FnOnce(&Events)) -> PendingEvent {
        let (queue, mut pending) = mpsc::channel(QUEUE_CAPACITY);
        report(&Events { queue });
        let event = pending.try_recv().expect("an Event");
        assert!(pending.try_recv().is_err(), "one Event");
        event
    }

    #[test]
    fn a_misconfigured_budget_gets_a_warning_with_the_reason_and_message_of_its_condition() {
        let event =
            reported(|events| events.misconfigured(&budget(), "MissingGroupLabel", "pod x has no label"));
        assert!(event.warning);
        assert_eq!((&*event.reason, event.action), ("MissingGroupLabel", "Configure"));
        assert_eq!((event.on, &*event.note), (Regarding::Budget(budget()), "pod x has no label"));
    }

    #[test]
    fn an_admission_that_was_not_used_is_reported_on_its_budget() {
        let note = Note::NotDisrupted { budget: budget(), pod: "llm-0".into() };
        let event = reported(|events| events.noted(note));
        assert!(!event.warning, "nothing is wrong with the budget");
        assert_eq!((&*event.reason, event.action), ("NotDisrupted", "Expire"));
        assert_eq!(event.on, Regarding::Budget(budget()));
        assert!(event.note.contains("llm-0"), "{}", event.note);
    }

    #[test]
    fn the_same_event_is_written_once_a_minute() {
        let mut recent = RecentEvents::default();
        let start = Instant::now();
        assert!(recent.insert(&denial("a"), start));
        assert!(!recent.insert(&denial("a"), start + Duration::from_secs(59)));
        assert!(recent.insert(&denial("b"), start + Duration::from_secs(59)));
        assert!(recent.insert(&denial("a"), start + Duration::from_secs(60)));
    }

    #[test]
    fn the_name_of_an_event_is_valid() {
        assert_eq!(event_name("llm-0", "18b2"), "llm-0.18b2");
        let longest = "a".repeat(NAME_LIMIT);
        let name = event_name(&longest, "18b2");
        assert_eq!(name.len(), NAME_LIMIT);
        assert!(name.ends_with("aa.18b2"), "{name}");
        // The cut comes right after a dot or a dash.
        for mark in ['.', '-'] {
            let marked = format!("{}{mark}{}", "a".repeat(NAME_LIMIT - 6), "b".repeat(5));
            assert_eq!(event_name(&marked, "18b2"), format!("{}.18b2", "a".repeat(NAME_LIMIT - 6)));
        }
    }

    #[test]
    fn a_note_is_cut_to_bytes() {
        let umlauts = "ö".repeat(NOTE_LIMIT);
        let odd = format!("x{umlauts}");
        for (note, length) in [("short", 5), (&*umlauts, NOTE_LIMIT), (&*odd, NOTE_LIMIT - 1)] {
            assert_eq!(cut(note).len(), length);
            assert!(note.starts_with(cut(note)));
        }
    }

    #[test]
    fn the_number_of_remembered_events_is_bounded() {
        let mut recent = RecentEvents::default();
        let start = Instant::now();
        for i in 0..MAX_REMEMBERED {
            assert!(recent.insert(&denial(&i.to_string()), start));
        }
        assert!(
            !recent.insert(&denial("one more"), start),
            "otherwise there could be an Event for every pod of a cluster"
        );
        assert!(recent.insert(&denial("one more"), start + REPEAT_INTERVAL));
        assert_eq!(recent.0.len(), 1);
    }
}
