//! Things that are shown between two cells.

use isolator_runner::wire::session::SHOWN_OVERHEAD;

/// Maximum size of them, in bytes.
const MOST_EARLY: u64 = 1 << 20;

/// Things that threads and timers of earlier cells have shown between two cells. They belong to the next one.
#[derive(Default)]
pub(in crate::session) struct Early {
    /// The forms of each thing.
    pub(in crate::session) things: Vec<Vec<(String, Vec<u8>)>>,
    bytes: u64,
    /// Things for which there was no room.
    pub(in crate::session) dropped: u32,
}

impl Early {
    pub(super) fn add(&mut self, forms: Vec<(String, Vec<u8>)>) {
        let sizes = forms.iter().map(|(_, content)| content.len() as u64 + SHOWN_OVERHEAD);
        let bytes = self.bytes + SHOWN_OVERHEAD + sizes.sum::<u64>();
        if bytes > MOST_EARLY {
            self.dropped = self.dropped.saturating_add(1);
        } else {
            self.bytes = bytes;
            self.things.push(forms);
        }
    }
}
