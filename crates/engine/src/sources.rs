//! Sources: objects that state the expected number of pods or groups, and whether a budget covers their future pods.
//!
//! A source without pods under a budget stays expected while its object exists and wants pods, and its pod template
//! shows that the budget covers its pods. If no template shows this, the source stays expected if the budget remembers
//! that it had pods.

use crate::basics::{GroupKind, Labels, ObjectKey, Text};
use crate::cluster_state::ClusterState;
use crate::facts::{
    Activity, Controller, Counts, Covers, Owner, PodGroup, Rules, Source, Units, Workload, WorkloadSource,
    is_added_later,
};
use crate::group_source::GroupSource;
use crate::names::{SCHEDULING_GROUP, UPSTREAM_SCHEDULING_GROUP};
use crate::selector::Selector;
use crate::units::{self, ExpectedFrom, GroupKey};
use crate::workload_kind::{DEPLOYMENT, REPLICA_SET, STATEFUL_SET, WorkloadKind};

/// Whether a budget covers the pods that a source creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Covered {
    No,
    /// No template shows it.
    CannotTell,
    Yes,
}

impl Covered {
    /// Decides by the pod templates.
    fn by_templates(selector: &Selector, templates: Option<&[Labels]>) -> Self {
        let Some(templates) = templates else { return Self::CannotTell };
        templates.iter().map(|labels| Self::by_template(selector, labels)).max().unwrap_or(Self::No)
    }

    fn by_template(selector: &Selector, labels: &Labels) -> Self {
        let each = selector.0.iter().map(|requirement| match labels.get(&requirement.key) {
            None if is_added_later(&requirement.key) => Self::CannotTell,
            value if requirement.holds(value) => Self::Yes,
            _ => Self::No,
        });
        each.min().unwrap_or(Self::Yes)
    }
}

/// The controllers that every cluster has, and every server watches.
const ALWAYS_WATCHED: [WorkloadKind; 3] = [DEPLOYMENT, REPLICA_SET, STATEFUL_SET];

/// Whether every server watches a kind of controllers. It watches other kinds only while an object or a budget names
/// them, or if the cluster serves them.
pub fn is_always_watched(kind: &GroupKind) -> bool {
    ALWAYS_WATCHED.iter().any(|known| known.is_kind(kind))
}

/// The state of a source that decides whether it stays expected without pods.
pub(crate) struct SourceState {
    pub(crate) source: Source,
    /// Its object exists, is not being deleted, runs pods and wants at least one.
    pub(crate) lives: bool,
    pub(crate) covered: Covered,
}

/// A controller as a source of pods. `None` if the scale of another controller counts for its pods.
pub(crate) fn of_pods(rules: &Rules, controller: &Controller, cluster: &ClusterState) -> Option<SourceState> {
    if ClusterState::is_part_of_deployment(controller) {
        return None;
    }
    let covered = match (&rules.covers, controller.counts) {
        (_, Counts::Groups { .. }) => Covered::CannotTell,
        (Covers::Selector(selector), Counts::Pods) => {
            Covered::by_templates(selector, controller.templates.as_deref())
        }
        (Covers::Target(kind, name), Counts::Pods) => is_below(controller, kind, name, cluster),
    };
    Some(SourceState { source: of_controller(controller), lives: lives(controller, cluster), covered })
}

/// Whether the pods of a controller belong to the `targetRef` of a budget.
fn is_below(controller: &Controller, kind: &GroupKind, name: &Text, cluster: &ClusterState) -> Covered {
    let is_target = controller.kind == *kind && controller.key.name == *name;
    let templates = controller.templates.as_deref();
    let named = GroupSource::of_kind(kind).is_some_and(|source| {
        templates.into_iter().flatten().any(|labels| labels.get(source.name_label) == Some(&**name))
    });
    if !named && !is_target {
        match cluster.is_owned_by(controller, kind, name) {
            Some(true) => {}
            Some(false) => return Covered::No,
            None => return Covered::CannotTell,
        }
    }
    // A controller that does not create pods itself has other controllers that do, and those count.
    let makes_pods = templates.is_some() || (is_target && cluster.owned_by(&controller.uid).is_empty());
    if makes_pods { Covered::Yes } else { Covered::CannotTell }
}

