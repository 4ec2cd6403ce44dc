//! Limits of images, and of the answers of registries.

use std::time::Duration;

use super::error::StoreError;

/// Limits of an image. Layers are not trusted: without limits, a few kilobytes can fill a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all files of all layers together, including files that a later layer replaces.
    pub bytes: u64,
    /// Entries of all layers together, including directories that have no entry of their own.
    pub entries: u64,
    /// Bytes of a path, and of the target of a link.
    pub path: usize,
    /// Bytes of a manifest, an index or a configuration.
    pub description: u64,
    /// Layers.
    pub layers: usize,
    /// Timeout for a registry's answer to begin, and how much longer its content may take than at 8 KiB/s.
    pub patience: Duration,
}

impl Limits {
    /// The largest images of programming languages unpack to less than a tenth of this.
    const BYTES: u64 = 64 << 30;
    /// Ten times what an image with a whole desktop in it has.
    const ENTRIES: u64 = 4 << 20;
    /// The longest path in Linux (`PATH_MAX`), without the NUL at its end.
    const PATH: usize = 4095;
    /// The largest manifest that registries accept.
    const DESCRIPTION: u64 = 4 << 20;
    /// Twice what Docker takes.
    const LAYERS: usize = 256;
    /// Some registries fetch an image from another one first.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Checks the number of layers of an image.
    pub(super) fn check_layers(&self, what: &str, count: usize) -> Result<(), StoreError> {
        if count <= self.layers {
            return Ok(());
        }
        let message = format!("it has {count} layers, and {} are allowed", self.layers);
        Err(StoreError::unusable(what, message))
    }

    /// The largest uncompressed archive of a layer: its files, and for each entry a header and a partly filled
    /// block, doubled for long names.
    pub(super) fn stream(&self) -> u64 {
        self.entries.saturating_mul(4 * 512).saturating_add(self.bytes).saturating_add(1 << 20)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: Self::BYTES,
            entries: Self::ENTRIES,
            path: Self::PATH,
            description: Self::DESCRIPTION,
            layers: Self::LAYERS,
            patience: Self::PATIENCE,
        }
    }
}
