//! Pods.

use serde_json::Value;

use super::{Id, Ids, Meta, condition, condition_status, list, text, whole_second};

/// The label with the name of the LeaderWorkerSet.
pub(in crate::checker) const LWS_NAME: &str = "leaderworkerset.sigs.k8s.io/name";
const LWS_SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
const PROBE: &str = "quorate.dev/disruption-probe.";
const NO_PROTECT: &str = "pub.kruise.io/no-protect";
const UNAVAILABLE: &str = "unavailable-pod.kruise.io/";

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::checker) struct Pod {
    pub(in crate::checker) meta: Meta,
    /// The name of its node.
    pub(in crate::checker) node: String,
    phase: String,
    pub(in crate::checker) ready: bool,
    /// The condition Disruptable, if it is about the containers that run.
    pub(in crate::checker) disruptable: Option<bool>,
    /// The second in which its disruption probe was last executed, if the condition says so.
    pub(in crate::checker) probed: String,
    /// Whether it declares a disruption probe.
    pub(in crate::checker) probe: bool,
    /// The condition InPlaceUpdateReady, if it is one of the pod's readiness gates.
    in_place_ready: Option<bool>,
    /// The condition KruisePodReady, if it is one of the pod's readiness gates.
    kruise_ready: Option<bool>,
    containers: Vec<Container>,
    /// The name of its PodGroup.
    pub(in crate::checker) scheduling_group: Option<String>,
    /// The workload, pod group and replica of `spec.workloadRef`.
    pub(in crate::checker) workload_ref: Option<[String; 3]>,
    /// The size of its group, as its LeaderWorkerSet wrote it.
    pub(in crate::checker) lws_size: Option<usize>,
    /// `pub.kruise.io/no-protect`
    pub(in crate::checker) no_protect: bool,
    /// Whether it has succeeded by itself: before it was being deleted.
    pub(in crate::checker) completed: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Container {
    name: String,
    image: String,
    running_image: String,
    running_id: String,
}

/// How a write changed a pod, if it disrupted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::checker) enum Disruption {
    /// It was terminated or deleted.
    Removed,
    /// A container got another image.
    Updated,
    /// An update in place was announced: InPlaceUpdateReady became False.
    Announced,
    /// KruisePodReady became False, before an update or before a deletion.
    Paused,
    /// A label makes it unavailable for PodUnavailableBudgets.
    Labelled,
    /// Its labels or owners changed, which may have taken it out of a budget or a group.
    Relabelled,
}

impl Pod {
    /// Reads a pod. `before` is the same pod before this change.
    pub(in crate::checker) fn read(object: &Value, ids: &mut Ids, before: Option<&Self>) -> Self {
        let meta = Meta::read(object, ids);
        let phase = text(&object["status"]["phase"]);
        let annotations = object["metadata"]["annotations"].as_object();
        let annotation = |key: &str| annotations.and_then(|all| all.get(key)).and_then(Value::as_str);
        let gate = |name: &str| {
            let gates = list(&object["spec"]["readinessGates"]);
            let declared = gates.iter().any(|gate| gate["conditionType"] == name);
            declared.then(|| condition_status(object, name)).flatten()
        };
        let completed = before.is_some_and(|pod| pod.completed) || (phase == "Succeeded" && !meta.deleting);
        let group = &object["spec"]["schedulingGroup"]["podGroupName"];
        let workload = &object["spec"]["workloadRef"];
        let probed = condition(object, "Disruptable").map(|it| whole_second(&it["lastProbeTime"]));
        let probed = probed.unwrap_or_default();
        Self {
            node: text(&object["spec"]["nodeName"]),
            ready: condition_status(object, "Ready") == Some(true),
            disruptable: condition_status(object, "Disruptable")
                .filter(|yes| !yes || runs_since(object, &probed)),
            probed,
            probe: annotations.is_some_and(|all| all.keys().any(|key| key.starts_with(PROBE))),
            in_place_ready: gate("InPlaceUpdateReady"),
            kruise_ready: gate("KruisePodReady"),
            containers: containers(object),
            scheduling_group: group.as_str().map(str::to_owned),
            workload_ref: workload["name"].as_str().map(|name| {
                [name.to_owned(), text(&workload["podGroup"]), text(&workload["podGroupReplicaKey"])]
            }),
            lws_size: annotation(LWS_SIZE).and_then(|size| size.parse().ok()),
            no_protect: annotation(NO_PROTECT).is_some_and(|value| value.eq_ignore_ascii_case("true")),
            meta,
            phase,
            completed,
        }
    }

