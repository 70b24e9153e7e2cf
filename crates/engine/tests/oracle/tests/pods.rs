//! Budgets that count pods.

use quorate_engine::callers::Caller;
use quorate_engine::claims::Target;
use quorate_engine::condition_reason::ConditionReason;
use quorate_engine::request::Request;
use quorate_engine::selector::{Operator, Requirement};

use super::*;

/// `db` of 2 pods, both of which are gone, and `web` of 3 pods, which has all of them.
fn lost(change: impl Fn(&mut Controller)) -> Fixture {
    let mut fixture = Fixture::new(counting(Units::Pods));
    fixture.controller(controller("StatefulSet", "web", 3));
    let mut db = controller("StatefulSet", "db", 2);
    change(&mut db);
    fixture.controller(db);
    for name in ["web-0", "web-1", "web-2"] {
        fixture.pod(name, owned_by("StatefulSet", "web"));
    }
    for name in ["db-0", "db-1"] {
        fixture.pod(name, owned_by("StatefulSet", "db"));
    }
    assert_eq!(fixture.numbers(), (5, 1));
    fixture.gone("db-0");
    fixture.gone("db-1");
    fixture
}

fn remembered() -> Fixture {
    lost(|_| {})
}

fn with_template() -> Fixture {
    lost(|db| db.templates = templates(&[&[("app", "a"), ("tier", "db")]]))
}

/// Cases for a source that only the memory keeps, and for one that its template keeps.
const FOR_BOTH: &[Case] = &[
    ("nothing else", |_| {}, 5),
    ("it wants more", |w| w.change_controller("db", |db| db.replicas = Some(4)), 7),
    ("it wants none", |w| w.change_controller("db", |db| db.replicas = Some(0)), 3),
    ("it has no scale", |w| w.change_controller("db", |db| db.replicas = None), 3),
    ("it is being deleted", |w| w.change_controller("db", |db| db.deleting = true), 3),
    ("it is gone", |w| w.apply(Input::ControllerGone("uid-db".into())), 3),
    ("a list does not show it", |w| list(w, &["web"]), 3),
    ("a list shows it", |w| list(w, &["db", "web"]), 5),
    ("suspended", |w| w.change_controller("db", |db| db.activity = Activity::Suspended), 3),
    ("complete", |w| w.change_controller("db", |db| db.activity = Activity::Complete), 3),
    ("failed", |w| w.change_controller("db", |db| db.activity = Activity::Failed), 3),
    ("its owner is suspended", |w| own(w, |owner| owner.activity = Activity::Suspended), 3),
    ("its owner is active", |w| own(w, |_| {}), 5),
    ("the owner of its owner is suspended", grandparent_is_suspended, 5),
    ("its template is another", |w| w.change_controller("db", |db| db.templates = other_templates()), 3),
    ("the numbers change", |w| w.change_budget(|b| b.max_unavailable = Some(Quantity::Count(2))), 5),
    ("the selector changes", |w| w.change_budget(|b| b.covers = app("b")), 0),
    ("the budget states the number", |w| w.change_budget(|b| b.expected = Some(9)), 9),
];

fn list(fixture: &mut Fixture, names: &[&str]) {
    let known = fixture.oracle.controllers.values();
    let shown = known.filter(|controller| names.contains(&&*controller.key.name)).cloned().collect();
    fixture.step(Event::Sync(Snapshot::Controllers(kind("StatefulSet"), shown)));
}

fn other_templates() -> Option<Box<[Labels]>> {
    templates(&[&[("app", "b")]])
}

fn own(fixture: &mut Fixture, change: impl Fn(&mut Controller)) {
    let mut above = controller("Database", "top", 1);
    change(&mut above);
    fixture.controller(above);
    fixture.change_controller("db", |db| db.owner = Some(owner("Database", "top")));
}

fn grandparent_is_suspended(fixture: &mut Fixture) {
    fixture.controller(Controller { activity: Activity::Suspended, ..controller("Cloud", "cloud", 1) });
    own(fixture, |top| top.owner = Some(owner("Cloud", "cloud")));
}

#[test]
fn a_controller_stays_expected_without_pods() {
    assert_eq!(remembered().numbers(), (5, 0));
    assert_eq!(remembered().memory().sources.len(), 2);
    check(remembered, FOR_BOTH);
    assert_eq!(with_template().numbers(), (5, 0));
    let sources = with_template().memory().sources;
    assert_eq!(sources.iter().map(|source| &*source.name).collect::<Vec<_>>(), ["web"]);
    check(with_template, FOR_BOTH);
}

#[test]
fn a_forgotten_source_needs_a_pod_or_a_template_to_come_back() {
    let there_and_back: fn(&mut Fixture) = |fixture| {
        fixture.change_controller("db", |db| db.replicas = Some(0));
        fixture.change_controller("db", |db| db.replicas = Some(2));
    };
    check(remembered, &[("scaled to none and back", there_and_back, 3)]);
    check(with_template, &[("scaled to none and back", there_and_back, 5)]);
    check(
        remembered,
        &[(
            "and a pod comes back, and goes",
            |fixture| {
                fixture.change_controller("db", |db| db.replicas = Some(0));
                fixture.change_controller("db", |db| db.replicas = Some(2));
                fixture.pod("db-0", owned_by("StatefulSet", "db"));
                fixture.gone("db-0");
            },
            5,
        )],
    );
}

