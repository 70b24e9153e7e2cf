//! The users of the actors: each controller writes with the user name of the real controller.

use std::sync::Arc;

use http::HeaderValue;
use http::header::HeaderName;
use kube::Client;
use kube::client::Body;
use tokio::runtime::Handle;
use tower::service_fn;

/// The user of the shared watches.
pub const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// The user that binds pods to nodes.
pub const SCHEDULER: &str = "system:kube-scheduler";
/// The user of the LeaderWorkerSet controller.
pub const LEADER_WORKER_SETS: &str = "system:serviceaccount:lws-system:lws-controller-manager";

/// The user name of a controller that runs inside the controller manager with its own credentials.
#[must_use]
pub fn controller(name: &str) -> String {
    format!("system:serviceaccount:kube-system:{name}")
}

/// The user name of a node's kubelet.
#[must_use]
pub fn kubelet(node: &str) -> String {
    format!("system:node:{node}")
}

/// The groups that a real API server would assign to a user of this name.
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

/// Provides a client for a user name.
///
/// The actors evaluate error responses (a webhook's 429 on a delete becomes an Event), so these clients should not
/// retry by themselves: build them from a `kube::Config` with `default_retry: false`.
#[derive(Clone)]
pub struct Identities {
    client_of: Arc<dyn Fn(&str) -> Client + Send + Sync>,
    runtime: Option<Handle>,
}

impl Identities {
    /// Clients from a function of the user name, for servers where each user has its own token.
    pub fn new(client_of: impl Fn(&str) -> Client + Send + Sync + 'static) -> Self {
        Self { client_of: Arc::new(client_of), runtime: None }
    }

    /// Impersonates every user through one client, which must have the permission to impersonate.
    ///
    /// All users share that client's connections: a thousand kubelets cost no more than one.
    #[must_use]
    pub fn impersonating(client: Client) -> Self {
        Self::new(move |user| impersonate(client.clone(), user))
    }

    /// Uses this client, and therefore its user, for all users.
    #[must_use]
    pub fn single_user(client: Client) -> Self {
        Self::new(move |_| client.clone())
    }

    /// The client of this user.
    #[must_use]
    pub fn client(&self, user: &str) -> Client {
        let _entered = self.runtime.as_ref().map(Handle::enter);
        (self.client_of)(user)
    }

    /// Creates all clients in this runtime. A client ends with the runtime in which it is created. A node that a test
    /// adds from its own runtime must outlive that test.
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
    // A name that is invalid in a header cannot be a user either. The server then sees the impersonator's own name.
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
    fn groups_are_derived_from_the_user_name() {
        assert_eq!(groups_of(&kubelet("a")), ["system:nodes", "system:authenticated"]);
        assert_eq!(
            groups_of(&controller("job-controller")),
            ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"]
        );
        assert_eq!(groups_of(SCHEDULER), ["system:authenticated"]);
    }
}
