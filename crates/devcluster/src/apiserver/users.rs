//! The users of requests, from bearer tokens and impersonation headers; otherwise anonymous.

use std::collections::BTreeMap;

use http::HeaderMap;
use parking_lot::RwLock;
use serde_json::{Value, json};

/// A user as admission webhooks receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user's name, for instance `system:node:n1`.
    pub name: String,
    /// The user's groups. `system:authenticated` is added for every user with a token.
    pub groups: Vec<String>,
}

impl User {
    /// A user with these groups.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        Self { name: name.into(), groups: groups.iter().map(|&g| g.to_owned()).collect() }
    }

    /// A cluster administrator, as `kubeadm` creates it.
    pub fn admin() -> Self {
        Self::new("kubernetes-admin", &["system:masters"])
    }

    fn anonymous() -> Self {
        Self::new("system:anonymous", &["system:unauthenticated"])
    }

    fn authenticated(mut self) -> Self {
        if let Some(account) = self.name.strip_prefix("system:serviceaccount:") {
            let namespace = account.split(':').next().unwrap_or_default().to_owned();
            self.join("system:serviceaccounts");
            self.join(&format!("system:serviceaccounts:{namespace}"));
        }
        self.join("system:authenticated");
        self
    }

    fn join(&mut self, group: &str) {
        if !self.groups.iter().any(|g| g == group) {
            self.groups.push(group.to_owned());
        }
    }

    /// The `userInfo` of an admission review.
    pub(crate) fn info(&self) -> Value {
        json!({"username": self.name, "groups": self.groups})
    }
}

/// The valid tokens.
#[derive(Debug, Default)]
pub(crate) struct Users {
    by_token: RwLock<BTreeMap<String, User>>,
}

impl Users {
    /// Registers `token` for `user`.
    pub(crate) fn add(&self, token: String, user: User) {
        self.by_token.write().insert(token, user.authenticated());
    }

    /// A token for `user`; always the same one.
    pub(crate) fn token_for(&self, user: &User) -> String {
        let user = user.clone().authenticated();
        let mut known = self.by_token.write();
        if let Some((token, _)) = known.iter().find(|(_, u)| **u == user) {
            return token.clone();
        }
        let token = uuid::Uuid::new_v4().simple().to_string();
        known.insert(token.clone(), user);
        token
    }

    /// The user of a token.
    pub(crate) fn by_token(&self, token: &str) -> Option<User> {
        self.by_token.read().get(token).cloned()
    }

    /// The user of a request with these headers; `None` for an unknown token.
    pub(crate) fn of_request(&self, headers: &HeaderMap) -> Option<User> {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        if let Some(name) = text("impersonate-user") {
            let groups: Vec<&str> =
                headers.get_all("impersonate-group").iter().filter_map(|v| v.to_str().ok()).collect();
            return Some(User::new(name, &groups).authenticated());
        }
        match text("authorization").and_then(|v| v.strip_prefix("Bearer ")) {
            Some(token) => self.by_token(token.trim()),
            None => Some(User::anonymous()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{User, Users};
    use http::HeaderMap;

    #[test]
    fn a_service_account_gets_its_groups() {
        let users = Users::default();
        let token =
            users.token_for(&User::new("system:serviceaccount:kube-system:pod-garbage-collector", &[]));
        let user = users.by_token(&token).unwrap();
        assert!(user.groups.contains(&"system:serviceaccounts:kube-system".to_owned()));
        assert!(user.groups.contains(&"system:authenticated".to_owned()));
    }

    #[test]
    fn an_unknown_token_is_invalid_and_no_token_is_anonymous() {
        let users = Users::default();
        let mut headers = HeaderMap::new();
        assert_eq!(users.of_request(&headers).unwrap().name, "system:anonymous");
        headers.insert("authorization", "Bearer nonsense".parse().unwrap());
        assert!(users.of_request(&headers).is_none());
        headers.insert("impersonate-user", "jane".parse().unwrap());
        headers.insert("impersonate-group", "dev".parse().unwrap());
        assert_eq!(users.of_request(&headers).unwrap().groups, ["dev", "system:authenticated"]);
    }
}
