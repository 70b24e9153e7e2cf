//! The API server restarts again and again. While it starts, its discovery is not complete: for half a second `/apis`
//! answers without the groups of CustomResourceDefinitions, although their objects can be read already. No kind is
//! dropped because of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::Error;
use kube::api::DeleteParams;
use quorate_devcluster::actors::install_leader_worker_sets;
use quorate_devcluster::apiserver::RequestFilter;
use quorate_testbed::{Cluster, eventually};
use serde_json::json;

use crate::fixture::{TestNamespace, spec_for_app};
use crate::replicas::Replicas;

quorate_testbed::stories!(Private(quorate_testbed::Options::default()):
    no_kind_is_dropped_while_the_api_server_restarts,
);

const RESTARTS: usize = 5;

/// Groups of definitions that the chart and OpenKruise bring.
const GROUPS: [&str; 3] = ["policy.kruise.io", "leaderworkerset.x-k8s.io", "scheduling.quorate.dev"];

async fn no_kind_is_dropped_while_the_api_server_restarts(cluster: Cluster) {
    install_leader_worker_sets(&cluster.admin()).await.expect("a definition");
    let replicas = Replicas::start(&cluster, 1, &[]).await;
    let ns = TestNamespace::with_manual_pods(&cluster, "restarts").await;
    ns.create_pods("web", 3).await;
    ns.create_pub_allowing("web", spec_for_app("web", "minAvailable", 3), 0).await;
    eventually("the server watches LeaderWorkerSets", || async {
        let log = replicas.log(0);
        if log.contains("kind=\"LeaderWorkerSet\"") { Ok(()) } else { Err(log) }
    })
    .await;

    let stopped = Arc::new(AtomicBool::new(false));
    let (pods, ends) = (ns.pods.clone(), stopped.clone());
    let deletes = tokio::spawn(async move {
        let mut denied = 0;
        while !ends.load(Ordering::Relaxed) {
            match pods.delete("web-0", &DeleteParams::default()).await {
                Ok(_) => panic!("web-0 was deleted after {denied} denials"),
                Err(Error::Api(status)) if status.code == 429 => denied += 1,
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        denied
    });
    for restart in 1..=RESTARTS {
        match (cluster.embedded(), cluster.control_plane()) {
            (Some(server), _) => {
                let faults = server.faults();
                let mut guards = GROUPS.map(|group| faults.partial_discovery(group, None));
                faults.cut_watches(RequestFilter::any());
                // The server reads the discovery when a definition changes.
                crate::unreadable::define_kind(&ns, &format!("restarts{restart}")).await;
                guards[0].struck(2).await;
            }
            (_, Some(plane)) => plane.restart_api_server().await.expect("an API server"),
            _ => {}
        }
        // The next one comes when this server has read everything again.
        let more = format!("more-{restart}");
        eventually("another budget is created", || async {
            let answer = ns.create_pub(&more, json!({}), spec_for_app(&more, "minAvailable", 1)).await;
            if answer.code == 201 { Ok(()) } else { Err(answer.body) }
        })
        .await;
        ns.await_pub_allowed(&more, 0).await;
    }
    stopped.store(true, Ordering::Relaxed);
    assert!(deletes.await.expect("no delete passed") > 0, "nothing was tried");
    let log = replicas.log(0);
    assert!(!log.contains("stopped the watch"), "{log}");
}
