//! Finds the images in an archive or directory, by Docker's or OCI's manifests.

use oci_spec::image::{Arch, Descriptor, ImageIndex, ImageManifest, Os};
use serde::Deserialize;

use super::blobs::{Blobs, blob};
use super::digest::Digest;
use super::error::StoreError;
use super::layers::{ImageParts, LayerSource};
use super::limits::Limits;

const DOCKER: &str = "manifest.json";
const INDEX: &str = "index.json";
const LAYOUT: &str = "oci-layout";

/// Deepest nesting of indexes.
pub(super) const MAX_INDEX_DEPTH: usize = 4;

/// Annotations with an image's name, the more complete one first.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// Annotation of entries that describe an image and are not one.
const ATTESTATION: &str = "vnd.docker.reference.type";

/// An image of an archive, and its names there.
pub(super) struct FoundImage {
    pub(super) names: Vec<String>,
    pub(super) parts: ImageParts,
}

/// Finds the images. `None` if it has neither Docker's nor OCI's layout.
pub(super) fn images(
    blobs: &Blobs,
    limits: &Limits,
) -> Result<Option<Vec<FoundImage>>, StoreError> {
    // Docker writes both; its own manifest has the full names.
    if blobs.has(DOCKER) {
        docker(blobs, limits).map(Some)
    } else if blobs.has(INDEX) && blobs.has(LAYOUT) {
        oci(blobs, limits).map(Some)
    } else {
        Ok(None)
    }
}

/// An entry of Docker's manifest.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

fn docker(blobs: &Blobs, limits: &Limits) -> Result<Vec<FoundImage>, StoreError> {
    let saved: Vec<Saved> = parse(DOCKER, &blobs.read(DOCKER, limits.description)?)?;
    let found = saved.into_iter().map(|saved| {
        let config = blobs.read(&saved.config, limits.description)?;
        let digest = Digest::of(&config);
        // Only the configuration has digests of its layers.
        let layers =
            saved.layers.into_iter().map(|path| LayerSource { path, digest: None }).collect();
        let names = saved.repo_tags.unwrap_or_default();
        Ok(FoundImage { names, parts: ImageParts { digest, config, layers } })
    });
    found.collect()
}

fn oci(blobs: &Blobs, limits: &Limits) -> Result<Vec<FoundImage>, StoreError> {
    let index: ImageIndex = parse(INDEX, &blobs.read(INDEX, limits.description)?)?;
    // An image for several platforms may have one entry for each, all with the same name.
    let mut groups: Vec<(Option<String>, Vec<Descriptor>)> = Vec::new();
    for descriptor in index.manifests().iter().filter(|descriptor| !is_attestation(descriptor)) {
        let name = name_of(descriptor);
        match groups.iter_mut().find(|(other, _)| *other == name) {
            Some((_, descriptors)) => descriptors.push(descriptor.clone()),
            None => groups.push((name, vec![descriptor.clone()])),
        }
    }
    let mut found = Vec::new();
    for (name, descriptors) in groups {
        let manifest = choose(blobs, limits, &descriptors, MAX_INDEX_DEPTH)?;
        let manifest = manifest.ok_or_else(|| {
            let what = name.clone().unwrap_or_else(|| "the archive".to_owned());
            StoreError::unusable(what, "it has no image for the platform of this machine")
        })?;
        let manifest: ImageManifest =
            parse(&blob(&manifest), &blobs.read_blob(&manifest, limits.description)?)?;
        let digest = digest_of(manifest.config())?;
        let config = blobs.read_blob(&digest, limits.description)?;
        let layers = manifest.layers().iter().map(|layer| {
            let digest = digest_of(layer)?;
            Ok(LayerSource { path: blob(&digest), digest: Some(digest) })
        });
        let layers = layers.collect::<Result<_, StoreError>>()?;
        let names = name.into_iter().collect();
        found.push(FoundImage { names, parts: ImageParts { digest, config, layers } });
    }
    Ok(found)
}

/// Chooses the manifest for this machine's platform.
fn choose(
    blobs: &Blobs,
    limits: &Limits,
    descriptors: &[Descriptor],
    deeper: usize,
) -> Result<Option<Digest>, StoreError> {
    for descriptor in descriptors.iter().filter(|descriptor| fits(descriptor)) {
        let digest = digest_of(descriptor)?;
        let kind = descriptor.media_type().to_string();
        if !kind.contains("index") && !kind.contains("manifest.list") {
            return Ok(Some(digest));
        }
        if deeper == 0 {
            return Err(StoreError::unusable(blob(&digest), "its indexes are nested too deeply"));
        }
        let index: ImageIndex =
            parse(&blob(&digest), &blobs.read_blob(&digest, limits.description)?)?;
        if let Some(found) = choose(blobs, limits, index.manifests(), deeper - 1)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Whether an entry of an index is an image for this machine.
pub(super) fn fits(descriptor: &Descriptor) -> bool {
    let is_ours = descriptor.platform().as_ref().is_none_or(|platform| {
        *platform.os() == Os::default() && *platform.architecture() == Arch::default()
    });
    is_ours && !is_attestation(descriptor)
}

fn is_attestation(descriptor: &Descriptor) -> bool {
    let annotations = descriptor.annotations().as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(ATTESTATION))
}

/// The name of an image; a tag alone is not a name.
fn name_of(descriptor: &Descriptor) -> Option<String> {
    let annotations = descriptor.annotations().as_ref()?;
    let mut names = NAMES.iter().filter_map(|name| annotations.get(*name));
    names.find(|name| name.contains(['/', ':'])).cloned()
}

/// The digest of what a descriptor describes.
pub(super) fn digest_of(descriptor: &Descriptor) -> Result<Digest, StoreError> {
    let digest = descriptor.digest().to_string();
    Digest::parse(&digest).ok_or_else(|| StoreError::unusable(digest, "it is not a SHA-256 digest"))
}

fn parse<'a, T: Deserialize<'a>>(what: &str, json: &'a [u8]) -> Result<T, StoreError> {
    serde_json::from_slice(json).map_err(|error| StoreError::unusable(what, error))
}
