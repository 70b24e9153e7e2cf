//! What servers and agents publish in their Leases: how the servers were started, what they have received, and which
//! agents are alive.
//!
//! A server dates the renewals of a Lease by its own clock, as it observes them. A view must not wait for the next renewal,
//! so it dates the last one by the clock of the API server: the API server notes when it stored each write, and says in
//! each response what time it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::header::DATE;
use http::{HeaderMap, Request, StatusCode};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::rfc2822;
use kube::client::Body;
use kube::core::ObjectList;
use kube::{Client, ResourceExt as _};
use quorate_api::names::{ADMITTED, AGENT, COMPONENT, SERVER, SERVING, SETTINGS, WATCH_AGES};
use quorate_api::slim;
use quorate_engine::basics::{GroupKind, Text, Time};
use quorate_engine::decision::DenialReason;
use quorate_engine::facts::Agent;
use quorate_intake::objects;
use quorate_kit::Plain;

use super::access::ViewError;
use crate::clock;
use crate::replicas::{LEASE_DURATION, RENEW_DEADLINE};
use crate::settings::ServerSettings;
use crate::watches;

/// A difference between two clocks that does not matter: the API server says the time in whole seconds.
const SAME_TIME: Duration = Duration::from_secs(2);

/// What the Leases in Quorate's own namespace say.
#[derive(Debug, Default)]
pub(super) struct Leases {
    pub(super) agents: Vec<(Text, Agent)>,
    pub(super) servers: Servers,
    /// What to add to the clock of this process, in milliseconds, so that it shows the time of the API server.
    pub(super) offset: i64,
}

impl Leases {
    /// Lists the Leases; `None` if the user may not.
    pub(super) async fn list(client: &Client, own: &str) -> Result<Option<Self>, ViewError> {
        let failed = |why: String| ViewError::Failed { what: watches::LEASES, why };
        let selector = format!("{COMPONENT}%20in%20%28{AGENT}%2C{SERVER}%29");
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{own}/leases?labelSelector={selector}");
        let request = Request::get(path).body(Body::empty()).map_err(|error| failed(error.to_string()))?;
        let response = client.send(request).await.map_err(|error| failed(Plain(&error).to_string()))?;
        let (head, body) = response.into_parts();
        let received = clock::now();
        let body = body.collect_bytes().await.map_err(|error| failed(Plain(&error).to_string()))?;
        match head.status {
            StatusCode::OK => {}
            StatusCode::FORBIDDEN => return Ok(None),
            status => return Err(failed(status.to_string())),
        }
        let list: ObjectList<Lease> =
            serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))?;
        let at = date(&head.headers).unwrap_or(received);
        Ok(Some(Self::read(&list.items, at, received)))
    }

    /// `at`: when the API server listed them, by its own clock; `received`: when, by the clock of this process.
    fn read(leases: &[Lease], at: Time, received: Time) -> Self {
        let offset = at.0 - received.0;
        let offset = if offset.unsigned_abs() <= SAME_TIME.as_millis() as u64 { 0 } else { offset };
        let mut read = Self { offset, ..Self::default() };
        for lease in leases {
            let age = age(lease, at);
            match lease.labels().get(COMPONENT).map(String::as_str) {
                Some(AGENT) => {
                    let renewed = before(Time(received.0 + offset), age);
                    read.agents.extend(objects::agent(&slim(lease), renewed).ok());
                }
                Some(SERVER) => read.servers.add(lease, age),
                _ => {}
            }
        }
        read
    }
}

/// The time so long before.
fn before(time: Time, age: Duration) -> Time {
    Time(time.0.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX)))
}

fn date(headers: &HeaderMap) -> Option<Time> {
    let text = headers.get(DATE)?.to_str().ok()?;
    Some(Time(rfc2822::parse(text).ok()?.timestamp().as_millisecond()))
}

/// How long ago a Lease was written. The API server notes that; if it does not, the renewal time of the holder counts.
fn age(lease: &Lease, at: Time) -> Duration {
    let noted =
        lease.metadata.managed_fields.iter().flatten().filter_map(|entry| Some(entry.time.as_ref()?.0));
    let written = noted.max().or_else(|| {
        let renewed = lease.spec.as_ref().and_then(|spec| Some(spec.renew_time.as_ref()?.0));
        renewed.max(lease.metadata.creation_timestamp.as_ref().map(|time| time.0))
    });
    written.map_or(Duration::MAX, |written: Timestamp| at.since(Time(written.as_millisecond())))
}

