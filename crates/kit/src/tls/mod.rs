//! Certificates: a private authority, the certificates it issues, the one that a server presents, and the clients that it
//! trusts.

mod clients;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

pub use clients::TrustedClients;

/// Clocks differ, so a certificate is valid from this long before its creation.
pub const SKEW: Duration = Duration::from_secs(300);

/// Why a certificate could not be created or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be created.
    #[error("cannot create a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// It could not be used.
    #[error("cannot serve with this certificate: {0}")]
    Use(#[from] tokio_rustls::rustls::Error),
    /// The PEM text is invalid.
    #[error("not a certificate and its key in PEM: {0}")]
    Read(String),
}

/// The validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Start of the period.
    pub from: SystemTime,
    /// End of the period.
    pub until: SystemTime,
}

impl Validity {
    /// From [`SKEW`] before `now` until `life` after it.
    fn starting(now: SystemTime, life: Duration) -> Self {
        Self { from: now - SKEW, until: now + life }
    }

    /// The validity of the first certificate in a PEM text.
    pub fn of(pem: &str) -> Result<Self, Error> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(unreadable)?;
        Self::of_der(&der)
    }

    fn of_der(der: &CertificateDer<'_>) -> Result<Self, Error> {
        let (_, parsed) = x509_parser::parse_x509_certificate(der).map_err(unreadable)?;
        let at = |seconds: i64| {
            let since = Duration::from_secs(seconds.unsigned_abs());
            if seconds < 0 { SystemTime::UNIX_EPOCH - since } else { SystemTime::UNIX_EPOCH + since }
        };
        let validity = parsed.validity();
        Ok(Self { from: at(validity.not_before.timestamp()), until: at(validity.not_after.timestamp()) })
    }

    /// Time until the end of the validity; zero after it.
    pub fn left(&self, now: SystemTime) -> Duration {
        self.until.duration_since(now).unwrap_or_default()
    }
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::Read(error.to_string())
}

/// A certificate authority for servers.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    validity: Validity,
}

impl Authority {
    /// Creates a new authority with a new key.
    pub fn generate(name: &str, now: SystemTime, life: Duration) -> Result<Self, Error> {
        let validity = Validity::starting(now, life);
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        (params.not_before, params.not_after) = (validity.from.into(), validity.until.into());
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem, validity })
    }

    /// Reads an existing authority.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, Error> {
        let issuer = Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key)?)?;
        Ok(Self { issuer, pem: certificate.to_owned(), validity: Validity::of(certificate)? })
    }

    /// Its certificate, for the clients that trust it.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Its private key, for storage.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Its validity period.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// Issues a certificate for a server with these names or addresses. It expires no later than the authority.
    pub fn issue(&self, names: &[String], now: SystemTime, life: Duration) -> Result<Credentials, Error> {
        let validity = Validity::starting(now, life.min(self.validity.left(now)));
        let mut params = CertificateParams::new(names)?;
        if let Some(first) = names.first() {
            params.distinguished_name.push(DnType::CommonName, first);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        (params.not_before, params.not_after) = (validity.from.into(), validity.until.into());
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Credentials {
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            validity,
        })
    }
}

/// The certificate chain and private key of a server.
#[derive(Debug)]
pub struct Credentials {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    validity: Validity,
}

impl Credentials {
    /// Reads a certificate, followed by those of its authorities, and its key.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, Error> {
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>().map_err(unreadable)?;
        let first = chain.first().ok_or_else(|| Error::Read("there is no certificate".to_owned()))?;
        let validity = Validity::of_der(first)?;
        Ok(Self { key: PrivateKeyDer::from_pem_slice(key).map_err(unreadable)?, chain, validity })
    }

    /// The validity period of the certificate.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    fn certified(self) -> Result<Arc<CertifiedKey>, Error> {
        Ok(Arc::new(CertifiedKey::from_der(self.chain, self.key, &ring::default_provider())?))
    }
}

/// The certificate that a server presents. It can be replaced at run time; the next handshake uses the new one.
#[derive(Debug)]
pub struct ServingCertificate(RwLock<Arc<CertifiedKey>>);

impl ServingCertificate {
    /// Presents these credentials at first.
    pub fn new(credentials: Credentials) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self(RwLock::new(credentials.certified()?))))
    }

    /// Presents these credentials from now on.
    pub fn replace(&self, credentials: Credentials) -> Result<(), Error> {
        *self.0.write() = credentials.certified()?;
        Ok(())
    }

    /// The configuration of a server that presents them. With `clients`, only these may connect; without, everyone may.
    pub fn server_config(
        self: &Arc<Self>,
        clients: Option<Arc<TrustedClients>>,
    ) -> Result<Arc<ServerConfig>, Error> {
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?;
        let config = match clients {
            Some(clients) => config.with_client_cert_verifier(clients),
            None => config.with_no_client_auth(),
        };
        let mut config = config.with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + 20_000 * DAY
    }

    #[test]
    fn an_authority_can_be_read_from_its_pem() {
        let made = Authority::generate("test", now(), 365 * DAY).unwrap();
        let read = Authority::from_pem(made.pem(), &made.key_pem()).unwrap();
        assert_eq!(read.validity(), made.validity());
        assert_eq!(read.validity().left(now()), 365 * DAY);
        assert_eq!(read.validity().left(now() + 366 * DAY), Duration::ZERO);
        let leaf = read.issue(&["localhost".to_owned()], now(), 30 * DAY).unwrap();
        assert_eq!(leaf.validity().left(now()), 30 * DAY);
        // The API server verifies the signature with its CA bundle. This does the same.
        let (_, parent) = x509_parser::pem::parse_x509_pem(made.pem().as_bytes()).unwrap();
        let parent = parent.parse_x509().unwrap();
        let (_, child) = x509_parser::parse_x509_certificate(&leaf.chain[0]).unwrap();
        assert_eq!(child.issuer(), parent.subject());
        child.verify_signature(Some(parent.public_key())).unwrap();
    }

    #[test]
    fn a_certificate_ends_no_later_than_its_authority() {
        let authority = Authority::generate("test", now(), 10 * DAY).unwrap();
        let leaf = authority.issue(&["127.0.0.1".to_owned()], now(), 30 * DAY).unwrap();
        assert_eq!(leaf.validity().until, authority.validity().until);
    }

    #[test]
    fn an_invalid_pem_is_rejected_with_a_sentence() {
        for (certificate, key) in [("", ""), ("nonsense", "nonsense")] {
            assert!(Authority::from_pem(certificate, key).is_err());
            let refused = Credentials::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err();
            assert!(refused.to_string().starts_with("not a certificate and its key in PEM: "), "{refused}");
        }
    }

    #[test]
    fn a_key_of_another_certificate_is_rejected() {
        let authority = Authority::generate("test", now(), 10 * DAY).unwrap();
        let names = ["localhost".to_owned()];
        let (one, other) =
            (authority.issue(&names, now(), DAY).unwrap(), authority.issue(&names, now(), DAY).unwrap());
        assert!(ServingCertificate::new(Credentials { key: other.key, ..one }).is_err());
    }
}
