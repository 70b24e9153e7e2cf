//! Adds, silences, revives and removes hollow nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::api::DeleteParams;
use kube::{Client, Error, ResourceExt};
use serde_json::json;

use super::super::ActorContext;
use super::super::cache::Key;
use super::super::identities::{controller, kubelet};
use super::super::pods;
use super::super::request::{self, ErrorExt};
use super::{Kubelets, SimulatedNode, node, stamp};

/// Interval of heartbeats. The control plane considers a node lost after 40 s without one.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The properties of a new node.
#[derive(Clone, Debug)]
pub struct NodeTemplate {
    /// Labels in addition to those that every node has.
    pub labels: BTreeMap<String, String>,
    /// Taints with which the node registers.
    pub taints: Vec<Taint>,
    /// Maximum number of pods.
    pub pods: u32,
}

impl Default for NodeTemplate {
    fn default() -> Self {
        Self { labels: BTreeMap::new(), taints: Vec::new(), pods: 110 }
    }
}

/// The nodes that this process simulates.
#[derive(Clone)]
pub struct Nodes {
    kubelets: Kubelets,
    /// Writes the status of nodes whose kubelet is silent.
    node_controller: Client,
}

impl Nodes {
    pub(crate) fn start(context: &ActorContext, kubelets: Kubelets) -> Self {
        let nodes =
            Self { kubelets, node_controller: context.identities.client(&controller("node-controller")) };
        let beating = nodes.clone();
        context.tasks.spawn(async move {
            let mut heartbeat = tokio::time::interval(HEARTBEAT);
            heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                heartbeat.tick().await;
                beating.renew_all().await;
            }
        });
        nodes
    }

    /// Adds a node that is ready for pods.
    ///
    /// # Errors
    /// The API server rejects a request.
    pub async fn add(&self, name: &str) -> Result<(), Error> {
        self.add_like(name, &NodeTemplate::default()).await
    }

    /// Adds a node with its own labels, taints and size.
    ///
    /// # Errors
    /// The API server rejects a request.
    pub async fn add_like(&self, name: &str, template: &NodeTemplate) -> Result<(), Error> {
        let client = self.kubelets.shared.identities.client(&kubelet(name));
        let before = match request::create::<Node>(&client, &(), "", &node::object(name, template)).await {
            Ok(node) => Some(node),
            // The Node already exists from an earlier kubelet: take it over.
            Err(error) if error.is_already_exists() => None,
            Err(error) => return Err(error),
        };
        let address = {
            let mut state = self.kubelets.shared.state.lock();
            let number = u32::try_from(state.nodes.len()).unwrap_or(u32::MAX) + 1;
            let [_, b, c, d] = number.to_be_bytes();
            let address = format!("10.{b}.{c}.{d}");
            let host = SimulatedNode { client: client.clone(), address: address.clone(), running: true };
            state.nodes.insert(name.to_owned(), host);
            address
        };
        let report = node::well(name, &address, template, before.as_ref(), Timestamp::now());
        let key = Key::new("", name);
        let shown = request::strategic::<Node>(&client, &(), &key, Some("status"), &report).await?;
        self.renew(name, &client).await?;
        self.set_taints(shown, true).await?;
        self.wake(name);
        Ok(())
    }

    /// Stops the kubelet of this node. Its pods stay as they are, and no kubelet terminates them. The control plane
    /// considers the node unreachable at once, and its pods not ready.
    ///
    /// # Errors
    /// The API server rejects a request.
    pub async fn silence(&self, name: &str) -> Result<(), Error> {
        self.set_running(name, false);
        let key = Key::new("", name);
        let now = Timestamp::now();
        let report = node::silent(None, now);
        let shown =
            request::strategic::<Node>(&self.node_controller, &(), &key, Some("status"), &report).await?;
        self.set_taints(shown, false).await?;
        for pod in self.kubelets.shared.pods.by_index(name) {
            if !pods::is_ready(&pod) {
                continue;
            }
            let patch = json!({"metadata": {"uid": pods::uid(pod.as_ref())}, "status": {"conditions": [{
                "type": "Ready", "status": "False", "reason": "NodeNotReady", "lastTransitionTime": stamp(now),
            }]}});
            let key = Key::of(pod.as_ref());
            match request::strategic::<Pod>(&self.node_controller, &(), &key, Some("status"), &patch).await {
                Ok(pod) => self.kubelets.shared.pods.wrote(pod),
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Starts the kubelet of a silent node again.
    ///
    /// # Errors
    /// The API server rejects a request.
    pub async fn revive(&self, name: &str) -> Result<(), Error> {
        let client = self.kubelets.shared.identities.client(&kubelet(name));
        let conditions = node::well(name, "", &NodeTemplate::default(), None, Timestamp::now());
        let report = json!({"status": {"conditions": conditions["status"]["conditions"]}});
        let key = Key::new("", name);
        let shown = request::strategic::<Node>(&client, &(), &key, Some("status"), &report).await?;
        self.renew(name, &client).await?;
        self.set_taints(shown, true).await?;
        self.set_running(name, true);
        self.wake(name);
        Ok(())
    }

    /// Removes the machine and its Node object.
    ///
    /// # Errors
    /// The API server rejects a request.
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        self.kubelets.shared.state.lock().nodes.remove(name);
        let key = Key::new("", name);
        match request::delete::<Node>(&self.node_controller, &(), &key, &DeleteParams::default()).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// The names of the nodes, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.kubelets.shared.state.lock().nodes.keys().cloned().collect();
        names.sort();
        names
    }

    fn set_running(&self, name: &str, running: bool) {
        if let Some(host) = self.kubelets.shared.state.lock().nodes.get_mut(name) {
            host.running = running;
        }
    }

    /// Queues every pod of this node.
    fn wake(&self, name: &str) {
        for pod in self.kubelets.shared.pods.by_index(name) {
            self.kubelets.shared.queue.add(Key::of(pod.as_ref()));
        }
    }

    async fn set_taints(&self, mut shown: Node, reachable: bool) -> Result<(), Error> {
        let key = Key::of(&shown);
        while let Some(patch) = node::taints(&shown, reachable, Timestamp::now()) {
            match request::merge::<Node>(&self.node_controller, &(), &key, None, &patch).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() => {
                    let api: kube::Api<Node> = kube::Api::all(self.node_controller.clone());
                    shown = api.get(&shown.name_any()).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn renew_all(&self) {
        let running: Vec<_> = {
            let state = self.kubelets.shared.state.lock();
            let running = state.nodes.iter().filter(|(_, host)| host.running);
            running.map(|(name, host)| (name.clone(), host.client.clone())).collect()
        };
        futures::stream::iter(running)
            .for_each_concurrent(8, |(name, client)| async move {
                if let Err(error) = self.renew(&name, &client).await {
                    tracing::debug!(%error, node = name, "lease not renewed");
                }
            })
            .await;
    }

    async fn renew(&self, name: &str, client: &Client) -> Result<(), Error> {
        let lease = node::lease(name, Timestamp::now());
        let key = Key::new("kube-node-lease", name);
        match request::merge::<Lease>(client, &(), &key, None, &lease).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => {
                match request::create::<Lease>(client, &(), &key.namespace, &lease).await {
                    // A cluster without the namespace, or without Leases, has no heartbeats.
                    Err(error) if !error.is_not_found() && !error.is_already_exists() => Err(error),
                    _ => Ok(()),
                }
            }
            Err(error) => Err(error),
        }
    }
}
