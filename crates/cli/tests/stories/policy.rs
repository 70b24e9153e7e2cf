//! Who may write the condition of a disruption probe. The embedded cluster has no ValidatingAdmissionPolicies: this is
//! told on the real API server alone.

use kube::config::AuthInfo;
use quorate_testbed::{Answer, Backend, Cluster, Options, Patch, Setup, User, Wire, eventually, run_story};
use serde_json::{Value, json};

use crate::quorate::{NAMESPACE, install, install_policy};

#[test]
fn the_condition_is_for_the_agent_of_the_node_alone() {
    run_story(Backend::Real, Setup::Private(Options::default()), only_the_agent_writes_it);
}

#[test]
fn an_agent_is_alive_on_its_own_node_alone() {
    run_story(Backend::Real, Setup::Private(Options::default()), only_its_own_lease);
}

/// An API server with the policy in force, the pods db-1 on node-1 and db-2 on node-2, and an agent on each.
struct Guarded {
    cluster: Cluster,
    namespace: String,
    admin: Wire,
}

impl Guarded {
    async fn set(cluster: Cluster) -> Self {
        install(&cluster).await;
        install_policy(&cluster).await;
        let namespace = cluster.namespace("db").await.expect("a namespace");
        let admin = cluster.wire();
        for node in ["node-1", "node-2"] {
            let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
            admin.post("/api/v1/nodes", &object).await.expect(201);
            let number = node.trim_start_matches("node-");
            let account = ("quorate-agent", NAMESPACE, format!("agent-{number}"));
            for (account, namespace, name) in
                [account, ("default", namespace.as_str(), format!("db-{number}"))]
            {
                let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
                    "spec": {"nodeName": node, "serviceAccountName": account,
                        "containers": [{"name": "main", "image": "main:1"}]}});
                admin.post(&format!("/api/v1/namespaces/{namespace}/pods"), &pod).await.expect(201);
            }
        }
        let guarded = Self { cluster, namespace, admin };
        // The API server takes a policy up a moment after it is written.
        eventually("the policy is in force", || async {
            let answer = guarded.write(&guarded.admin, "db-2?dryRun=All", &says("True")).await;
            if answer.code == 403 { Ok(()) } else { Err(answer.body) }
        })
        .await;
        guarded
    }

    /// The agent that runs in a pod, by a token as its kubelet would get it.
    async fn agent(&self, pod: Option<&str>) -> Wire {
        let mut spec = json!({"expirationSeconds": 3600});
        if let Some(name) = pod {
            let pod =
                self.admin.get(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}")).await.expect(200);
            spec["boundObjectRef"] =
                json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]});
        }
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/quorate-agent/token");
        let answer = self.admin.post(&path, &request).await.expect(201);
        let token = answer["status"]["token"].as_str().expect("a token").to_owned();
        let mut config = self.cluster.config(&User::admin());
        config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
        Wire::new(kube::Client::try_from(config).expect("a client"))
    }

    fn path(&self, pod: &str) -> String {
        let (name, query) = pod.split_once('?').unwrap_or((pod, ""));
        format!("/api/v1/namespaces/{}/pods/{name}/status?{query}", self.namespace)
    }

    /// Writes a pod's status as kubelets and agents do.
    async fn write(&self, who: &Wire, pod: &str, status: &Value) -> Answer {
        who.patch(&self.path(pod), Patch::Strategic, status).await
    }

    /// What the pod says now.
    async fn disruptable(&self, pod: &str) -> Value {
        let pod = self.admin.get(&self.path(pod)).await.expect(200);
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().find(|c| c["type"] == "Disruptable").map_or(Value::Null, |c| c["status"].clone())
    }
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": status}]}})
}

fn says(status: &str) -> Value {
    condition("Disruptable", status)
}

/// What the API server says after the names of pod and policy.
fn refusal(answer: &Answer) -> &str {
    assert_eq!(answer.code, 403, "{}", answer.body);
    let message = answer.body["message"].as_str().expect("a message");
    message.split_once("denied request: ").map_or(message, |(_, sentence)| sentence)
}

