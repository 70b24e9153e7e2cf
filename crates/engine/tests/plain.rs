//! A default pod, which tests complete.

use quorate_engine::basics::{Labels, ObjectKey, Uid, Version};
use quorate_engine::facts::{Container, Phase, Pod};

/// A pod that has not started.
pub(crate) fn pod(key: ObjectKey, uid: Uid, version: Version) -> Pod {
    Pod {
        key,
        uid,
        version,
        labels: Labels::default(),
        node: None,
        phase: Phase::Pending,
        terminating: false,
        ready: false,
        ready_since: None,
        announced: false,
        consistent: true,
        waives: false,
        probe: None,
        owners: std::sync::Arc::default(),
        link: None,
        group_size: None,
        deadline: None,
        grace_seconds: 0,
        resize_infeasible: false,
        containers: Box::default(),
    }
}

/// The only container of the pod. It runs the image that it was created with.
pub(crate) fn container(version: Version) -> Container {
    Container { name: "main".into(), id: version.0, image: 1, resources: 0, spec_image: 1, spec_resources: 0 }
}
