//! The clients that may connect to the webhooks: those with a certificate of a given CA, if one is given.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use quorate_kit::tls::TrustedClients;
use tracing::{info, warn};

/// How often the file is read again.
const INTERVAL: Duration = Duration::from_secs(10);

/// The certificates of the clients that may connect.
#[derive(Clone, Debug)]
pub struct ClientCertificates {
    /// The CA bundle that verifies them, in PEM.
    pub authority: PathBuf,
    /// The common names that they may have; any if there are none.
    pub names: Vec<String>,
}

impl ClientCertificates {
    /// Reads the CA bundle for the first time.
    pub(crate) async fn load(&self) -> Result<ClientCertificateFile> {
        let file = self.authority.display();
        let bundle = tokio::fs::read(&self.authority).await.with_context(|| format!("cannot read {file}"))?;
        let clients = TrustedClients::new(&bundle, self.names.clone())
            .with_context(|| format!("cannot use {file} to verify clients"))?;
        Ok(ClientCertificateFile { authority: self.authority.clone(), bundle, clients })
    }
}

/// A CA bundle in a file that another tool keeps up to date.
pub(crate) struct ClientCertificateFile {
    authority: PathBuf,
    /// What the file contained when it was last used.
    bundle: Vec<u8>,
    clients: Arc<TrustedClients>,
}

impl ClientCertificateFile {
    /// The clients that may connect now.
    pub(crate) fn clients(&self) -> Arc<TrustedClients> {
        self.clients.clone()
    }

    /// Follows the file; never returns. While it cannot be used, the bundle of before stays.
    pub(crate) async fn follow(mut self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            match self.read_again().await {
                Ok(true) => info!(file = %self.authority.display(), "loaded a new CA for clients"),
                Ok(false) => {}
                Err(error) => warn!(error = format!("{error:#}"), "cannot load the CA for clients again"),
            }
        }
    }

    /// Returns whether the file has changed.
    async fn read_again(&mut self) -> Result<bool> {
        let bundle = tokio::fs::read(&self.authority).await?;
        if bundle == self.bundle {
            return Ok(false);
        }
        self.clients.replace(&bundle)?;
        self.bundle = bundle;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use quorate_kit::tls::Authority;

    use super::*;

    fn bundle() -> String {
        let made = Authority::generate("clients", SystemTime::now(), Duration::from_secs(86_400));
        made.unwrap().pem().to_owned()
    }

    #[tokio::test]
    async fn a_new_file_is_used_unless_it_cannot_be() {
        let folder = tempfile::tempdir().unwrap();
        let authority = folder.path().join("ca.crt");
        let certificates = ClientCertificates { authority: authority.clone(), names: Vec::new() };
        assert!(certificates.load().await.is_err_and(|why| why.to_string().starts_with("cannot read ")));
        std::fs::write(&authority, "nonsense").unwrap();
        assert!(certificates.load().await.is_err_and(|why| why.to_string().contains("to verify clients")));

        std::fs::write(&authority, bundle()).unwrap();
        let mut file = certificates.load().await.unwrap();
        assert!(!file.read_again().await.unwrap());
        std::fs::write(&authority, "").unwrap();
        assert!(file.read_again().await.is_err());
        std::fs::write(&authority, bundle()).unwrap();
        assert!(file.read_again().await.unwrap());
        assert!(!file.read_again().await.unwrap());
    }
}
