//! How much an image may be.

/// The most that an image may hold. Layers come from strangers: without bounds a few kilobytes of them
/// fill a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all files of all layers together, also of those that a later layer replaces.
    pub bytes: u64,
    /// Entries of all layers together, with the directories that they need and no entry tells of.
    pub entries: u64,
    /// Bytes of one path, and of where a link leads.
    pub path: usize,
    /// Bytes of a manifest, an index or a configuration.
    pub description: u64,
}

impl Limits {
    /// The largest images of programming languages unpack to less than a tenth of this.
    const BYTES: u64 = 64 << 30;
    /// Ten times what an image with a whole desktop in it has.
    const ENTRIES: u64 = 4 << 20;
    /// What Linux takes as a path (`PATH_MAX`), without the zero at its end.
    const PATH: usize = 4095;
    /// What registries take as a manifest.
    const DESCRIPTION: u64 = 4 << 20;

    /// The most that a layer's archive may be when it is no longer compressed: its files, and for each entry
    /// a header and a block that is partly filled, doubled for long names.
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
        }
    }
}
