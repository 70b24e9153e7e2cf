//! Certificates: an authority of our own, and what it vouches for.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why a certificate could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// It could not be used.
    #[error("cannot serve with this certificate: {0}")]
    Use(#[from] tokio_rustls::rustls::Error),
}

/// An authority that vouches for servers.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// Makes a new one, with a key of its own.
    pub fn generate(name: &str) -> Result<Self, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Its certificate, for whoever is to trust it.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for a server that is reached by these names or addresses.
    pub fn issue(&self, names: &[String]) -> Result<Credentials, Error> {
        let mut params = CertificateParams::new(names)?;
        if let Some(first) = names.first() {
            params.distinguished_name.push(DnType::CommonName, first);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Credentials {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        })
    }
}

/// What a server shows to prove who it is.
#[derive(Debug)]
pub struct Credentials {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Credentials {
    /// The configuration of a server that shows them and asks its clients for nothing.
    pub fn server_config(self) -> Result<Arc<ServerConfig>, Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate], self.key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}
