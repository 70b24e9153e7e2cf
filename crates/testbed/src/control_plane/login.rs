//! Authentication of a user: as the configuration of a client in this process, or as a kubeconfig for kubectl.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use kube::config::AuthInfo;
use serde_json::json;

use super::ControlPlane;
use super::credentials::ADMIN_TOKEN;
use crate::User;

/// A token, and the user that its bearer impersonates.
pub(crate) struct Login {
    token: String,
    impersonate: Option<User>,
}

impl Login {
    /// Acts as the owner of the token.
    pub(crate) fn token(token: &str) -> Self {
        Self { token: token.to_owned(), impersonate: None }
    }

    /// Acts as any user: the admin impersonates it.
    pub(crate) fn of(user: &User) -> Self {
        let impersonate = (*user != User::admin()).then(|| user.clone());
        Self { token: ADMIN_TOKEN.to_owned(), impersonate }
    }
}

impl ControlPlane {
    /// The configuration of a client that acts as `user`. The client does not retry after 429, 503 or 504: tests check
    /// these responses.
    pub fn config(&self, user: &User) -> kube::Config {
        let login = Login::of(user);
        let url = http::Uri::builder()
            .scheme("https")
            .authority(format!("127.0.0.1:{}", self.port))
            .path_and_query("/")
            .build()
            .unwrap_or_default();
        let mut config = kube::Config::new(url);
        config.root_cert = Some(vec![self.credentials.ca_der.clone()]);
        config.default_retry = false;
        config.auth_info = AuthInfo { token: Some(login.token.into()), ..AuthInfo::default() };
        if let Some(user) = login.impersonate {
            config.auth_info.impersonate = Some(user.name().to_owned());
            config.auth_info.impersonate_groups = Some(user.groups().to_vec());
        }
        config
    }

    /// A kubeconfig file to act as `user`, for kubectl and other programs. It is removed with the control plane.
    pub fn kubeconfig(&self, user: &User) -> Result<PathBuf> {
        kubeconfig(self, &Login::of(user))
    }

    /// A kubeconfig file to act as the owner of the token. It is removed with the control plane.
    pub fn kubeconfig_of_token(&self, token: &str) -> Result<PathBuf> {
        kubeconfig(self, &Login::token(token))
    }

    /// The text of a kubeconfig. `through` is the address of a proxy, for clients that cannot reach the API server.
    pub(crate) fn kubeconfig_text(&self, login: &Login, through: Option<SocketAddr>) -> String {
        let mut user = json!({"token": login.token});
        if let Some(other) = &login.impersonate {
            user["as"] = json!(other.name());
            user["as-groups"] = json!(other.groups());
        }
        let mut cluster = json!({"server": self.url(), "certificate-authority": self.credentials.ca});
        if let Some(address) = through {
            cluster["server"] = json!(format!("https://{address}"));
            // The certificate of the API server does not contain the address of the proxy.
            cluster["tls-server-name"] = json!("localhost");
        }
        // JSON is valid YAML.
        let text = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "user"}}],
            "current-context": "testbed",
        });
        text.to_string()
    }
}

pub(super) fn kubeconfig(plane: &ControlPlane, login: &Login) -> Result<PathBuf> {
    // The file name is not the user's name: that may contain any character, and two users may have the same name.
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let path = plane.folder.path().join(format!("kubeconfig-{number}.json"));
    fs::write(&path, plane.kubeconfig_text(login, None))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
