//! Certificates: the serving certificate of this process, and the CA bundle with which the API server verifies it.
//!
//! All processes share one CA, in a Secret. It is replaced long before it expires, and step by step: first the next CA
//! is trusted, then it signs, and the previous CA is removed only when no process uses a certificate that it signed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use quorate_kit::Plain;
use quorate_kit::election::Election;
use quorate_kit::tls::{Authority, Credentials, SKEW, ServingCertificate, Validity};
use tokio::sync::watch;
use tracing::{info, warn};

const DAY: Duration = Duration::from_secs(86_400);

/// The Secret that contains the CA.
pub const SECRET: &str = "quorate-webhook-ca";

const CURRENT: (&str, &str) = ("ca.crt", "ca.key");
const NEXT: (&str, &str) = ("next-ca.crt", "next-ca.key");
const PREVIOUS: &str = "previous-ca.crt";

/// How long certificates are valid, and when they are replaced.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// Validity of a CA.
    pub ca_duration: Duration,
    /// The next CA is created when the remaining validity of the current CA is less than this.
    pub ca_renew_before: Duration,
    /// Time from when a CA is trusted until it signs: every API server must have read it by then.
    pub ca_propagation: Duration,
    /// Validity of a serving certificate.
    pub leaf_duration: Duration,
    /// How often the certificates are checked.
    pub check_interval: Duration,
}

impl Default for Rotation {
    fn default() -> Self {
        Self {
            ca_duration: 730 * DAY,
            ca_renew_before: 180 * DAY,
            ca_propagation: Duration::from_secs(3600),
            leaf_duration: 60 * DAY,
            check_interval: Duration::from_secs(60),
        }
    }
}

/// Source of the certificates.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// Quorate's own CA, in a Secret.
    Own(Rotation),
    /// Files that another tool keeps up to date, such as cert-manager.
    Files {
        /// The certificate, followed by those of its CAs.
        certificate: PathBuf,
        /// The private key.
        key: PathBuf,
        /// CA bundle to publish; omit if managed elsewhere.
        authority: Option<PathBuf>,
    },
}

/// The CAs, as the Secret contains them.
#[derive(Debug)]
struct Authorities {
    current: Authority,
    next: Option<Authority>,
    previous: Option<String>,
}

impl Authorities {
    fn generate(now: SystemTime, rotation: Rotation) -> Result<Self> {
        Ok(Self {
            current: Authority::generate("Quorate", now, rotation.ca_duration)?,
            next: None,
            previous: None,
        })
    }

    fn read(secret: &Secret) -> Result<Self> {
        let text = |name: &str| -> Result<Option<String>> {
            let Some(ByteString(bytes)) = secret.data.as_ref().and_then(|data| data.get(name)) else {
                return Ok(None);
            };
            let text =
                String::from_utf8(bytes.clone()).with_context(|| format!("{name} is not UTF-8 text"))?;
            Ok(Some(text))
        };
        let authority = |(certificate, key): (&str, &str)| -> Result<Option<Authority>> {
            let (Some(certificate_pem), Some(key_pem)) = (text(certificate)?, text(key)?) else {
                return Ok(None);
            };
            Ok(Some(Authority::from_pem(&certificate_pem, &key_pem).with_context(|| certificate.to_owned())?))
        };
        let current =
            authority(CURRENT)?.with_context(|| format!("{} or {} is missing", CURRENT.0, CURRENT.1))?;
        Ok(Self { current, next: authority(NEXT)?, previous: text(PREVIOUS)? })
    }

    fn to_data(&self) -> BTreeMap<String, ByteString> {
        let mut data = BTreeMap::new();
        let mut put = |name: &str, text: &str| drop(data.insert(name.to_owned(), ByteString(text.into())));
        for ((certificate, key), authority) in [(CURRENT, Some(&self.current)), (NEXT, self.next.as_ref())] {
            if let Some(authority) = authority {
                put(certificate, authority.pem());
                put(key, &authority.key_pem());
            }
        }
        if let Some(previous) = &self.previous {
            put(PREVIOUS, previous);
        }
        data
    }

    /// The CA bundle: every CA whose signature is in use now, was in use recently, or will be soon.
    fn bundle(&self) -> String {
        let next = self.next.as_ref().map(Authority::pem).unwrap_or_default();
        let parts = [self.current.pem(), next, self.previous.as_deref().unwrap_or_default()];
        parts.iter().filter(|pem| !pem.is_empty()).map(|pem| format!("{}\n", pem.trim_end())).collect()
    }