fn slim(lease: &Lease) -> slim::Lease {
    let spec = lease.spec.clone().unwrap_or_default();
    slim::Lease {
        metadata: lease.metadata.clone(),
        spec: slim::LeaseSpec {
            holder_identity: spec.holder_identity,
            lease_duration_seconds: spec.lease_duration_seconds,
            acquire_time: spec.acquire_time,
            renew_time: spec.renew_time,
            lease_transitions: spec.lease_transitions,
        },
    }
}

/// The servers, as their Leases show them.
#[derive(Clone, Debug, Default)]
pub struct Servers {
    /// The servers that decide.
    live: Vec<Server>,
    /// The number of servers that have not begun to decide.
    starting: usize,
    /// The number of servers that may have ended: they have not renewed their Leases in time.
    silent: usize,
}

/// A server that decides.
#[derive(Clone, Debug)]
struct Server {
    /// `None` if it does not say: a server of an earlier release.
    settings: Option<ServerSettings>,
    /// How long ago it received something of each kind; empty if it does not say.
    ages: BTreeMap<GroupKind, Duration>,
    /// The kinds that it watches and could never read.
    unread: BTreeSet<GroupKind>,
}

impl Servers {
    fn add(&mut self, lease: &Lease, age: Duration) {
        let annotation = |name: &str| lease.annotations().get(name).map(String::as_str);
        let serves = annotation(SERVING) != Some("false");
        match (serves, age <= RENEW_DEADLINE, age <= LEASE_DURATION) {
            (true, true, _) => {}
            (true, false, _) => {
                self.silent += 1;
                return;
            }
            // It has ended and handed over what it admitted.
            (false, ..) if annotation(ADMITTED).is_some() => return,
            (false, _, is_alive) => {
                self.starting += usize::from(is_alive);
                return;
            }
        }
        let ages: BTreeMap<String, Option<u64>> =
            annotation(WATCH_AGES).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let kind = |name: &str| {
            let (kind, group) = name.split_once('.').unwrap_or((name, ""));
            GroupKind::new(group, kind)
        };
        let unread = ages.iter().filter(|(_, seconds)| seconds.is_none()).map(|(name, _)| kind(name));
        let received = ages
            .iter()
            .filter_map(|(name, seconds)| Some((kind(name), Duration::from_secs((*seconds)?) + age)));
        let settings = annotation(SETTINGS).and_then(ServerSettings::from_text);
        self.live.push(Server { settings, ages: received.collect(), unread: unread.collect() });
    }

    /// The number of servers that decide.
    pub fn count(&self) -> usize {
        self.live.len()
    }

    /// How the servers were started; `None` if none says so.
    pub fn settings(&self) -> Option<ServerSettings> {
        self.live.iter().find_map(|server| server.settings)
    }

    /// Whether servers were started in different ways, for example during an upgrade. Then the answer depends on which of
    /// them the API server calls.
    pub fn differ(&self) -> bool {
        let mut settings = self.live.iter().map(|server| server.settings);
        let first = settings.next();
        settings.any(|settings| Some(settings) != first)
    }

    /// Why the servers decide nothing now; `None` if one of them decides, or if there is none: then a server that starts
    /// would decide.
    pub fn refusal(&self) -> Option<DenialReason> {
        if self.live.is_empty() {
            return match (self.starting, self.silent) {
                (0, 0) => None,
                (0, _) => Some(DenialReason::NotServing),
                _ => Some(DenialReason::NotSynced),
            };
        }
        let pods = GroupKind::new("", "Pod");
        let age = self.age(&pods)?;
        let fresh_for = self.settings().unwrap_or_default().fresh_for;
        (age > fresh_for).then_some(DenialReason::NotFresh { seconds: age.as_secs() })
    }

    /// How old what the servers know of a kind is, at least; `None` if one of them does not say.
    fn age(&self, kind: &GroupKind) -> Option<Duration> {
        let ages: Option<Vec<Duration>> =
            self.live.iter().map(|server| server.ages.get(kind).copied()).collect();
        ages?.into_iter().min()
    }

    /// The kinds that no server can read: what the user can read of them, the servers do not know.
    pub(super) fn unread(&self) -> Vec<GroupKind> {
        let kinds = self.live.first().into_iter().flat_map(|server| &server.unread);
        kinds.filter(|kind| self.live.iter().all(|server| server.unread.contains(kind))).cloned().collect()
    }

