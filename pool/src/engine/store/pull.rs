//! Pulling images from registries.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use oci_client::Reference;
use oci_client::client::{Client, ClientConfig, ClientProtocol};
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;
use tokio::io::AsyncWriteExt;

use super::blobs::{Blobs, blob};
use super::blocking_job::{run_blocking, run_job};
use super::credentials;
use super::digest::Digest;
use super::error::{IoContext, StoreError};
use super::layers::{Parts, Source};
use super::stage::Staged;
use super::stored::Stored;
use super::{Store, names};
use crate::engine::Progress;
use crate::error_chain::error_chain;

/// Layers that are fetched at the same time: Docker's default.
const PARALLEL_LAYERS: usize = 3;

/// How long a registry may take to accept a connection, and to send the next bytes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const READ_TIMEOUT: Duration = Duration::from_secs(60);

impl Store {
    /// Pulls an image from its registry, with the credentials of Docker's command line. A registry on this
    /// machine is used without TLS.
    ///
    /// Dropping the future cancels the pull and leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`StoreError::Registry`], and what [`import`](Self::import) returns for an image that can't be used.
    pub async fn pull(&self, name: &str, progress: Progress<'_>) -> Result<Stored, StoreError> {
        let reference = names::reference(name)?;
        let staged = self.stage().await?;
        match self.fetch(&reference, &staged, progress).await {
            Ok(parts) => {
                let (store, names) = (self.clone(), vec![reference.whole()]);
                run_job(progress, move |job| {
                    let blobs = Blobs::Directory(staged.directory().to_owned());
                    store.build(Some(staged), &blobs, &parts, &names, job)
                })
                .await
            }
            Err(error) => {
                // What it left is removed before the caller gets the error.
                let removed = run_blocking(move || staged.discard()).await;
                removed.and(Err(error))
            }
        }
    }

    /// Fetches what an image consists of into a staging directory.
    async fn fetch(
        &self,
        reference: &Reference,
        staged: &Staged,
        progress: Progress<'_>,
    ) -> Result<Parts, StoreError> {
        let registry = Registry::new(reference)?;
        progress(&format!("asking {} for {reference}", reference.registry()));
        let manifest = registry.client.pull_image_manifest(reference, &registry.auth).await;
        let (manifest, _) = manifest.map_err(|error| registry.error(&error))?;
        let directory = staged.directory();
        let made = fs::create_dir_all(directory.join("blobs/sha256"));
        made.at("make a directory for layers in", directory)?;

        let digest = digest_of(&manifest.config)?;
        registry.fetch(&manifest.config, self.limits.description, directory).await?;
        let blobs = Blobs::Directory(directory.to_owned());
        let config = blobs.read_blob(&digest, self.limits.description)?;
        let mut layers = Vec::new();
        let mut wanted = BTreeMap::new();
        for layer in &manifest.layers {
            let digest = digest_of(layer)?;
            layers.push(Source { path: blob(&digest), digest: Some(digest) });
            wanted.insert(layer.digest.as_str(), layer);
        }
        if self.read(&digest)?.is_some() {
            return Ok(Parts { digest, config, layers });
        }
        let total = wanted.values().map(|layer| size_of(layer)).fold(0, u64::saturating_add);
        if total > self.limits.bytes {
            let message =
                format!("its layers are larger than {} bytes together", self.limits.bytes);
            return Err(StoreError::unusable(reference.whole(), message));
        }
        let fetched = stream::iter(wanted.into_values().map(|layer| {
            let registry = &registry;
            async move {
                registry.fetch(layer, self.limits.bytes, directory).await?;
                progress(&format!("fetched layer {}, {} bytes", layer.digest, layer.size));
                Ok(())
            }
        }));
        fetched.boxed().buffer_unordered(PARALLEL_LAYERS).try_collect::<()>().await?;
        Ok(Parts { digest, config, layers })
    }
}

/// A client of a registry, and the requested image.
struct Registry<'a> {
    client: Client,
    auth: RegistryAuth,
    reference: &'a Reference,
}

impl<'a> Registry<'a> {
    fn new(reference: &'a Reference) -> Result<Self, StoreError> {
        // Fails if it was installed before, which is fine: this program has only one provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let registry = reference.registry();
        let protocol =
            if is_local(registry) { ClientProtocol::Http } else { ClientProtocol::Https };
        let config = ClientConfig {
            protocol,
            connect_timeout: Some(CONNECT_TIMEOUT),
            read_timeout: Some(READ_TIMEOUT),
            ..ClientConfig::default()
        };
        let client = Client::try_from(config).map_err(|error| StoreError::Registry {
            name: reference.whole(),
            message: error_chain(&error),
        })?;
        let auth = credentials::find(credentials::directory().as_deref(), registry);
        Ok(Self { client, auth, reference })
    }

    fn error(&self, error: &dyn std::error::Error) -> StoreError {
        StoreError::Registry { name: self.reference.whole(), message: error_chain(error) }
    }

    /// Fetches a blob into a file. Its digest is checked on the way.
    async fn fetch(
        &self,
        descriptor: &OciDescriptor,
        most: u64,
        directory: &Path,
    ) -> Result<(), StoreError> {
        let digest = digest_of(descriptor)?;
        let size = size_of(descriptor);
        if size > most {
            let message = format!("it is larger than {most} bytes");
            return Err(StoreError::unusable(digest.as_str(), message));
        }
        let path = directory.join(blob(&digest));
        let mut file = tokio::fs::File::create_new(&path).await.at("make", &path)?;
        let stream = self.client.pull_blob_stream(self.reference, descriptor).await;
        let mut stream = stream.map_err(|error| self.error(&error))?;
        let mut fetched: u64 = 0;
        while let Some(bytes) = stream.next().await {
            let bytes = bytes.map_err(|error| self.error(&error))?;
            fetched = fetched.saturating_add(bytes.len() as u64);
            if fetched > size {
                return Err(StoreError::unusable(
                    digest.as_str(),
                    "it is longer than its manifest says",
                ));
            }
            file.write_all(&bytes).await.at("write", &path)?;
        }
        file.flush().await.at("write", &path)
    }
}

/// Whether a registry is on this machine, so that nobody can listen in.
fn is_local(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    matches!(host, "localhost" | "127.0.0.1")
}

fn digest_of(descriptor: &OciDescriptor) -> Result<Digest, StoreError> {
    let digest = Digest::parse(&descriptor.digest);
    digest.ok_or_else(|| StoreError::unusable(&descriptor.digest, "it is not a SHA-256 digest"))
}

fn size_of(descriptor: &OciDescriptor) -> u64 {
    u64::try_from(descriptor.size).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registries_of_this_machine_are_used_without_tls() {
        for registry in ["localhost", "localhost:5000", "127.0.0.1:5000"] {
            assert!(is_local(registry), "{registry}");
        }
        for registry in ["docker.io", "localhost.example:5000", "127.0.0.1.example", "127.0.0.2:80"]
        {
            assert!(!is_local(registry), "{registry}");
        }
    }
}
