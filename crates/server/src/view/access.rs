//! What a user may list: everything, one namespace, or not every kind.

use kube::api::ListParams;
use kube::core::Request;
use kube::{Client, Error};
use quorate_kit::Plain;

use super::leases::Leases;
use crate::watches::{self, WatchScope};

/// A resource that every cluster has.
struct Kind {
    resource: &'static str,
    /// Its path before and after the namespace.
    path: (&'static str, &'static str),
    /// What is unknown without this resource; `None` if there is no answer without it.
    unknown: Option<&'static str>,
}

impl Kind {
    const fn needed(resource: &'static str, path: (&'static str, &'static str)) -> Self {
        Self { resource, path, unknown: None }
    }

    const fn useful(
        resource: &'static str,
        path: (&'static str, &'static str),
        unknown: &'static str,
    ) -> Self {
        Self { resource, path, unknown: Some(unknown) }
    }

    /// Its path in one namespace, or in all of them.
    fn at(&self, namespace: Option<&str>) -> String {
        let (before, after) = self.path;
        let within = namespace.map(|name| format!("namespaces/{name}/")).unwrap_or_default();
        format!("{before}/{within}{after}")
    }
}

/// The resources of a view that are namespaced.
const IN_NAMESPACES: [Kind; 6] = [
    Kind::needed(BUDGETS, ("/apis/policy.quorate.dev/v1alpha1", "disruptionbudgets")),
    Kind::needed("pods", ("/api/v1", "pods")),
    Kind::useful(
        watches::NATIVE,
        ("/apis/policy/v1", "poddisruptionbudgets"),
        "whether a PodDisruptionBudget denies",
    ),
    Kind::useful(watches::REPLICA_SETS, ("/apis/apps/v1", "replicasets"), "how many pods they want"),
    Kind::useful(watches::STATEFUL_SETS, ("/apis/apps/v1", "statefulsets"), "how many pods they want"),
    Kind::useful(watches::DEPLOYMENTS, ("/apis/apps/v1", "deployments"), "how many pods they want"),
];

const BUDGETS: &str = "disruptionbudgets.policy.quorate.dev";

/// The resources of a view that are cluster-scoped.
const IN_NO_NAMESPACE: [Kind; 2] = [
    Kind::useful(watches::NAMESPACES, ("/api/v1", "namespaces"), "whether the namespace is terminating"),
    Kind::useful(watches::NODES, ("/api/v1", "nodes"), "whether nodes are ready, which probes depend on"),
];

/// The Leases of the agents.
const AGENTS: Kind = Kind::useful(
    watches::LEASES,
    ("/apis/coordination.k8s.io/v1", "leases"),
    "how the servers were started, and whether agents are alive, so the last probe results are trusted",
);

/// Why there is no view of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// A permission is missing.
    #[error("you may not list {0}: the verbs list and watch on it are required")]
    Forbidden(&'static str),
    /// A permission is missing, also in the one requested namespace.
    #[error(
        "you may not list {0}, not even in namespace {1}: the verbs list and watch on it there are required"
    )]
    ForbiddenHere(&'static str, String),
    /// The API server does not accept the credentials.
    #[error("not authenticated: {0}")]
    Unknown(String),
    /// The CustomResourceDefinitions are missing.
    #[error(
        "DisruptionBudgets are not installed here: run `quorate crds | kubectl apply --server-side -f -`"
    )]
    NotInstalled,
    /// The API server returns another error, or does not answer.
    #[error("cannot list {what}: {why}")]
    Failed {
        /// The resource.
        what: &'static str,
        /// The error.
        why: String,
    },
}

/// A resource that may not be listed, and what is unknown without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlisted {
    /// The resource, and the namespace if only one is concerned.
    pub what: String,
    /// What is unknown without it.
    pub unknown: &'static str,
    /// It matters only for pods with a disruption probe.
    pub of_probes: bool,
}

/// What a user may list.
pub(super) struct Access<'a> {
    pub(super) scope: WatchScope,
    /// What servers and agents publish, if that may be listed.
    pub(super) leases: Option<Leases>,
    pub(super) unlisted: Vec<Unlisted>,
    /// The only namespace that is listed; `None` for all.
    pub(super) within: Option<&'a str>,
}

impl<'a> Access<'a> {
    pub(super) async fn of(client: &Client, own: &str, within: Option<&'a str>) -> Result<Self, ViewError> {
        let mut closed = Vec::new();
        for kind in &IN_NAMESPACES {
            if !may_list(client, kind, None).await? {
                closed.push(kind);
            }
        }
        let within = within.filter(|_| !closed.is_empty());
        if let Some(namespace) = within {
            closed.clear();
            for kind in &IN_NAMESPACES {
                if !may_list(client, kind, Some(namespace)).await? {
                    closed.push(kind);
                }
            }
        }
        for kind in &IN_NO_NAMESPACE {
            if !may_list(client, kind, None).await? {
                closed.push(kind);
            }
        }
        let mut unlisted = Vec::new();
        for kind in &closed {
            let Some(unknown) = kind.unknown else {
                return Err(match within {
                    Some(namespace) => ViewError::ForbiddenHere(kind.resource, namespace.to_owned()),
                    None => ViewError::Forbidden(kind.resource),
                });
            };
            let of_probes = kind.resource == watches::NODES;
            unlisted.push(Unlisted { what: kind.resource.to_owned(), unknown, of_probes });
        }
        let leases = Leases::list(client, own).await?;
        // They are listed already, and need not be watched.
        closed.push(&AGENTS);
        if leases.is_none() {
            let what = format!("{} in {own}", AGENTS.resource);
            unlisted.push(Unlisted { what, unknown: AGENTS.unknown.unwrap_or_default(), of_probes: true });
        }
        let closed = closed.iter().map(|kind| kind.resource).collect();
        Ok(Self { scope: WatchScope::without(closed, within), leases, unlisted, within })
    }
}

async fn may_list(client: &Client, kind: &Kind, namespace: Option<&str>) -> Result<bool, ViewError> {
    let few = ListParams::default().limit(1);
    let failed = |why: String| ViewError::Failed { what: kind.resource, why };
    let request = Request::new(kind.at(namespace)).list(&few).map_err(|error| failed(error.to_string()))?;
    match client.request_text(request).await {
        Ok(_) => Ok(true),
        Err(Error::Api(status)) if status.code == 403 => Ok(false),
        Err(Error::Api(status)) if status.code == 401 => Err(ViewError::Unknown(status.message.clone())),
        Err(Error::Api(status)) if status.code == 404 && kind.resource == BUDGETS => {
            Err(ViewError::NotInstalled)
        }
        Err(error) => Err(failed(Plain(&error).to_string())),
    }
}