#[test]
fn an_inactive_controller_expects_no_pods() {
    let mut fixture = Fixture::new(counting(Units::Pods));
    fixture.controller(controller("Job", "train", 4));
    fixture.pod("train-0", owned_by("Job", "train"));
    assert_eq!(fixture.numbers().0, 4);
    fixture.change_controller("train", |job| job.activity = Activity::Suspended);
    assert_eq!(fixture.numbers().0, 0);
    fixture.change_controller("train", |job| job.replicas = None);
    assert_eq!(
        (fixture.numbers().0, fixture.status().conditions[0].0),
        (0, ConditionReason::InsufficientPods)
    );
}

/// Whether a controller that never had a pod is expected depends on its templates.
#[test]
fn a_template_decides_whether_a_source_without_pods_is_expected() {
    let with = |covers: Covers, templates: Option<Box<[Labels]>>| {
        let mut fixture = Fixture::new(Rules { covers, ..counting(Units::Pods) });
        fixture.controller(Controller { templates, ..controller("StatefulSet", "db", 2) });
        fixture.numbers().0
    };
    let asks = |key: &str, operator: Operator| {
        Covers::Selector(Selector([Requirement { key: key.into(), operator }].into()))
    };
    let hash = || asks("pod-template-hash", Operator::Exists);
    assert_eq!(with(app("a"), templates(&[&[("app", "a")]])), 2);
    assert_eq!(with(app("a"), templates(&[&[("app", "b")]])), 0);
    assert_eq!(with(app("a"), templates(&[&[("app", "b")], &[("app", "a")]])), 2, "one of them does");
    assert_eq!(with(app("a"), templates(&[])), 0);
    assert_eq!(with(app("a"), None), 0, "no template");
    assert_eq!(with(asks("app", Operator::Absent), templates(&[&[("tier", "x")]])), 2);
    assert_eq!(with(asks("app", Operator::NotIn(["b".into()].into())), templates(&[&[]])), 2);
    assert_eq!(with(hash(), templates(&[&[("app", "a")]])), 0, "added later: the template does not show it");
    assert_eq!(with(hash(), templates(&[&[("pod-template-hash", "1")]])), 2, "the template has it");
}

#[test]
fn a_label_that_is_added_later_needs_the_memory() {
    let mut fixture = Fixture::new(Rules {
        covers: Covers::Selector(Selector::labels([("app", "a"), ("controller-revision-hash", "1")])),
        ..counting(Units::Pods)
    });
    let template = |app: &str| templates(&[&[("app", app)]]);
    fixture.controller(Controller { templates: template("a"), ..controller("StatefulSet", "db", 2) });
    fixture.pod("db-0", |pod| {
        owned_by("StatefulSet", "db")(pod);
        pod.labels = Labels::new([("app", "a"), ("controller-revision-hash", "1")]);
    });
    fixture.gone("db-0");
    assert_eq!((fixture.numbers().0, fixture.memory().sources.len()), (2, 1));
    fixture.change_controller("db", |db| db.templates = template("b"));
    assert_eq!((fixture.numbers().0, fixture.memory().sources.len()), (0, 0));
}

#[test]
fn the_scale_of_the_deployment_counts() {
    let mut fixture = Fixture::new(counting(Units::Pods));
    let made_of = || templates(&[&[("app", "a")]]);
    fixture.controller(Controller { templates: made_of(), ..controller("Deployment", "web", 3) });
    assert_eq!(fixture.numbers().0, 3, "before it has a ReplicaSet");
    let of_web = Some(owner("Deployment", "web"));
    for (name, replicas) in [("old", 2), ("new", 1)] {
        let set = controller("ReplicaSet", name, replicas);
        fixture.controller(Controller { owner: of_web.clone(), templates: made_of(), ..set });
    }
    assert_eq!(fixture.numbers().0, 3);
    fixture.pod("web-0", owned_by("ReplicaSet", "new"));
    assert_eq!(fixture.numbers().0, 3);
    fixture.apply(Input::ControllerGone("uid-web".into()));
    assert_eq!(fixture.numbers().0, 1, "with pods, while the Deployment is not known");
    fixture.gone("web-0");
    assert_eq!(fixture.numbers().0, 0, "never that of a ReplicaSet of a Deployment");
}