const ALONE: &str = "only the agent of the pod's node may write the condition Disruptable; do not change it";
const REST: &str = "an agent may change only the condition Disruptable of a pod's status";
const META: &str = "an agent may not change labels, annotations or finalizers";

async fn only_the_agent_writes_it(cluster: Cluster) {
    let guarded = Guarded::set(cluster).await;
    agents(&guarded).await;
    everybody_else(&guarded).await;
}

async fn agents(guarded: &Guarded) {
    let [one, two] = [guarded.agent(Some("agent-1")).await, guarded.agent(Some("agent-2")).await];
    for status in ["True", "False", "True"] {
        guarded.write(&one, "db-1", &says(status)).await.expect(200);
        assert_eq!(guarded.disruptable("db-1").await, status);
    }
    // Of another node's pods it says nothing, whether or not they say something already.
    let other = guarded.write(&two, "db-1", &says("False")).await;
    assert_eq!(refusal(&other), "this is the agent of node node-2; the pod is on node node-1");
    let other = guarded.write(&one, "db-2", &says("True")).await;
    assert_eq!(refusal(&other), "this is the agent of node node-1; the pod is on node node-2");
    let homeless = guarded.agent(None).await;
    let unbound = guarded.write(&homeless, "db-1", &says("False")).await;
    assert_eq!(refusal(&unbound), "this token names no node; an agent's token must be bound to its pod");

    // Nothing but the condition, also not together with it.
    let both = json!({"status": {"conditions": [
        {"type": "Disruptable", "status": "False"}, {"type": "Ready", "status": "True"}]}});
    for status in [
        condition("Ready", "True"),
        both,
        json!({"status": {"phase": "Failed"}}),
        json!({"status": {"podIPs": [{"ip": "198.51.100.9"}], "podIP": "198.51.100.9"}}),
        json!({"status": {"phase": null}}),
    ] {
        assert_eq!(refusal(&guarded.write(&one, "db-1", &status).await), REST, "{status}");
    }
    for metadata in [
        json!({"labels": {"app": "other"}}),
        json!({"annotations": {"quorate.dev/disruption-probe.main": "{}"}}),
        json!({"finalizers": ["example.com/kept"]}),
    ] {
        let patch = json!({"metadata": metadata});
        assert_eq!(refusal(&guarded.write(&one, "db-1", &patch).await), META, "{patch}");
    }
    // The spec is nothing that can be written here, and may not be written elsewhere.
    let image = json!({"spec": {"containers": [{"name": "main", "image": "other:1"}]}});
    let stored = guarded.write(&one, "db-1", &image).await.expect(200);
    assert_eq!(stored["spec"]["containers"][0]["image"], "main:1");
    let pod = format!("/api/v1/namespaces/{}/pods/db-1", guarded.namespace);
    assert_eq!(one.patch(&pod, Patch::Strategic, &image).await.code, 403);
    assert_eq!(one.delete(&pod, &json!({})).await.code, 403);
    assert_eq!(guarded.disruptable("db-1").await, "True");
}

