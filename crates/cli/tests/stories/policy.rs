//! Which users may write the condition of a disruption probe. The embedded cluster has no ValidatingAdmissionPolicies,
//! so this runs only on a real API server.

use kube::config::AuthInfo;
use quorate_testbed::{
    Backend, Cluster, Options, Patch, Setup, User, Wire, WireResponse, eventually, run_story,
};
use serde_json::{Value, json};

use crate::quorate::{NAMESPACE, install, install_policy};

#[test]
fn only_the_agent_of_the_node_writes_the_condition() {
    run_story(Backend::Real, Setup::Private(Options::default()), condition_policy);
}

#[test]
fn an_agent_writes_only_the_lease_of_its_node() {
    run_story(Backend::Real, Setup::Private(Options::default()), lease_policy);
}

/// An API server with the policy in force, the pods db-1 on node-1 and db-2 on node-2, and an agent on each.
struct PolicyFixture {
    cluster: Cluster,
    namespace: String,
    admin: Wire,
}

impl PolicyFixture {
    async fn start(cluster: Cluster) -> Self {
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
        let fixture = Self { cluster, namespace, admin };
        // The API server uses a policy a moment after it is written.
        eventually("the policy is in force", || async {
            let answer = fixture.write(&fixture.admin, "db-2?dryRun=All", &disruptable("True")).await;
            if answer.code == 403 { Ok(()) } else { Err(answer.body) }
        })
        .await;
        fixture
    }

    /// Requests as the agent in a pod, with a token as its kubelet would request it.
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
    async fn write(&self, user: &Wire, pod: &str, status: &Value) -> WireResponse {
        user.patch(&self.path(pod), Patch::Strategic, status).await
    }

    /// The status of the condition `Disruptable` of a pod.
    async fn disruptable(&self, pod: &str) -> Value {
        let pod = self.admin.get(&self.path(pod)).await.expect(200);
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().find(|c| c["type"] == "Disruptable").map_or(Value::Null, |c| c["status"].clone())
    }
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": status}]}})
}

fn disruptable(status: &str) -> Value {
    condition("Disruptable", status)
}

/// The message of the API server after the names of pod and policy.
fn denial(answer: &WireResponse) -> &str {
    assert_eq!(answer.code, 403, "{}", answer.body);
    let message = answer.body["message"].as_str().expect("a message");
    message.split_once("denied request: ").map_or(message, |(_, sentence)| sentence)
}

const ALONE: &str = "only the agent of the pod's node may write the condition Disruptable; do not change it";
const REST: &str = "an agent may change only the condition Disruptable of a pod's status";
const META: &str = "an agent may not change labels, annotations or finalizers";

async fn condition_policy(cluster: Cluster) {
    let fixture = PolicyFixture::start(cluster).await;
    agents(&fixture).await;
    other_users(&fixture).await;
}

async fn agents(fixture: &PolicyFixture) {
    let [one, two] = [fixture.agent(Some("agent-1")).await, fixture.agent(Some("agent-2")).await];
    for status in ["True", "False", "True"] {
        fixture.write(&one, "db-1", &disruptable(status)).await.expect(200);
        assert_eq!(fixture.disruptable("db-1").await, status);
    }
    // An agent may not write the condition of pods on another node, whether or not they have it.
    let other = fixture.write(&two, "db-1", &disruptable("False")).await;
    assert_eq!(denial(&other), "this is the agent of node node-2; the pod is on node node-1");
    let other = fixture.write(&one, "db-2", &disruptable("True")).await;
    assert_eq!(denial(&other), "this is the agent of node node-1; the pod is on node node-2");
    let without_pod = fixture.agent(None).await;
    let unbound = fixture.write(&without_pod, "db-1", &disruptable("False")).await;
    assert_eq!(denial(&unbound), "this token names no node; an agent's token must be bound to its pod");

    // An agent may change only the condition, and nothing together with it.
    let both = json!({"status": {"conditions": [
        {"type": "Disruptable", "status": "False"}, {"type": "Ready", "status": "True"}]}});
    for status in [
        condition("Ready", "True"),
        both,
        json!({"status": {"phase": "Failed"}}),
        json!({"status": {"podIPs": [{"ip": "198.51.100.9"}], "podIP": "198.51.100.9"}}),
        json!({"status": {"phase": null}}),
    ] {
        assert_eq!(denial(&fixture.write(&one, "db-1", &status).await), REST, "{status}");
    }
    for metadata in [
        json!({"labels": {"app": "other"}}),
        json!({"annotations": {"quorate.dev/disruption-probe.main": "{}"}}),
        json!({"finalizers": ["example.com/kept"]}),
    ] {
        let patch = json!({"metadata": metadata});
        assert_eq!(denial(&fixture.write(&one, "db-1", &patch).await), META, "{patch}");
    }
    // The status subresource ignores the spec, and an agent may not write the pod itself.
    let image = json!({"spec": {"containers": [{"name": "main", "image": "other:1"}]}});
    let stored = fixture.write(&one, "db-1", &image).await.expect(200);
    assert_eq!(stored["spec"]["containers"][0]["image"], "main:1");
    let pod = format!("/api/v1/namespaces/{}/pods/db-1", fixture.namespace);
    assert_eq!(one.patch(&pod, Patch::Strategic, &image).await.code, 403);
    assert_eq!(one.delete(&pod, &json!({})).await.code, 403);
    assert_eq!(fixture.disruptable("db-1").await, "True");
}