/// The object that states the expected number of groups. `None` if no object does.
pub(crate) fn of_groups(
    rules: &Rules,
    namespace: &Text,
    expected_from: &ExpectedFrom,
    cluster: &ClusterState,
) -> Option<SourceState> {
    let object = |name: &Text| ObjectKey { namespace: namespace.clone(), name: name.clone() };
    let unsure = |source, lives| Some(SourceState { source, lives, covered: Covered::CannotTell });
    match expected_from {
        ExpectedFrom::Workload(source, name, group) => {
            let workload = cluster.workload(*source, object(name))?;
            let wants = units::expected_number(rules, namespace, expected_from, cluster).unwrap_or(0);
            unsure(of_workload(*source, name, group, workload), !workload.deleting && wants > 0)
        }
        ExpectedFrom::Lone(name) => {
            let group = cluster.pod_group(&object(name))?;
            let is_lone = units::expected_from_of_pod_group(name, group, cluster) == *expected_from;
            unsure(of_pod_group(name, group), is_lone && is_live(group, cluster))
        }
        ExpectedFrom::Template(workload, template) => {
            let lives = template_lives(namespace, workload, template, cluster);
            unsure(of_template(workload, template), lives)
        }
        ExpectedFrom::Scale(uid) => {
            let controller =
                cluster.controller(uid).filter(|controller| controller.key.namespace == *namespace)?;
            let covered = match &rules.covers {
                Covers::Selector(selector) => {
                    Covered::by_templates(selector, controller.templates.as_deref())
                }
                // Its pods may belong to groups of another kind, which are counted instead.
                Covers::Target(kind, name)
                    if controller.kind == *kind
                        && controller.key.name == *name
                        && (rules.units != Units::Workload || cluster.makes_pod_groups(uid)) =>
                {
                    Covered::Yes
                }
                Covers::Target(..) => Covered::CannotTell,
            };
            // A pod that is covered need not have a PodGroup.
            let covered = match (&rules.units, &rules.covers) {
                (Units::Workload, Covers::Selector(_)) => covered.min(Covered::CannotTell),
                _ => covered,
            };
            Some(SourceState {
                source: of_controller(controller),
                lives: lives(controller, cluster),
                covered,
            })
        }
        ExpectedFrom::Declared | ExpectedFrom::Observed => None,
    }
}

/// Whether the object that states the expected number of groups is being deleted.
pub(crate) fn is_ending(namespace: &Text, expected_from: &ExpectedFrom, cluster: &ClusterState) -> bool {
    match expected_from {
        ExpectedFrom::Scale(uid) => cluster.controller(uid).is_some_and(|controller| controller.deleting),
        ExpectedFrom::Workload(source, name, _) => {
            let object = ObjectKey { namespace: namespace.clone(), name: name.clone() };
            cluster.workload(*source, object).is_some_and(|workload| workload.deleting)
        }
        ExpectedFrom::Template(workload, template) => !template_lives(namespace, workload, template, cluster),
        ExpectedFrom::Declared | ExpectedFrom::Lone(_) | ExpectedFrom::Observed => false,
    }
}

/// Whether at least one live PodGroup has this template as the source of its expected number.
fn template_lives(namespace: &Text, workload: &Text, template: &Text, cluster: &ClusterState) -> bool {
    let expected_from = ExpectedFrom::Template(workload.clone(), template.clone());
    let counts =
        |group: &PodGroup| units::expected_from_of_pod_group(template, group, cluster) == expected_from;
    cluster.of_template(namespace, workload, template).any(|group| is_live(group, cluster) && counts(group))
}

/// The controller because of which a group is not wanted: the one that wants fewer groups, or the inactive one of the
/// group's controller and the owner of that.
pub(crate) fn idle_controller<'a>(
    key: &GroupKey,
    expected_from: &ExpectedFrom,
    namespace: &Text,
    cluster: &'a ClusterState,
) -> Option<&'a Controller> {
    let object = |name: &Text| ObjectKey { namespace: namespace.clone(), name: name.clone() };
    let of_owner = |owner: Option<&Owner>| owner.and_then(|owner| cluster.controller(&owner.uid));
    let controller = match (key, expected_from) {
        (GroupKey::OfSource(source, name, _), _) => cluster.of_source(source, namespace, name)?,
        (_, ExpectedFrom::Scale(uid)) => cluster.controller(uid)?,
        (GroupKey::PodGroup(name), _) => {
            of_owner(cluster.pod_group(&object(name)).and_then(|group| group.controller.as_ref()))?
        }
        (GroupKey::Replica(source, name, ..), _) => {
            of_owner(cluster.workload(*source, object(name)).and_then(|workload| workload.owner.as_ref()))?
        }
        (GroupKey::Label(_) | GroupKey::Owner(_), _) => return None,
    };
    let above = of_owner(controller.owner.as_ref()).filter(|above| above.activity != Activity::Active);
    Some(above.filter(|_| controller.activity == Activity::Active).unwrap_or(controller))
}