async fn everybody_else(guarded: &Guarded) {
    let wire = |user: User| Wire::new(guarded.cluster.client(&user));
    for who in [guarded.admin.clone(), wire(User::kubelet("node-1")), wire(User::kubelet("node-2"))] {
        // Another kubelet may write nothing of this pod anyway.
        for (pod, status) in [("db-1", says("False")), ("db-2", says("True"))] {
            assert_eq!(guarded.write(&who, pod, &status).await.code, 403, "{status}");
        }
    }
    let kubelet = wire(User::kubelet("node-1"));
    assert_eq!(refusal(&guarded.write(&kubelet, "db-1", &says("False")).await), ALONE);
    let remove = json!({"status": {"conditions": [{"type": "Disruptable", "$patch": "delete"}]}});
    assert_eq!(refusal(&guarded.write(&kubelet, "db-1", &remove).await), ALONE);
    let replace = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let merged = guarded.admin.patch(&guarded.path("db-1"), Patch::Merge, &replace).await;
    assert_eq!(refusal(&merged), ALONE, "a merge patch takes the others away");

    // As long as they leave it as it is, they pass: by a patch that does not name it, that names it, and by a PUT.
    for status in ["True", "False"] {
        guarded.write(&kubelet, "db-1", &condition("Ready", status)).await.expect(200);
    }
    let named = json!({"metadata": {"labels": {"seen": "true"}}, "status": {"phase": "Running", "conditions": [
        {"type": "Disruptable", "status": "True"}, {"type": "Ready", "status": "True"}]}});
    guarded.write(&kubelet, "db-1", &named).await.expect(200);
    let mut whole = guarded.admin.get(&guarded.path("db-1")).await.expect(200);
    whole["status"]["message"] = json!("all of it");
    whole["status"]["conditions"].as_array_mut().expect("conditions").reverse();
    kubelet.put(&guarded.path("db-1"), &whole).await.expect(200);
    guarded.write(&guarded.admin, "db-2", &condition("Ready", "True")).await.expect(200);
    assert_eq!(
        (guarded.disruptable("db-1").await, guarded.disruptable("db-2").await),
        (json!("True"), Value::Null)
    );

    // Whoever may write it may take it away: then nobody is believed.
    let one = guarded.agent(Some("agent-1")).await;
    guarded.write(&one, "db-1", &remove).await.expect(200);
    assert_eq!(guarded.disruptable("db-1").await, Value::Null);
}

async fn only_its_own_lease(cluster: Cluster) {
    let guarded = Guarded::set(cluster).await;
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
    let lease = |name: &str, holder: &str| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 30}})
    };
    let one = guarded.agent(Some("agent-1")).await;
    let only = "the agent of node node-1 may write only the Lease quorate-agent-node-1, with its node as holderIdentity";
    // This is another policy than the one for pods, and is taken up in its own time.
    eventually("the policy for Leases is in force", || async {
        let answer = one.post(&format!("{leases}?dryRun=All"), &lease("x", "node-1")).await;
        if answer.message().ends_with(only) { Ok(()) } else { Err(answer.body) }
    })
    .await;
    guarded.admin.post(&leases, &lease("quorate-server", "a-server")).await.expect(201);
    let two = guarded.agent(Some("agent-2")).await;
    two.post(&leases, &lease("quorate-agent-node-2", "node-2")).await.expect(201);
    let other = format!("{leases}/quorate-agent-node-2");
    for (name, holder) in
        [("quorate-agent-node-2", "node-2"), ("quorate-agent-node-1", "node-2"), ("x", "node-1")]
    {
        let answer = one.post(&leases, &lease(name, holder)).await;
        assert_eq!(refusal(&answer), only, "{name} {holder}");
    }
    one.post(&leases, &lease("quorate-agent-node-1", "node-1")).await.expect(201);
    let hold = |holder: &str| json!({"spec": {"holderIdentity": holder}});
    let own = format!("{leases}/quorate-agent-node-1");
    one.patch(&own, Patch::Merge, &hold("node-1")).await.expect(200);
    assert_eq!(refusal(&one.patch(&own, Patch::Merge, &hold("node-2")).await), only);
    let servers = format!("{leases}/quorate-server");
    assert_eq!(refusal(&one.patch(&servers, Patch::Merge, &hold("node-1")).await), only);
    let homeless = guarded.agent(None).await;
    let unbound = homeless.patch(&own, Patch::Merge, &hold("node-1")).await;
    assert_eq!(refusal(&unbound), "this token names no node; an agent's token must be bound to its pod");
    for lease in [&servers, &other] {
        assert_eq!(refusal(&one.delete(lease, &json!({})).await), only);
    }
    one.delete(&own, &json!({})).await.expect(200);
    // Others' Leases are nothing to the policy.
    guarded.admin.patch(&servers, Patch::Merge, &hold("another-server")).await.expect(200);
}
