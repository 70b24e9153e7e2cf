//! The user that a client acts as.

use std::fmt;

/// A user and its groups. The API server adds `system:authenticated`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct User {
    name: String,
    groups: Vec<String>,
}

impl User {
    /// A user with no rights but those that RBAC grants to this name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), groups: Vec::new() }
    }

    /// A user with all rights.
    pub fn admin() -> Self {
        Self::named("admin").in_group("system:masters")
    }

    /// A service account.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self::named(format!("system:serviceaccount:{namespace}:{name}"))
            .in_group("system:serviceaccounts")
            .in_group(format!("system:serviceaccounts:{namespace}"))
    }

    /// The kubelet of a node.
    pub fn kubelet(node: &str) -> Self {
        Self::named(format!("system:node:{node}")).in_group("system:nodes")
    }

    /// The same user, in one more group.
    #[must_use]
    pub fn in_group(mut self, group: impl Into<String>) -> Self {
        self.groups.push(group.into());
        self
    }

    /// The user's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The groups of the user.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