async fn other_users(fixture: &PolicyFixture) {
    let wire = |user: User| Wire::new(fixture.cluster.client(&user));
    for user in [fixture.admin.clone(), wire(User::kubelet("node-1")), wire(User::kubelet("node-2"))] {
        // A kubelet may write nothing of pods on another node anyway.
        for (pod, status) in [("db-1", disruptable("False")), ("db-2", disruptable("True"))] {
            assert_eq!(fixture.write(&user, pod, &status).await.code, 403, "{status}");
        }
    }
    let kubelet = wire(User::kubelet("node-1"));
    assert_eq!(denial(&fixture.write(&kubelet, "db-1", &disruptable("False")).await), ALONE);
    let remove = json!({"status": {"conditions": [{"type": "Disruptable", "$patch": "delete"}]}});
    assert_eq!(denial(&fixture.write(&kubelet, "db-1", &remove).await), ALONE);
    let replace = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let merged = fixture.admin.patch(&fixture.path("db-1"), Patch::Merge, &replace).await;
    assert_eq!(denial(&merged), ALONE, "a merge patch takes the others away");

    // Writes that keep the condition pass: a patch without it, a patch with it, and a PUT.
    for status in ["True", "False"] {
        fixture.write(&kubelet, "db-1", &condition("Ready", status)).await.expect(200);
    }
    let named = json!({"metadata": {"labels": {"seen": "true"}}, "status": {"phase": "Running", "conditions": [
        {"type": "Disruptable", "status": "True"}, {"type": "Ready", "status": "True"}]}});
    fixture.write(&kubelet, "db-1", &named).await.expect(200);
    let mut whole = fixture.admin.get(&fixture.path("db-1")).await.expect(200);
    whole["status"]["message"] = json!("all of it");
    whole["status"]["conditions"].as_array_mut().expect("conditions").reverse();
    kubelet.put(&fixture.path("db-1"), &whole).await.expect(200);
    fixture.write(&fixture.admin, "db-2", &condition("Ready", "True")).await.expect(200);
    assert_eq!(
        (fixture.disruptable("db-1").await, fixture.disruptable("db-2").await),
        (json!("True"), Value::Null)
    );

    // The agent may also remove the condition.
    let one = fixture.agent(Some("agent-1")).await;
    fixture.write(&one, "db-1", &remove).await.expect(200);
    assert_eq!(fixture.disruptable("db-1").await, Value::Null);
}

async fn lease_policy(cluster: Cluster) {
    let fixture = PolicyFixture::start(cluster).await;
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
    let lease = |name: &str, holder: &str| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 30}})
    };
    let one = fixture.agent(Some("agent-1")).await;
    let only = "the agent of node node-1 may write only the Lease quorate-agent-node-1, with its node as holderIdentity";
    // This is another policy than the one for pods, and the API server may use it later.
    eventually("the policy for Leases is in force", || async {
        let answer = one.post(&format!("{leases}?dryRun=All"), &lease("x", "node-1")).await;
        if answer.message().ends_with(only) { Ok(()) } else { Err(answer.body) }
    })
    .await;
    fixture.admin.post(&leases, &lease("quorate-server", "a-server")).await.expect(201);
    let two = fixture.agent(Some("agent-2")).await;
    two.post(&leases, &lease("quorate-agent-node-2", "node-2")).await.expect(201);
    let other = format!("{leases}/quorate-agent-node-2");
    for (name, holder) in
        [("quorate-agent-node-2", "node-2"), ("quorate-agent-node-1", "node-2"), ("x", "node-1")]
    {
        let answer = one.post(&leases, &lease(name, holder)).await;
        assert_eq!(denial(&answer), only, "{name} {holder}");
    }
    one.post(&leases, &lease("quorate-agent-node-1", "node-1")).await.expect(201);
    let hold = |holder: &str| json!({"spec": {"holderIdentity": holder}});
    let own = format!("{leases}/quorate-agent-node-1");
    one.patch(&own, Patch::Merge, &hold("node-1")).await.expect(200);
    assert_eq!(denial(&one.patch(&own, Patch::Merge, &hold("node-2")).await), only);
    let servers = format!("{leases}/quorate-server");
    assert_eq!(denial(&one.patch(&servers, Patch::Merge, &hold("node-1")).await), only);
    let without_pod = fixture.agent(None).await;
    let unbound = without_pod.patch(&own, Patch::Merge, &hold("node-1")).await;
    assert_eq!(denial(&unbound), "this token names no node; an agent's token must be bound to its pod");
    for lease in [&servers, &other] {
        assert_eq!(denial(&one.delete(lease, &json!({})).await), only);
    }
    one.delete(&own, &json!({})).await.expect(200);
    // The policy ignores writes of other users to other Leases.
    fixture.admin.patch(&servers, Patch::Merge, &hold("another-server")).await.expect(200);
}
