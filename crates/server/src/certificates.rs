//! Certificates: what this process shows to the API server, and whom the API server is to trust for it.
//!
//! One authority for all processes, in a Secret. It is replaced long before it ends, and slowly: first the next one is
//! trusted, then it signs, and only when nobody shows anything signed by the old one is that forgotten.

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

/// The Secret that keeps the authority.
pub const SECRET: &str = "quorate-webhook-ca";

const CURRENT: (&str, &str) = ("ca.crt", "ca.key");
const NEXT: (&str, &str) = ("next-ca.crt", "next-ca.key");
const PREVIOUS: &str = "previous-ca.crt";

/// How long things are good, and when they are replaced.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long an authority is good.
    pub authority: Duration,
    /// The next one is made when the present one has less than this left.
    pub renewed: Duration,
    /// From when on it is trusted until it signs: every API server must have read it by then.
    pub trusted: Duration,
    /// How long what it signs is good.
    pub leaf: Duration,
    /// How often all this is looked at.
    pub looked: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            authority: 730 * DAY,
            renewed: 180 * DAY,
            trusted: Duration::from_secs(3600),
            leaf: 60 * DAY,
            looked: Duration::from_secs(60),
        }
    }
}

/// Where certificates come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// An authority of our own, in a Secret.
    Own(Pace),
    /// Files that somebody else keeps up to date, such as cert-manager.
    Files {
        /// The certificate, with those of its authorities after it.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
        /// Whom the API server is to trust; without it, somebody else tells the API server.
        authority: Option<PathBuf>,
    },
}

/// The authorities as the Secret keeps them.
#[derive(Debug)]
struct Authorities {
    current: Authority,
    next: Option<Authority>,
    previous: Option<String>,
}

impl Authorities {
    fn generate(now: SystemTime, pace: Pace) -> Result<Self> {
        Ok(Self { current: Authority::generate("Quorate", now, pace.authority)?, next: None, previous: None })
    }

