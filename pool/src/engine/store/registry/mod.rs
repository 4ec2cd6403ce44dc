//! A client of a registry that is not trusted: the size of its answers and the addresses that it leads to are bounded.
//! `http` bounds answers, `guard` checks addresses, and `access` holds the credentials for a repository.

mod access;
mod error;
mod guard;
mod http;

use std::path::Path;

use oci_spec::distribution::Reference;
use oci_spec::image::{Descriptor, ImageIndex, ImageManifest};
use reqwest::{Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::io::AsyncWriteExt;

use self::access::Access;
use self::error::RegistryError;
use self::http::{Http, place};
use super::blobs::blob;
use super::credentials;
use super::digest::Digest;
use super::error::{IoContext, StoreError};
use super::layout::{MAX_INDEX_DEPTH, digest_of, fits};
use super::limits::Limits;
use crate::engine::docker_config;
use crate::quote::quoted;

/// The kinds of manifests and indexes that are read.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";

const ANYTHING: &str = "*/*";

/// Maximum read of the content of an error, in bytes. Registries write a few hundred.
const MAX_ERROR: u64 = 64 << 10;

/// A client of a registry, for one image.
pub(super) struct Registry<'a> {
    reference: &'a Reference,
    limits: &'a Limits,
    /// The address of the repository.
    repository: Url,
    access: Access,
    http: Http,
}

/// The fields that tell a manifest from an index.
#[derive(Deserialize)]
struct Outline {
    manifests: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct ErrorReply {
    errors: Vec<ErrorDetail>,
}

#[derive(Deserialize)]
struct ErrorDetail {
    code: String,
    message: Option<String>,
}

impl<'a> Registry<'a> {
    /// A client for an image, with the credentials of Docker's command line.
    pub(super) fn new(reference: &'a Reference, limits: &'a Limits) -> Result<Self, StoreError> {
        let registry = reference.resolve_registry();
        let protocol = if is_local(registry) { "http" } else { "https" };
        let path = reference.repository();
        let repository = Url::parse(&format!("{protocol}://{registry}/v2/{path}/"));
        let failed = |error| StoreError::registry(reference.whole(), error);
        let repository = repository.map_err(|error| failed(RegistryError::Address(error)))?;
        let http = Http::new(&repository, limits.patience).map_err(failed)?;
        let login = credentials::find(docker_config::directory().as_deref(), reference.registry());
        let access = Access::new(login, path);
        Ok(Self { reference, limits, repository, access, http })
    }

    fn error(&self, error: RegistryError) -> StoreError {
        StoreError::registry(self.reference.whole(), error)
    }

    /// The manifest of the image for this machine.
    pub(super) async fn manifest(&self) -> Result<ImageManifest, StoreError> {
        let mut wanted = match self.reference.digest() {
            Some(digest) => Some(Digest::parse(digest).ok_or_else(|| {
                StoreError::unusable(self.reference.whole(), "its digest is not of SHA-256")
            })?),
            None => None,
        };
        for _ in 0..=MAX_INDEX_DEPTH {
            let json = self.describe(wanted.as_ref()).await?;
            let outline: Outline = self.parse(&json)?;
            match (outline.manifests, outline.layers) {
                // Another client could read it as the other kind.
                (Some(_), Some(_)) => return Err(self.unusable("it is a manifest and an index")),
                (None, _) => return self.check_layers(self.parse(&json)?),
                (Some(_), None) => {}
            }
            let index: ImageIndex = self.parse(&json)?;
            let found = index.manifests().iter().find(|entry| fits(entry));
            let found = found
                .ok_or_else(|| self.unusable("it has no image for the platform of this machine"))?;
            wanted = Some(digest_of(found)?);
        }
        Err(self.unusable("its indexes are nested too deeply"))
    }

