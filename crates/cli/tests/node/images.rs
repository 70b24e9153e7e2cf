//! Names of images: a runtime may show another one than the spec has.

use quorate_testbed::{ALIAS, BUSYBOX, eventually};

use crate::fixture::{NodeFixture, with_node};

#[test]
#[ignore = "the claim stays: containerd shows the first tag of the image, and the pod does not show whether its container \
            was started before or after the kubelet saw the change"]
fn an_update_to_another_tag_of_the_same_image_is_settled() {
    with_node(another_tag);
}

/// Both tags name the same image. The kubelet replaces the container, because its spec has changed.
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
        fixture.unclaimed().await;
        fixture.healthy(2).await;
    }
}
