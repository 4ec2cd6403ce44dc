//! A configuration and its layers become an image of the store.

use std::io::Read;

use super::Store;
use super::blobs::Blobs;
use super::compression::Decompressed;
use super::description::Configuration;
use super::digest::{Digest, Hashing};
use super::error::{Doing, StoreError};
use super::stage::Staged;
use super::steps::Steps;
use super::stored::Stored;
use super::unpack::Unpacker;

/// What an image consists of.
pub(super) struct Parts {
    /// The digest of the configuration, which is the image's own.
    pub(super) digest: Digest,
    pub(super) config: Vec<u8>,
    pub(super) layers: Vec<Source>,
}

/// Where a layer is.
pub(super) struct Source {
    pub(super) path: String,
    /// Its digest as it is, if one was announced.
    pub(super) digest: Option<Digest>,
}

impl Store {
    /// Unpacks an image and names it, unless it is there already and only needs the names.
    pub(super) fn build(
        &self,
        staged: Option<Staged>,
        blobs: &Blobs,
        parts: &Parts,
        names: &[String],
        steps: &Steps,
    ) -> Result<Stored, StoreError> {
        let there = self.name_now(&parts.digest, names);
        match (there, staged) {
            (Ok(None), Some(staged)) => self.build_new(staged, blobs, parts, names, steps),
            (Ok(None), None) => self.build_new(self.stage_now()?, blobs, parts, names, steps),
            (Ok(Some(stored)), staged) => {
                steps.say(format!("{} is there already", stored.digest));
                staged.map_or(Ok(0), Staged::discard)?;
                Ok(stored)
            }
            (Err(error), staged) => {
                staged.map_or(Ok(0), Staged::discard)?;
                Err(error)
            }
        }
    }

    fn build_new(
        &self,
        staged: Staged,
        blobs: &Blobs,
        parts: &Parts,
        names: &[String],
        steps: &Steps,
    ) -> Result<Stored, StoreError> {
        staged.finish(|staged| {
            let configuration = Configuration::parse(parts.digest.as_str(), &parts.config)?;
            let count = parts.layers.len();
            if configuration.diff_ids.len() != count {
                // Only through them the image's digest says anything of its content.
                let message = format!(
                    "it has {count} layers, and its configuration tells of {}",
                    configuration.diff_ids.len()
                );
                return Err(StoreError::unusable(parts.digest.as_str(), message));
            }
            let root = staged.open()?;
            let mut unpacker = Unpacker::new(&root, self.limits, steps);
            for (index, layer) in parts.layers.iter().enumerate() {
                let diff_id = &configuration.diff_ids[index];
                let digest = layer.digest.as_ref().unwrap_or(diff_id);
                let label = format!("layer {} of {count} ({})", index + 1, digest.as_str());
                steps.say(format!("unpacking {label}"));
                let packed = blobs.open(&layer.path)?;
                self.unpack(&mut unpacker, &label, packed, layer.digest.as_ref(), diff_id)?;
            }
            let size = unpacker.finish()?;
            let image = Stored::new(parts.digest.as_str(), size, configuration.description);
            self.commit_now(staged, &parts.digest, &image, names, steps)
        })
    }

    /// Unpacks one layer and checks both of its digests, all in one reading.
    pub(super) fn unpack(
        &self,
        unpacker: &mut Unpacker<'_>,
        label: &str,
        packed: impl Read,
        digest: Option<&Digest>,
        diff_id: &Digest,
    ) -> Result<(), StoreError> {
        let reading = || format!("can't read {label}");
        let plain = Decompressed::new(Hashing::new(packed), self.limits.stream()).doing(reading)?;
        let mut plain = Hashing::new(plain);
        unpacker.layer(label, &mut plain)?;
        let (found, packed) = plain.finish().doing(reading)?;
        found.expect(&format!("{label}, unpacked,"), diff_id)?;
        if let Some(digest) = digest {
            let (found, _) = packed.into_inner().finish().doing(reading)?;
            found.expect(label, digest)?;
        }
        Ok(())
    }
}