    /// Takes the next step of the replacement, if one is due, and returns its description.
    fn renew(&mut self, now: SystemTime, rotation: Rotation) -> Result<Option<&'static str>> {
        let age = |validity: Validity| now.duration_since(validity.from + SKEW).unwrap_or_default();
        let left = self.current.validity().left(now);
        if let Some(next) = self.next.take() {
            // If the current CA has expired, the API server rejects it, so there is nothing to wait for.
            if age(next.validity()) >= rotation.ca_propagation || left.is_zero() {
                self.previous = Some(self.current.pem().to_owned());
                self.current = next;
                return Ok(Some("the next CA signs from now on"));
            }
            self.next = Some(next);
        } else if left < rotation.ca_renew_before {
            self.next = Some(Authority::generate("Quorate", now, rotation.ca_duration)?);
            return Ok(Some("the next CA is created and trusted"));
        }
        if self.previous.is_some()
            && age(self.current.validity()) >= 2 * rotation.ca_propagation + rotation.leaf_duration
        {
            self.previous = None;
            return Ok(Some("the previous CA is removed"));
        }
        Ok(None)
    }
}

/// Keeps the serving certificate valid, and publishes the CA bundle.
pub(crate) struct Certificates {
    source: CertificateSource,
    secrets: Api<Secret>,
    names: Vec<String>,
    shown: Arc<ServingCertificate>,
    /// The CA bundle to publish; empty if it is managed elsewhere.
    bundle: watch::Sender<String>,
    /// The CA that signed the serving certificate (with files: its chain), and its validity.
    leaf: parking_lot::Mutex<(String, Validity)>,
}

impl Certificates {
    /// Gets the first certificates, for a server that clients reach by these names.
    pub(crate) async fn get(
        client: Client,
        namespace: &str,
        source: CertificateSource,
        names: Vec<String>,
    ) -> Result<Self> {
        let secrets = Api::namespaced(client, namespace);
        let (credentials, signer, bundle) = match &source {
            CertificateSource::Own(rotation) => {
                let authorities = shared(&secrets, *rotation).await.with_context(|| {
                    format!("cannot use the CA in the Secret {namespace}/{SECRET}; delete it to get a new CA")
                })?;
                let leaf = authorities.current.issue(&names, SystemTime::now(), rotation.leaf_duration)?;
                (leaf, authorities.current.pem().to_owned(), authorities.bundle())
            }
            CertificateSource::Files { certificate, key, authority } => {
                let (chain, key) = (read(certificate).await?, read(key).await?);
                let bundle = match authority {
                    Some(file) => String::from_utf8(read(file).await?).context("not UTF-8 text")?,
                    None => String::new(),
                };
                let signer = String::from_utf8_lossy(&chain).into_owned();
                (Credentials::from_pem(&chain, &key)?, signer, bundle)
            }
        };
        let leaf = parking_lot::Mutex::new((signer, credentials.validity()));
        let shown = ServingCertificate::new(credentials)?;
        Ok(Self { source, secrets, names, shown, bundle: watch::Sender::new(bundle), leaf })
    }

    pub(crate) fn serving(&self) -> &Arc<ServingCertificate> {
        &self.shown
    }

    /// The CA bundle to publish.
    pub(crate) fn bundle(&self) -> watch::Receiver<String> {
        self.bundle.subscribe()
    }

    /// Replaces certificates that are about to expire; never returns. Only the leader changes the shared Secret.
    pub(crate) async fn run(&self, election: &Election) {
        let interval = match &self.source {
            CertificateSource::Own(rotation) => rotation.check_interval,
            CertificateSource::Files { .. } => Duration::from_secs(10),
        };
        loop {
            tokio::time::sleep(interval).await;
            if let Err(error) = self.reconcile(election).await {
                warn!(error = format!("{error:#}"), "cannot renew the certificates");
            }
        }
    }

    async fn reconcile(&self, election: &Election) -> Result<()> {
        let now = SystemTime::now();
        match &self.source {
            CertificateSource::Own(rotation) => {
                let Some(secret) = self.secrets.get_opt(SECRET).await.map_err(|error| plain(&error))? else {
                    anyhow::bail!("the Secret {SECRET} is gone: restart a server to create a new one");
                };
                let mut authorities = Authorities::read(&secret)?;
                if election.is_held()
                    && let Some(step) = authorities.renew(now, *rotation)?
                {
                    let changed = Secret { data: Some(authorities.to_data()), ..secret };
                    self.secrets
                        .replace(SECRET, &PostParams::default(), &changed)
                        .await
                        .map_err(|error| plain(&error))?;
                    info!(step, "replacing the CA");
                }
                let (signer, validity) = self.leaf.lock().clone();
                if signer != authorities.current.pem() || validity.left(now) < rotation.leaf_duration / 3 {
                    let leaf = authorities.current.issue(&self.names, now, rotation.leaf_duration)?;
                    *self.leaf.lock() = (authorities.current.pem().to_owned(), leaf.validity());
                    self.shown.replace(leaf)?;
                }
                self.publish(authorities.bundle());
            }
            CertificateSource::Files { certificate, key, authority } => {
                let (chain, key) = (read(certificate).await?, read(key).await?);
                let signer = String::from_utf8_lossy(&chain).into_owned();
                if self.leaf.lock().0 != signer {
                    // While the two files are being replaced, they may not match. The next check retries.
                    let credentials = Credentials::from_pem(&chain, &key)?;
                    let validity = credentials.validity();
                    self.shown.replace(credentials)?;
                    *self.leaf.lock() = (signer, validity);
                    info!("loaded new certificates from files");
                }
                if let Some(file) = authority {
                    self.publish(String::from_utf8(read(file).await?).context("not UTF-8 text")?);
                }
            }
        }
        Ok(())
    }