/// The sources of groups that stay expected without any memory.
pub(crate) fn certain(rules: &Rules, namespace: &Text, cluster: &ClusterState) -> Vec<ExpectedFrom> {
    let counts = |controller: &&Controller| match &rules.units {
        Units::Workload => matches!(rules.covers, Covers::Target(..)),
        Units::Label { key, .. } => {
            GroupSource::of_group_label(key).is_some_and(|source| source.is_kind(&controller.kind))
        }
        Units::Pods | Units::Owner { .. } => false,
    };
    let scales =
        cluster.counting_groups(namespace).filter(counts).map(|c| ExpectedFrom::Scale(c.uid.clone()));
    let is_certain = |expected_from: &ExpectedFrom| {
        of_groups(rules, namespace, expected_from, cluster).is_some_and(|s| s.covered == Covered::Yes)
    };
    scales.filter(is_certain).collect()
}

/// The groups whose expected number a source states.
pub(crate) fn expected_from_of(source: &Source) -> ExpectedFrom {
    let Source { kind, name, part, uid } = source;
    match (&*kind.group, &*kind.kind) {
        (SCHEDULING_GROUP, WORKLOAD) => {
            ExpectedFrom::Workload(WorkloadSource::Own, name.clone(), part.clone())
        }
        (UPSTREAM_SCHEDULING_GROUP, WORKLOAD) => {
            ExpectedFrom::Workload(WorkloadSource::Upstream, name.clone(), part.clone())
        }
        (UPSTREAM_SCHEDULING_GROUP, POD_GROUP) if part.is_empty() => ExpectedFrom::Lone(name.clone()),
        (UPSTREAM_SCHEDULING_GROUP, POD_GROUP) => ExpectedFrom::Template(name.clone(), part.clone()),
        _ => ExpectedFrom::Scale(uid.clone()),
    }
}

const WORKLOAD: &str = "Workload";
const POD_GROUP: &str = "PodGroup";

/// The kind of PodGroups.
pub(crate) fn pod_group_kind() -> GroupKind {
    GroupKind::new(UPSTREAM_SCHEDULING_GROUP, POD_GROUP)
}

/// The kind of Workloads.
pub(crate) fn workload_kind(source: WorkloadSource) -> GroupKind {
    GroupKind::new(source.api_group(), WORKLOAD)
}

/// Whether the object of a source is known.
pub(crate) fn is_known(source: &Source, namespace: &Text, cluster: &ClusterState) -> bool {
    let object = |name: &Text| ObjectKey { namespace: namespace.clone(), name: name.clone() };
    match expected_from_of(source) {
        ExpectedFrom::Workload(api, name, _) => {
            cluster.workload(api, object(&name)).is_some_and(|workload| workload.uid == source.uid)
        }
        ExpectedFrom::Lone(name) => {
            cluster.pod_group(&object(&name)).is_some_and(|group| group.uid == source.uid)
        }
        ExpectedFrom::Template(workload, template) => {
            cluster.of_template(namespace, &workload, &template).next().is_some()
        }
        ExpectedFrom::Scale(uid) => cluster.controller(&uid).is_some(),
        ExpectedFrom::Declared | ExpectedFrom::Observed => false,
    }
}

pub(crate) fn of_controller(controller: &Controller) -> Source {
    Source {
        kind: controller.kind.clone(),
        name: controller.key.name.clone(),
        part: Text::default(),
        uid: controller.uid.clone(),
    }
}

fn of_workload(source: WorkloadSource, name: &Text, group: &Text, workload: &Workload) -> Source {
    Source { kind: workload_kind(source), name: name.clone(), part: group.clone(), uid: workload.uid.clone() }
}

fn of_pod_group(name: &Text, group: &PodGroup) -> Source {
    Source { kind: pod_group_kind(), name: name.clone(), part: Text::default(), uid: group.uid.clone() }
}

fn of_template(workload: &Text, template: &Text) -> Source {
    Source { kind: pod_group_kind(), name: workload.clone(), part: template.clone(), uid: Text::default() }
}

fn lives(controller: &Controller, cluster: &ClusterState) -> bool {
    !controller.deleting && cluster.wanted_by(controller).is_some_and(|wanted| wanted > 0)
}

fn is_live(group: &PodGroup, cluster: &ClusterState) -> bool {
    !group.deleting && is_wanted(group, cluster)
}

/// Whether the controller of a PodGroup still wants it.
pub(crate) fn is_wanted(group: &PodGroup, cluster: &ClusterState) -> bool {
    let owner: Option<&Owner> = group.controller.as_ref();
    cluster.is_wanted(owner)
}
