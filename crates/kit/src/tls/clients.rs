//! The clients that may connect, by their certificates.

use std::sync::Arc;

use parking_lot::RwLock;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    self, CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
};

use super::{Error, unreadable};

/// The clients that may connect: those that present a certificate of certain CAs, with one of certain common names. The
/// CAs can be replaced at run time; the next handshake uses the new ones.
#[derive(Debug)]
pub struct TrustedClients {
    verifier: RwLock<Arc<dyn ClientCertVerifier>>,
    names: Vec<String>,
}

impl TrustedClients {
    /// Trusts certificates of the CAs in a PEM bundle that have one of these common names, or any name if there are none.
    ///
    /// # Errors
    /// The bundle contains no certificate, or one that cannot be read.
    pub fn new(bundle: &[u8], names: Vec<String>) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { verifier: RwLock::new(verifier(bundle)?), names }))
    }

    /// Trusts the CAs of another bundle from now on.
    ///
    /// # Errors
    /// As for [`Self::new`]; the CAs of before stay.
    pub fn replace(&self, bundle: &[u8]) -> Result<(), Error> {
        *self.verifier.write() = verifier(bundle)?;
        Ok(())
    }

    fn is_named(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return false };
        let mut names = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        self.names.is_empty() || names.any(|name| self.names.iter().any(|trusted| trusted == name))
    }
}

fn verifier(bundle: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle) {
        roots.add(certificate.map_err(unreadable)?)?;
    }
    let provider = Arc::new(ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().map_err(unreadable)
}

impl ClientCertVerifier for TrustedClients {
    /// None: the CAs may change, and a client without hints presents the certificate that it has.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verifier = self.verifier.read().clone();
        let verified = verifier.verify_client_cert(end_entity, intermediates, now)?;
        if self.is_named(end_entity) {
            Ok(verified)
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.read().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.read().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.read().supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    };

    use super::*;

    struct Ca {
        issuer: Issuer<'static, KeyPair>,
        pem: String,
    }

    fn ca(name: &str) -> Ca {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Ca { issuer: Issuer::new(params, key), pem }
    }

    fn certificate(ca: &Ca, name: &str, usage: ExtendedKeyUsagePurpose) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        params.signed_by(&KeyPair::generate().unwrap(), &ca.issuer).unwrap().der().clone()
    }

    fn is_trusted(clients: &TrustedClients, certificate: &CertificateDer<'_>, at: SystemTime) -> bool {
        let now = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).unwrap());
        clients.verify_client_cert(certificate, &[], now).is_ok()
    }

    #[test]
    fn only_clients_of_the_authority_with_the_name_are_trusted() {
        let (own, other) = (ca("own"), ca("other"));
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        let named = TrustedClients::new(own.pem.as_bytes(), vec!["apiserver".to_owned()]).unwrap();
        let any = TrustedClients::new(own.pem.as_bytes(), Vec::new()).unwrap();
        let cases = [
            (certificate(&own, "apiserver", client.clone()), true, true),
            (certificate(&own, "mallory", client.clone()), false, true),
            (certificate(&own, "APISERVER", client.clone()), false, true),
            (certificate(&other, "apiserver", client), false, false),
            (certificate(&own, "apiserver", ExtendedKeyUsagePurpose::ServerAuth), false, false),
        ];
        let now = SystemTime::now();
        for (number, (certificate, by_name, by_ca)) in cases.iter().enumerate() {
            assert_eq!(is_trusted(&named, certificate, now), *by_name, "case {number}");
            assert_eq!(is_trusted(&any, certificate, now), *by_ca, "case {number}");
        }
        let later = now + Duration::from_secs(3_000 * 365 * 86_400);
        assert!(!is_trusted(&any, &cases[0].0, later), "expired");
        assert!(named.client_auth_mandatory());
    }

    #[test]
    fn the_authorities_can_be_replaced_but_not_by_nonsense() {
        let (old, new) = (ca("old"), ca("new"));
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        let (before, after) = (certificate(&old, "a", client.clone()), certificate(&new, "a", client));
        let clients = TrustedClients::new(old.pem.as_bytes(), Vec::new()).unwrap();
        let now = SystemTime::now();
        assert!(clients.replace(b"nonsense").is_err() && clients.replace(b"").is_err());
        assert!(is_trusted(&clients, &before, now) && !is_trusted(&clients, &after, now));
        clients.replace(new.pem.as_bytes()).unwrap();
        assert!(!is_trusted(&clients, &before, now) && is_trusted(&clients, &after, now));
    }
}
