//! Owners that the garbage collector or the API server would not accept.

use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use super::{GROUPS, names, reference};
use crate::fixture::TestNamespace;

quorate_testbed::stories!(Whole: an_unusable_owner_is_left_out_and_reported_once);

async fn an_unusable_owner_is_left_out_and_reported_once(cluster: Cluster) {
    let ns = TestNamespace::with_owner_references(cluster, "left-out").await;
    let good = ns.create_job_group("good").await;
    let with = |field: &str, value: Value| {
        let mut owner = good.clone();
        owner[field] = value;
        owner
    };
    let ending = json!({"apiVersion": GROUPS, "kind": "JobGroup",
        "metadata": {"name": "ending", "finalizers": ["example.com/held"]}});
    let ending = reference(&ns.create(GROUPS, "jobgroups", &ending).await);
    ns.delete_with_policy(GROUPS, "jobgroups", "ending", "Background").await;
    let elsewhere = ns.cluster.namespace("elsewhere").await.expect("a namespace");
    let abroad = json!({"apiVersion": GROUPS, "kind": "JobGroup", "metadata": {"name": "abroad"}});
    let path = format!("/apis/{GROUPS}/namespaces/{elsewhere}/jobgroups");
    let abroad = reference(&ns.wire.post(&path, &abroad).await.expect(201));
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": "no-such-node", "uid": "n"});
    let unread = json!({"apiVersion": "v1", "kind": "Secret", "name": "any", "uid": "s"});
    let unknown = json!({"apiVersion": GROUPS, "kind": "Nonsense", "name": "any", "uid": "x"});
    let mut named = vec![
        json!({"apiVersion": GROUPS, "kind": "JobGroup", "name": "missing", "uid": "m"}),
        with("uid", json!("00000000-0000-0000-0000-000000000000")),
        ending,
        abroad,
        node,
        unknown,
        with("controller", json!(true)),
    ];
    let mut expected = vec![
        "JobGroup missing is left out as an owner of the pods: it does not exist in namespace".to_owned(),
        "JobGroup good is left out as an owner of the pods: the object of this name has another UID"
            .to_owned(),
        "JobGroup ending is left out as an owner of the pods: it is being deleted".to_owned(),
        "JobGroup abroad is left out as an owner of the pods: it does not exist in namespace".to_owned(),
        "Node no-such-node is left out as an owner of the pods: it does not exist in the cluster".to_owned(),
        format!("Nonsense any is left out as an owner of the pods: {GROUPS} has no kind Nonsense"),
        "JobGroup good is left out as an owner of the pods: it has controller: true".to_owned(),
    ];
    if ns.cluster.embedded().is_none() {
        // Only a real API server has authorization.
        named.push(unread);
        expected
            .push("Secret any is left out as an owner of the pods: Quorate may not read secrets".to_owned());
    }
    let set = ns.create_workload("ReplicaSet", "web", &json!(named)).await;
    assert_eq!(names(&ns.await_pods_of("web", 1).await[0]), ["web"], "none of them");
    ns.patch("apps/v1", "replicasets", "web", &json!({"spec": {"replicas": 3}})).await;
    ns.await_pods_of("web", 3).await;

    named.push(good.clone());
    // The same owners for another controller, with a valid one this time.
    ns.create_workload("Job", "etl", &json!(named)).await;
    assert_eq!(names(&ns.await_pods_of("etl", 1).await[0]), ["etl", "good"], "the good one alone");

    let notes = eventually("each of them is reported", || async {
        let all = ns.wire.get(&ns.path("events.k8s.io/v1", "events")).await.expect(200);
        let all = all["items"].as_array().cloned().unwrap_or_default();
        let about = |event: &&Value| {
            event["reason"] == "OwnerLeftOut" && event["regarding"]["uid"] == set["metadata"]["uid"]
        };
        let notes: Vec<String> = all.iter().filter(about).map(|event| event["note"].to_string()).collect();
        let complete = expected.iter().all(|part| notes.iter().any(|note| note.contains(part.as_str())));
        if complete { Ok(notes) } else { Err(notes) }
    })
    .await;
    assert_eq!(notes.len(), expected.len(), "three pods, and each reported once: {notes:#?}");
    let described = ns.cluster.kubectl(&quorate_testbed::User::admin()).expect("kubectl");
    let described =
        described.run(&["describe", "rs", "web", "--namespace", &ns.name]).await.expect("kubectl");
    assert!(described.stdout.contains("OwnerLeftOut"), "{}{}", described.stdout, described.stderr);
    ns.patch(GROUPS, "jobgroups", "ending", &json!({"metadata": {"finalizers": null}})).await;
}
