//! The certificate of an HTTPS server. It is [read again](crate::reread) when its files change, so that a renewed one needs
//! no restart.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use isolator_pool::lock::lock;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::TlsConfig;
use crate::reread::Files;

/// The certificate with its chain and its key, both in PEM.
pub(super) struct Certificate {
    paths: TlsConfig,
    current: Mutex<Current>,
}

struct Current {
    files: Files,
    config: Arc<ServerConfig>,
}

impl Certificate {
    pub(super) fn read(paths: TlsConfig) -> anyhow::Result<Self> {
        let both: Vec<PathBuf> = vec![paths.certificate.clone(), paths.key.clone()];
        let (files, contents) = Files::read(both)?;
        let config = parse(&paths, &contents)?;
        Ok(Self { paths, current: Mutex::new(Current { files, config }) })
    }

    /// The acceptor of the next connection. If the files have changed and can't be used, it has the old certificate.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut current = lock(&self.current);
        if let Some(read) = current.files.changed() {
            let parsed = read.map_err(anyhow::Error::from);
            match parsed.and_then(|contents| parse(&self.paths, &contents)) {
                Ok(config) => {
                    tracing::info!("the TLS certificate has changed");
                    current.config = config;
                }
                Err(error) => tracing::error!(
                    error = format!("{error:#}"),
                    "the old TLS certificate is used until the files of http.tls are a certificate and its key again"
                ),
            }
        }
        Arc::clone(&current.config).into()
    }
}

/// The contents of the certificate's file and of the key's.
fn parse(paths: &TlsConfig, contents: &[Vec<u8>]) -> anyhow::Result<Arc<ServerConfig>> {
    let TlsConfig { certificate, key } = paths;
    let (certificate, key) = (certificate.display(), key.display());
    let [chain, secret] = contents else { anyhow::bail!("there must be two files") };
    let chain = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| format!("{certificate} is not a certificate in PEM"))?;
    let secret = PrivateKeyDer::from_pem_slice(secret)
        .with_context(|| format!("{key} is not a private key in PEM"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .with_context(|| format!("{key} is not the key of {certificate}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