    fn publish(&self, bundle: String) {
        self.bundle.send_if_modified(|known| {
            let changed = *known != bundle;
            *known = bundle;
            changed
        });
    }
}

/// The CAs that all processes share; the first process creates them.
async fn shared(secrets: &Api<Secret>, rotation: Rotation) -> Result<Authorities> {
    for _ in 0..10 {
        if let Some(secret) = secrets.get_opt(SECRET).await.map_err(|error| plain(&error))? {
            return Authorities::read(&secret);
        }
        let authorities = Authorities::generate(SystemTime::now(), rotation)?;
        let secret = Secret {
            metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
            data: Some(authorities.to_data()),
            ..Secret::default()
        };
        match secrets.create(&PostParams::default(), &secret).await {
            Ok(_) => return Ok(authorities),
            // Another process was faster: use its CA.
            Err(Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(plain(&error)),
        }
    }
    anyhow::bail!("it is created and deleted again and again")
}

fn plain(error: &Error) -> anyhow::Error {
    anyhow::anyhow!("{}", Plain(error))
}

async fn read(file: &PathBuf) -> Result<Vec<u8>> {
    tokio::fs::read(file).await.with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotation() -> Rotation {
        Rotation::default()
    }

    fn at(days: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + 20_000 * DAY + days * DAY
    }

    fn count(bundle: &str) -> usize {
        bundle.matches("BEGIN CERTIFICATE").count()
    }

    #[test]
    fn a_ca_is_replaced_step_by_step() {
        let mut authorities = Authorities::generate(at(0), rotation()).unwrap();
        let first = authorities.current.pem().to_owned();
        assert_eq!(authorities.renew(at(549), rotation()).unwrap(), None, "more than half a year is left");
        assert_eq!(count(&authorities.bundle()), 1);

        let made = authorities.renew(at(551), rotation()).unwrap();
        assert_eq!(made, Some("the next CA is created and trusted"));
        assert_eq!(authorities.current.pem(), first, "it does not sign before it is trusted");
        assert_eq!(count(&authorities.bundle()), 2);
        let soon = at(551) + Duration::from_secs(3599);
        assert_eq!(authorities.renew(soon, rotation()).unwrap(), None);

        let signs = authorities.renew(at(551) + Duration::from_secs(3600), rotation()).unwrap();
        assert_eq!(signs, Some("the next CA signs from now on"));
        assert_ne!(authorities.current.pem(), first);
        assert!(authorities.bundle().contains(first.trim_end()), "servers may still use its certificates");

        assert_eq!(
            authorities.renew(at(611), rotation()).unwrap(),
            None,
            "its certificates may still be used"
        );
        let forgotten = authorities.renew(at(612), rotation()).unwrap();
        assert_eq!(forgotten, Some("the previous CA is removed"));
        assert_eq!(count(&authorities.bundle()), 1);
    }

    #[test]
    fn an_expired_ca_is_replaced_at_once() {
        let mut authorities = Authorities::generate(at(0), rotation()).unwrap();
        authorities.renew(at(800), rotation()).unwrap();
        let step = authorities.renew(at(800), rotation()).unwrap();
        assert_eq!(step, Some("the next CA signs from now on"));
        assert!(!authorities.current.validity().left(at(800)).is_zero());
    }

    #[test]
    fn a_secret_contains_all_cas() {
        let mut authorities = Authorities::generate(at(0), rotation()).unwrap();
        authorities.renew(at(600), rotation()).unwrap();
        authorities.previous = Some(authorities.current.pem().to_owned());
        let secret = Secret { data: Some(authorities.to_data()), ..Secret::default() };
        let read = Authorities::read(&secret).unwrap();
        assert_eq!(read.bundle(), authorities.bundle());
        assert_eq!(read.to_data(), authorities.to_data());
    }

    #[test]
    fn the_error_for_an_invalid_secret_names_the_key() {
        let none = Authorities::read(&Secret::default()).unwrap_err();
        assert_eq!(none.to_string(), "ca.crt or ca.key is missing");
        let data = [("ca.crt", "nonsense"), ("ca.key", "nonsense")]
            .map(|(name, text)| (name.to_owned(), ByteString(text.into())));
        let nonsense = Authorities::read(&Secret { data: Some(data.into()), ..Secret::default() });
        assert!(format!("{:#}", nonsense.unwrap_err()).starts_with("ca.crt: "));
    }
}
