//! Names of images: a runtime may show another one than the spec has.

use quorate_testbed::{ALIAS, BUSYBOX, eventually};

use crate::fixture::{NodeFixture, with_node};

#[test]
fn an_update_to_another_tag_ends_when_the_status_shows_it_or_the_pod_goes() {
    with_node(another_tag);
}

/// Both tags name the same image. The kubelet replaces the container, because its spec has changed. containerd shows one of
/// the tags for both, so one of the two updates is never seen to be done: the pod does not show whether its container was
/// started before or after the kubelet saw the change.
async fn another_tag(fixture: NodeFixture) {
    for pod in ["web-0", "web-1"] {
        fixture.gated_pod(pod).await;
        fixture.gate(pod, "True").await.expect(200);
        fixture.run(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=60s"]).await;
    }
    fixture.budget_of(1, &["Evict", "Update"]).await;
    fixture.healthy(2).await;
    for image in [ALIAS, BUSYBOX] {
        let before = fixture.container("web-0").await;
        fixture.set_image("web-0", image).await.expect(200);
        let after = eventually("the container is replaced", || async {
            let now = fixture.container("web-0").await;
            let replaced = now["containerID"] != before["containerID"] && now["ready"] == true;
            if replaced { Ok(now) } else { Err(now) }
        })
        .await;
        println!("the spec has {image}; the status has {} {}", after["image"], after["imageID"]);
        if after["image"].as_str().is_some_and(|shown| shown.ends_with(image)) {
            fixture.unclaimed().await;
            fixture.healthy(2).await;
        } else {
            fixture.healthy(1).await;
            fixture.run(&["delete", "pod/web-0", "--grace-period=1", "--timeout=60s"]).await;
            fixture.unclaimed().await;
            return;
        }
    }
    panic!("containerd shows both tags: the claim of such an update can end when the status shows it");
}
