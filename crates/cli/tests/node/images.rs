//! Names of images: a runtime may show another one than the spec has.

use quorate_testbed::{ALIAS, BUSYBOX, eventually};

use crate::fixture::{NodeFixture, with_node};

#[test]
fn the_claim_of_an_update_to_another_tag_of_the_image_ends() {
    with_node(another_tag);
}

/// Both tags name the same image. The kubelet replaces the container, because its spec has changed. containerd shows one of
/// the tags for both, so one of the two updates is never seen in the status: its claim expires.
async fn another_tag(fixture: NodeFixture) {
    for pod in ["web-0", "web-1"] {
        fixture.gated_pod(pod).await;
        fixture.gate(pod, "True").await.expect(200);
        fixture.run(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=60s"]).await;
    }
    fixture.budget_of(1, &["Evict", "Update"]).await;
    fixture.healthy(2).await;
    let mut shown_by_another_name = 0;
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
        shown_by_another_name += usize::from(!after["image"].as_str().unwrap_or_default().ends_with(image));
        fixture.unclaimed().await;
        fixture.healthy(2).await;
    }
    assert_eq!(shown_by_another_name, 1, "containerd shows one name for both tags");
}
