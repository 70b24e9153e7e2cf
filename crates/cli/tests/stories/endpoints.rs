//! Where the chart's Service leads: the endpoints that Kubernetes would write if servers were pods.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use quorate_testbed::Cluster;
use serde_json::json;

use crate::quorate::NAMESPACE;

/// The endpoints of the Service; each server has a port of its own here, and hence a slice.
pub(crate) struct Endpoints {
    slices: Api<EndpointSlice>,
}

impl Endpoints {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        Self { slices: Api::namespaced(cluster.admin(), NAMESPACE) }
    }

    /// Has the Service lead to a server, and no longer to where one of that name was before.
    pub(crate) async fn add(&self, server: &str, address: SocketAddr) -> Result<(), kube::Error> {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": server, "labels": {"kubernetes.io/service-name": "quorate"}},
            "endpoints": [{"addresses": [address.ip()], "conditions": {"ready": true}}],
            "ports": [{"name": "webhooks", "port": address.port(), "protocol": "TCP"}],
        });
        let params = PatchParams::apply("stories").force();
        self.slices.patch(server, &params, &Patch::Apply(&slice)).await?;
        Ok(())
    }

    /// Has the Service lead there no more; where it did not, that is as well.
    pub(crate) async fn remove(&self, server: &str) -> Result<(), kube::Error> {
        match self.slices.delete(server, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}

/// Where a server listens so that a Service may lead there: a real API server takes no endpoint on the loopback.
pub(crate) fn reachable(cluster: &Cluster) -> SocketAddr {
    SocketAddr::new(address(cluster), 0)
}

fn address(cluster: &Cluster) -> IpAddr {
    if cluster.control_plane().is_none() {
        return IpAddr::V4(Ipv4Addr::LOCALHOST);
    }
    // Nothing is sent: the kernel only says from where it would be.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
    socket.connect("203.0.113.1:9").expect("a route: this machine has no address but its loopback");
    socket.local_addr().expect("an address").ip()
}
