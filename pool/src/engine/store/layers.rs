//! Building an image of the store from a configuration and layers.

use std::io::Read;

use super::Store;
use super::blobs::Blobs;
use super::blocking_job::BlockingJob;
use super::compression::Decompressed;
use super::description::ImageConfig;
use super::digest::{Digest, Hashing};
use super::error::{IoContext, StoreError};
use super::stage::Staged;
use super::stored::Stored;
use super::unpack::Unpacker;

/// The parts of an image.
pub(super) struct ImageParts {
    /// The digest of the configuration, which is also the image's.
    pub(super) digest: Digest,
    pub(super) config: Vec<u8>,
    pub(super) layers: Vec<LayerSource>,
}

/// Where a layer is.
pub(super) struct LayerSource {
    pub(super) path: String,
    /// Its digest as stored, compressed or not, if the manifest states one.
    pub(super) digest: Option<Digest>,
}

impl Store {
    /// Unpacks and names an image. If the store has it already, it only adds the names.
    pub(super) fn build(
        &self,
        staged: Option<Staged>,
        blobs: &Blobs,
        parts: &ImageParts,
        names: &[String],
        job: &BlockingJob,
    ) -> Result<Stored, StoreError> {
        let there = self.name_now(&parts.digest, names);
        match (there, staged) {
            (Ok(None), Some(staged)) => self.build_new(staged, blobs, parts, names, job),
            (Ok(None), None) => self.build_new(self.stage_now()?, blobs, parts, names, job),
            (Ok(Some(stored)), staged) => {
                job.report(format!("image {} is already in the store", stored.digest));
                staged.into_iter().for_each(Staged::discard_now);
                Ok(stored)
            }
            (Err(error), staged) => {
                staged.into_iter().for_each(Staged::discard_now);
                Err(error)
            }
        }
    }

    fn build_new(
        &self,
        staged: Staged,
        blobs: &Blobs,
        parts: &ImageParts,
        names: &[String],
        job: &BlockingJob,
    ) -> Result<Stored, StoreError> {
        staged.finish(|staged| {
            let configuration = ImageConfig::parse(parts.digest.as_str(), &parts.config)?;
            let count = parts.layers.len();
            self.limits.check_layers(parts.digest.as_str(), count)?;
            if configuration.diff_ids.len() != count {
                // These digests are what ties the image's digest to its content.
                let message = format!(
                    "it has {count} layers, but its configuration lists {}",
                    configuration.diff_ids.len()
                );
                return Err(StoreError::unusable(parts.digest.as_str(), message));
            }
            let root = staged.open()?;
            let mut unpacker = Unpacker::new(&root, self.limits, job);
            for (index, layer) in parts.layers.iter().enumerate() {
                let diff_id = &configuration.diff_ids[index];
                let digest = layer.digest.as_ref().unwrap_or(diff_id);
                let label = format!("layer {} of {count} ({})", index + 1, digest.as_str());
                job.report(format!("unpacking {label}"));
                let packed = blobs.open(&layer.path)?;
                self.unpack(&mut unpacker, &label, packed, layer.digest.as_ref(), diff_id)?;
            }
            let digest = parts.digest.as_str();
            let description = unpacker.make_mountpoints(digest, configuration.description)?;
            let image = Stored::new(digest, unpacker.finish()?, description);
            self.commit_now(staged, &parts.digest, &image, names, job)
        })
    }

    /// Unpacks one layer and checks both of its digests in one pass.
    pub(super) fn unpack(
        &self,
        unpacker: &mut Unpacker<'_>,
        label: &str,
        packed: impl Read,
        digest: Option<&Digest>,
        diff_id: &Digest,
    ) -> Result<(), StoreError> {
        let reading = || format!("can't read {label}");
        let plain =
            Decompressed::new(Hashing::new(packed), self.limits.stream()).context(reading)?;
        let mut plain = Hashing::new(plain);
        unpacker.layer(label, &mut plain)?;
        let (found, packed) = plain.finish().context(reading)?;
        found.expect(&format!("{label}, unpacked,"), diff_id)?;
        if let Some(digest) = digest {
            let (found, _) = packed.into_inner().finish().context(reading)?;
            found.expect(label, digest)?;
        }
        Ok(())
    }
}
