//! How far somebody sees who looks at a cluster: everything, or one namespace, or not every kind.

use kube::api::ListParams;
use kube::core::Request;
use kube::{Client, Error};
use quorate_kit::Plain;

use crate::watches::{self, WatchScope};

/// A resource that every cluster has.
struct Kind {
    resource: &'static str,
    /// Where it is, before the namespace and after.
    path: (&'static str, &'static str),
    /// What an answer leaves out that does not rest on it; without this there is no answer.
    hence: Option<&'static str>,
}

impl Kind {
    const fn needed(resource: &'static str, path: (&'static str, &'static str)) -> Self {
        Self { resource, path, hence: None }
    }

    const fn useful(resource: &'static str, path: (&'static str, &'static str), hence: &'static str) -> Self {
        Self { resource, path, hence: Some(hence) }
    }

    /// Its path in one namespace, or in all.
    fn at(&self, namespace: Option<&str>) -> String {
        let (before, after) = self.path;
        let within = namespace.map(|name| format!("namespaces/{name}/")).unwrap_or_default();
        format!("{before}/{within}{after}")
    }
}

/// What a look rests on, and is in namespaces.
const IN_NAMESPACES: [Kind; 6] = [
    Kind::needed(BUDGETS, ("/apis/policy.quorate.dev/v1alpha1", "disruptionbudgets")),
    Kind::needed("pods", ("/api/v1", "pods")),
    Kind::useful(
        watches::NATIVE,
        ("/apis/policy/v1", "poddisruptionbudgets"),
        "whether a PodDisruptionBudget refuses",
    ),
    Kind::useful(watches::REPLICA_SETS, ("/apis/apps/v1", "replicasets"), "how many pods they want"),
    Kind::useful(watches::STATEFUL_SETS, ("/apis/apps/v1", "statefulsets"), "how many pods they want"),
    Kind::useful(watches::DEPLOYMENTS, ("/apis/apps/v1", "deployments"), "how many pods they want"),
];

const BUDGETS: &str = "disruptionbudgets.policy.quorate.dev";

/// What a look rests on, and is in none.
const IN_NO_NAMESPACE: [Kind; 2] = [
    Kind::useful(watches::NAMESPACES, ("/api/v1", "namespaces"), "whether the namespace is ending"),
    Kind::useful(watches::NODES, ("/api/v1", "nodes"), "whether nodes are ready, which probes rest on"),
];

/// The agents of nodes.
const AGENTS: Kind = Kind::useful(
    watches::LEASES,
    ("/apis/coordination.k8s.io/v1", "leases"),
    "whether agents are alive, so that the last word of a probe is believed",
);

/// Why a cluster cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// A right is missing.
    #[error("you may not list {0}: ask for the verbs list and watch on it")]
    Forbidden(&'static str),
    /// A right is missing, also in the one namespace that was asked about.
    #[error("you may not list {0}, not even in namespace {1}: ask for the verbs list and watch on it there")]
    ForbiddenHere(&'static str, String),
    /// Nobody knows who asks.
    #[error("the API server does not know you: {0}")]
    Unknown(String),
    /// There are no budgets here.
    #[error(
        "DisruptionBudgets are not installed here: `quorate crds | kubectl apply --server-side -f -` does it"
    )]
    NotInstalled,
    /// The API server answers something else, or not at all.
    #[error("cannot list {what}: {why}")]
    Failed {
        /// What was asked for.
        what: &'static str,
        /// What came back.
        why: String,
    },
}

/// Something that may not be listed, and what an answer leaves out for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlisted {
    /// The resource, and where it is not everywhere, the namespace.
    pub what: String,
    /// What is left out.
    pub hence: &'static str,
    /// It matters for pods with a disruption probe only.
    pub of_probes: bool,
}

/// How far somebody sees.
pub(super) struct Access<'a> {
    pub(super) scope: WatchScope,
    pub(super) unlisted: Vec<Unlisted>,
    /// The one namespace that is seen, where not all are.
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
            let Some(hence) = kind.hence else {
                return Err(match within {
                    Some(namespace) => ViewError::ForbiddenHere(kind.resource, namespace.to_owned()),
                    None => ViewError::Forbidden(kind.resource),
                });
            };
            let of_probes = kind.resource == watches::NODES;
            unlisted.push(Unlisted { what: kind.resource.to_owned(), hence, of_probes });
        }
        if !may_list(client, &AGENTS, Some(own)).await? {
            closed.push(&AGENTS);
            let what = format!("{} in {own}", AGENTS.resource);
            unlisted.push(Unlisted { what, hence: AGENTS.hence.unwrap_or_default(), of_probes: true });
        }
        let closed = closed.iter().map(|kind| kind.resource).collect();
        Ok(Self { scope: WatchScope::without(closed, within), unlisted, within })
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