    /// The kinds whose age every server says, except pods.
    pub(super) fn ages(&self) -> Vec<(GroupKind, Duration)> {
        let kinds = self.live.first().into_iter().flat_map(|server| server.ages.keys());
        let ages = kinds.filter(|kind| !kind.group.is_empty() || &*kind.kind != "Pod");
        ages.filter_map(|kind| Some((kind.clone(), self.age(kind)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// 10:01:00 by the clock of the API server; the clock of this process is an hour late.
    fn now() -> (Time, Time) {
        let at: Timestamp = "2026-11-15T10:01:00Z".parse().expect("a time");
        (Time(at.as_millisecond()), Time(at.as_millisecond() - 3_600_000))
    }

    fn lease(component: &str, annotations: &Value, renewed: &str, written: Option<&str>) -> Lease {
        let fields = written.map(|time| json!([{"manager": "m", "operation": "Update", "time": time}]));
        serde_json::from_value(json!({
            "metadata": {"name": "a", "labels": {"quorate.dev/component": component}, "annotations": annotations,
                "managedFields": fields},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 40,
                "acquireTime": "2026-11-15T09:00:00.000000Z", "renewTime": format!("2026-11-15T{renewed}.000000Z")},
        }))
        .expect("a Lease")
    }

    fn read(leases: &[Lease]) -> Leases {
        let (at, received) = now();
        Leases::read(leases, at, received)
    }

    #[test]
    fn an_agent_is_dated_by_the_clock_of_the_api_server() {
        for (renewed, written, seconds) in [
            ("10:00:50", None, 10),
            ("08:00:00", Some("2026-11-15T10:00:50Z"), 10),
            ("23:00:00", Some("2026-11-15T10:00:15Z"), 45),
            ("10:01:01", None, 0),
        ] {
            let Leases { agents, offset, .. } = read(&[lease("agent", &json!({}), renewed, written)]);
            let (at, received) = now();
            assert_eq!((at.0, received.0 + offset), (at.0, at.0));
            let (node, agent) = agents.first().expect("an agent");
            assert_eq!((&**node, at.since(agent.renewed).as_secs()), ("a", seconds), "{renewed} {written:?}");
        }
    }

    #[test]
    fn servers_that_do_not_decide_are_told_from_those_that_do() {
        let server = |annotations: Value, renewed| lease("server", &annotations, renewed, None);
        let ages = |pods: u64| {
            json!({"quorate.dev/serving": "true",
            "quorate.dev/watch-ages": format!(r#"{{"Pod":{pods},"Deployment.apps":100,"Fleet.example.com":null}}"#)})
        };
        let ended = json!({"quorate.dev/serving": "false", "quorate.dev/admitted": "[]"});
        let starting = json!({"quorate.dev/serving": "false"});
        let live = || server(ages(1), "10:00:58");
        for (leases, live, refusal, why) in [
            (vec![], 0, None, "none runs"),
            (vec![live()], 1, None, "one decides"),
            (vec![server(json!({}), "10:00:58")], 1, None, "one of an earlier release"),
            (
                vec![server(ages(1), "10:00:49")],
                0,
                Some(DenialReason::NotServing),
                "it does not renew its Lease",
            ),
            (vec![server(starting.clone(), "10:00:58")], 0, Some(DenialReason::NotSynced), "it starts"),
            (vec![server(starting.clone(), "10:00:40")], 0, None, "it ended while it started"),
            (vec![server(ended, "10:00:58")], 0, None, "it has ended"),
            (vec![live(), server(starting, "10:00:58")], 1, None, "another one starts"),
            (
                vec![server(ages(90), "10:00:57")],
                1,
                Some(DenialReason::NotFresh { seconds: 93 }),
                "pods are stale",
            ),
            (vec![live(), server(ages(95), "10:00:58")], 2, None, "pods are stale in one of two"),
        ] {
            let Leases { servers, .. } = read(&leases);
            assert_eq!((servers.count(), servers.refusal()), (live, refusal), "{why}");
        }
        let servers = read(&[live()]).servers;
        assert_eq!(servers.ages(), [(GroupKind::new("apps", "Deployment"), Duration::from_secs(102))]);
        assert_eq!(servers.unread(), [GroupKind::new("example.com", "Fleet")]);
    }

    #[test]
    fn settings_that_differ_are_noticed() {
        let server = |settings: Option<&str>| {
            let settings = settings.map_or_else(|| json!({}), |text| json!({"quorate.dev/settings": text}));
            lease("server", &settings, "10:00:58", None)
        };
        let (one, other) = (server(Some(r#"{"servePub":"always"}"#)), server(Some("{}")));
        let servers = |leases: &[&Lease]| {
            read(&leases.iter().map(|lease| (*lease).clone()).collect::<Vec<_>>()).servers
        };
        assert!(!servers(&[&one, &one]).differ() && servers(&[&one, &other]).differ());
        let always = servers(&[&server(None), &one]).settings().expect("settings");
        assert_eq!(always.serve_pub, crate::ServePub::Always);
        assert_eq!(servers(&[]).settings(), None);
    }
}
