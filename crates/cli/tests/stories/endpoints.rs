//! The endpoints of the chart's Service, which Kubernetes would write if the servers were pods.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use quorate_testbed::Cluster;
use serde_json::json;

use crate::quorate::NAMESPACE;

/// The endpoints of the Service. Each server has another port here, and hence its own EndpointSlice.
pub(crate) struct Endpoints {
    slices: Api<EndpointSlice>,
}

impl Endpoints {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        Self { slices: Api::namespaced(cluster.admin(), NAMESPACE) }
    }

    /// Adds the endpoint of a server; replaces an earlier endpoint of the same name.
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

    /// Removes the endpoint of a server, if there is one.
    pub(crate) async fn remove(&self, server: &str) -> Result<(), kube::Error> {
        match self.slices.delete(server, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}

/// An address for a server behind a Service: a real API server rejects endpoints on the loopback.
pub(crate) fn reachable(cluster: &Cluster) -> SocketAddr {
    SocketAddr::new(address(cluster), 0)
}

fn address(cluster: &Cluster) -> IpAddr {
    if cluster.control_plane().is_none() {
        return IpAddr::V4(Ipv4Addr::LOCALHOST);
    }
    // Nothing is sent: the kernel only selects the local address.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
    socket.connect("203.0.113.1:9").expect("a route: this machine has no address but its loopback");
    socket.local_addr().expect("an address").ip()
}
