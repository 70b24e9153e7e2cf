//! Certificates: an authority of our own, what it vouches for, and how a server shows it.

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

/// Clocks differ: a certificate is valid from a little before it was made.
pub const SKEW: Duration = Duration::from_secs(300);

/// Why a certificate could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// It could not be used.
    #[error("cannot serve with this certificate: {0}")]
    Use(#[from] tokio_rustls::rustls::Error),
    /// It is not what it should be.
    #[error("not a certificate and its key in PEM: {0}")]
    Read(String),
}

/// From when to when a certificate is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Its first moment.
    pub from: SystemTime,
    /// Its last.
    pub until: SystemTime,
}

impl Validity {
    /// From a little before `now`, for so long.
    fn starting(now: SystemTime, life: Duration) -> Self {
        Self { from: now - SKEW, until: now + life }
    }

    /// Of the first certificate of a PEM.
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

    /// How long it is still good; nothing once it is over.
    pub fn left(&self, now: SystemTime) -> Duration {
        self.until.duration_since(now).unwrap_or_default()
    }
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::Read(error.to_string())
}

/// An authority that vouches for servers.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    validity: Validity,
}

impl Authority {
    /// Makes a new one, with a key of its own.
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

    /// One that was made before.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, Error> {
        let issuer = Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key)?)?;
        Ok(Self { issuer, pem: certificate.to_owned(), validity: Validity::of(certificate)? })
    }

    /// Its certificate, for whoever is to trust it.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Its key, for whoever keeps it.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// How long it is good.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// A certificate for a server that is reached by these names or addresses. It ends no later than the authority.
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

/// What a server shows to prove who it is.
#[derive(Debug)]
pub struct Credentials {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    validity: Validity,
}

impl Credentials {
    /// A certificate, with those of its authorities after it, and its key.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, Error> {
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>().map_err(unreadable)?;
        let first = chain.first().ok_or_else(|| Error::Read("there is no certificate".to_owned()))?;
        let validity = Validity::of_der(first)?;
        Ok(Self { key: PrivateKeyDer::from_pem_slice(key).map_err(unreadable)?, chain, validity })
    }

    /// How long they are good.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    fn certified(self) -> Result<Arc<CertifiedKey>, Error> {
        Ok(Arc::new(CertifiedKey::from_der(self.chain, self.key, &ring::default_provider())?))
    }
}

/// What a server shows now. It may be replaced while the server runs: the next handshake shows the new one.
#[derive(Debug)]
pub struct ServingCertificate(RwLock<Arc<CertifiedKey>>);

impl ServingCertificate {
    /// Shows these, to begin with.
    pub fn new(credentials: Credentials) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self(RwLock::new(credentials.certified()?))))
    }

    /// Shows these from now on.
    pub fn replace(&self, credentials: Credentials) -> Result<(), Error> {
        *self.0.write() = credentials.certified()?;
        Ok(())
    }

    /// The configuration of a server that shows them and asks its clients for nothing.
    pub fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
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
    fn an_authority_comes_back_from_its_pem() {
        let made = Authority::generate("test", now(), 365 * DAY).unwrap();
        let read = Authority::from_pem(made.pem(), &made.key_pem()).unwrap();
        assert_eq!(read.validity(), made.validity());
        assert_eq!(read.validity().left(now()), 365 * DAY);
        assert_eq!(read.validity().left(now() + 366 * DAY), Duration::ZERO);
        let leaf = read.issue(&["localhost".to_owned()], now(), 30 * DAY).unwrap();
        assert_eq!(leaf.validity().left(now()), 30 * DAY);
        // The API server checks the signature with what it was told to trust; so does this.
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
    fn what_is_no_pem_is_refused_in_a_sentence() {
        for (certificate, key) in [("", ""), ("nonsense", "nonsense")] {
            assert!(Authority::from_pem(certificate, key).is_err());
            let refused = Credentials::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err();
            assert!(refused.to_string().starts_with("not a certificate and its key in PEM: "), "{refused}");
        }
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let authority = Authority::generate("test", now(), 10 * DAY).unwrap();
        let names = ["localhost".to_owned()];
        let (one, other) =
            (authority.issue(&names, now(), DAY).unwrap(), authority.issue(&names, now(), DAY).unwrap());
        assert!(ServingCertificate::new(Credentials { key: other.key, ..one }).is_err());
    }
}
