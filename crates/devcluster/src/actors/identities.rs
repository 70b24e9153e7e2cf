//! Who the actors are: every controller writes under the user name that the real one has.

use std::sync::Arc;

use http::HeaderValue;
use http::header::HeaderName;
use kube::Client;
use kube::client::Body;
use tokio::runtime::Handle;
use tower::service_fn;

/// The user that the shared watches are made as.
pub const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// The user that binds pods to nodes.
pub const SCHEDULER: &str = "system:kube-scheduler";
/// The user that runs the LeaderWorkerSets.
pub const LEADER_WORKER_SETS: &str = "system:serviceaccount:lws-system:lws-controller-manager";

/// The user name of a controller that runs inside the controller manager with credentials of its own.
#[must_use]
pub fn controller(name: &str) -> String {
    format!("system:serviceaccount:kube-system:{name}")
}

/// The user name of a node's kubelet.
#[must_use]
pub fn kubelet(node: &str) -> String {
    format!("system:node:{node}")
}

/// The groups that a real API server would put a user of this name into.
#[must_use]
pub fn groups_of(user: &str) -> Vec<String> {
    let mut groups = Vec::new();
    if user.starts_with("system:node:") {
        groups.push("system:nodes".to_owned());
    }
    if let Some((namespace, _)) =
        user.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'))
    {
        groups.push("system:serviceaccounts".to_owned());
        groups.push(format!("system:serviceaccounts:{namespace}"));
    }
    groups.push("system:authenticated".to_owned());
    groups
}

/// Gives a client for a user name.
///
/// The answers matter to the actors (a webhook's 429 on a delete becomes an Event), so the clients given here should not
/// retry by themselves: build them from a `kube::Config` with `default_retry: false`.
#[derive(Clone)]
pub struct Identities {
    client_of: Arc<dyn Fn(&str) -> Client + Send + Sync>,
    runtime: Option<Handle>,
}

impl Identities {
    /// Clients from a function of the user name, for servers where each user has a token of their own.
    pub fn new(client_of: impl Fn(&str) -> Client + Send + Sync + 'static) -> Self {
        Self { client_of: Arc::new(client_of), runtime: None }
    }

    /// Every user by impersonation through one client, which must have the right to impersonate.
    ///
    /// All of them share that client's connections: a thousand kubelets cost no more than one.
    #[must_use]
    pub fn impersonating(client: Client) -> Self {
        Self::new(move |user| impersonate(client.clone(), user))
    }

    /// Everything as the one user that this client is.
    #[must_use]
    pub fn everyone_as(client: Client) -> Self {
        Self::new(move |_| client.clone())
    }

    /// The client of this user.
    #[must_use]
    pub fn client(&self, user: &str) -> Client {
        let _entered = self.runtime.as_ref().map(Handle::enter);
        (self.client_of)(user)
    }

    /// A client belongs to the runtime that it is made in, and ends with it. These are all made in this one, so that a
    /// node that a test adds from a runtime of its own outlives that test.
    pub(crate) fn within(&self, runtime: Handle) -> Self {
        Self { client_of: self.client_of.clone(), runtime: Some(runtime) }
    }
}

impl std::fmt::Debug for Identities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identities").finish_non_exhaustive()
    }
}

fn impersonate(client: Client, user: &str) -> Client {
    const USER: HeaderName = HeaderName::from_static("impersonate-user");
    const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
    // A name that cannot stand in a header cannot be a user either; the server then sees the impersonator's own name.
    let user_header = HeaderValue::from_str(user).ok();
    let groups: Vec<_> =
        groups_of(user).iter().filter_map(|group| HeaderValue::from_str(group).ok()).collect();
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |mut request: http::Request<Body>| {
        let client = client.clone();
        if let Some(user) = &user_header {
            request.headers_mut().insert(USER, user.clone());
            for group in &groups {
                request.headers_mut().append(GROUP, group.clone());
            }
        }
        async move { client.send(request).await }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_follow_from_the_name() {
        assert_eq!(groups_of(&kubelet("a")), ["system:nodes", "system:authenticated"]);
        assert_eq!(
            groups_of(&controller("job-controller")),
            ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"]
        );
        assert_eq!(groups_of(SCHEDULER), ["system:authenticated"]);
    }
}