    pub(in crate::checker) fn id(&self) -> Id {
        self.meta.id
    }

    /// A label's value.
    pub(in crate::checker) fn label(&self, key: &str) -> Option<&str> {
        self.meta.labels.get(key).map(String::as_str)
    }

    /// Whether its containers have ended for good.
    pub(in crate::checker) fn finished(&self) -> bool {
        self.phase == "Succeeded" || self.phase == "Failed"
    }

    /// Whether it runs, or is about to: neither finished nor being deleted.
    pub(in crate::checker) fn active(&self) -> bool {
        !self.meta.deleting && !self.finished()
    }

    /// Whether it is healthy for a budget of OpenKruise's kind, or of Quorate's own.
    pub(in crate::checker) fn healthy(&self, kruise: bool) -> bool {
        let available = if self.probe { self.disruptable == Some(true) } else { self.ready };
        let kruise = !kruise
            || ((self.phase == "Running" || self.phase.is_empty())
                && self.in_place_ready != Some(false)
                && !self.marked());
        self.active() && available && kruise
    }

    /// Whether it serves and has a disruption probe, which decides then.
    pub(in crate::checker) fn asks_probe(&self) -> bool {
        self.active() && self.probe && self.ready
    }

    fn marked(&self) -> bool {
        self.meta.labels.keys().any(|key| key.starts_with(UNAVAILABLE))
    }

    fn moves(&self, after: &Self) -> bool {
        self.meta.labels != after.meta.labels || self.meta.owners != after.meta.owners
    }

    /// How the change from this pod to `after` disrupts it.
    pub(in crate::checker) fn disruptions(&self, after: Option<&Self>) -> Vec<Disruption> {
        let Some(after) = after else {
            return if self.meta.deleting { Vec::new() } else { vec![Disruption::Removed] };
        };
        let replaced = |new: &Container| {
            self.containers.iter().any(|old| old.name == new.name && old.image != new.image)
        };
        let lost = |before: Option<bool>, after: Option<bool>| before != Some(false) && after == Some(false);
        [
            (Disruption::Removed, !self.meta.deleting && after.meta.deleting),
            (Disruption::Updated, after.containers.iter().any(replaced)),
            (Disruption::Announced, lost(self.in_place_ready, after.in_place_ready)),
            (Disruption::Paused, lost(self.kruise_ready, after.kruise_ready)),
            (Disruption::Labelled, !self.marked() && after.marked()),
            (Disruption::Relabelled, !self.meta.deleting && self.moves(after)),
        ]
        .into_iter()
        .filter_map(|(kind, happened)| happened.then_some(kind))
        .collect()
    }

    /// Whether an update in place that began when the pod was `before` is over: the pod is healthy and runs what its
    /// spec says, in new containers where their images changed.
    pub(in crate::checker) fn updated_since(&self, before: &Self) -> bool {
        let runs = |container: &Container| {
            let old = before.containers.iter().find(|old| old.name == container.name);
            old.is_none_or(|old| old.image == container.image || old.running_id != container.running_id)
                || container.running_image == container.image
        };
        self.healthy(true) && self.kruise_ready != Some(false) && self.containers.iter().all(runs)
    }
}

/// Whether all containers run, and have since a probe in this second. A container that does not say so does.
fn runs_since(object: &Value, probed: &str) -> bool {
    list(&object["status"]["containerStatuses"]).iter().all(|status| {
        let state = &status["state"];
        let started = whole_second(&state["running"]["startedAt"]);
        (state.is_null() || state["running"].is_object()) && (probed.is_empty() || *started <= *probed)
    })
}

fn containers(object: &Value) -> Vec<Container> {
    let statuses = list(&object["status"]["containerStatuses"]);
    list(&object["spec"]["containers"])
        .iter()
        .map(|container| {
            let status = statuses.iter().find(|status| status["name"] == container["name"]);
            let field = |key: &str| status.map(|status| text(&status[key])).unwrap_or_default();
            Container {
                name: text(&container["name"]),
                image: text(&container["image"]),
                running_image: field("image"),
                running_id: field("containerID"),
            }
        })
        .collect()
}