/// Whether a budget with a `targetRef` expects a controller without pods.
#[test]
fn a_target_ref_decides_which_controllers_are_expected() {
    let with = |target: (&str, &str), change: fn(&mut Fixture)| {
        let covers = Covers::Target(kind(target.0), target.1.into());
        let mut fixture = Fixture::new(Rules { covers, ..counting(Units::Pods) });
        fixture.controller(controller("Database", "top", 7));
        let owner = Some(owner("Database", "top"));
        let made_of = templates(&[&[("app", "a")]]);
        fixture.controller(Controller { owner, templates: made_of, ..controller("StatefulSet", "db", 2) });
        change(&mut fixture);
        fixture.numbers().0
    };
    let (sts, top) = (("StatefulSet", "db"), ("Database", "top"));
    assert_eq!(with(sts, |_| {}), 2);
    assert_eq!(with(sts, |w| w.change_controller("db", |db| db.templates = None)), 2, "the target itself");
    assert_eq!(with(("StatefulSet", "x"), |_| {}), 0);
    assert_eq!(with(top, |_| {}), 2, "the controller that creates its pods, not the target itself");
    assert_eq!(with(top, |w| w.change_controller("db", |db| db.templates = None)), 0, "no template");
    assert_eq!(with(top, |w| w.change_controller("db", |db| db.owner = None)), 7, "it owns nothing");
    assert_eq!(with(top, |w| w.apply(Input::ControllerGone("uid-top".into()))), 2, "it need not be known");
    let by_label: fn(&mut Fixture) = |fixture| {
        let name = format!("{LWS}/name");
        fixture.change_controller("db", |db| db.templates = templates(&[&[(&name, "llm")]]));
    };
    assert_eq!(with(("LeaderWorkerSet", "llm"), by_label), 2);
    assert_eq!(with(("LeaderWorkerSet", "other"), by_label), 0);
}

#[test]
fn memory_is_read_with_the_budget_and_waits_for_the_object() {
    let sources = remembered().memory();
    let fresh = || Fixture {
        oracle: Oracle::new(Gates { multi_pod_pdbs: true, disruption_probe: true }),
        version: 0,
    };
    let names =
        |fixture: &Fixture| fixture.memory().sources.iter().map(|s| s.name.to_string()).collect::<Vec<_>>();
    let mut fixture = fresh();
    fixture.budget(counting(Units::Pods), sources.clone());
    assert_eq!((fixture.numbers().0, names(&fixture).len()), (0, 2), "an unknown object does not count");
    fixture.step(Event::Sync(Snapshot::Controllers(kind("Deployment"), Vec::new())));
    assert_eq!(names(&fixture).len(), 2, "a list of another kind");
    fixture.controller(controller("StatefulSet", "db", 2));
    assert_eq!((fixture.numbers().0, names(&fixture).len()), (2, 2));
    fixture.step(Event::Sync(Snapshot::Controllers(
        kind("StatefulSet"),
        vec![controller("StatefulSet", "db", 2)],
    )));
    assert_eq!((fixture.numbers().0, names(&fixture)), (2, vec!["db".to_owned()]));
    // The next input of the budget restores the memory.
    fixture.change_controller("db", |db| db.deleting = true);
    fixture.change_controller("db", |db| db.deleting = false);
    assert_eq!(fixture.numbers().0, 0);
    fixture.budget(counting(Units::Pods), sources.clone());
    assert_eq!(fixture.numbers().0, 2);
    // The memory does not apply to other rules.
    let mut fixture = fresh();
    fixture.controller(controller("StatefulSet", "db", 2));
    fixture.budget(Rules { covers: app("b"), ..counting(Units::Pods) }, sources);
    assert_eq!((fixture.numbers().0, names(&fixture).len()), (0, 0));
}

#[test]
fn a_full_memory_fails_closed() {
    let mut fixture = Fixture::new(counting(Units::Pods));
    for at in 0..=256 {
        let name: &'static str = format!("db{at:03}").leak();
        fixture.controller(controller("StatefulSet", name, 1));
        fixture.pod(name, owned_by("StatefulSet", name));
        fixture.gone(name);
        let refused = fixture.status().conditions[0].0 == ConditionReason::SyncFailed;
        // A full memory may have lost some.
        assert_eq!(refused, at >= 255, "{at}");
    }
    assert_eq!(fixture.numbers(), (257, 0));
    fixture.change_budget(|budget| budget.expected = Some(3));
    assert_eq!(fixture.status().conditions[0].0, ConditionReason::InsufficientPods, "no source is needed");
}

#[test]
fn sources_without_pods_count_as_wanted_for_deletes_by_the_controller() {
    let deletes = |fixture: &Fixture| {
        let pod = &fixture.oracle.pods[&Uid::from("web-0")].pod;
        let request = Request {
            operation: Operation::Delete,
            pod: pod.key.clone(),
            object: Some(pod.into()),
            precondition: None,
            caller: Caller::named("system:serviceaccount:kube-system:statefulset-controller"),
            dry_run: false,
            target: Target::default(),
            placement: None,
        };
        matches!(fixture.oracle.decide(&request), crate::oracle::ExpectedDecision::Agreed(_))
    };
    // 3 pods are healthy. `web` and `db` want 2 each from now on, so 3 of 4 are desired.
    let mut fixture = remembered();
    fixture.change_controller("web", |web| web.replicas = Some(2));
    assert!(!deletes(&fixture));
    fixture.apply(Input::ControllerGone("uid-db".into()));
    assert!(deletes(&fixture));
}