    /// Reads a manifest or an index, by its digest or by the tag of the image.
    async fn describe(&self, digest: Option<&Digest>) -> Result<Vec<u8>, StoreError> {
        let name = digest.map_or_else(|| self.reference.tag().unwrap_or("latest"), Digest::as_str);
        let answer = self.get(&format!("manifests/{name}"), MANIFESTS).await?;
        let read = self.http.body(answer, self.limits.description).all().await;
        let json = read.map_err(|error| self.error(error))?;
        if let Some(digest) = digest {
            Digest::of(&json).expect(&format!("manifest {name}"), digest)?;
        }
        Ok(json)
    }

    fn check_layers(&self, manifest: ImageManifest) -> Result<ImageManifest, StoreError> {
        let layers = manifest.layers();
        self.limits.check_layers(&self.reference.whole(), layers.len())?;
        let total = layers.iter().map(Descriptor::size).fold(0, u64::saturating_add);
        if total > self.limits.bytes {
            let most = self.limits.bytes;
            return Err(self.unusable(&format!("its layers take more than {most} bytes together")));
        }
        Ok(manifest)
    }

    /// Fetches a blob into a file of a layout. It must have the size and the digest of its descriptor. Other
    /// addresses that the descriptor has for it (`urls`) are not asked.
    pub(super) async fn fetch(
        &self,
        descriptor: &Descriptor,
        most: u64,
        directory: &Path,
    ) -> Result<(), StoreError> {
        let digest = digest_of(descriptor)?;
        let size = descriptor.size();
        if size > most {
            let message = format!("it is larger than {most} bytes");
            return Err(StoreError::unusable(digest.as_str(), message));
        }
        let answer = self.get(&format!("blobs/{}", digest.as_str()), ANYTHING).await?;
        let mut body = self.http.body(answer, size);
        let path = directory.join(blob(&digest));
        let mut file = tokio::fs::File::create_new(&path).await.at("make", &path)?;
        let mut hash = Digest::start();
        while let Some(part) = body.next().await.map_err(|error| self.error(error))? {
            hash.add(&part);
            file.write_all(&part).await.at("write", &path)?;
        }
        file.flush().await.at("write", &path)?;
        hash.finish().expect("what the registry sent", &digest)
    }

    /// Asks for something of the repository.
    async fn get(&self, path: &str, accept: &'static str) -> Result<Response, StoreError> {
        let url = self
            .repository
            .join(path)
            .map_err(|error| self.error(RegistryError::Address(error)))?;
        let answer = self.ask(&url, accept).await.map_err(|error| self.error(error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let (place, status) = (place(answer.url()), answer.status());
        let mut message = format!("{place} answers {status}");
        if let Ok(content) = self.http.body(answer, MAX_ERROR).all().await
            && let Ok(ErrorReply { errors }) = serde_json::from_slice(&content)
            && let Some(first) = errors.first()
        {
            let said = quoted(first.message.as_deref().unwrap_or(&first.code));
            message = format!("{message}, and says {said}");
        }
        if status == StatusCode::UNAUTHORIZED {
            message.push_str(". If the image is private, log in with `docker login` first");
        }
        Err(self.error(RegistryError::Refused(message)))
    }

    async fn ask(&self, url: &Url, accept: &'static str) -> Result<Response, RegistryError> {
        let sent = self.access.current().await;
        let (answer, is_own) = self.http.follow(url, accept, sent.as_ref()).await?;
        // Another server that the registry leads to gets no credentials.
        if answer.status() != StatusCode::UNAUTHORIZED || !is_own {
            return Ok(answer);
        }
        match self.access.renew(&self.http, sent.as_ref(), &answer).await? {
            None => Ok(answer),
            renewed => Ok(self.http.follow(url, accept, renewed.as_ref()).await?.0),
        }
    }

    fn parse<'de, T: Deserialize<'de>>(&self, json: &'de [u8]) -> Result<T, StoreError> {
        serde_json::from_slice(json).map_err(|error| self.unusable(&error.to_string()))
    }

    fn unusable(&self, message: &str) -> StoreError {
        StoreError::unusable(self.reference.whole(), message)
    }
}

/// Whether a registry is on this machine, so that its traffic can't be intercepted.
fn is_local(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    matches!(host, "localhost" | "127.0.0.1")
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
