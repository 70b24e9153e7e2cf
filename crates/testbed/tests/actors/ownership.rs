//! Tests of owners and their dependents.

use kube::ResourceExt;
use kube::api::DeleteParams;
use quorate_testbed::{Cluster, eventually};
use serde_json::{Value, json};

use crate::fixture::{Fixture, template};

mod alone {
    use super::*;
    quorate_testbed::stories!(ApiServer: dependents_are_deleted_after_their_owner, foreground_deletion_waits_for_blocking_dependents, orphan_deletion_removes_the_owner_reference, a_namespace_is_deleted_with_its_contents);
}
/// The same stories with the real controllers: the actors must behave like them.
mod beside {
    #[test]
    fn dependents_are_deleted_after_their_owner() {
        quorate_testbed::run_story(
            quorate_testbed::Backend::Real,
            quorate_testbed::Setup::Controllers,
            super::dependents_are_deleted_after_their_owner,
        );
    }

    #[test]
    fn foreground_deletion_waits_for_blocking_dependents() {
        quorate_testbed::run_story(
            quorate_testbed::Backend::Real,
            quorate_testbed::Setup::Controllers,
            super::foreground_deletion_waits_for_blocking_dependents,
        );
    }

    #[test]
    fn orphan_deletion_removes_the_owner_reference() {
        quorate_testbed::run_story(
            quorate_testbed::Backend::Real,
            quorate_testbed::Setup::Controllers,
            super::orphan_deletion_removes_the_owner_reference,
        );
    }

    #[test]
    fn a_namespace_is_deleted_with_its_contents() {
        quorate_testbed::run_story(
            quorate_testbed::Backend::Real,
            quorate_testbed::Setup::Controllers,
            super::a_namespace_is_deleted_with_its_contents,
        );
    }
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

async fn owned(fixture: &Fixture, name: &str, owners: &[(&str, &str)], more: Value) {
    let references: Vec<_> = owners
        .iter()
        .map(|(name, uid)| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": true})
        })
        .collect();
    let mut object = map(name);
    object["metadata"]["ownerReferences"] = json!(references);
    if let Some(fields) = more.as_object() {
        for (field, value) in fields {
            object["metadata"][field] = value.clone();
        }
    }
    fixture.create(object).await;
}

async fn gone(fixture: &Fixture, name: &str) {
    eventually(&format!("{name} is gone"), || async {
        match fixture.api(&map(name)).get_opt(name).await.unwrap() {
            None => Ok(()),
            Some(object) => Err(object.metadata),
        }
    })
    .await;
}

async fn dependents_are_deleted_after_their_owner(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "background").await;
    let owner = fixture.create(map("owner")).await.uid().unwrap();
    let other = fixture.create(map("other")).await.uid().unwrap();
    owned(&fixture, "child", &[("owner", &owner)], json!({})).await;
    let child = fixture.api(&map("child")).get("child").await.unwrap().uid().unwrap();
    owned(&fixture, "grandchild", &[("child", &child)], json!({})).await;
    owned(&fixture, "shared", &[("owner", &owner), ("other", &other)], json!({})).await;
    fixture.api(&map("owner")).delete("owner", &DeleteParams::background()).await.unwrap();
    gone(&fixture, "child").await;
    gone(&fixture, "grandchild").await;
    eventually("the shared object keeps only its other owner", || async {
        let shared = fixture.api(&map("shared")).get("shared").await.unwrap();
        let owners: Vec<_> = shared.owner_references().iter().map(|owner| owner.name.clone()).collect();
        if owners == ["other"] { Ok(()) } else { Err(owners) }
    })
    .await;
    // An object whose owner never existed is deleted, too.
    owned(&fixture, "orphan", &[("missing", "00000000-0000-0000-0000-000000000000")], json!({})).await;
    gone(&fixture, "orphan").await;
}

async fn foreground_deletion_waits_for_blocking_dependents(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "foreground").await;
    let owner = fixture.create(map("owner")).await.uid().unwrap();
    owned(&fixture, "child", &[("owner", &owner)], json!({"finalizers": ["example.com/hold"]})).await;
    let api = fixture.api(&map("owner"));
    api.delete("owner", &DeleteParams::foreground()).await.unwrap();
    eventually("the child is terminating", || async {
        let child = api.get("child").await.unwrap();
        child.metadata.deletion_timestamp.ok_or("not yet")
    })
    .await;
    let waiting = api.get("owner").await.unwrap();
    assert_eq!(waiting.finalizers(), ["foregroundDeletion"]);
    let free = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("child", &Default::default(), &free).await.unwrap();
    gone(&fixture, "child").await;
    gone(&fixture, "owner").await;
}

async fn orphan_deletion_removes_the_owner_reference(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "orphans").await;
    let owner = fixture.create(map("owner")).await.uid().unwrap();
    owned(&fixture, "child", &[("owner", &owner)], json!({})).await;
    fixture.api(&map("owner")).delete("owner", &DeleteParams::orphan()).await.unwrap();
    gone(&fixture, "owner").await;
    let child = fixture.api(&map("child")).get("child").await.unwrap();
    assert!(child.owner_references().is_empty());
}

async fn a_namespace_is_deleted_with_its_contents(cluster: Cluster) {
    let fixture = Fixture::new(cluster, "ending").await;
    let set = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template(json!({"app": "web"}), "web:1")}});
    fixture.create(set).await;
    fixture.create(map("config")).await;
    fixture.ready("app=web", 3).await;
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(fixture.client.clone());
    namespaces.delete(&fixture.namespace, &DeleteParams::default()).await.unwrap();
    eventually("the namespace is gone", || async {
        match namespaces.get_opt(&fixture.namespace).await.unwrap() {
            None => Ok(()),
            Some(namespace) => Err(namespace.status),
        }
    })
    .await;
    assert!(fixture.list("").await.is_empty());
}
