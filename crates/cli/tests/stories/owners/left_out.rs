//! Owners that would not last.

use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use super::{GROUPS, Lab, names, reference};

quorate_testbed::stories!(Whole: an_owner_that_would_not_last_is_left_out_and_told_once);

async fn an_owner_that_would_not_last_is_left_out_and_told_once(cluster: Cluster) {
    let lab = Lab::open(cluster, "left-out").await;
    let good = lab.group("good").await;
    let with = |field: &str, value: Value| {
        let mut owner = good.clone();
        owner[field] = value;
        owner
    };
    let ending = json!({"apiVersion": GROUPS, "kind": "JobGroup",
        "metadata": {"name": "ending", "finalizers": ["example.com/held"]}});
    let ending = reference(&lab.create(GROUPS, "jobgroups", &ending).await);
    lab.delete(GROUPS, "jobgroups", "ending", "Background").await;
    let elsewhere = lab.cluster.namespace("elsewhere").await.expect("a namespace");
    let abroad = json!({"apiVersion": GROUPS, "kind": "JobGroup", "metadata": {"name": "abroad"}});
    let path = format!("/apis/{GROUPS}/namespaces/{elsewhere}/jobgroups");
    let abroad = reference(&lab.wire.post(&path, &abroad).await.expect(201));
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
    if lab.cluster.embedded().is_none() {
        // There are rights to lack.
        named.push(unread);
        expected
            .push("Secret any is left out as an owner of the pods: Quorate may not read secrets".to_owned());
    }
    let set = lab.workload("ReplicaSet", "web", &json!(named)).await;
    assert_eq!(names(&lab.pods("web", 1).await[0]), ["web"], "none of them");
    lab.patch("apps/v1", "replicasets/web", &json!({"spec": {"replicas": 3}})).await;
    lab.pods("web", 3).await;

    named.push(good.clone());
    // The same template, used by another controller: with the good one this time.
    lab.workload("Job", "etl", &json!(named)).await;
    assert_eq!(names(&lab.pods("etl", 1).await[0]), ["etl", "good"], "the good one alone");

    let told = eventually("each of them is told", || async {
        let all = lab.wire.get(&lab.path("events.k8s.io/v1", "events")).await.expect(200);
        let all = all["items"].as_array().cloned().unwrap_or_default();
        let about = |event: &&Value| {
            event["reason"] == "OwnerLeftOut" && event["regarding"]["uid"] == set["metadata"]["uid"]
        };
        let notes: Vec<String> = all.iter().filter(about).map(|event| event["note"].to_string()).collect();
        let complete = expected.iter().all(|part| notes.iter().any(|note| note.contains(part.as_str())));
        if complete { Ok(notes) } else { Err(notes) }
    })
    .await;
    assert_eq!(told.len(), expected.len(), "three pods, and each told once: {told:#?}");
    let described = lab.cluster.kubectl(&quorate_testbed::User::admin()).expect("kubectl");
    let described =
        described.run(&["describe", "rs", "web", "--namespace", &lab.namespace]).await.expect("kubectl");
    assert!(described.stdout.contains("OwnerLeftOut"), "{}{}", described.stdout, described.stderr);
    lab.patch(GROUPS, "jobgroups/ending", &json!({"metadata": {"finalizers": null}})).await;
}
