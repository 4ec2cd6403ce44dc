//! The things that a cell shows, up to a limit.

use std::fs::File;
use std::io;

use isolator_runner::wire::session::{MAX_SHOWN, SHOWN_OVERHEAD};
use isolator_runner::wire::{Kind, Occasion, Shown};

use crate::frame_writer::FrameWriter;

/// The things that a cell has shown.
pub(super) struct ShownSoFar {
    things: u32,
    /// Bytes that may still be sent.
    left: u64,
    pub(super) dropped: u32,
}

impl ShownSoFar {
    /// None yet. Up to `left` bytes can be sent.
    pub(super) fn new(left: u64) -> Self {
        Self { things: 0, left, dropped: 0 }
    }

    /// Sends those forms of a thing for which there is room.
    pub(super) fn pass_on(
        &mut self,
        occasion: Occasion,
        forms: Vec<(String, Vec<u8>)>,
        to_server: &mut FrameWriter<File>,
    ) -> io::Result<()> {
        let (thing, all) = (self.things, forms.len());
        let mut sent = forms;
        sent.retain(|(_, content)| {
            let size = content.len() as u64 + SHOWN_OVERHEAD;
            let left = self.left.checked_sub(size).filter(|_| thing < MAX_SHOWN);
            self.left = left.unwrap_or(self.left);
            left.is_some()
        });
        self.things += u32::from(!sent.is_empty());
        self.dropped += u32::from(sent.is_empty() || sent.len() < all);
        let last = sent.len().saturating_sub(1);
        for (at, (media_type, content)) in sent.into_iter().enumerate() {
            let (size, is_last) = (content.len() as u64, at == last);
            let shown = Shown { thing, occasion, media_type, size, is_last };
            to_server.queue_message(Kind::Shown, &shown)?;
            to_server.queue(Kind::ShownContent, &content)?;
        }
        Ok(())
    }
}
