//! Certificates, keys and tokens of one control plane.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// Users with their own token. For all other users, the admin impersonates them.
const TOKENS: [(&str, &str, &str); 3] = [
    (ADMIN_TOKEN, "admin", "system:masters"),
    (CONTROLLER_MANAGER_TOKEN, "system:kube-controller-manager", ""),
    (SCHEDULER_TOKEN, "system:kube-scheduler", ""),
];

pub(crate) const ADMIN_TOKEN: &str = "admin";
pub(crate) const CONTROLLER_MANAGER_TOKEN: &str = "controller-manager";
pub(crate) const SCHEDULER_TOKEN: &str = "scheduler";

/// The files that the programs read.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) ca: PathBuf,
    pub(crate) serving_certificate: PathBuf,
    pub(crate) serving_key: PathBuf,
    pub(crate) service_account_key: PathBuf,
    pub(crate) service_account_public_key: PathBuf,
    pub(crate) tokens: PathBuf,
    /// The CA's certificate in DER, for clients.
    pub(crate) ca_der: Vec<u8>,
}

impl Credentials {
    /// Creates new credentials in `folder`.
    pub(crate) fn write(folder: &Path) -> Result<Self> {
        let ca_key = KeyPair::generate()?;
        let ca_params = authority()?;
        let ca = ca_params.self_signed(&ca_key)?;
        let key = KeyPair::generate()?;
        let names = ["127.0.0.1", "localhost", "kubernetes.default.svc"].map(str::to_owned);
        let certificate = CertificateParams::new(names)?.signed_by(&key, &Issuer::new(ca_params, ca_key))?;
        let service_accounts = KeyPair::generate()?;

        let file = |name: &str, text: String| -> Result<PathBuf> {
            let path = folder.join(name);
            fs::write(&path, text)?;
            Ok(path)
        };
        let tokens: String = TOKENS
            .iter()
            .map(|(token, user, groups)| format!("{token},{user},{user},\"{groups}\"\n"))
            .collect();
        Ok(Self {
            ca: file("ca.crt", ca.pem())?,
            serving_certificate: file("apiserver.crt", certificate.pem())?,
            serving_key: file("apiserver.key", key.serialize_pem())?,
            service_account_key: file("service-accounts.key", service_accounts.serialize_pem())?,
            service_account_public_key: file("service-accounts.pub", service_accounts.public_key_pem())?,
            tokens: file("tokens.csv", tokens)?,
            ca_der: ca.der().to_vec(),
        })
    }
}

/// The parameters of a CA certificate.
pub(crate) fn authority() -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    // A leaf with the same subject as its issuer would count as self-signed.
    params.distinguished_name.push(DnType::CommonName, "testbed authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}