    fn read(secret: &Secret) -> Result<Self> {
        let text = |name: &str| -> Result<Option<String>> {
            let Some(ByteString(bytes)) = secret.data.as_ref().and_then(|data| data.get(name)) else {
                return Ok(None);
            };
            let text = String::from_utf8(bytes.clone()).with_context(|| format!("{name} is not text"))?;
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

    /// Whom to trust: everybody whose signature may be shown now, was shown lately, or will be soon.
    fn bundle(&self) -> String {
        let next = self.next.as_ref().map(Authority::pem).unwrap_or_default();
        let parts = [self.current.pem(), next, self.previous.as_deref().unwrap_or_default()];
        parts.iter().filter(|pem| !pem.is_empty()).map(|pem| format!("{}\n", pem.trim_end())).collect()
    }

    /// Takes the next step, if one is due; says which.
    fn renew(&mut self, now: SystemTime, pace: Pace) -> Result<Option<&'static str>> {
        let age = |validity: Validity| now.duration_since(validity.from + SKEW).unwrap_or_default();
        let left = self.current.validity().left(now);
        if let Some(next) = self.next.take() {
            // One that has ended convinces nobody any more, so there is nothing to wait for.
            if age(next.validity()) >= pace.trusted || left.is_zero() {
                self.previous = Some(self.current.pem().to_owned());
                self.current = next;
                return Ok(Some("the next authority signs from now on"));
            }
            self.next = Some(next);
        } else if left < pace.renewed {
            self.next = Some(Authority::generate("Quorate", now, pace.authority)?);
            return Ok(Some("the next authority is made and trusted"));
        }
        if self.previous.is_some() && age(self.current.validity()) >= 2 * pace.trusted + pace.leaf {
            self.previous = None;
            return Ok(Some("the previous authority is forgotten"));
        }
        Ok(None)
    }
}

/// Keeps what this process shows good, and tells whom to trust.
pub(crate) struct Certificates {
    source: Source,
    secrets: Api<Secret>,
    names: Vec<String>,
    shown: Arc<ServingCertificate>,
    /// What the API server is to trust; empty where somebody else tells it.
    bundle: watch::Sender<String>,
    /// What is shown: who signed it, and how long it is good.
    leaf: parking_lot::Mutex<(String, Validity)>,
}

impl Certificates {
    /// Gets the first ones, for a server that is reached by these names.
    pub(crate) async fn get(
        client: Client,
        namespace: &str,
        source: Source,
        names: Vec<String>,
    ) -> Result<Self> {
        let secrets = Api::namespaced(client, namespace);
        let (credentials, signer, bundle) = match &source {
            Source::Own(pace) => {
                let authorities = shared(&secrets, *pace).await.with_context(|| {
                    format!("cannot use the authority in the Secret {namespace}/{SECRET}; without that Secret a new one is made")
                })?;
                let leaf = authorities.current.issue(&names, SystemTime::now(), pace.leaf)?;
                (leaf, authorities.current.pem().to_owned(), authorities.bundle())
            }
            Source::Files { certificate, key, authority } => {
                let (chain, key) = (read(certificate).await?, read(key).await?);
                let bundle = match authority {
                    Some(file) => String::from_utf8(read(file).await?).context("not text")?,
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

    /// Whom the API server is to trust.
    pub(crate) fn bundle(&self) -> watch::Receiver<String> {
        self.bundle.subscribe()
    }

    /// Replaces what is about to end, for ever. Only the holder of `election` changes what all share.
    pub(crate) async fn keep(&self, election: &Election) {
        let pace = match &self.source {
            Source::Own(pace) => pace.looked,
            Source::Files { .. } => Duration::from_secs(10),
        };
        loop {
            tokio::time::sleep(pace).await;
            if let Err(error) = self.look(election).await {
                warn!(error = format!("{error:#}"), "cannot renew the certificates");
            }
        }
    }

    async fn look(&self, election: &Election) -> Result<()> {
        let now = SystemTime::now();
        match &self.source {
            Source::Own(pace) => {
                let Some(secret) = self.secrets.get_opt(SECRET).await.map_err(|error| plain(&error))? else {
                    anyhow::bail!("the Secret {SECRET} is gone: it is made anew when a server starts");
                };
                let mut authorities = Authorities::read(&secret)?;
                if election.is_held()
                    && let Some(step) = authorities.renew(now, *pace)?
                {
                    let changed = Secret { data: Some(authorities.to_data()), ..secret };
                    self.secrets
                        .replace(SECRET, &PostParams::default(), &changed)
                        .await
                        .map_err(|error| plain(&error))?;
                    info!(step, "certificates");
                }
                let (signer, validity) = self.leaf.lock().clone();
                if signer != authorities.current.pem() || validity.left(now) < pace.leaf / 3 {
                    let leaf = authorities.current.issue(&self.names, now, pace.leaf)?;
                    *self.leaf.lock() = (authorities.current.pem().to_owned(), leaf.validity());
                    self.shown.replace(leaf)?;
                }
                self.publish(authorities.bundle());
            }
            Source::Files { certificate, key, authority } => {
                let (chain, key) = (read(certificate).await?, read(key).await?);
                let signer = String::from_utf8_lossy(&chain).into_owned();
                if self.leaf.lock().0 != signer {
                    // Replaced one after the other, they may not fit for a moment: then the next look takes them.
                    let credentials = Credentials::from_pem(&chain, &key)?;
                    let validity = credentials.validity();
                    self.shown.replace(credentials)?;
                    *self.leaf.lock() = (signer, validity);
                    info!("new certificates from files");
                }
                if let Some(file) = authority {
                    self.publish(String::from_utf8(read(file).await?).context("not text")?);
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

/// The authorities that all processes share; made by whoever comes first.
async fn shared(secrets: &Api<Secret>, pace: Pace) -> Result<Authorities> {
    for _ in 0..10 {
        if let Some(secret) = secrets.get_opt(SECRET).await.map_err(|error| plain(&error))? {
            return Authorities::read(&secret);
        }
        let authorities = Authorities::generate(SystemTime::now(), pace)?;
        let secret = Secret {
            metadata: ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() },
            data: Some(authorities.to_data()),
            ..Secret::default()
        };
        match secrets.create(&PostParams::default(), &secret).await {
            Ok(_) => return Ok(authorities),
            // Another was faster: its authority is the one.
            Err(Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(plain(&error)),
        }
    }
    anyhow::bail!("it comes and goes")
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

    fn pace() -> Pace {
        Pace::default()
    }

    fn at(days: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + 20_000 * DAY + days * DAY
    }

    fn count(bundle: &str) -> usize {
        bundle.matches("BEGIN CERTIFICATE").count()
    }

    #[test]
    fn an_authority_is_replaced_step_by_step() {
        let mut authorities = Authorities::generate(at(0), pace()).unwrap();
        let first = authorities.current.pem().to_owned();
        assert_eq!(authorities.renew(at(549), pace()).unwrap(), None, "more than half a year is left");
        assert_eq!(count(&authorities.bundle()), 1);

        let made = authorities.renew(at(551), pace()).unwrap();
        assert_eq!(made, Some("the next authority is made and trusted"));
        assert_eq!(authorities.current.pem(), first, "it does not sign before it is trusted");
        assert_eq!(count(&authorities.bundle()), 2);
        let soon = at(551) + Duration::from_secs(3599);
        assert_eq!(authorities.renew(soon, pace()).unwrap(), None);

        let signs = authorities.renew(at(551) + Duration::from_secs(3600), pace()).unwrap();
        assert_eq!(signs, Some("the next authority signs from now on"));
        assert_ne!(authorities.current.pem(), first);
        assert!(authorities.bundle().contains(first.trim_end()), "what it signed is still shown");

        assert_eq!(authorities.renew(at(611), pace()).unwrap(), None, "some may still show what it signed");
        let forgotten = authorities.renew(at(612), pace()).unwrap();
        assert_eq!(forgotten, Some("the previous authority is forgotten"));
        assert_eq!(count(&authorities.bundle()), 1);
    }

    #[test]
    fn one_that_has_ended_is_replaced_at_once() {
        let mut authorities = Authorities::generate(at(0), pace()).unwrap();
        authorities.renew(at(800), pace()).unwrap();
        let step = authorities.renew(at(800), pace()).unwrap();
        assert_eq!(step, Some("the next authority signs from now on"));
        assert!(!authorities.current.validity().left(at(800)).is_zero());
    }

    #[test]
    fn a_secret_keeps_all_of_it() {
        let mut authorities = Authorities::generate(at(0), pace()).unwrap();
        authorities.renew(at(600), pace()).unwrap();
        authorities.previous = Some(authorities.current.pem().to_owned());
        let secret = Secret { data: Some(authorities.to_data()), ..Secret::default() };
        let read = Authorities::read(&secret).unwrap();
        assert_eq!(read.bundle(), authorities.bundle());
        assert_eq!(read.to_data(), authorities.to_data());
    }

    #[test]
    fn a_secret_that_makes_no_sense_is_refused_in_a_sentence() {
        let none = Authorities::read(&Secret::default()).unwrap_err();
        assert_eq!(none.to_string(), "ca.crt or ca.key is missing");
        let data = [("ca.crt", "nonsense"), ("ca.key", "nonsense")]
            .map(|(name, text)| (name.to_owned(), ByteString(text.into())));
        let nonsense = Authorities::read(&Secret { data: Some(data.into()), ..Secret::default() });
        assert!(format!("{:#}", nonsense.unwrap_err()).starts_with("ca.crt: "));
    }
}
